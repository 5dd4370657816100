"""Text as a terminal shows it: whole words, whole figures, the same with and without colour."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.report.layout.blocks import Bullets, Commands, Paragraph, Section, Table, columns
from autotune.report.layout.text import columns_of, sections_text, wrapped

WORDS = st.lists(st.text("ab漢é\u0301-.", min_size=1, max_size=30), min_size=1, max_size=12)
TABLE = Table(
    columns("a long title", ">total", "what"),
    (("first", "1.25", "short"), ("second, and longer", "1,234.50", "a text of several words")),
    frozenset({1}),
)
BLOCKS = (
    Paragraph("one two three " * 20, "warn"),
    Bullets(("first " * 30, "second"), "quiet"),
    Commands((("autotune tune job.yaml " * 8, "what it does " * 12),)),
    TABLE,
)


@given(WORDS, st.integers(2, 40))
def test_wrapped_lines_fit_and_hold_every_word(words: list[str], width: int) -> None:
    lines = wrapped(" ".join(words), width)
    assert all(columns_of(line.rstrip()) <= width for line in lines)
    assert "".join(lines).replace(" ", "") == "".join(words)
    if all(columns_of(word) <= width for word in words):
        assert " ".join(lines).split() == words


def test_wide_and_combining_characters_take_their_columns() -> None:
    assert columns_of("ab") == columns_of("漢") == columns_of("e\u0301█") == 2
    assert wrapped("漢字漢字", 5) == ["漢字", "漢字"]
    assert wrapped("a\tb\x07", 80) == ["a       b"]


@pytest.mark.parametrize("width", [40, 80, 120])
def test_colour_changes_no_character(width: int) -> None:
    sections = [Section("Title", BLOCKS)]
    plain = sections_text(sections, width=width)
    coloured = sections_text(sections, width=width, colour=True)
    bare = re.sub(r"\x1b\[[0-9;]*m", "", coloured)
    assert [line.rstrip() for line in bare.splitlines()] == plain.splitlines()
    assert "\x1b[1mTitle\x1b[0m" in coloured
    assert "\x1b" not in plain


def test_a_table_wraps_words_and_cuts_no_figure() -> None:
    lines = sections_text([Section("", (TABLE,))], width=40).splitlines()
    assert max(map(len, lines)) <= 40
    assert {"1.25", "1,234.50"} <= {word for line in lines for word in line.split()}
    assert lines[0].split()[-2:] == ["total", "what"]
    figures = [line.index(word) + len(word) for word in ("1.25", "1,234.50")
               for line in lines if word in line]  # fmt: skip
    assert figures[0] == figures[1]  # on the right


def test_titles_stand_on_what_is_below_them() -> None:
    rows = (("x" * 30, "y " * 30),)
    table = Table(columns("a title of many words, more than fit", "short"), rows)
    lines = sections_text([Section("", (table,))], width=64).splitlines()
    above = next(number for number, line in enumerate(lines) if "x" in line)
    assert "short" in lines[above - 1]

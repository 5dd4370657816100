"""Markdown read back by a parser of CommonMark and of GitHub's tables: text comes out as it was."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt

from autotune.report.layout.blocks import (
    Bullets,
    Column,
    Commands,
    Paragraph,
    Section,
    Table,
    columns,
)
from autotune.report.layout.report import sections_markdown
from autotune.report.payload import recommendation_payload
from autotune.report.sections.answer import TUNE_REPORT

if TYPE_CHECKING:
    from markdown_it.token import Token
    from samples import Samples

GITHUB = MarkdownIt("commonmark").enable(["table", "strikethrough"])
# What a line of text may hold: everything but control characters and line ends.
LINES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp", "Zs")))
TRICKY = st.text("|*_`<>#~&[]()@!\\-+=.1a \n$\"'").map(lambda text: f"a{text}b")
PIECES = {"text", "code_inline"}


def shown(token: Token) -> str:
    """What a reader sees of one inline token."""
    children = token.children or []
    assert {child.type for child in children} <= PIECES | {"strong_open", "strong_close"}
    return "".join(child.content for child in children if child.type in PIECES)


def read(block: Paragraph | Bullets | Table) -> list[str]:
    tokens = GITHUB.parse(sections_markdown([Section("", (block,))]))
    return [shown(token) for token in tokens if token.type == "inline"]


def one_line(text: str) -> str:
    return " ".join(text.splitlines()).strip()


def letters(text: str) -> str:
    """Without what only says that it is code, and the space that is dropped beside it."""
    return text.replace("`", "").replace(" ", "")


@given(st.one_of(TRICKY, LINES.map(lambda text: f"{text}a")))
def test_any_text_is_shown_as_it_is_in_a_cell_a_list_and_a_paragraph(text: str) -> None:
    expected = letters(one_line(text))
    titles = (*columns("what"), Column(title=text))
    table = Table(titles, ((text, "1"), ("2", text)), frozenset({1}))
    shown_cells = ["what", expected, expected, "1", "2", expected]
    assert [letters(cell) for cell in read(table)] == shown_cells
    assert [letters(item) for item in read(Bullets((text, "b")))] == [expected, "b"]
    assert [letters(line) for line in read(Paragraph(text))] == [expected]


@pytest.mark.parametrize(
    "text",
    ["- a", "+ a", "1. a", "12) a", "# a", "> a", "===", "---", "a\n---", "[a]: http://b",
     "[a](http://b)", "![a](http://b)", "~~a~~", "&lt;", "<b>", "a|b", "    a", "|a|b|"],
)  # fmt: skip
def test_markup_in_a_name_is_text(text: str) -> None:
    assert read(Paragraph(text)) == [one_line(text)]
    assert read(Bullets((text,))) == [one_line(text)]


def test_nobody_is_notified_by_a_name_after_an_at_sign() -> None:
    """A name inside code is no mention. Source: GitHub Docs, "Basic writing and formatting"."""
    text = sections_markdown([Section("", (Paragraph("catalogs/vms.csv @2c3d7ea, a@b.c"),))])
    assert text == "catalogs/vms.csv `@2c3d7ea`, a@b.c\n"


def test_what_is_in_backticks_is_code() -> None:
    tokens = GITHUB.parse(sections_markdown([Section("", (Paragraph("run `a --b <c>` now"),))]))
    code = [child.content for token in tokens for child in token.children or []
            if child.type == "code_inline"]  # fmt: skip
    assert code == ["a --b <c>"]


def test_a_command_ends_its_fence_only_where_it_ends() -> None:
    command = "autotune report 'a```b'\nrm -rf c"
    tokens = GITHUB.parse(sections_markdown([Section("", (Commands(((command, "x"),)),))]))
    assert [token.type for token in tokens] == ["fence"]
    assert tokens[0].content == "autotune report 'a```b' rm -rf c  # x\n"


def test_the_whole_report_holds_no_html_and_all_its_tables(samples: Samples) -> None:
    name = "a|b <img src=x> @you\n# c"
    answer = replace(samples.full, job=replace(samples.full.job, name=name), warnings=(name,))
    tokens = GITHUB.parse(TUNE_REPORT.markdown(recommendation_payload(answer)))
    types = [token.type for token in tokens]
    lines = [token.content for token in tokens if token.type == "inline"]
    assert not any("html" in kind for kind in types)
    assert types.count("table_open") >= 5
    assert not any(line.startswith("| ") for line in lines)  # a table that was not read as one

"""How an answer becomes one screen: the least important goes first where it is too long.

What is shown is decided at 80 columns, so that every terminal shows the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.report.layout.text import sections_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.report.layout.blocks import Section

MOST_LINES, COLUMNS = 30, 80
TIGHTEST = 9
ONE_LINE, SHORT = 80, 150  # [characters] of a text that others wrote, such as a warning: two lines


def screen_text(
    compose: Callable[[int], Sequence[Section]], *, width: int = COLUMNS, colour: bool = False
) -> str:
    """The fullest of a report's versions that fits the screen.

    compose: the sections at a tightness from 0 (everything) to `TIGHTEST`.
    """
    sections = _fullest(compose)
    spare = MOST_LINES - _lines(sections, max(width, COLUMNS))
    gaps = _gaps(sections)[: max(spare, 0)]
    return sections_text(sections, width=width, colour=colour, gaps=gaps)


def _fullest(compose: Callable[[int], Sequence[Section]]) -> list[Section]:
    sections: list[Section] = []
    for tight in range(TIGHTEST + 1):
        sections = [section for section in compose(tight) if section.blocks]
        if _lines(sections, COLUMNS) <= MOST_LINES:
            break
    return sections


def _lines(sections: Sequence[Section], width: int) -> int:
    """Lines of a terminal, which breaks those that are too long."""
    text = sections_text(sections, width=width, gaps=())
    return sum(max(1, -(-len(line) // width)) for line in text.splitlines())


def _gaps(sections: Sequence[Section]) -> list[int]:
    """Where an empty line helps, most first: around the answer, before what to type, elsewhere."""
    titled = [number for number, section in enumerate(sections) if section.title and number]
    ends = [titled[0], titled[-1]] if titled else []
    rest = [number for number in range(1, len(sections)) if number not in ends]
    return [*dict.fromkeys(ends), *rest]


def shortened(text: str, length: int = SHORT) -> str:
    """A text of unknown length in at most `length` characters: whole sentences, or whole words."""
    flat = " ".join(text.split())
    if len(flat) <= length:
        return flat
    sentences = flat[: length + 1].rpartition(". ")[0]
    if len(sentences) > length / 3:
        return f"{sentences}."
    return f"{flat[: length - 2].rpartition(' ')[0] or flat[: length - 3]}..."


def fewer(most: int, tight: int, *at: int) -> int:
    """How many of `most` are shown: one less from each tightness in `at` on."""
    return most - sum(tight >= step for step in at)


def shows(tight: int, until: int) -> bool:
    """Whether what goes at tightness `until` is still there."""
    return tight < until

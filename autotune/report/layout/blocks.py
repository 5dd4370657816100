"""What a report is made of, before anybody decides how it looks.

Text and Markdown are two renderings of the same sections, so they always say the same.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Tone = Literal["plain", "strong", "good", "warn", "bad", "quiet"]


@dataclass(frozen=True, slots=True)
class Paragraph:
    """Running text."""

    text: str
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Bullets:
    """Short statements, one a line."""

    items: tuple[str, ...]
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True)
class Commands:
    """Command lines to copy, each with what it does."""

    items: tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under titles. `right` names the columns that hold numbers."""

    titles: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    right: frozenset[int] = frozenset()
    strong_rows: frozenset[int] = frozenset()
    group_rows: frozenset[int] = frozenset()  # rows that only head the rows below them


@dataclass(frozen=True, slots=True)
class Bar:
    """One part of a whole: where it starts and how long it is, both as shares of the scale."""

    name: str
    shown: str
    share: str
    start: float
    length: float
    kind: Literal["part", "total", "free", "over", "count"] = "part"


@dataclass(frozen=True, slots=True)
class Bars:
    """Parts laid end to end: each starts where the one above ends, so they add up to the eye.

    columns: what the numbers of each bar are; in a bar's text, two spaces or more part them.
    """

    bars: tuple[Bar, ...]
    columns: tuple[str, ...] = ("amount",)


Block = Paragraph | Bullets | Commands | Table | Bars


@dataclass(frozen=True, slots=True)
class Section:
    """A heading and what stands under it. The first section of a report has no title."""

    title: str
    blocks: tuple[Block, ...]

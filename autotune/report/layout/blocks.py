"""What a report is made of, before anybody decides how it looks.

Text and Markdown are two renderings of the same sections, so they always say the same.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from autotune.domain.units import format_bytes, format_seconds, format_usd
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

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


# How a person reads a value, by the unit that ends its key.
_BY_UNIT: dict[str, Callable[[float], str]] = {
    "_bytes": format_bytes, "_usd": format_usd, "_s": format_seconds,
}  # fmt: skip


def by_unit(key: str) -> Callable[[Any], str] | None:
    """The format of the unit that a key ends with; None where it ends with none, or a rate."""
    units = (show for unit, show in _BY_UNIT.items() if key.endswith(unit))
    return None if key.endswith("_per_s") else next(units, None)


@dataclass(frozen=True, slots=True)
class Column:
    """One column of a table: its key in JSON and CSV, its title, how a person reads a value.

    Without `show` the unit says how that the key ends with, and puts it on the right. A column
    whose cells come as text needs no key; one without a title is left to JSON and CSV. of: what it
    reads of the thing that a row is of; the attribute of its key, where that is left out.
    """

    key: str = ""
    title: str = ""
    show: Callable[[Any], str] | None = None
    right: bool = False
    of: Callable[[Any], Any] | None = None

    def value(self, item: object) -> object:
        """What stands in its column of the row of that item."""
        return getattr(item, self.key) if self.of is None else self.of(item)

    def cell(self, record: Mapping[str, Any]) -> str:
        """What a person reads of a record; empty where it has no value."""
        value = record[self.key]
        return "" if value is None else (self.show or by_unit(self.key) or str)(value)

    @property
    def is_number(self) -> bool:
        """Whether its cells stand on the right."""
        return self.right or (self.show is None and by_unit(self.key) is not None)


def columns(*titles: str) -> tuple[Column, ...]:
    """Columns whose cells come as text; as in a format, `>` before a title puts it on the right."""
    return tuple(Column(title=title.removeprefix(">"), right=title[:1] == ">") for title in titles)


@dataclass(frozen=True, slots=True)
class Table:
    """Rows of text under columns."""

    columns: tuple[Column, ...]
    rows: tuple[tuple[str, ...], ...]
    strong_rows: frozenset[int] = frozenset()
    group_rows: frozenset[int] = frozenset()  # rows that only head the rows below them

    @property
    def titles(self) -> tuple[str, ...]:
        """The title of each column."""
        return tuple(column.title for column in self.columns)

    @property
    def right(self) -> frozenset[int]:
        """The columns that hold numbers."""
        return frozenset(i for i, column in enumerate(self.columns) if column.is_number)


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


def table(
    rows: Iterable[Sequence[str]],
    *titles: str,
    strong: Collection[int] = (),
    groups: Collection[int] = (),
) -> Table:
    """Rows of text under titles, as `columns` takes them. strong, groups: of the rows, by place."""
    cells = tuple(map(tuple, rows))
    return Table(columns(*titles), cells, frozenset(strong), frozenset(groups))


def bullets(items: Iterable[str], tone: Tone = "plain") -> Bullets:
    """Short statements."""
    return Bullets(tuple(items), tone)


def section(title: str, first: Block, *rest: Block) -> Section:
    """A heading and what of this stands under it; nothing at all where the first holds nothing."""
    kept = tuple(block for block in (first, *rest) if _content(block))
    return Section(title, kept if _content(first) else ())


def _content(block: Block) -> object:
    if isinstance(block, Paragraph):
        return block.text
    if isinstance(block, Table):
        return block.rows
    return block.bars if isinstance(block, Bars) else block.items

"""Lists of like things (devices, models, runs, ...) in every format.

A listing keeps the values in base units for JSON and CSV, and says once per column how a person
reads them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.report.layout.blocks import Block, Paragraph, Section, Table
from autotune.report.layout.csv_rows import rows_csv
from autotune.report.layout.markdown import sections_markdown
from autotune.report.layout.text import sections_text
from autotune.report.payload import dumps
from autotune.report.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


@dataclass(frozen=True, slots=True)
class Column:
    """One column: its key in JSON and CSV, its title, and how a value is shown to people.

    Without a title it is left to JSON and CSV.
    """

    key: str
    title: str = ""
    show: Callable[[Any], str] = str
    right: bool = False


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows under columns; `name` is the key of the rows in JSON."""

    name: str
    columns: tuple[Column, ...]
    rows: tuple[Mapping[str, Any], ...]
    note: str = ""
    empty: str = "nothing to list"


def listing_payload(listing: Listing) -> dict[str, Any]:
    """The rows under the listing's name, every column in base units."""
    keys = [column.key for column in listing.columns]
    rows = [{key: row[key] for key in keys} for row in listing.rows]
    return {"schema_version": SCHEMA_VERSION, listing.name: rows}


def listing_json(listing: Listing) -> str:
    """The listing as JSON."""
    return dumps(listing_payload(listing))


def listing_csv(listing: Listing) -> str:
    """The listing as CSV, with a header even when there are no rows."""
    return rows_csv(listing.rows, [column.key for column in listing.columns])


def listing_sections(listing: Listing) -> list[Section]:
    """The listing for people."""
    if not listing.rows:
        return [Section("", (Paragraph(listing.empty),))]
    titled = [column for column in listing.columns if column.title]
    shown = [c for c in titled if any(_shown(c, row) for row in listing.rows)]
    rows = tuple(tuple(_shown(column, row) for column in shown) for row in listing.rows)
    right = frozenset(i for i, column in enumerate(shown) if column.right)
    blocks: tuple[Block, ...] = (Table(tuple(column.title for column in shown), rows, right),)
    if listing.note:
        blocks += (Paragraph(listing.note, "quiet"),)
    return [Section("", blocks)]


def listing_text(listing: Listing, *, width: int = 80, colour: bool = False) -> str:
    """The listing for a terminal."""
    return sections_text(listing_sections(listing), width=width, colour=colour)


def listing_markdown(listing: Listing) -> str:
    """The listing as a Markdown table."""
    return sections_markdown(listing_sections(listing))


def _shown(column: Column, row: Mapping[str, Any]) -> str:
    value = row[column.key]
    return "" if value is None else column.show(value)

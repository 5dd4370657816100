"""Reading the shipped data files. A broken file is a bug of the package and fails loudly."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

DATA = Path(__file__).parent / "data"


class CatalogDataError(ValueError):
    """A shipped data file does not hold what its schema says."""


def read_rows(path: Path) -> list[dict[str, str]]:
    """Rows of a CSV with a header line; every row must have every column."""
    with path.open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))
    if not rows:
        msg = f"{path.name} is empty"
        raise CatalogDataError(msg)
    header = rows[0]
    found = []
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(header):
            msg = f"{path.name} line {number}: {len(row)} columns, the header has {len(header)}"
            raise CatalogDataError(msg)
        found.append(dict(zip(header, row, strict=True)))
    return found


def number(row: Mapping[str, str], column: str, blank: float | None = None) -> float:
    """A non-negative number of a row; `blank` stands for an empty cell, where one is allowed."""
    text = row[column].strip()
    if not text and blank is not None:
        return blank
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        msg = f"{column} {text!r} of {next(iter(row.values()))} is not a number of at least zero"
        raise CatalogDataError(msg)
    return value


def names(row: Mapping[str, str], *columns: str) -> tuple[str, ...]:
    """Names of the columns, separated by |, without repetitions."""
    found: Iterable[str] = (part.strip() for c in columns for part in row[c].split("|"))
    return tuple(dict.fromkeys(part for part in found if part))

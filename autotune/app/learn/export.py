"""Past runs as rows of the public table, for people who give them back.

A row holds what ran and how fast, and nothing of where: no path, no name of a host, a user, a run
or a data set, and no model's name that is not in the catalogue. What of it was private never became
part of a past run (`described`).
"""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

from autotune.catalog.files import write_whole
from autotune.domain.errors import InputError
from autotune.evidence.record.row import COLUMNS

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.app.learn.learn import Usable


def export_rows(usable: Sequence[Usable], path: Path) -> str:
    """Write the rows and give back where. Raises InputError where the file cannot be written."""
    try:
        write_whole(path, table_of(usable))
    except OSError as error:
        msg = f"{path} cannot be written: {error.strerror or error}"
        raise InputError(msg, "name a file in a folder that exists") from None
    return str(path)


def table_of(usable: Sequence[Usable]) -> str:
    """The rows as text, a header first."""
    stream = io.StringIO()
    writer = csv.DictWriter(stream, COLUMNS, lineterminator="\n")
    writer.writeheader()
    for own in usable:
        row = own.run.row
        writer.writerow({column: _inert(row.text(column)) for column in COLUMNS})
    return stream.getvalue()


def _inert(text: str) -> str:
    """A cell that no spreadsheet takes for a formula."""
    return f"'{text}" if text[:1] in {"=", "+", "@", "\t"} else text

"""Counts of larger data sets, kept under the home folder: the next command reads them there.

A count belongs to the files' sizes, times of change, first and last bytes, to the tokenizer and to
the column. What is kept holds lengths and no text.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections import Counter
from typing import TYPE_CHECKING

from autotune.app.dataset.lengths import Histogram
from autotune.catalog.files import home_dir, write_whole

if TYPE_CHECKING:
    from pathlib import Path

VERSION = 1  # of how rows are counted; another number makes kept counts void
_ENDS = 65_536


def kept_count(key: str | None) -> tuple[Histogram, str] | None:
    """An earlier count of the same rows by the same tokenizer, and its words on the template."""
    if key is None:
        return None
    try:
        content = json.loads(_path(key).read_text(encoding="utf-8"))
        counts = Counter({int(length): int(rows) for length, rows in content["counts"]})
        found = Histogram(
            counts, float(content["row_bytes"]), str(content["source"]), content["basis"],
            float(content["log_sd"]), int(content["all_rows"]),
        )  # fmt: skip
        return found, str(content["template"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def keep_count(key: str | None, found: Histogram, template: str) -> None:
    """Keep a count; a home that cannot be written keeps none."""
    if key is None:
        return
    content = {
        "counts": sorted(found.counts.items()), "row_bytes": found.row_bytes,
        "source": found.source, "basis": found.basis, "log_sd": found.log_sd,
        "all_rows": found.all_rows, "template": template,
    }  # fmt: skip
    path = _path(key)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        write_whole(path, json.dumps(content))


def _path(key: str) -> Path:
    return home_dir() / "datasets" / f"{key}.json"


def key_of(
    files: tuple[Path, ...], identity: str, column: str | None, most_bytes: int
) -> str | None:
    """What a count belongs to; None for files that cannot be read, which their reader will say."""
    made_of: list[object] = [VERSION, identity, column, most_bytes]
    digest = hashlib.blake2b(digest_size=16)
    try:
        for path in files:
            stat = path.stat()
            made_of += [stat.st_size, stat.st_mtime_ns]
            with path.open("rb") as stream:
                digest.update(stream.read(_ENDS))
                stream.seek(max(stat.st_size - _ENDS, 0))
                digest.update(stream.read(_ENDS))
    except OSError:
        return None
    digest.update(json.dumps(made_of).encode())
    return digest.hexdigest()

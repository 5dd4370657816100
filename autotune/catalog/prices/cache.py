"""Prices beside the shipped ones: refreshed ones by provider, and the user's own table.

    $AUTOTUNE_HOME/prices/<provider>.csv   written by `autotune prices refresh`
    $AUTOTUNE_HOME/prices.csv              the user's own; wins over everything but the job file

Whatever lies there is checked before a price of it is used. A file that does not hold is left out
with the reason, and the shipped snapshot stands in for it.
"""

from __future__ import annotations

import os
import re
import stat
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.catalog.files import home_dir
from autotune.catalog.prices.table import Price, read_table
from autotune.catalog.tables import CatalogDataError
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from pathlib import Path

FOLDER, OWN_TABLE = "prices", "prices.csv"
MAX_FILE_BYTES = 5 * 10**6  # a provider's whole catalogue has under 1 MB
MAX_FILES = 100
MAX_TEXT = 300  # characters of one cell
OLDEST = date(2020, 1, 1)
_NAME = re.compile(r"[a-z0-9][a-z0-9_-]{0,40}")

Signature = tuple[tuple[str, int, int], ...]


@dataclass(frozen=True, slots=True, eq=False)
class Cached:
    """Rows that hold, and a sentence about every file that does not. Equal only to itself."""

    prices: tuple[Price, ...] = ()
    refused: tuple[str, ...] = ()


def cache_dir() -> Path:
    """Where refreshed prices lie, one file a provider. Not created here."""
    return home_dir() / FOLDER


def own_table() -> Path:
    """Where the user's own prices lie."""
    return home_dir() / OWN_TABLE


def cached_prices() -> Cached:
    """What lies under $AUTOTUNE_HOME now; read again only when a file has changed."""
    return _read(_signature())


def _signature() -> Signature:
    """Path, size and time of every file that may hold prices."""
    home = str(home_dir())
    try:
        with os.scandir(os.path.join(home, FOLDER)) as entries:  # noqa: PTH118 - as below
            found = sorted(entry.path for entry in entries if entry.name.endswith(".csv"))
    except OSError:
        found = []
    files = []
    for path in [*found[:MAX_FILES], os.path.join(home, OWN_TABLE)]:  # noqa: PTH118 - as below
        try:
            status = os.stat(path)  # noqa: PTH116 - asked before every look-up
        except OSError:
            continue
        regular = stat.S_ISREG(status.st_mode)
        files.append((path, status.st_size if regular else -1, status.st_mtime_ns))
    return tuple(files)


@lru_cache(maxsize=4)
def _read(files: Signature) -> Cached:
    from pathlib import Path

    prices: list[Price] = []
    refused: list[str] = []
    for name, size, _ in files:
        path = Path(name)
        try:
            prices += read_cache_file(path, size)
        except (OSError, CatalogDataError, KeyError, ValueError) as error:
            stands = "prices" if path == own_table() else f"{path.stem}'s prices"
            reason = str(error).replace("\n", " ")[:200]
            refused.append(
                f"{path} is no table of prices and was left out ({reason}): the shipped snapshot "
                f"stands in for {stands}; `autotune prices refresh` writes it anew"
            )
    return Cached(tuple(prices), tuple(refused))


def read_cache_file(
    path: Path, size: int | None = None, provider: str | None = None
) -> list[Price]:
    """The rows of one file. Raises CatalogDataError, OSError, KeyError or ValueError.

    provider: whose prices they must be; left out: the one that the file is named after.
    """
    if size is None:
        size = path.stat().st_size if path.is_file() else -1
    if size < 0 or size > MAX_FILE_BYTES:
        msg = "not a regular file" if size < 0 else f"larger than {MAX_FILE_BYTES // 10**6} MB"
        raise CatalogDataError(msg)
    own = path == own_table()
    whose = provider or path.stem
    if not own and not _NAME.fullmatch(whose):
        msg = "its name is no provider's"
        raise CatalogDataError(msg)
    rows = read_table(path)
    if not rows:
        msg = "it holds no price"
        raise CatalogDataError(msg)
    for row in rows:
        _check(row, None if own else whose)
    return [replace(row, own=own) for row in rows]


def _check(price: Price, provider: str | None) -> None:
    """What a file from a network must satisfy beyond being a table of prices."""
    tomorrow = datetime.now(UTC).date() + timedelta(days=1)
    texts = (price.provider, price.instance, price.region, price.source, price.notes)
    problems = {
        "it is another provider's": provider is not None and price.provider != provider,
        "it is dated in the future": date.fromisoformat(price.as_of) > tomorrow,
        "it is dated before 2020": date.fromisoformat(price.as_of) < OLDEST,
        "a cell is too long or holds control characters": any(
            len(text) > MAX_TEXT or not text.isprintable() for text in texts
        ),
    }
    for problem, present in problems.items():
        if present:
            msg = f"price of {price.instance[:60]!r} ({price.device_name}): {problem}"
            raise CatalogDataError(msg)

"""Rows of price tables: what one says, read from CSV and validated, and the machines it pays.

Kinds of rows, the dependable first: `list` and `page` (what a provider publishes), `marketplace`
(single asks, community hosts, minimum or median offers), `average` (over a provider's offers);
`superseded`, `gpu-without-host` and `broken` rows are kept as records and never chosen.

A row names a machine with its count. Where a provider publishes a price per GPU, the machines
behind it stand in `data/sold_sizes.csv`: four machines of one device are no machine of four.
"""

from __future__ import annotations

import csv
import re
from dataclasses import replace
from datetime import date
from functools import lru_cache
from io import StringIO
from typing import TYPE_CHECKING

from autotune.catalog.devices import load_devices
from autotune.catalog.tables import DATA, CatalogDataError, names, number, read_rows
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

COLUMNS = (
    "provider", "instance", "device", "count", "usd_per_hour", "spot_usd_per_hour", "region",
    "as_of", "date_kind", "kind", "source", "notes",
)  # fmt: skip
LISTED = frozenset({"list", "page"})
INDICATIVE = frozenset({"marketplace", "average"})
KINDS = LISTED | INDICATIVE | {"superseded", "gpu-without-host", "broken"}
MOST_USD_PER_GPU_HOUR = 1000.0
OUTLIER = 5.0  # per-GPU prices beyond this factor of the device's median are flagged
# Outlier rule and validations. Source: the price catalogues' known defects (SkyPilot issues 3615,
# 4914, 9156: prices of zero, swapped columns).
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")


@dataclass(frozen=True, slots=True)
class Price:
    """What an instance with `count` devices costs. usd_per_hour 0.0: no on-demand price known."""

    provider: str
    instance: str
    device_name: str
    count: int
    usd_per_hour: float  # the whole instance, on demand
    spot_usd_per_hour: float | None  # the whole instance, median over zones where several are known
    region: str
    as_of: str  # ISO date
    date_kind: str  # stated | inferred | commit date
    kind: str
    source: str
    notes: str = ""
    suspicious: str = ""  # why the validation distrusts the row; such rows are never the default
    own: bool = False  # from the user's own table, which wins over every other
    scaled_from: int = 0  # devices of the machine that is sold, where that is another; else 0

    def per_gpu(self, *, spot: bool = False) -> float | None:
        """[USD/h] of one device, on demand or spot; None where unknown."""
        total = self.spot_usd_per_hour if spot else self.usd_per_hour
        return total / self.count if total else None


def read_table(path: Path) -> list[Price]:
    """Every row of a CSV. Raises CatalogDataError, OSError or KeyError for one that is not so."""
    return [price_of(row) for row in read_rows(path)]


def price_of(row: Mapping[str, str]) -> Price:
    """One row. Raises CatalogDataError when it cannot be a price."""
    where = f"{row['provider']} {row['instance']} ({row['device']})"
    count = number(row, "count")
    usd, spot = number(row, "usd_per_hour", 0.0), number(row, "spot_usd_per_hour", 0.0) or None
    problems = {
        "its device is not in the catalogue": row["device"] not in load_devices(),
        "count must be a whole number from 1 on": count < 1 or count != int(count),
        "it states no price": not usd and not spot,
        "it costs more than 1000 USD per GPU-hour": usd > MOST_USD_PER_GPU_HOUR * max(count, 1),
        "as_of must be an ISO date": not _is_date(row["as_of"]),
        f"kind must be one of {', '.join(sorted(KINDS))}": row["kind"] not in KINDS,
        "it names no source": not row["source"].strip(),
    }
    for problem, present in problems.items():
        if present:
            msg = f"price of {where}: {problem}"
            raise CatalogDataError(msg)
    suspicious = ""
    if spot and usd and spot > usd:
        spot, suspicious = None, "on-demand below spot: one of the two is in the wrong column"
    elif spot and spot == usd:
        spot = None  # how some lists mark that there is no spot market
    return Price(
        provider=row["provider"],
        instance=row["instance"],
        device_name=row["device"],
        count=int(count),
        usd_per_hour=usd,
        spot_usd_per_hour=spot,
        region=row["region"],
        as_of=row["as_of"],
        date_kind=row["date_kind"],
        kind=row["kind"],
        source=row["source"],
        notes=row["notes"],
        suspicious=suspicious,
    )


def _is_date(text: str) -> bool:
    try:
        return bool(_DATE.fullmatch(text)) and bool(date.fromisoformat(text))
    except ValueError:
        return False


def flag_outliers(prices: Sequence[Price]) -> tuple[Price, ...]:
    """Marks prices beyond five times the median of their device, either way.

    Published prices are compared with published ones, offers of markets with such: a card that only
    hobbyists still rent out costs a tenth of what a cloud lists.
    """
    by_group: dict[tuple[str, bool], list[float]] = {}
    for price in prices:
        each = price.per_gpu()
        if each and price.kind in LISTED | INDICATIVE:
            by_group.setdefault((price.device_name, price.kind in LISTED), []).append(each)
    medians = {group: sorted(found)[len(found) // 2] for group, found in by_group.items()}
    return tuple(_flagged(price, medians) for price in prices)


def _flagged(price: Price, medians: Mapping[tuple[str, bool], float]) -> Price:
    each = price.per_gpu()
    median = medians.get((price.device_name, price.kind in LISTED))
    if not each or not median or median / OUTLIER <= each <= median * OUTLIER:
        return price
    far = f"{each / median:.2g} times the median price of its device"
    return replace(price, suspicious=price.suspicious or far)


def table_text(prices: Iterable[Price]) -> str:
    """Rows as the CSV that `read_table` reads."""
    stream = StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(COLUMNS)
    for price in prices:
        spot = price.spot_usd_per_hour
        writer.writerow((
            price.provider, price.instance, price.device_name, price.count,
            f"{price.usd_per_hour:.6g}" if price.usd_per_hour else "",
            f"{spot:.6g}" if spot else "", price.region, price.as_of, price.date_kind, price.kind,
            price.source, price.notes,
        ))  # fmt: skip
    return stream.getvalue()


ANY_DEVICE = "any"


def sizes_of(price: Price) -> frozenset[int]:
    """Counts of devices in one machine that a row's price can be paid for.

    A row of several devices is one machine, a user's own row is what it says.
    """
    if price.count > 1 or price.own:
        return frozenset({price.count})
    sold = _per_gpu()
    found = sold.get((price.provider, price.device_name)) or sold.get((price.provider, ANY_DEVICE))
    return found or frozenset({price.count})


@lru_cache(maxsize=1)
def documented_sizes() -> dict[str, frozenset[int]]:
    """Device -> counts that the providers' documented instances have, with or without a price."""
    found: dict[str, set[int]] = {}
    for row in read_rows(DATA / "instances.csv"):
        found.setdefault(row["device"], set()).add(int(number(row, "count")))
    return {device: frozenset(counts) for device, counts in found.items()}


@lru_cache(maxsize=1)
def _per_gpu() -> dict[tuple[str, str], frozenset[int]]:
    found = {}
    for row in read_rows(DATA / "sold_sizes.csv"):
        counts = names(row, "counts")
        if not counts or not all(each.isdigit() and int(each) for each in counts):
            msg = f"sold_sizes.csv: {row['provider']} {row['device']} names no counts"
            raise CatalogDataError(msg)
        found[row["provider"], row["device"]] = frozenset(map(int, counts))
    return found

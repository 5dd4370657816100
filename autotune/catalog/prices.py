"""Prices: dated rows of `data/prices.csv` (or a user's file of the same columns), and the default.

Kinds of rows, the dependable first: `list` and `page` (what a provider publishes), `marketplace`
(single asks, community hosts, minimum or median offers), `average` (over a provider's offers);
`superseded`, `gpu-without-host` and `broken` rows are kept as records and never chosen.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from datetime import date, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.catalog.devices import load_devices
from autotune.catalog.tables import DATA, CatalogDataError, number, read_rows
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

COLUMNS = (
    "provider", "instance", "device", "count", "usd_per_hour", "spot_usd_per_hour", "region",
    "as_of", "date_kind", "kind", "source", "notes",
)  # fmt: skip
LISTED = frozenset({"list", "page"})
INDICATIVE = frozenset({"marketplace", "average"})
KINDS = LISTED | INDICATIVE | {"superseded", "gpu-without-host", "broken"}
FRESH = timedelta(days=120)
WITHIN_A_YEAR = timedelta(days=365)
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

    def per_gpu(self, *, spot: bool = False) -> float | None:
        """[USD/h] of one device, on demand or spot; None where unknown."""
        total = self.spot_usd_per_hour if spot else self.usd_per_hour
        return total / self.count if total else None


def load_prices(path: Path | None = None) -> tuple[Price, ...]:
    """All rows of the shipped table, or of a user's CSV with the same columns, validated.

    Raises InputError for a user's file that does not hold; the shipped one fails loudly.
    """
    if path is None:
        return _shipped()
    try:
        return _read(path)
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror or error}"
        raise InputError(msg, "prices are a CSV file") from None
    except (CatalogDataError, UnicodeDecodeError, KeyError) as error:
        msg = f"{path} is no table of prices: {error}"
        raise InputError(msg, f"columns: {', '.join(COLUMNS)}") from None


@lru_cache(maxsize=1)
def _shipped() -> tuple[Price, ...]:
    return _read(DATA / "prices.csv")


def _read(path: Path) -> tuple[Price, ...]:
    return _flag_outliers([_price(row) for row in read_rows(path)])


def _price(row: Mapping[str, str]) -> Price:
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


def _flag_outliers(prices: Sequence[Price]) -> tuple[Price, ...]:
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


def price_for(
    device_name: str, count: int = 1, *, spot: bool = False, max_usd_per_hour: float | None = None
) -> Price | None:
    """The price of `count` devices that stands in where nobody stated one; None if unknown.

    The returned row is scaled to `count`, `source` begins with provider and instance, and for spot
    `usd_per_hour` is the spot price. The choice, ages counted from the table's newest row:
      1. the cheapest published price (list or page) of the last 120 days,
      2. else the cheapest published price of the last year,
      3. else the lower median of marketplace and average rows of the last year,
      4. else the cheapest published, then the median indicative row of any age.
    Of one provider's instance only the newest row counts. Rows that are sold at `count`, or singly,
    come before those that are only sold in another size. Suspicious rows are never chosen, nor is
    a spot price that does not undercut the on-demand price that would be chosen.
    """
    prices = load_prices()
    newest = date.fromisoformat(max(price.as_of for price in prices))
    usable = [
        _scaled(price, count, spot=spot)
        for price in _latest(prices, spot=spot)
        if price.device_name == device_name and not price.suspicious
    ]
    if spot:
        ondemand = price_for(device_name, count)
        usable = [p for p in usable if ondemand is None or p.usd_per_hour < ondemand.usd_per_hour]
    if max_usd_per_hour is not None:
        usable = [price for price in usable if price.usd_per_hour <= max_usd_per_hour]
    for kinds, age, choose in _PREFERENCES:
        found = [p for p in usable if p.kind in kinds and newest - _day(p) <= age]
        if found:
            return choose([p for p in found if not p.notes.startswith(_OTHER_SIZE)] or found)
    return None


_OTHER_SIZE = "sold only by "


def _day(price: Price) -> date:
    return date.fromisoformat(price.as_of)


def _latest(prices: Iterable[Price], *, spot: bool) -> list[Price]:
    """The newest row with a price of each provider's instance, device and region."""
    best: dict[tuple[str, ...], Price] = {}
    for price in prices:
        if price.per_gpu(spot=spot) is None:
            continue
        key = (price.provider, price.instance, price.device_name, str(price.count), price.region)
        if key not in best or price.as_of > best[key].as_of:
            best[key] = price
    return list(best.values())


def _scaled(price: Price, count: int, *, spot: bool) -> Price:
    total = (price.per_gpu(spot=spot) or 0.0) * count
    other_size = f"{_OTHER_SIZE}{price.count}" if price.count not in {1, count} else ""
    offer = f"{price.provider} {price.instance}{' spot' if spot else ''}"
    size = f" ({other_size}, scaled)" if other_size else ""
    return replace(
        price,
        count=count,
        usd_per_hour=total,
        spot_usd_per_hour=total if spot else None,
        source=f"{offer}{size}: {price.source}",
        notes="; ".join(part for part in (other_size, price.notes) if part),
    )


def _cheapest(prices: Sequence[Price]) -> Price:
    """The lowest price; of equal ones the newest."""
    return min(prices, key=lambda p: (p.usd_per_hour, -_day(p).toordinal(), p.provider))


def _median(prices: Sequence[Price]) -> Price:
    ordered = sorted(prices, key=lambda p: (p.usd_per_hour, p.provider, p.instance))
    return ordered[(len(ordered) - 1) // 2]


_PREFERENCES: tuple[tuple[frozenset[str], timedelta, Callable[[Sequence[Price]], Price]], ...] = (
    (LISTED, FRESH, _cheapest),
    (LISTED, WITHIN_A_YEAR, _cheapest),
    (INDICATIVE, WITHIN_A_YEAR, _median),
    (LISTED, timedelta.max, _cheapest),
    (INDICATIVE, timedelta.max, _median),
)

"""The prices that are known, and the one that stands in where nobody stated any.

Known are the dated rows of `data/prices.csv`, those that `autotune prices refresh` fetched, and the
user's own table (`catalog/price_cache.py`). A price in the job file wins over all of them.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.catalog.price_cache import cached_prices
from autotune.catalog.price_table import (
    COLUMNS,
    INDICATIVE,
    KINDS,
    LISTED,
    Price,
    flag_outliers,
    read_table,
)
from autotune.catalog.tables import DATA, CatalogDataError
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from pathlib import Path

    from autotune.catalog.price_cache import Cached

__all__ = [
    "COLUMNS",
    "KINDS",
    "LISTED",
    "Price",
    "age_days",
    "load_prices",
    "price_for",
    "price_of_instance",
    "refused_prices",
]

FRESH = timedelta(days=120)
WITHIN_A_YEAR = timedelta(days=365)


def load_prices(path: Path | None = None) -> tuple[Price, ...]:
    """All rows that are known, or those of a CSV with the same columns, validated.

    A refreshed provider's rows replace its older shipped ones. Raises InputError for a user's file
    that does not hold; the shipped one fails loudly, a cached one is left out
    (`refused_prices` says so).
    """
    if path is None:
        return _known(cached_prices())
    try:
        return flag_outliers(read_table(path))
    except OSError as error:
        msg = f"cannot read {path}: {error.strerror or error}"
        raise InputError(msg, "prices are a CSV file") from None
    except (CatalogDataError, UnicodeDecodeError, KeyError) as error:
        msg = f"{path} is no table of prices: {error}"
        raise InputError(msg, f"columns: {', '.join(COLUMNS)}") from None


def refused_prices() -> tuple[str, ...]:
    """A sentence about every file of prices under $AUTOTUNE_HOME that could not be used."""
    return cached_prices().refused


def age_days(as_of: str) -> int:
    """[days] since a price was seen; 0 for one dated ahead of this clock."""
    return max((datetime.now(UTC).date() - date.fromisoformat(as_of)).days, 0)


@lru_cache(maxsize=4)
def _known(cached: Cached) -> tuple[Price, ...]:
    refreshed: dict[str, str] = {}
    for price in cached.prices:
        if not price.own:
            refreshed[price.provider] = max(price.as_of, refreshed.get(price.provider, ""))
    shipped = [
        price
        for price in read_table(DATA / "prices.csv")
        if price.as_of >= refreshed.get(price.provider, "")
    ]
    return flag_outliers([*shipped, *cached.prices])


def price_for(
    device_name: str, count: int = 1, *, spot: bool = False, max_usd_per_hour: float | None = None
) -> Price | None:
    """The price of `count` devices that stands in where nobody stated one; None if unknown.

    The returned row is scaled to `count`, `source` begins with provider and instance, and for spot
    `usd_per_hour` is the spot price. The user's own table comes first, then, ages counted from the
    newest row:
      1. the cheapest published price (list or page) of the last 120 days,
      2. else the cheapest published price of the last year,
      3. else the lower median of marketplace and average rows of the last year,
      4. else the cheapest published, then the median indicative row of any age.
    Of one provider's instance only the newest row counts. Rows that are sold at `count`, or singly,
    come before those that are only sold in another size. Suspicious rows are never chosen, nor is
    a spot price that does not undercut the on-demand price that would be chosen.
    """
    cached = cached_prices()
    usable = [_scaled(price, count, spot=spot) for price in _offered(cached, device_name, spot)]
    if spot:
        ondemand = price_for(device_name, count)
        usable = [p for p in usable if ondemand is None or p.usd_per_hour < ondemand.usd_per_hour]
    if max_usd_per_hour is not None:
        usable = [price for price in usable if price.usd_per_hour <= max_usd_per_hour]
    own = [price for price in usable if price.own]
    if own:
        return _cheapest([p for p in own if not p.notes.startswith(_OTHER_SIZE)] or own)
    newest = _newest(cached)
    for kinds, age, choose in _PREFERENCES:
        found = [p for p in usable if p.kind in kinds and newest - _day(p) <= age]
        if found:
            return choose([p for p in found if not p.notes.startswith(_OTHER_SIZE)] or found)
    return None


def price_of_instance(
    provider: str, names: Collection[str], *, spot: bool = False
) -> tuple[Price | None, str]:
    """The price of one provider's instance, and why there is none.

    Args:
        provider: As the tables name it.
        names: The instance's, as the tables list them.
        spot: Its spot price.

    The user's own table comes first; of several regions the cheapest. Rows that would never stand
    in for a device (superseded, without the host, suspicious) are no price of the instance either.
    """
    rows = [p for p in _known(cached_prices()) if p.provider == provider and p.instance in names]
    if not rows:
        return None, "the table of prices does not list it"
    priced = _latest(rows, spot=spot)
    if not priced:
        return None, "no spot price of it is known" if spot else "only its spot price is known"
    usable = [p for p in priced if p.kind in LISTED | INDICATIVE and not p.suspicious]
    if not usable:
        why = priced[0].suspicious or priced[0].notes or priced[0].kind
        return None, f"its listed price cannot be used: {why}"
    own = [price for price in usable if price.own]
    best = _cheapest([_scaled(p, p.count, spot=spot) for p in own or usable])
    where = f" in {best.region}" if best.region else ""
    terms = " spot" if spot else ""
    source = f"{provider} {best.instance}{terms}{where}: {_source_of(best)}"
    return replace(best, source=source), ""


def _source_of(price: Price) -> str:
    """Where a scaled row comes from, without the instance that was put before it."""
    return price.source.partition(": ")[2]


_OTHER_SIZE = "sold only by "


def _day(price: Price) -> date:
    return date.fromisoformat(price.as_of)


@lru_cache(maxsize=4)
def _newest(cached: Cached) -> date:
    return date.fromisoformat(max(price.as_of for price in _known(cached)))


@lru_cache(maxsize=1024)
def _offered(cached: Cached, device_name: str, spot: bool) -> tuple[Price, ...]:  # noqa: FBT001
    """The rows of a device that may be chosen."""
    rows = (price for price in _known(cached) if price.device_name == device_name)
    return tuple(price for price in _latest(rows, spot=spot) if not price.suspicious)


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

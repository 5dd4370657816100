"""The prices that are known, and the one that stands in where nobody stated any.

Known are the dated rows of `data/prices.csv`, those that `autotune prices refresh` fetched, and the
user's own table (`cache`). A price in the job file wins over all of them.
"""

from __future__ import annotations

import math
from dataclasses import replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.catalog.prices.cache import cached_prices
from autotune.catalog.prices.table import (
    COLUMNS,
    INDICATIVE,
    KINDS,
    LISTED,
    Price,
    documented_sizes,
    flag_outliers,
    read_table,
    sizes_of,
)
from autotune.catalog.tables import DATA, CatalogDataError
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence
    from pathlib import Path

    from autotune.catalog.prices.cache import Cached

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
    "sold_counts",
    "sold_devices",
    "today",
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


def today() -> date:
    """The day from which the age of a price is counted (UTC). The tests keep it still."""
    return datetime.now(UTC).date()


def age_days(as_of: str) -> int:
    """[days] since a price was seen; 0 for one dated ahead of this clock."""
    return max((today() - date.fromisoformat(as_of)).days, 0)


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


def price_for(device_name: str, count: int = 1, *, spot: bool = False) -> Price | None:
    """The price of a machine with `count` devices, where nobody stated one; None if unknown.

    `source` begins with provider and instance, and for spot `usd_per_hour` is the spot price. The
    user's own table comes first, then machines that somebody sells with so many devices, ages
    counted from the newest row:
      1. the cheapest published price (list or page) of the last 120 days,
      2. else the cheapest published price of the last year,
      3. else the lower median of marketplace and average rows of the last year,
      4. else the cheapest published, then the median indicative row of any age.
    Where nobody sells so many, the share of the next larger machine, or of the largest one where a
    provider documents one of that size without a price: `scaled_from` says so. Of one provider's
    instance only the newest row counts. Suspicious rows are never chosen, nor is a spot price that
    does not undercut the on-demand price that would be chosen.
    """
    cached = cached_prices()
    rows = _offered(cached, device_name, spot)
    ondemand = price_for(device_name, count) if spot else None
    most = math.inf if ondemand is None else ondemand.usd_per_hour

    def usable(rows: Iterable[Price]) -> list[Price]:
        scaled = (_scaled(price, count, spot=spot) for price in rows)
        return [price for price in scaled if price.usd_per_hour < most]

    own = usable(price for price in rows if price.own)
    if own:
        return _cheapest([price for price in own if not price.scaled_from] or own)
    sold = usable(price for price in rows if count in sizes_of(price))
    return _preferred(cached, sold) or _preferred(
        cached, _share_of(usable(rows), device_name, count)
    )


def sold_counts(
    device_name: str, *, spot: bool = False, within: timedelta = timedelta.max
) -> tuple[int, ...]:
    """How many of a device one machine has that somebody sells at a price that is known.

    within: the age of a price, counted from the newest row.
    """
    cached = cached_prices()
    rows = [p for p in _offered(cached, device_name, spot) if _newest(cached) - _day(p) <= within]
    return tuple(sorted({size for price in rows for size in sizes_of(price)}))


def sold_devices() -> frozenset[str]:
    """The names of the devices that somebody sells at an on-demand price that is known."""
    return _sold(cached_prices())


@lru_cache(maxsize=4)
def _sold(cached: Cached) -> frozenset[str]:
    names = {price.device_name for price in _known(cached)}
    return frozenset(name for name in names if _offered(cached, name, spot=False))


def _preferred(cached: Cached, prices: Sequence[Price]) -> Price | None:
    """The dependable and fresh rows first."""
    newest = _newest(cached)
    for kinds, age, choose in _PREFERENCES:
        found = [p for p in prices if p.kind in kinds and newest - _day(p) <= age]
        if found:
            return choose(found)
    return None


def _share_of(prices: Sequence[Price], device_name: str, count: int) -> list[Price]:
    """Rows to scale from: of the next larger machine; of the largest, where one is documented."""
    larger = [price for price in prices if price.scaled_from > count]
    if larger:
        nearest = min(price.scaled_from for price in larger)
        return [price for price in larger if price.scaled_from == nearest]
    if max(documented_sizes().get(device_name, {0})) < count:
        return []
    largest = max((price.scaled_from for price in prices), default=0)
    return [price for price in prices if price.scaled_from == largest]


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
    told = best.source.partition(": ")[2]  # without the instance that was put before it
    source = f"{provider} {best.instance}{terms}{where}: {told}"
    return replace(best, source=source), ""


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
    """A row as the price of `count` devices: of a machine with so many, or a share of one."""
    total = (price.per_gpu(spot=spot) or 0.0) * count
    sizes = sizes_of(price)
    sold = 0 if count in sizes else min((s for s in sizes if s > count), default=max(sizes))
    offer = f"{price.provider} {price.instance}{' spot' if spot else ''}"
    size = f" (sold by {sold}, scaled)" if sold else ""
    return replace(
        price,
        count=count,
        usd_per_hour=total,
        spot_usd_per_hour=total if spot else None,
        source=f"{offer}{size}: {price.source}",
        scaled_from=sold,
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

"""How many devices one rented machine has: what somebody sells, and what nobody does.

A row of prices names a machine with its count. Where a provider publishes a price per GPU, the
machines behind it stand in `data/sold_sizes.csv`. Four machines of one device are no machine of
four.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.catalog.tables import DATA, CatalogDataError, names, number, read_rows

if TYPE_CHECKING:
    from autotune.catalog.prices.table import Price

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

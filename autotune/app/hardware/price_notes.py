"""What is to be said of the prices of a job: how old they are, and which are shares of others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.catalog.prices.prices import refused_prices
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.device import OLD_DAYS
from autotune.domain.units import format_age, format_usd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.device import Offer
    from autotune.domain.job import Job

OLDEST = 3  # prices that are named, of many


def price_notes(job: Job) -> list[str]:
    """Warnings for shares of machines and refused files of prices, and one for all old prices."""
    oldest: dict[str, Offer] = {}
    for offer in job.offers:
        if (offer.price_age_days or 0) > OLD_DAYS:
            oldest.setdefault(offer.device.name, offer)
    notes = [*refused_prices()] if any(offer.price_as_of for offer in job.offers) else []
    notes += [
        Decisive(
            f"no known provider rents {offer.per_node}x {offer.device.name} as one machine: "
            f"{format_usd(offer.usd_per_hour)}/h is its share of one with "
            f"{offer.price_scaled_from} ({offer.price_source.partition(' (')[0]}); state yours "
            "with --price"
        )
        for offer in job.offers
        if offer.price_scaled_from
    ]
    by_age = sorted(oldest.values(), key=lambda o: (-(o.price_age_days or 0), o.device.name))
    if by_age:
        notes.append(Decisive(_old(by_age)))
    return notes


def _old(by_age: Sequence[Offer]) -> str:
    """One sentence for all old prices, the oldest first: what to do, then which."""
    ages = [format_age(offer.price_age_days or 0) for offer in by_age]
    if len(by_age) == 1:
        return (
            f"`autotune prices refresh` renews the old price of {by_age[0].device.name}; or state "
            f"yours with --price ({ages[0]} old: {by_age[0].price_source})"
        )
    named = [f"{o.device.name} {age}" for o, age in zip(by_age[:OLDEST], ages, strict=False)]
    named += [f"{len(by_age) - OLDEST} more"] * (len(by_age) > OLDEST)
    return (
        f"{len(by_age)} prices are more than {OLD_DAYS} days old, the oldest {ages[0]}: `autotune "
        "prices refresh` renews them, or state yours with --gpu NAME@PRICE "
        f"({', '.join(named)})"
    )

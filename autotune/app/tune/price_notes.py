"""What a reader must know about the prices of an answer: how old, and whose were refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.catalog.prices.prices import refused_prices
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.device import OLD_DAYS
from autotune.domain.units import format_usd

if TYPE_CHECKING:
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

NAMED = 3  # old prices that get a sentence of their own


def price_notes(job: Job) -> list[str]:
    """Warnings for shares of machines and old prices, and one for each refused file of prices."""
    oldest: dict[str, Offer] = {}
    for offer in job.offers:
        if (offer.price_age_days or 0) > OLD_DAYS:
            oldest.setdefault(offer.device.name, offer)
    notes = [*refused_prices()] if any(offer.price_as_of for offer in job.offers) else []
    notes += [
        Decisive(
            f"nobody in the table of prices sells {offer.count}x {offer.device.name} in one "
            f"machine: {format_usd(offer.usd_per_hour)}/h is its share of one with "
            f"{offer.price_scaled_from} ({offer.price_source.partition(' (')[0]}); state your own "
            "with --price"
        )
        for offer in job.offers
        if offer.price_scaled_from
    ]
    if len(oldest) <= NAMED:
        return notes + [
            Decisive(
                f"the price of {offer.label} is {offer.price_age_days} days old: the ranking may "
                "have changed; state your own with --price, or `autotune prices refresh` "
                f"({offer.price_source})"
            )
            for offer in oldest.values()
        ]
    by_age = sorted(oldest.values(), key=lambda o: (-(o.price_age_days or 0), o.device.name))
    named = ", ".join(f"{offer.device.name} {offer.price_age_days} days" for offer in by_age)
    many = (
        f"{len(by_age)} prices are older than {OLD_DAYS} days: the ranking may have changed; state "
        f"your own with --gpu NAME:N@PRICE, or `autotune prices refresh` ({named})"
    )
    return [*notes, Decisive(many)]

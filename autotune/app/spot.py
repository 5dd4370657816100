"""A spot offer against the same machine on demand: how often may it be taken back?"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.catalog.prices import price_for
from autotune.cost.model import CostModel
from autotune.domain.candidates import CLOSED_FORM, Candidates
from autotune.domain.comparison import SpotTerms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.calibration import Calibration
    from autotune.domain.comparison import Compared
    from autotune.domain.config import Config
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated

LEAST_PER_HOUR, MOST_PER_HOUR = 1e-5, 60.0  # once in eleven years, once a minute
POINTS, ROUNDS = 65, 3
HOURS_PER_DAY = 24.0


def spot_terms(rows: Sequence[Compared], job: Job, calibration: Calibration) -> list[Compared]:
    """The rows, those of spot offers with their break-even against on demand."""
    return [
        replace(found, spot=_terms(found.row, rows, job, calibration))
        if found.row.offer.spot
        else found
        for found in rows
    ]


def _terms(
    row: Estimated, rows: Sequence[Compared], job: Job, calibration: Calibration
) -> SpotTerms | None:
    """None where the machine's price on demand is not known."""
    usd = _on_demand_usd(row, rows, job, calibration)
    if usd is None:
        return None
    rate = break_even_per_hour(job, calibration, row, usd)
    return SpotTerms(
        interruptions_per_day=row.offer.interruptions_per_hour * HOURS_PER_DAY,
        on_demand_usd=usd,
        break_even_per_day=None if rate is None else rate * HOURS_PER_DAY,
    )


def _on_demand_usd(
    row: Estimated, rows: Sequence[Compared], job: Job, calibration: Calibration
) -> float | None:
    """[USD] of the same machine on demand: its own row, else the same config at the list price."""
    offer = row.offer
    for other in rows:
        mine = other.row.offer
        if (mine.device.name, mine.count, mine.spot) == (offer.device.name, offer.count, False):
            return other.row.cost_usd.p50
    price = price_for(offer.device.name, offer.count)
    if price is None:
        return None
    held = replace(offer, spot=False, interruptions_per_hour=0.0, usd_per_hour=price.usd_per_hour)
    pair = (held, _config(row, job))
    return float(CostModel(job, calibration).price(Candidates.of([pair])).cost_usd[0])


def _config(row: Estimated, job: Job) -> Config:
    """The row's config with its save interval left to the closed form, unless it is locked."""
    free = {
        name: CLOSED_FORM
        for name in ("checkpoint_every_steps", "save_total_limit")
        if name not in job.lock
    }
    return row.config.with_knobs(**free)


def break_even_per_hour(
    job: Job, calibration: Calibration, row: Estimated, usd: float
) -> float | None:
    """[1/h] interruptions at which the spot offer costs `usd`; None where it never does.

    0 where it costs as much even uninterrupted. The bill grows with the rate, so the crossing is
    bracketed on a grid of rates and the grid narrowed.
    """
    low, high = LEAST_PER_HOUR, MOST_PER_HOUR
    model, config = CostModel(job, calibration), _config(row, job)
    for _ in range(ROUNDS):
        rates = np.geomspace(low, high, POINTS)
        offers = [replace(row.offer, interruptions_per_hour=float(rate)) for rate in rates]
        costs = model.price(Candidates.of([(offer, config) for offer in offers])).cost_usd
        above = np.flatnonzero(costs >= usd)
        if not len(above):
            return None
        first = int(above[0])
        if first == 0:
            return 0.0 if low <= LEAST_PER_HOUR else low
        low, high = float(rates[first - 1]), float(rates[first])
    return math.sqrt(low * high)

"""A spot offer against the same machine on demand: how often may it be taken back?

Both sides are at their best config, which need not be the same: where a machine is taken back
often, saving more and compiling less pays.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.catalog.prices.prices import price_for
from autotune.domain.answer.comparison import SpotTerms
from autotune.domain.candidates import CLOSED_FORM, OFFER, Candidates
from autotune.domain.units import HOURS_PER_DAY
from autotune.frozen import dataclass
from autotune.pricing import Pricing
from autotune.search.alternatives import bill_of_offer
from autotune.search.selection import best_index

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from autotune.cost.bill import Bill
    from autotune.cost.columns import FloatArray
    from autotune.domain.answer.comparison import Compared
    from autotune.domain.config import Config
    from autotune.domain.device import Network, Offer
    from autotune.domain.job import Job
    from autotune.domain.observation import Calibration
    from autotune.domain.outcome import Estimated
    from autotune.search.selection import Objective

LEAST_PER_HOUR, MOST_PER_HOUR = 1e-5, 60.0  # once in eleven years, once a minute
KEPT = 9  # rates over the whole range at which the best config is kept
POINTS, ROUNDS = 65, 3


def spot_terms(
    rows: Sequence[Compared],
    bills: Mapping[Offer, Bill],
    calibration: Calibration,
    objective: Objective = "cost",
) -> list[Compared]:
    """The rows, those of spot offers with their break-even against on demand.

    bills: every candidate of each row's offer.
    """
    on_demand = {
        _machine(row.row.offer): row.row.cost_usd.p50
        for row in reversed(rows)
        if not row.row.offer.spot
    }
    found = []
    for row in rows:
        offer = row.row.offer
        if offer.spot:
            rivals = _Rivals(bills[offer], calibration, objective)
            own = on_demand.get(_machine(offer))
            usd = rivals.on_demand_usd(offer) if own is None else own
            found.append(row if usd is None else replace(row, spot=rivals.terms(row.row, usd)))
        else:
            found.append(row)
    return found


def _machine(offer: Offer) -> tuple[str, int, Network | None]:
    return offer.device.name, offer.count, offer.network


@dataclass(frozen=True, slots=True)
class _Rivals:
    """The candidates of one spot offer, priced at other rates of interruption and on demand."""

    bill: Bill
    calibration: Calibration
    objective: Objective

    def on_demand_usd(self, offer: Offer) -> float | None:
        """[USD] of the best config at the list price on demand; None where none is known."""
        price = price_for(offer.device.name, offer.per_node)
        if price is None:
            return None
        usd = offer.nodes * price.usd_per_hour
        held = replace(offer, spot=False, interruptions_per_hour=0.0, usd_per_hour=usd)
        return next((row.cost_usd.p50 for row in self._best([held])), None)

    def terms(self, row: Estimated, on_demand_usd: float) -> SpotTerms:
        """Its rate of interruptions, and the one at which both cost the same."""
        rate = self.break_even_per_hour(row, on_demand_usd)
        return SpotTerms(
            interruptions_per_day=row.offer.interruptions_per_hour * HOURS_PER_DAY,
            on_demand_usd=on_demand_usd,
            break_even_per_day=None if rate is None else rate * HOURS_PER_DAY,
        )

    def break_even_per_hour(self, row: Estimated, usd: float) -> float | None:
        """[1/h] interruptions at which the spot offer costs `usd`; None where it never does.

        0 where it costs as much even uninterrupted. The bill grows with the rate, so the crossing
        is bracketed on a grid of rates and the grid narrowed.
        """
        rates = np.geomspace(LEAST_PER_HOUR, MOST_PER_HOUR, KEPT)
        best = self._best([_taken_back(row.offer, float(rate)) for rate in rates])
        configs = list(dict.fromkeys(_config(one, self.bill.job) for one in (row, *best)))
        low, high = LEAST_PER_HOUR, MOST_PER_HOUR
        for _ in range(ROUNDS):
            rates = np.geomspace(low, high, POINTS)
            above = np.flatnonzero(self._least_usd(row.offer, configs, rates) >= usd)
            if not len(above):
                return None
            first = int(above[0])
            if first == 0:
                return 0.0 if low <= LEAST_PER_HOUR else low
            low, high = float(rates[first - 1]), float(rates[first])
        return math.sqrt(low * high)

    def _least_usd(self, offer: Offer, configs: Sequence[Config], rates: FloatArray) -> FloatArray:
        """[rates] USD of the cheapest of the configs at each rate."""
        offers = [_taken_back(offer, float(rate)) for rate in rates]
        few = Candidates.of([(offer, config) for config in configs])
        pricing = Pricing(self.bill.job, self.calibration)
        costs: FloatArray = pricing.bill(_on_each(few, offers)).cost_usd
        least: FloatArray = costs.reshape(len(rates), len(configs)).min(axis=1)
        return least

    def _best(self, offers: Sequence[Offer]) -> Iterator[Estimated]:
        """The best candidate on each of the offers, which differ in their terms alone."""
        job = replace(self.bill.job, offers=tuple(offers))
        candidates = _on_each(self.bill.candidates, offers)
        bill = Pricing(job, self.calibration).bill(candidates)
        for number in range(len(offers)):
            part = bill_of_offer(bill, number)
            index = best_index(part, self.objective, job.limits).index
            if index is not None:
                yield part.estimate(index)


def _on_each(candidates: Candidates, offers: Sequence[Offer]) -> Candidates:
    """The candidates of one offer on each of several, offer after offer."""
    codes = {axis: np.tile(column, len(offers)) for axis, column in candidates.codes.items()}
    codes[OFFER] = np.repeat(np.arange(len(offers), dtype=np.int32), len(candidates))
    return Candidates({**candidates.levels, OFFER: tuple(offers)}, codes)


def _taken_back(offer: Offer, per_hour: float) -> Offer:
    return replace(offer, interruptions_per_hour=per_hour)


def _config(row: Estimated, job: Job) -> Config:
    """The row's config with its save interval left to the closed form, unless it is locked."""
    free = {
        name: CLOSED_FORM
        for name in ("checkpoint_every_steps", "save_total_limit")
        if name not in job.lock
    }
    return row.config.with_knobs(**free)

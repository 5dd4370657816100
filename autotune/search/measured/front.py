"""The front of dollars and hours, probed at its corners and its knee behind a search.

A job without a deadline has no single answer: each point of the front is best for somebody. A
search finds the cheapest candidate, or the soonest. Where machines have several prices, the other
corner follows, and the knee between them, where one per cent of cost is given for one per cent of
time. Each of these aims is an ordinary calibrated search over the same measurements. The next probe
is that of the aim that promises most, if it is worth its price.

Source: weighted sums in logarithms: Miettinen, "Nonlinear Multiobjective Optimization" (1999),
section 3.1, which reaches the convex part of a front; derived: in logs the weights are exchange
rates of relative changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.candidates import OFFER
from autotune.domain.errors import InputError
from autotune.domain.job import CONFIDENCE
from autotune.search.priced import Limited
from autotune.search.study.calibrated import CalibratedSampler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray
    from optuna.distributions import BaseDistribution
    from optuna.study import Study

    from autotune.cost.bill import Bill
    from autotune.cost.columns import FloatArray
    from autotune.search.axes import ParameterSpace
    from autotune.search.posterior.kernel import Observed
    from autotune.search.posterior.stopping import ProbeBudget
    from autotune.search.priced import Part, Priced
    from autotune.search.selection import Objective

    Indices = NDArray[np.intp]

CHEAPEST, SOONEST, KNEE = 0.0, 1.0, 0.5
LEAST_GAIN = 0.01  # of an aim: candidates closer than this are a tie


class Blend:
    """A `Priced` whose objective is cost^(1 - weight) x time^weight."""

    def __init__(self, cost: Priced, time: Priced, weight: float) -> None:
        """cost, time: the same candidates under either objective, alike in all but what is least.

        weight: the share of time; 0 looks for the cheapest, 1 for the soonest.
        """
        if len(cost) != len(time) or cost.identity != time.identity:
            msg = "the two objectives are of different candidates"
            raise InputError(msg, "price the same candidates in dollars and in seconds")
        self._cost, self._time, self.weight = cost, time, weight
        self.identity, self.limit, self.grows = cost.identity, cost.limit, cost.grows
        self.params, self.find = cost.params, cost.find
        self.neighbours, self.plainness = cost.neighbours, cost.plainness

    def __len__(self) -> int:
        return len(self._cost)

    @property
    def parts(self) -> Sequence[Part]:
        """Parts are measured alike whatever is minimised; built when they are asked for."""
        return self._cost.parts

    def totals(self, factors: Mapping[str, FloatArray], at: Indices) -> FloatArray:
        """The blend of both objectives."""
        if self.weight == CHEAPEST:
            return self._cost.totals(factors, at)
        time = self._time.totals(factors, at)
        if self.weight == SOONEST:
            return time
        cost = self._cost.totals(factors, at)
        found: FloatArray = cost ** (1.0 - self.weight) * time**self.weight
        return found

    @property
    def confidence(self) -> float:
        """As for either objective."""
        return self._cost.confidence if isinstance(self._cost, Limited) else CONFIDENCE

    def excesses(self, factors: Mapping[str, FloatArray], at: Indices) -> dict[str, FloatArray]:
        """The job's limits, if it has any."""
        return self._cost.excesses(factors, at) if isinstance(self._cost, Limited) else {}

    def order(self) -> Iterator[int]:
        """The order of the nearer objective."""
        return (self._time if self.weight > KNEE else self._cost).order()


class Front:
    """The aims of a front, each a sampler of its own over the measurements of all."""

    def __init__(
        self,
        cost: Priced,
        time: Priced,
        distributions: Mapping[str, BaseDistribution],
        *,
        weights: Sequence[float] = (CHEAPEST, SOONEST, KNEE),
        prior: Mapping[str, Sequence[Observed]] | None = None,
    ) -> None:
        """weights: the share of time in each aim; 0 the cheapest, 1 the soonest."""
        self.aims = {
            weight: CalibratedSampler(Blend(cost, time, weight), distributions, prior=prior)
            for weight in weights
        }
        self._in_unit = {"usd": cost, "s": time}

    def next_aim(
        self, study: Study, budget_of: Callable[[int], ProbeBudget]
    ) -> CalibratedSampler | None:
        """The aim whose next probe promises most; None when none is worth its price.

        Worth it: an expected gain of 1 % of that aim, and of as much of the bill of the aim's own
        candidate as the probe costs. budget_of: what probing a candidate costs.
        """
        worth: dict[float, float] = {}
        for weight, aim in self.aims.items():
            posterior = aim.posterior(study)
            proposal = aim.proposal(posterior)
            if proposal is None or posterior.incumbent is None or proposal.best_gain < LEAST_GAIN:
                continue
            budget = budget_of(proposal.index)
            at = np.asarray([posterior.incumbent])
            bill = float(posterior.expected(self._in_unit[budget.unit], at)[0])
            if not budget.exceeded and (
                budget.free or proposal.best_gain * bill >= budget.next_cost
            ):
                worth[weight] = proposal.best_gain
        best = max(worth, key=lambda weight: worth[weight], default=None)
        return None if best is None else self.aims[best]


def front_behind(
    bill: Bill,
    space: ParameterSpace,
    objective: Objective,
    distributions: Mapping[str, BaseDistribution],
    prior: Mapping[str, Sequence[Observed]],
) -> Front | None:
    """For the aims that a search for the cheapest or the soonest leaves: the other, and the knee.

    None where all machines have one price: the cheapest is the soonest there.
    """
    from autotune.search.billed import BilledCandidates

    candidates = bill.candidates
    used = [candidates.levels[OFFER][code] for code in np.unique(candidates.codes[OFFER])]
    if len({offer.usd_per_hour for offer in used}) < 2:  # noqa: PLR2004 - a front needs two
        return None
    cost, time = BilledCandidates(bill, space, "cost"), BilledCandidates(bill, space, "time")
    weights = (SOONEST if objective == "cost" else CHEAPEST, KNEE)
    return Front(cost, time, distributions, weights=weights, prior=prior)

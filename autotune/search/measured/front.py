"""The front of dollars and hours, probed at its corners and its knee.

A job without a deadline has no single answer: each point of the front is best for somebody. Probes
go in turn to the cheapest candidate, to the soonest, and to the knee between them, where one per
cent of cost is given for one per cent of time. Each is an ordinary calibrated search over the same
measurements; what one learns, all know. Behind a search for the cheapest or the soonest alone, the
other aims are asked which of them has a probe that is worth its price (`next_aim`).

Source: weighted sums in logarithms: Miettinen, "Nonlinear Multiobjective Optimization" (1999),
section 3.1, which reaches the convex part of a front; derived: in logs the weights are exchange
rates of relative changes.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.samplers import BaseSampler

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
    from optuna.trial import FrozenTrial

    from autotune.cost.bill import Bill
    from autotune.cost.columns import FloatArray
    from autotune.search.axes import ParameterSpace
    from autotune.search.posterior.acquisition import Posterior
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
        """cost, time: the same candidates under either objective."""
        if len(cost) != len(time) or cost.identity != time.identity:
            msg = "the two objectives are of different candidates"
            raise InputError(msg, "price the same candidates in dollars and in seconds")
        self._cost, self._time, self.weight = cost, time, weight

    def __len__(self) -> int:
        return len(self._cost)

    @property
    def identity(self) -> str:
        """Measurements serve every weight."""
        return self._cost.identity

    @property
    def parts(self) -> Sequence[Part]:
        """Parts are measured alike whatever is minimised."""
        return self._cost.parts

    @property
    def limit(self) -> FloatArray:
        """[n] of memory."""
        return self._cost.limit

    @property
    def grows(self) -> Sequence[str]:
        """As for either objective."""
        return self._cost.grows

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

    def params(self, index: int) -> dict[str, Any]:
        """The parameters of a candidate."""
        return self._cost.params(index)

    def find(self, params: Mapping[str, Any]) -> int | None:
        """The candidate with those parameters."""
        return self._cost.find(params)

    def order(self) -> Iterator[int]:
        """The order of the nearer objective."""
        return (self._time if self.weight > KNEE else self._cost).order()

    def neighbours(self, index: int) -> Sequence[int]:
        """One knob changed."""
        return self._cost.neighbours(index)

    def plainness(self, indices: Sequence[int]) -> Sequence[tuple[float, ...]]:
        """As for either objective."""
        return self._cost.plainness(indices)


class FrontSampler(BaseSampler):
    """Proposes for every aim in turn, over the measurements of all."""

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
        if not weights or any(not 0.0 <= weight <= 1.0 for weight in weights):
            msg = f"weights of time are {list(weights)}; each must be between 0 and 1"
            raise InputError(msg)
        self._aims = {
            weight: CalibratedSampler(Blend(cost, time, weight), distributions, prior=prior)
            for weight in weights
        }
        self._two = [Blend(cost, time, weight) for weight in (CHEAPEST, SOONEST)]
        self._turns: dict[int, CalibratedSampler] = {}

    def infer_relative_search_space(
        self, study: Study, trial: FrozenTrial
    ) -> dict[str, BaseDistribution]:
        """All parameters."""
        return self._aim(study, trial).infer_relative_search_space(study, trial)

    def sample_relative(
        self, study: Study, trial: FrozenTrial, search_space: dict[str, BaseDistribution]
    ) -> dict[str, Any]:
        """The next candidate of the aim whose turn it is."""
        return self._aim(study, trial).sample_relative(study, trial, search_space)

    def sample_independent(
        self,
        study: Study,
        trial: FrozenTrial,
        param_name: str,
        param_distribution: BaseDistribution,
    ) -> Any:  # noqa: ANN401 - Optuna's signature
        """One parameter of the candidate that the trial was promised."""
        aim = self._aim(study, trial)
        return aim.sample_independent(study, trial, param_name, param_distribution)

    def _aim(self, study: Study, trial: FrozenTrial) -> CalibratedSampler:
        """By the number of probes before, so that a resumed study goes on in turn."""
        if trial.number not in self._turns:
            first = next(iter(self._aims.values()))
            before = [t for t in study.get_trials(deepcopy=False) if t.number != trial.number]
            turn = len(first.history(study, before).tried) % len(self._aims)
            self._turns[trial.number] = list(self._aims.values())[turn]
        return self._turns[trial.number]

    def next_aim(
        self, study: Study, budget_of: Callable[[int], ProbeBudget]
    ) -> CalibratedSampler | None:
        """The aim whose next probe promises most; None when none is worth its price.

        Worth it: an expected gain of 1 % of that aim, and of as much of the bill of the aim's own
        candidate as the probe costs. budget_of: what probing a candidate costs.
        """
        worth: dict[float, float] = {}
        for weight, posterior in self.posteriors(study).items():
            proposal = self._aims[weight].proposal(posterior)
            if proposal is None or posterior.incumbent is None or proposal.best_gain < LEAST_GAIN:
                continue
            budget = budget_of(proposal.index)
            unit = self._two[0] if budget.unit == "usd" else self._two[1]
            bill = float(posterior.expected(unit, np.asarray([posterior.incumbent]))[0])
            if not budget.exceeded and (
                budget.free or proposal.best_gain * bill >= budget.next_cost
            ):
                worth[weight] = proposal.best_gain
        best = max(worth, key=lambda weight: worth[weight], default=None)
        return None if best is None else self._aims[best]

    def posteriors(self, study: Study) -> dict[float, Posterior]:
        """What the measurements say of each aim, by its weight of time."""
        return {weight: aim.posterior(study) for weight, aim in self._aims.items()}

    def picks(self, study: Study) -> dict[float, int | None]:
        """The recommendation of each aim, by its weight of time."""
        return {weight: posterior.pick() for weight, posterior in self.posteriors(study).items()}

    def front(self, study: Study) -> list[int]:
        """Measured, fitting candidates that no other beats in both, the soonest first."""
        posterior = next(iter(self._aims.values())).posterior(study)
        at = np.asarray(posterior.fitting, np.intp)
        cost, time = (posterior.expected(blend, at) for blend in self._two)
        found: list[int] = []
        least = np.inf
        for k in np.lexsort([at, cost, time]):
            if cost[k] < least:
                least = float(cost[k])
                found.append(int(at[k]))
        return found


def front_behind(
    bill: Bill,
    space: ParameterSpace,
    objective: Objective,
    distributions: Mapping[str, BaseDistribution],
    prior: Mapping[str, Sequence[Observed]],
) -> FrontSampler | None:
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
    return FrontSampler(cost, time, distributions, weights=weights, prior=prior)

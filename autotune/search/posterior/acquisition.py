"""Which candidate to probe next, from the residuals of every part.

Expected improvement of the *difference to the incumbent* x the probability of fitting and of
keeping the job's limits, looked at two probes ahead (`lookahead`). The difference has the posterior
covariance of both ends, so two candidates that share a part's signature share its uncertainty, and
twins of the incumbent promise nothing.

Source: expected improvement: Jones et al. (1998), eq. 15; feasibility: Gardner et al. (2014).
"""

from __future__ import annotations

import math
from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.job import CONFIDENCE
from autotune.domain.outcome import Z90
from autotune.frozen import dataclass
from autotune.search.posterior.amplitudes import contradiction
from autotune.search.posterior.costs import SHORTLIST, Costs, Keeps, least
from autotune.search.posterior.improvement import expected_improvement, normal_cdf
from autotune.search.posterior.residuals import Residual, dominated, residuals_of
from autotune.search.priced import MEMORY, Limited
from autotune.search.selection import TIE

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.search.posterior.kernel import Amplitudes, Observed
    from autotune.search.posterior.measurements import History
    from autotune.search.priced import Part, Priced

    Indices = NDArray[np.intp]

LEAST_FIT = 0.02  # probability below which a candidate is not worth a probe
LEAST_GAIN = 0.003  # of the objective: an expected saving below it is worth no probe
INFLATED = 3.0  # times the sd of a neighbour: it is looked at sooner than others


@dataclass(frozen=True, slots=True)
class Proposal:
    """The next probe.

    gain: expected relative saving of the objective by this probe. best_gain: the largest expected
    saving of any candidate, whatever was proposed. why: improve, confirm or first.
    """

    index: int
    gain: float
    best_gain: float
    fits_probability: float
    why: str


class Posterior:
    """Everything the measurements say about all candidates at one moment."""

    def __init__(
        self,
        priced: Priced,
        history: History,
        prior: Mapping[str, Sequence[Observed]] | None = None,
        *,
        shortlist: int = SHORTLIST,
    ) -> None:
        """Fit the residuals and find the incumbent.

        prior: observations of earlier runs by part, in this model's codes.
        """
        self.priced, self.history = priced, history
        self.parts = {part.name: part for part in priced.parts}
        known: dict[str, list[Observed]] = {
            name: [*(prior or {}).get(name, ()), *history.observed.get(name, ())]
            for name in self.parts
        }
        self.known = known
        self._measured = residuals_of(self.parts, known)
        self.residuals = {
            name: residual.with_believed(
                [int(residual.part.row_of[index]) for index in history.pending]
            )
            for name, residual in self._measured.items()
        }
        self.timed = [
            name for name, part in self.parts.items() if name != MEMORY and part.predicted.any()
        ]
        self._compared: dict[int, tuple[FloatArray, FloatArray, FloatArray]] = {}
        self.fits_probability = self._fits()
        self.missed = False
        self.log_cost = Costs(priced, self.parts, self.residuals, self.timed)
        self.keeps_probability = Keeps(self.log_cost)
        at = np.flatnonzero(self.fits_probability > LEAST_FIT)
        middle = self.log_cost.middle(at)
        if self.keeps_probability.limited and self._misses(at, middle):
            self.missed = self.log_cost.missed = True
            self.keeps_probability.ignore()
            middle = self.log_cost.middle(at)
        fitting = self._with_room(history.fitting(priced))
        self.asked = priced.confidence if isinstance(priced, Limited) else CONFIDENCE
        measured = np.asarray(fitting, np.intp)
        kept = self.keeps_probability[measured] >= self.asked
        self.fitting = measured[kept].tolist() or fitting
        costs = self.log_cost[measured[kept]]
        self.incumbent = self.fitting[int(np.argmin(costs))] if len(costs) else None
        self._untried = self._never_measured()
        self.shortlist = self._shortlist(at, middle, shortlist)

    def under(self, name: str, amplitudes: Amplitudes) -> Posterior:
        """What the same measurements say if one part has these amplitudes; the pick is not asked.

        What fits, what keeps the limits and which candidates are looked at stay as they are.
        """
        found, part = copy(self), self.parts[name]
        pending = [int(part.row_of[index]) for index in self.history.pending]
        own = Residual(part, self.known[name], amplitudes).with_believed(pending)
        found.believe({**self.residuals, name: own})
        return found

    def unsettled(self) -> Posterior:
        """The same while nothing is believed of what is pending."""
        found = copy(self)
        found.believe(self._measured)
        found.fits_probability = found._fits()  # noqa: SLF001 - its own
        return found

    def believe(self, residuals: Mapping[str, Residual]) -> None:
        """Take other processes for the parts, and what follows for what is compared."""
        picks = [] if (pick := self.pick()) is None else [pick]
        self.residuals, self._compared = dict(residuals), {}
        at = np.unique(np.asarray([*self.shortlist, *self.fitting, *picks], np.intp))
        self.log_cost = self.log_cost.believing(self.residuals, at)

    def value(self, index: int) -> float:
        """[USD or s] the posterior mean of the objective of a candidate."""
        return float(self.expected(self.priced, np.asarray([index]))[0])

    def expected(self, priced: Priced, at: Indices) -> FloatArray:
        """[USD or s] an objective over the same parts, at the posterior means."""
        return priced.totals(self.log_cost.factors(at, list(self.parts)), at)

    @cached_property
    def distrusted(self) -> dict[str, float]:
        """Parts that measurements contradict: how many times as far off as the model says.

        Their residuals are as wide as what was measured, not as what was stated.
        """
        observed = self.history.observed
        found = {n: contradiction(p, observed.get(n, ())) for n, p in self.parts.items()}
        return {name: times for name, times in found.items() if times}

    @cached_property
    def chief(self) -> Part:
        """The timed part that has most signatures."""
        return max((self.parts[name] for name in self.timed), key=lambda p: len(p.predicted))

    def chance(self, at: Indices) -> FloatArray:
        """[at] probability of fitting and of keeping the job's limits."""
        found: FloatArray = self.fits_probability[at] * self.keeps_probability[at]
        return found

    def aim(self, factors: Mapping[str, FloatArray], at: Indices) -> FloatArray:
        """What is minimised: log objective, or the largest excess where no limit can be kept."""
        return self.log_cost.aim(factors, at)

    def weights(self, at: Indices) -> dict[str, FloatArray]:
        """How much the log objective moves with each part's log factor."""
        return self.log_cost.weights(at)

    def _misses(self, at: Indices, middle: FloatArray) -> bool:
        """Whether no candidate is likely to keep the limits; the cheapest are asked first."""
        size = SHORTLIST
        while len(at):
            first = np.zeros(len(at), np.bool_)
            first[np.argpartition(middle, size)[:size] if size < len(at) else slice(None)] = True
            if np.max(self.chance(at[first])) > LEAST_FIT:
                return False
            at, middle, size = at[~first], middle[~first], 4 * size
        return bool(np.max(self.fits_probability, initial=0.0) > LEAST_FIT)

    def _fits(self) -> FloatArray:
        part = self.parts.get(MEMORY)
        if part is None:
            return np.ones(len(self.priced))
        residual = self.residuals[MEMORY]
        centre = np.log(np.maximum(part.predicted, 1e-300)) + residual.mean
        sd = np.sqrt(residual.variance + part.noise**2)
        z = (np.log(self.priced.limit) - centre[part.row_of]) / sd[part.row_of]
        found = normal_cdf(z)
        excluded, known = dominated(self.priced, self.history)
        found[known[part.row_of]] = 1.0
        found[excluded[part.row_of]] = 0.0
        return found

    def _with_room(self, fitting: list[int]) -> list[int]:
        """Without those so near the limit that a measurement's noise decides; all if only such."""
        part = self.parts.get(MEMORY)
        if part is None:
            return fitting
        share, measured = math.exp(-Z90 * part.noise), self.history.measured
        limit = self.priced.limit
        room = [i for i in fitting if measured[i].get(MEMORY, 0.0) <= share * limit[i]]
        return room or fitting

    def _never_measured(self) -> BoolArray:
        """Candidates that were not tried and are no twin of one that was."""
        found = np.ones(len(self.priced), np.bool_)
        for index in self.history.tried:
            found[index] = False
            found[self.twins(index)] = False
        return found

    def allows(self, at: Indices) -> BoolArray:
        """[at] whether a probe could teach something: it may fit, and was not measured."""
        found = self._untried[at] & (self.chance(at) > LEAST_FIT)
        return found & np.isfinite(self.log_cost[at])

    def twins(self, index: int) -> Indices:
        """Candidates equal to one in all that any part reads, itself included.

        They differ in what the objective knows in closed form (how often to save), so that what
        was measured of one was measured of all.
        """
        at: Indices | None = None
        for part in sorted(self.parts.values(), key=lambda p: -len(p.predicted)):
            if at is None:
                at = np.flatnonzero(part.row_of == part.row_of[index])
            else:
                at = at[part.row_of[at] == part.row_of[index]]
        return at if at is not None else np.asarray([index])

    def _shortlist(self, at: Indices, middle: FloatArray, size: int) -> Indices:
        open_ = self._untried[at] & np.isfinite(middle)
        at, middle = at[open_], middle[open_]

        def worth(at: Indices) -> FloatArray:
            chance, found = self.chance(at), np.full(len(at), np.inf)
            likely = chance > LEAST_FIT
            found[likely] = self.log_cost[at[likely]] - np.log(chance[likely])
            return found

        return least(at, middle - np.log(self.fits_probability[at]), worth, size)

    def difference(self, at: Indices, to: int) -> tuple[FloatArray, FloatArray]:
        """Mean and sd of log objective at `at` minus that of one candidate."""
        mean, sd, _ = self.comparison(at, to)
        return mean, sd

    def comparison(self, at: Indices, to: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean and sd of the difference to a candidate, and the sd by which a probe moves it.

        That one is less than the whole sd, because a measurement is noisy.
        Source: Frazier et al., "The knowledge-gradient policy for correlated normal beliefs"
        (2009), eq. 9, for every part by itself.
        """
        if at is self.shortlist and to in self._compared:
            return self._compared[to]
        weights, own = self.weights(at), self.weights(np.asarray([to]))
        variance, learned = np.zeros(len(at)), np.zeros(len(at))
        for name in self.timed:
            residual, part = self.residuals[name], self.parts[name]
            rows, row = part.row_of[at], int(part.row_of[to])
            w, w0 = weights[name], float(own[name][0])
            shared, there = residual.covariance(row)[rows], residual.variance[rows]
            variance += w * w * there + w0 * w0 * residual.variance[row] - 2.0 * w * w0 * shared
            learned += (w * there - w0 * shared) ** 2 / (there + residual.noise**2)
        sd = np.sqrt(np.maximum(variance, 0.0))
        found = self.log_cost[at] - self.log_cost.of(to), sd, np.minimum(np.sqrt(learned), sd)
        if at is self.shortlist:
            self._compared[to] = found
        return found

    def _near(self, index: int) -> Indices:
        """A candidate's one-knob neighbours that a probe could teach something of."""
        near = np.asarray(self.priced.neighbours(index), np.intp)
        return near[self.allows(near)]

    def neighbour(self) -> int | None:
        """The incumbent's most promising one-knob neighbour, with `INFLATED` times its sd.

        None when not even then one promises anything.
        """
        if self.incumbent is None or not len(near := self._near(self.incumbent)):
            return None
        mean, sd = self.difference(near, self.incumbent)
        gains = expected_improvement(mean, INFLATED * sd) * self.chance(near)
        best = int(np.argmax(gains))
        return int(near[best]) if gains[best] >= LEAST_GAIN else None

    def plainer(self) -> int | None:
        """The plainest one-knob neighbour that is expected to be the incumbent's equal.

        Only what was measured can be picked: a tie goes to the plainer if that was probed.
        """
        if self.incumbent is None or not len(at := self._near(self.incumbent)):
            return None
        mean, _ = self.difference(at, self.incumbent)
        near = at.tolist()
        keys = self.priced.plainness([*near, self.incumbent])
        equal = [k for k in range(len(near)) if mean[k] <= TIE / 3.0 and keys[k] < keys[-1]]
        return near[min(equal, key=lambda k: keys[k])] if equal else None

    def pick(self) -> int | None:
        """The recommendation: a measured, fitting candidate of the least posterior mean.

        Of those that tie with the least, the plainest: the rule of a modelled answer, with its one
        constant. A modelled tie compares bills of one formula; measured means err each by its own
        sd, so a tie must hold at the pessimistic end (mean + sd), else plainness would be bought
        with what noise hides. Twins of a measured candidate (equal in all
        that any part reads) are known as well as it is. Where no measured candidate is likely to
        keep the job's limits: the one most likely to.
        """
        if self.incumbent is None:
            return max(self.fitting, key=self.keeps_probability.of, default=None)
        near = self._alike()
        keys = self.priced.plainness(near)
        plain = near[min(range(len(near)), key=lambda k: (keys[k], self.log_cost.of(near[k])))]
        twins = self.twins(plain)
        twins = twins[
            self.keeps_probability[twins] >= min(self.asked, self.keeps_probability.of(plain))
        ]
        return int(twins[np.argmin(self.log_cost[twins])])

    def _alike(self) -> list[int]:
        """The incumbent, and measured candidates that tie with it at the pessimistic end."""
        if self.incumbent is None:
            return []
        mean, sd = self.difference(np.asarray(self.fitting, np.intp), self.incumbent)
        alike = mean + sd <= math.log1p(TIE)
        pairs = zip(self.fitting, alike, strict=True)
        return [index for index, same in pairs if same or index == self.incumbent]

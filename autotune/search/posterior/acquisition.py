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
    from autotune.search.priced import Priced

    Indices = NDArray[np.intp]

SHORTLIST = 12_000  # candidates whose uncertainty is worked out, by calibrated cost and fit
LEAST_FIT = 0.02  # probability below which a candidate is not worth a probe
CONFIRM_BELOW = 0.003  # expected saving under which neighbours are confirmed instead
INFLATED = 3.0  # times the sd, for a neighbour's sake
LEAST_DOUBT = 0.003  # sd of the log of a limited figure, however much was measured
SAMPLE = 2000  # candidates at which a part's bend is looked for
BEND = 1e-3  # of the log objective; a part that bends it less is taken at its mean


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
        self.keeps_probability = self._keeps()
        # Nothing that could fit is likely to keep the job's limits: come as near as can be.
        self.missed = bool(np.max(self.chance, initial=0.0) <= LEAST_FIT < 1.0) and bool(
            np.max(self.fits_probability, initial=0.0) > LEAST_FIT
        )
        if self.missed:
            self.keeps_probability = np.ones(len(priced))
        self.log_cost = self._expected_log_total(np.arange(len(priced)))
        fitting = self._with_room(history.fitting(priced))
        self.asked = priced.confidence if isinstance(priced, Limited) else CONFIDENCE
        keeping = [i for i in fitting if self.keeps_probability[i] >= self.asked]
        self.fitting = keeping or fitting
        self.incumbent = min(keeping, key=lambda i: self.log_cost[i], default=None)
        self.allowed = self._allowed()
        self.shortlist = self._shortlist(shortlist)

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
        self.log_cost = self.log_cost.copy()
        self.log_cost[at] = self._expected_log_total(at)

    def value(self, index: int) -> float:
        """[USD or s] the posterior mean of the objective of a candidate."""
        return float(self.expected(self.priced, np.asarray([index]))[0])

    def expected(self, priced: Priced, at: Indices) -> FloatArray:
        """[USD or s] an objective over the same parts, at the posterior means."""
        return priced.totals({name: self._factor(name, at, 0.0) for name in self.parts}, at)

    @cached_property
    def distrusted(self) -> dict[str, float]:
        """Parts that measurements contradict: how many times as far off as the model says.

        Their residuals are as wide as what was measured, not as what was stated.
        """
        observed = self.history.observed
        found = {n: contradiction(p, observed.get(n, ())) for n, p in self.parts.items()}
        return {name: times for name, times in found.items() if times}

    @property
    def chance(self) -> FloatArray:
        """[n] probability of fitting and of keeping the job's limits."""
        return self.fits_probability * self.keeps_probability

    def _factor(self, name: str, at: Indices, shift: float) -> FloatArray:
        residual, rows = self.residuals[name], self.parts[name].row_of[at]
        logs = residual.mean
        if shift:
            logs = logs + shift * np.sqrt(residual.variance)
        factor: FloatArray = np.exp(logs)[rows]
        return factor

    def _log_total(self, at: Indices, shifts: Mapping[str, float]) -> FloatArray:
        """Log objective at posterior means, some parts moved by so many standard deviations."""
        return self.aim({n: self._factor(n, at, shifts.get(n, 0.0)) for n in self.timed}, at)

    def aim(self, factors: dict[str, FloatArray], at: Indices) -> FloatArray:
        """What is minimised: log objective, or the largest excess where no limit can be kept."""
        factors = {name: factors.get(name, np.ones(len(at))) for name in self.parts}
        if self.missed and isinstance(self.priced, Limited):
            worst: FloatArray = np.max(list(self.priced.excesses(factors, at).values()), axis=0)
            return worst
        return np.log(np.maximum(self.priced.totals(factors, at), 1e-300))

    def _expected_log_total(self, at: Indices) -> FloatArray:
        """[at] posterior mean of the log objective.

        Derived: over one standard deviation to either side of the parts that bend it. A part hidden
        behind another (data behind computing) costs nothing at its mean and something on average.
        """
        total = self._log_total(at, {})
        some = slice(None, None, max(1, len(at) // SAMPLE))
        bends = np.zeros(len(total))
        for name in self.timed:
            if len(at) and np.mean(np.abs(self._bend(name, at[some], total[some]))) > BEND:
                bends += self._bend(name, at, total)
        return total + bends

    def _bend(self, name: str, at: Indices, middle: FloatArray) -> FloatArray:
        up, down = self._log_total(at, {name: 1.0}), self._log_total(at, {name: -1.0})
        return (up + down) / 2.0 - middle

    def _keeps(self) -> FloatArray:
        """[n] probability that every other limit of the job is kept."""
        found = np.ones(len(self.priced))
        if not isinstance(self.priced, Limited):
            return found
        everything = np.arange(len(self.priced))

        def excesses(shifts: Mapping[str, float]) -> dict[str, FloatArray]:
            factors = {n: self._factor(n, everything, shifts.get(n, 0.0)) for n in self.parts}
            return self.priced.excesses(factors, everything)  # type: ignore[attr-defined,no-any-return]

        middle = excesses({})
        variance = {limit: np.full(len(found), LEAST_DOUBT**2) for limit in middle}
        for name in self.timed if middle else ():
            up, down = excesses({name: 1.0}), excesses({name: -1.0})
            for limit in variance:
                variance[limit] += ((up[limit] - down[limit]) / 2.0) ** 2
        for limit, centre in middle.items():
            found *= normal_cdf(-centre / np.sqrt(variance[limit]))
        return found

    def weights(self, at: Indices) -> dict[str, FloatArray]:
        """How much the log objective moves with each part's log factor.

        Derived: the central difference over one standard deviation, so that a part that matters
        only where it is slow (data behind compute) counts by how likely that is.
        """
        found = {}
        for name in self.timed:
            residual, rows = self.residuals[name], self.parts[name].row_of[at]
            up = self._log_total(at, {name: 1.0})
            down = self._log_total(at, {name: -1.0})
            found[name] = (up - down) / (2.0 * np.sqrt(residual.variance)[rows])
        return found

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

    def _allowed(self) -> BoolArray:
        """Candidates a probe could teach something about: not tried, no twin of one measured."""
        allowed = (self.chance > LEAST_FIT) & np.isfinite(self.log_cost)
        if self.history.tried:
            allowed[list(self.history.tried)] = False
        for index in self.history.tried:
            allowed[self.twins(index)] = False
        return allowed

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

    def _shortlist(self, size: int) -> Indices:
        at = np.flatnonzero(self.allowed)
        if len(at) > size:
            worth = self.log_cost[at] - np.log(self.chance[at])
            at = at[np.argpartition(worth, size)[:size]]
        return at

    def difference(self, at: Indices, to: int) -> tuple[FloatArray, FloatArray]:
        """Mean and sd of log objective at `at` minus that of one candidate."""
        mean, sd, _ = self.comparison(at, to)
        return mean, sd

    def learnable(self, at: Indices, to: int) -> FloatArray:
        """Sd by which measuring each of `at` is expected to move its difference to a candidate.

        What is left of a difference's sd is noise, which one more measurement does not settle.
        Source: Frazier et al., "The knowledge-gradient policy for correlated normal beliefs"
        (2009), eq. 9, for every part by itself.
        """
        return self.comparison(at, to)[2]

    def comparison(self, at: Indices, to: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Mean and sd of the difference to a candidate, and by how much a probe there moves it."""
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
        found = self.log_cost[at] - self.log_cost[to], sd, np.minimum(np.sqrt(learned), sd)
        if at is self.shortlist:
            self._compared[to] = found
        return found

    def neighbour(self) -> int | None:
        """The incumbent's most promising one-knob neighbour, its uncertainty inflated.

        None when not even then one promises anything.
        """
        if self.incumbent is None:
            return None
        near = np.asarray(
            [i for i in self.priced.neighbours(self.incumbent) if self.allowed[i]], np.intp
        )
        if not len(near):
            return None
        mean, sd = self.difference(near, self.incumbent)
        gains = expected_improvement(mean, INFLATED * sd) * self.chance[near]
        best = int(np.argmax(gains))
        return int(near[best]) if gains[best] >= CONFIRM_BELOW else None

    def plainer(self) -> int | None:
        """The plainest one-knob neighbour that is expected to be the incumbent's equal.

        Only what was measured can be picked: a tie goes to the plainer if that was probed.
        """
        if self.incumbent is None:
            return None
        near = [i for i in self.priced.neighbours(self.incumbent) if self.allowed[i]]
        if not near:
            return None
        mean, _ = self.difference(np.asarray(near, np.intp), self.incumbent)
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
            return max(self.fitting, key=lambda i: self.keeps_probability[i], default=None)
        near = self._alike()
        keys = self.priced.plainness(near)
        plain = near[min(range(len(near)), key=lambda k: (keys[k], self.log_cost[near[k]]))]
        twins = self.twins(plain)
        twins = twins[
            self.keeps_probability[twins] >= min(self.asked, self.keeps_probability[plain])
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

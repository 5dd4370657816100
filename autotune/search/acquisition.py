"""Which candidate to probe next, from the residuals of every part.

Expected improvement of the *difference to the incumbent* x the probability of fitting and of
keeping the job's limits, looked at two probes ahead (`lookahead`). The difference has the posterior
covariance of both ends, so two candidates that share a part's signature share its uncertainty, and
twins of the incumbent promise nothing.

Source: expected improvement: Jones et al. (1998), eq. 15; feasibility: Gardner et al. (2014).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autotune.search.lookahead import (
    FIRST,
    SECOND,
    WORLDS,
    Belief,
    Table,
    expected_improvement,
    normal_cdf,
    reward,
)
from autotune.search.priced import MEMORY, Limited
from autotune.search.residuals import Residual, fitted_amplitudes

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.search.measurements import History
    from autotune.search.priced import Part, Priced
    from autotune.search.residuals import Observed

    Indices = NDArray[np.intp]

SHORTLIST = 50_000  # candidates whose uncertainty is worked out, by calibrated cost and fit
LEAST_FIT = 0.02  # probability below which a candidate is not worth a probe
CONFIRM_BELOW = 0.003  # expected saving under which neighbours are confirmed instead
INFLATED = 3.0  # times the sd, for a neighbour's sake
PLATEAU = 0.003  # relative; candidates closer than this are not told apart by a choice
TIE = 0.01
LOOKED_AT = 1.3  # times the sd, for a candidate that may be chosen after the next probe
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


class Outlook:
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
        self.residuals: dict[str, Residual] = {}
        for name, part in self.parts.items():
            known = [*(prior or {}).get(name, ()), *history.observed.get(name, ())]
            residual = Residual(part, known)
            rows = [int(part.row_of[index]) for index in history.pending]
            self.residuals[name] = residual.with_believed(rows)
        self.timed = [name for name in self.parts if name != MEMORY]
        everything = np.arange(len(priced))
        self.log_cost = self._log_total(everything, {})
        self.fits_probability = self._fits()
        self.fitting = history.fitting(priced)
        self.incumbent = min(self.fitting, key=lambda i: self.log_cost[i], default=None)
        self.allowed = self._allowed()
        self.shortlist = self._shortlist(shortlist)

    def _factor(self, name: str, at: Indices, shift: float) -> FloatArray:
        residual, rows = self.residuals[name], self.parts[name].row_of[at]
        logs = residual.mean
        if shift:
            logs = logs + shift * np.sqrt(residual.variance)
        factor: FloatArray = np.exp(logs)[rows]
        return factor

    def _log_total(self, at: Indices, shifts: Mapping[str, float]) -> FloatArray:
        """Log objective at posterior means, some parts moved by so many standard deviations."""
        factors = {n: self._factor(n, at, shifts.get(n, 0.0)) for n in self.timed}
        return np.log(np.maximum(self.priced.totals(factors, at), 1e-300))

    def _weights(self, at: Indices) -> dict[str, FloatArray]:
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

    def _allowed(self) -> BoolArray:
        """Candidates a probe could teach something about: not tried, no twin of one measured."""
        allowed = self.fits_probability > LEAST_FIT
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
            worth = self.log_cost[at] - np.log(self.fits_probability[at])
            at = at[np.argpartition(worth, size)[:size]]
        return at

    def difference(self, at: Indices, to: int) -> tuple[FloatArray, FloatArray]:
        """Mean and sd of log objective at `at` minus that of one candidate."""
        weights, own = self._weights(at), self._weights(np.asarray([to]))
        variance = np.zeros(len(at))
        for name in self.timed:
            residual, part = self.residuals[name], self.parts[name]
            rows, row = part.row_of[at], int(part.row_of[to])
            w, w0 = weights[name], float(own[name][0])
            shared = residual.covariance(row)[rows]
            variance += w * w * residual.variance[rows] + w0 * w0 * residual.variance[row]
            variance -= 2.0 * w * w0 * shared
        mean = self.log_cost[at] - self.log_cost[to]
        return mean, np.sqrt(np.maximum(variance, 0.0))

    def propose(self) -> Proposal | None:
        """The next probe; None when nothing is left that could fit."""
        at = self.shortlist
        if not len(at):
            return None
        fits = self.fits_probability
        if self.incumbent is None:
            index = int(at[np.argmin(self.log_cost[at] - np.log(fits[at]))])
            return Proposal(index, math.inf, math.inf, float(fits[index]), "first")
        mean, sd = self.difference(at, self.incumbent)
        gains = expected_improvement(mean, sd) * fits[at]
        most = float(np.max(gains))
        probes = self.history.probes + len(self.history.pending)
        if probes >= CONFIRM_FROM and (probes - CONFIRM_FROM) % CONFIRM_EVERY == 0:
            near = self.neighbour()
            if near is not None:
                return Proposal(near, self._gain(near), most, float(fits[near]), "confirm")
        best = int(np.argmax(expected_improvement(mean, BOLD * sd) * fits[at] ** CAUTION))
        index = int(at[best])
        return Proposal(index, float(gains[best]), most, float(fits[index]), "improve")

    def _gain(self, index: int) -> float:
        mean, sd = self.difference(np.asarray([index]), self.incumbent or 0)
        return float(expected_improvement(mean, sd)[0] * self.fits_probability[index])

    def neighbour(self) -> int | None:
        """The incumbent's most promising one-knob neighbour, its uncertainty inflated."""
        if self.incumbent is None:
            return None
        near = np.asarray(
            [i for i in self.priced.neighbours(self.incumbent) if self.allowed[i]], np.intp
        )
        if not len(near):
            return None
        mean, sd = self.difference(near, self.incumbent)
        gains = expected_improvement(mean, INFLATED * sd) * self.fits_probability[near]
        return int(near[np.argmax(gains)])

    def pick(self) -> int | None:
        """The recommendation: a measured, fitting candidate of the least posterior mean.

        Within 0.3 % of the least, the plainer one. Twins of a measured candidate (equal in all
        that any part reads) are known as well as it is.
        """
        if self.incumbent is None:
            return None
        near = self._close(PLATEAU)
        keys = self.priced.plainness(near)
        plain = near[min(range(len(near)), key=lambda k: (keys[k], self.log_cost[near[k]]))]
        twins = self.twins(plain)
        return int(twins[np.argmin(self.log_cost[twins])])

    def ties(self) -> list[int]:
        """Measured candidates that cannot be told from the pick: within 1 %, best first."""
        pick = self.pick()
        return [i for i in self._close(TIE) if i != pick] if pick is not None else []

    def _close(self, fraction: float) -> list[int]:
        if self.incumbent is None:
            return []
        most = self.log_cost[self.incumbent] + math.log1p(fraction)
        return sorted(
            (i for i in self.fitting if self.log_cost[i] <= most), key=lambda i: self.log_cost[i]
        )


def dominated(priced: Priced, history: History) -> tuple[BoolArray, BoolArray]:
    """[memory signatures] that cannot fit after an out-of-memory, and those known to fit.

    The same signature but for the dimensions along which memory grows: at larger or equal levels
    after an out-of-memory, at smaller or equal ones after a fit.
    """
    part = next((p for p in priced.parts if p.name == MEMORY), None)
    if part is None:
        return np.zeros(0, np.bool_), np.zeros(0, np.bool_)
    growing = [k for k, d in enumerate(part.reads) if d.name in set(priced.grows)]
    excluded = _beyond(part, growing, history.oom, larger=True)
    known = _beyond(part, growing, history.fitting(priced), larger=False)
    return excluded, known & ~excluded


def _beyond(part: Part, growing: list[int], at: Iterable[int], *, larger: bool) -> BoolArray:
    fixed = [k for k in range(len(part.reads)) if k not in growing]
    found = np.zeros(len(part.predicted), np.bool_)
    for row in {int(part.row_of[index]) for index in at}:
        own = part.codes[row]
        same = (part.codes[:, fixed] == own[fixed]).all(axis=1)
        moved = part.codes[:, growing]
        side = moved >= own[growing] if larger else moved <= own[growing]
        found |= same & side.all(axis=1)
    return found

"""The posterior mean of the log of what is minimised, worked out only where it may decide anything.

A part that is hidden behind another (data behind computing) costs nothing at its mean and something
on average: it bends the objective. So the mean is taken over one standard deviation to either side
of the parts that bend it, which takes two more bills for each of them. Of most candidates the bill
at the posterior means is enough to see that they are not among the best.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.search.posterior.improvement import normal_cdf
from autotune.search.priced import Limited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray
    from autotune.search.posterior.residuals import Residual
    from autotune.search.priced import Part, Priced

    Indices = NDArray[np.intp]

SHORTLIST = 12_000  # candidates whose uncertainty is worked out, by calibrated cost and fit
SAMPLE = 2000  # candidates at which a part's bend is looked for
BEND = 1e-3  # of the log objective; a part that bends it less is taken at its mean
BLOCK = 1 << 15  # candidates whose bills stay in a processor's cache
TOGETHER = 1 << 12  # bills that are asked for in one go rather than one after the other
SPARE = 2  # times as many candidates are worked out at once as are looked for
LEAST_DOUBT = 0.003  # sd of the log of a limited figure, however much was measured


class WhereAsked:
    """[n] figures of candidates; `figures[at]` works out what was not asked for before."""

    def __init__(self, count: int) -> None:
        self._known = np.full(count, np.nan)

    def __getitem__(self, at: Indices) -> FloatArray:
        """Of the candidates at `at`."""
        new = np.isnan(self._known[at])
        if new.any():
            at_new = at if new.all() else at[new]
            self._known[at_new] = self._worked_out(at_new)
        found: FloatArray = self._known[at]
        return found

    def of(self, index: int) -> float:
        """Of one candidate."""
        if np.isnan(self._known[index]):
            return float(self[np.asarray([index])][0])
        return float(self._known[index])

    def _worked_out(self, at: Indices) -> FloatArray:
        raise NotImplementedError


class Costs(WhereAsked):
    """Log objective, or the largest excess over a limit where no limit can be kept."""

    def __init__(
        self, priced: Priced, parts: Mapping[str, Part], residuals: Mapping[str, Residual],
        timed: Sequence[str], *, missed: bool = False,
    ) -> None:  # fmt: skip
        """Keep what the costs follow from. timed: parts that are of the objective."""
        super().__init__(len(priced))
        self.priced, self.parts, self.residuals = priced, parts, residuals
        self.timed, self.missed = timed, missed
        self._bent: list[str] | None = None

    def believing(self, residuals: Mapping[str, Residual], at: Indices) -> Costs:
        """The same with other processes for the parts, where it is asked for at `at`."""
        found = Costs(self.priced, self.parts, residuals, self.timed, missed=self.missed)
        if len(at):
            found._bent = found._bending(at)
        return found

    def middle(self, at: Indices) -> FloatArray:
        """[at] the same at the posterior means alone, which costs one bill."""
        blocks = [at[k : k + BLOCK] for k in range(0, len(at), BLOCK)]
        return np.concatenate([np.zeros(0), *(self.aim(self.factors(b), b) for b in blocks)])

    def factors(self, at: Indices, names: Sequence[str] | None = None) -> dict[str, FloatArray]:
        """The factors of parts at the posterior means; of the timed ones, or of those named."""
        return {name: self.factor(name, at) for name in names or self.timed}

    def factor(self, name: str, at: Indices, shift: float = 0.0) -> FloatArray:
        """[at] the factor of a part, moved by so many standard deviations."""
        residual, rows = self.residuals[name], self.parts[name].row_of[at]
        logs = residual.mean
        if shift:
            logs = logs + shift * np.sqrt(residual.variance)
        found: FloatArray = np.exp(logs)[rows]
        return found

    def aim(self, factors: Mapping[str, FloatArray], at: Indices) -> FloatArray:
        """What is minimised: log objective, or the largest excess where no limit can be kept."""
        known = {n: factors[n] if n in factors else np.ones(len(at)) for n in self.parts}
        if self.missed and isinstance(self.priced, Limited):
            worst: FloatArray = np.max(list(self.priced.excesses(known, at).values()), axis=0)
            return worst
        return np.log(np.maximum(self.priced.totals(known, at), 1e-300))

    def weights(self, at: Indices) -> dict[str, FloatArray]:
        """How much the log objective moves with each part's log factor.

        Derived: the central difference over one standard deviation, so that a part that matters
        only where it is slow (data behind compute) counts by how likely that is.
        """
        found = {}
        for name, (up, down) in self._moved(self.timed, self.factors(at), at):
            sd = np.sqrt(self.residuals[name].variance)[self.parts[name].row_of[at]]
            found[name] = (up - down) / (2.0 * sd)
        return found

    def _moved(
        self, names: Sequence[str], factors: Mapping[str, FloatArray], at: Indices
    ) -> Iterator[tuple[str, FloatArray]]:
        """What is minimised with each part [one standard deviation slower, quicker][at].

        Few candidates are asked for with all parts at once: a bill of one costs as much as of many.
        """
        size = max(1, min(len(names), TOGETHER // (2 * max(len(at), 1))))
        everyone = np.tile(at, 2 * size)
        for group in (names[k : k + size] for k in range(0, len(names), size)):
            times = 2 * len(group)
            moved = {name: np.tile(known, (times, 1)) for name, known in factors.items()}
            for place, name in enumerate(group):
                moved[name][2 * place] = self.factor(name, at, 1.0)
                moved[name][2 * place + 1] = self.factor(name, at, -1.0)
            flat = {name: known.ravel() for name, known in moved.items()}
            where = everyone if len(group) == size else everyone[: times * len(at)]
            found = self.aim(flat, where).reshape(len(group), 2, len(at))
            yield from zip(group, found, strict=True)

    def _worked_out(self, at: Indices) -> FloatArray:
        if self._bent is None:
            self._bent = self._bending(np.arange(len(self._known)))
        factors = self.factors(at)
        middle = self.aim(factors, at)
        bends = np.zeros(len(at))
        for _, (up, down) in self._moved(self._bent, factors, at):
            bends += (up + down) / 2.0 - middle
        return middle + bends

    def _bending(self, at: Indices) -> list[str]:
        """Parts that bend the objective, by a sample of `at`."""
        some = at[:: max(1, len(at) // SAMPLE)]
        factors = self.factors(some)
        middle, found = self.aim(factors, some), []
        for name, (up, down) in self._moved(self.timed, factors, some):
            if len(some) and np.mean(np.abs((up + down) / 2.0 - middle)) > BEND:
                found.append(name)
        return found


class Keeps(WhereAsked):
    """Probability that every limit of the job besides memory is kept."""

    def __init__(self, costs: Costs) -> None:
        """Of the candidates that have those costs, by what is believed now."""
        super().__init__(len(costs.priced))
        self._costs, self._limited = costs, costs.priced
        self.limited = isinstance(self._limited, Limited) and bool(len(self._known))
        if self.limited:
            self.limited = bool(self._excesses(np.arange(1)))
        if not self.limited:
            self.ignore()

    def ignore(self) -> None:
        """Ask for no limit."""
        self._known[:] = 1.0

    def _excesses(
        self, at: Indices, factors: Mapping[str, FloatArray] | None = None
    ) -> dict[str, FloatArray]:
        if not isinstance(self._limited, Limited):
            return {}
        known = factors or self._costs.factors(at, list(self._costs.parts))
        return self._limited.excesses(known, at)

    def _worked_out(self, at: Indices) -> FloatArray:
        """By what each part's standard deviation does to a figure that is limited."""
        costs, found = self._costs, np.ones(len(at))
        factors = costs.factors(at, list(costs.parts))
        middle = self._excesses(at, factors)
        variance = {limit: np.full(len(at), LEAST_DOUBT**2) for limit in middle}
        for name in costs.timed:
            up, down = (
                self._excesses(at, {**factors, name: costs.factor(name, at, shift)})
                for shift in (1.0, -1.0)
            )
            for limit in variance:
                variance[limit] += ((up[limit] - down[limit]) / 2.0) ** 2
        for limit, centre in middle.items():
            found *= normal_cdf(-centre / np.sqrt(variance[limit]))
        return found


def least(
    at: Indices, bare: FloatArray, worth: Callable[[Indices], FloatArray], size: int
) -> Indices:
    """So many of `at` whose worth is least, in their order; without those of infinite worth.

    bare: what each is worth at the least, as `Costs.middle` has it. Derived: no candidate costs
    less than at the posterior means, but for the least bend that is met (sums and maxima of parts
    are convex in the logs of their factors).
    """
    found, asked, spare = np.full(len(at), np.inf), np.zeros(len(at), np.bool_), 0.0
    reach, some = np.inf, SPARE * size
    while len(new := np.flatnonzero((bare - spare <= reach) & ~asked)):
        if len(new) > some:
            new = np.sort(new[np.argpartition(bare[new], some)[:some]])
        found[new], asked[new] = worth(at[new]), True
        finite = new[np.isfinite(found[new])]
        spare = max(spare, float(np.max(bare[finite] - found[finite], initial=0.0)))
        reach = float(np.partition(found, size - 1)[size - 1]) if size < len(at) else np.inf
    able = np.flatnonzero(np.isfinite(found))
    return at[np.sort(able[np.argsort(found[able], kind="stable")[:size]])]

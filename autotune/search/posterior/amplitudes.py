"""How strong each term of a component's kernel is, and how noisy its measurements are.

By how much the cost model's statement of its own spread is wrong is fitted by marginal likelihood
under weak priors: one scale for the whole model and one for each part around it; how much of a part
is a signature's own; how much noisier measurements are than stated, which repeated signatures show;
then single columns and the pairs.

Source: Rasmussen and Williams (2006), section 5.4.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from autotune.search.posterior.kernel import Amplitudes, Shape, codes_of
from autotune.search.priced import MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from autotune.cost.columns import FloatArray
    from autotune.search.posterior.kernel import Observed
    from autotune.search.priced import Part

# Proportions that are expected of the constant and of a column's own effect. Together with what is
# a signature's own they make up the spread that the cost model states for the part.
CONSTANT, MAIN = 1.5, 1.0
PAIR = 0.45  # of the columns' own effects
SCALES = tuple(3.0 ** (k / 4.0) for k in range(-4, 7))  # times what the cost model states
OWN = (0.02, 0.05, 0.12, 0.3, 0.7)  # of the spread that the model states: a signature's own
OWN_EXPECTED, OWN_WIDTH = 0.12, 0.9  # and the sd of its log
NOISES = (0.0, 0.05, 0.1, 0.2, 0.35)  # sd on top of the noise that is stated
QUIET = (0.0, 2.0, 3.0, 4.0, 5.0)  # log of how much less likely each is held before any repeat
RULED_OUT = 0.05  # a probability under which a noise is not gone into
COLUMNS = (0.35, 1.0, 2.8)  # times a column's expected amplitude
PAIRS = (0.5, 1.0, 2.0)  # times PAIR
# Weak priors: sd of the log of how wrong the model is as a whole, of a part's scale given that, of
# a column's amplitude, of the pairs'.
WHOLE_WIDTH, PART_WIDTH, COLUMN_WIDTH, PAIR_WIDTH = 0.6, 0.4, 0.6, 0.5
LEAST_SPREAD = 0.01
CONTRADICTED = 4.0  # sds above the mean square that the model's own statement has
BELIEVED = 2.0  # observations that the model's statement of itself is worth, fitted
LEAST_WIDE, MOST_WIDE = 1.0, 1.4  # times the deviations, fitted
ENOUGH = 3  # observations from which single columns are judged
JITTER = 1e-8


class Evidence:
    """Log marginal likelihood of many amplitudes of a part at once, and the best of them.

    Runs of one signature share every term of the kernel: with their weighted mean and its variance
    the likelihood is the same, so that its cost is that of the distinct signatures.
    """

    def __init__(self, part: Part, observed: Sequence[Observed]) -> None:
        """Keep what the likelihood needs of the observations."""
        self.part = part
        shape, every = Shape(part), codes_of(part, observed)
        self.values = np.asarray([o.log_ratio for o in observed], np.float64)
        self._stated = np.asarray([o.noise**2 for o in observed], np.float64)
        codes, group = np.unique(every, axis=0, return_inverse=True)
        self._group = group.reshape(-1)
        self._columns = [list(s.reads) for s in shape.summands]
        self._shares = [np.outer(s, s) for s in shape.shares(codes)]
        self._grams = np.stack(
            [t[np.ix_(codes[:, k], codes[:, k])] for k, t in enumerate(shape.tables)]
        )
        self.varied = [k for k in range(codes.shape[1]) if len(set(codes[:, k].tolist())) > 1]
        self._grids: dict[int, FloatArray] = {}
        self._refined: dict[Amplitudes, Amplitudes] = {}

    @property
    def noises(self) -> tuple[float, ...]:
        """Bytes are counted and not timed: their noise is known."""
        return NOISES[:1] if self.part.name == MEMORY else NOISES

    def _means(self, noise: float) -> tuple[FloatArray, FloatArray]:
        """[signatures] weighted mean of a signature's runs, and the variance of that."""
        weight = 1.0 / (self._stated + noise**2 + JITTER)
        total = np.bincount(self._group, weight)
        return np.bincount(self._group, weight * self.values) / total, 1.0 / total

    @cached_property
    def loudness(self) -> FloatArray:
        """[NOISES] score of each noise by what runs of one signature differ, and by nothing else.

        What the terms of the kernel do not explain is no noise: another run shows it again.
        """
        found = np.zeros(len(self.noises))
        for k, noise in enumerate(self.noises if len(self.values) else ()):
            stated = self._stated + noise**2 + JITTER
            mean, variance = self._means(noise)
            apart = np.square(self.values - mean[self._group]) / stated
            found[k] = -0.5 * (apart + np.log(stated)).sum() + 0.5 * np.log(variance).sum()
        return found

    def grid(self, noise: int) -> FloatArray:
        """[SCALES, OWN] score of the expected amplitudes under one of the noises.

        All of them have one kernel, times the square of the scale.
        """
        if noise not in self._grids:
            count, prior = len(self.values), np.log(np.asarray(OWN) / OWN_EXPECTED) / OWN_WIDTH
            found = np.zeros((len(SCALES), len(OWN)))
            if count:
                unit = self._kernels([replace(expected_amplitudes(self.part), own=0.0)])[0]
                own = np.asarray(OWN)[:, None, None] * max(self.part.spread, LEAST_SPREAD)
                single = own**2 * np.eye(len(unit))
                for k, scale in enumerate(SCALES):
                    found[k] = self._scores(scale**2 * unit + single, self.noises[noise])
            self._grids[noise] = found - 0.5 * prior**2
        return self._grids[noise]

    def by_noise(self) -> list[tuple[float, Amplitudes]]:
        """Each of `noises` with its probability, and the mean amplitudes that go with it.

        By everything that was measured: without a repeat, how well a smooth cause explains what is
        near each other is all that tells noise from what signatures really do. Unlikely ones are
        left out.
        """
        width = float(np.hypot(WHOLE_WIDTH, PART_WIDTH))
        scale = 0.5 * (np.log(SCALES) / width)[:, None] ** 2
        grids = [self.grid(k) - scale for k in range(len(self.noises))]
        logs = np.asarray([np.logaddexp.reduce(grid, axis=None) for grid in grids])
        logs += self.loudness - np.asarray(QUIET[: len(logs)])
        chance = np.exp(logs - logs.max())
        chance /= chance.sum()
        chance[chance < RULED_OUT] = 0.0
        return [
            (float(share), self.refined(self.mean(grid, noise)))
            for share, grid, noise in zip(chance / chance.sum(), grids, self.noises, strict=True)
            if share
        ]

    def mean(self, scores: FloatArray, noise: float) -> Amplitudes:
        """Expected amplitudes at the mean log scale and the mean square of a signature's own.

        scores: [SCALES, OWN] log probability up to a constant. Derived: the variance of what is
        drawn with an uncertain sd is the mean square of that sd.
        """
        weight = np.exp(scores - scores.max())
        weight /= weight.sum()
        scale = float(np.exp(weight.sum(axis=1) @ np.log(SCALES)))
        start = replace(expected_amplitudes(self.part, scale), noise=noise)
        if not len(self.values):
            return start
        own = float(np.sqrt(weight.sum(axis=0) @ np.square(OWN)))
        return replace(start, own=own * max(self.part.spread, LEAST_SPREAD))

    def refined(self, start: Amplitudes) -> Amplitudes:
        """One pass over the columns that were varied, and over the strength of the pairs."""
        if start not in self._refined:
            self._refined[start] = self._search(start)
        return self._refined[start]

    def _search(self, start: Amplitudes) -> Amplitudes:
        if len(self.values) < ENOUGH:
            return start
        best = start
        for k in self.varied:
            choices = [_with_main(best, k, start.mains[k] * factor) for factor in COLUMNS]
            best = choices[_best(self.scores(choices), COLUMNS, COLUMN_WIDTH)]
        choices = [replace(best, pair=best.pair * factor) for factor in PAIRS]
        return choices[_best(self.scores(choices), PAIRS, PAIR_WIDTH)]

    def scores(self, choices: Sequence[Amplitudes]) -> FloatArray:
        """[choices] up to a constant; all have the noise of the first."""
        if not len(self.values):
            return np.zeros(len(choices))
        return self._scores(self._kernels(choices), choices[0].noise)

    def _kernels(self, choices: Sequence[Amplitudes]) -> FloatArray:
        """[choices, signatures, signatures] prior covariance."""

        def stacked(name: str) -> FloatArray:
            return np.asarray([getattr(a, name) for a in choices])

        mains = stacked("mains")
        constant = stacked("constant")[:, None, None] ** 2
        pair = stacked("pair")[:, None, None] ** 2 / 2.0
        kernel = stacked("own")[:, None, None] ** 2 * np.eye(self._grams.shape[1])
        for columns, share in zip(self._columns, self._shares, strict=True):
            own, grams = mains[:, columns], self._grams[columns]
            single = np.tensordot(own, grams, axes=1)
            squared = np.tensordot(own**2, grams**2, axes=1)
            main = constant + np.tensordot(own**2, grams, axes=1)
            kernel += share * (main + pair * (single * single - squared))
        return kernel

    def _scores(self, kernels: FloatArray, noise: float) -> FloatArray:
        """[kernels] log likelihood of what was observed, up to a constant.

        The values go along as one more row of the matrix that is factored: below the factor stands
        then what the triangular system gives. The row's own variance is large enough for that.
        """
        mean, variance = self._means(noise)
        size = len(mean)
        bordered = np.empty((len(kernels), size + 1, size + 1))
        bordered[:, :size, :size] = kernels
        at = np.arange(size)
        bordered[:, at, at] += variance
        bordered[:, size, :size] = bordered[:, :size, size] = mean
        bordered[:, size, size] = 1.0 + 2.0 * float(mean @ mean) / float(variance.min())
        factor = np.linalg.cholesky(bordered)
        white = factor[:, size, :size]
        logdet = np.log(factor[:, at, at]).sum(axis=1)
        found: FloatArray = -0.5 * (white**2).sum(axis=1) - logdet
        return found


def expected_amplitudes(part: Part, scale: float = 1.0) -> Amplitudes:
    """What a part that is as wrong as the cost model says, times a scale, is expected to have.

    What a count of memory leaves out (the context, what the allocator cannot use) is missing
    everywhere: all of it may move together by as much as any of it by itself. Measured once it is
    known to the byte; until then an out-of-memory says more of the limit than of its own knobs.
    """
    varied = int((part.codes != part.codes[:1]).any(axis=0).sum())
    pairs = varied * (varied - 1) / 2.0
    parts = CONSTANT**2 + MAIN**2 * (varied + PAIR**2 * pairs)
    spread = max(part.spread, LEAST_SPREAD)
    unit = spread * scale * np.sqrt((1.0 - OWN_EXPECTED**2) / parts)
    mains = (float(MAIN * unit),) * len(part.reads)
    constant = spread * scale if part.name == MEMORY else CONSTANT * unit
    return Amplitudes(float(constant), mains, PAIR, OWN_EXPECTED * spread)


def contradiction(part: Part, observed: Sequence[Observed]) -> float:
    """How many times as far off a part is as it says, where that is no chance; 0 where it may be.

    Derived: the mean square of residuals that are standardised by the stated covariance is 1 on
    average, with a variance of 2/n for n of them.
    """
    exact = _counted(observed)
    if len(exact) < ENOUGH:
        return 0.0
    square = _mean_square(part, exact)
    if square <= 1.0 + CONTRADICTED * np.sqrt(2.0 / len(exact)):
        return 0.0
    values = np.asarray([o.log_ratio for o in exact])
    return float(max(np.sqrt(np.mean(values**2)) / max(part.spread, LEAST_SPREAD), 1.0))


def disbelief(part: Part, observed: Sequence[Observed]) -> float:
    """By how much deviations are to be widened where residuals are so far off what a part states.

    Formula: sqrt((nu + n s) / (nu + n)), s the mean square of n residuals that are standardised by
    the stated covariance; within limits, as the amplitudes follow the residuals too.
    Source: Shah et al., "Student-t processes as alternatives to Gaussian processes" (2014): the
    covariance of the conditional distribution.
    """
    exact = _counted(observed)
    if not exact:
        return 1.0
    square = _mean_square(part, exact)
    wide = np.sqrt((BELIEVED + len(exact) * square) / (BELIEVED + len(exact)))
    return float(np.clip(wide, LEAST_WIDE, MOST_WIDE))


def _counted(observed: Sequence[Observed]) -> list[Observed]:
    return [o for o in observed if not o.least and not o.disturbed]


def _mean_square(part: Part, exact: Sequence[Observed]) -> float:
    """Of residuals, standardised by what the part states of itself and of its measurements."""
    shape, codes = Shape(part), codes_of(part, exact)
    noise = np.diag(np.asarray([o.noise**2 for o in exact]) + JITTER)
    kernel = shape.kernel(codes, codes, expected_amplitudes(part)) + noise
    values = np.asarray([o.log_ratio for o in exact])
    return float(values @ np.linalg.solve(kernel, values)) / len(exact)


def fitted_amplitudes(
    parts: Mapping[str, Part], observed: Mapping[str, Sequence[Observed]]
) -> dict[str, Amplitudes]:
    """Amplitudes of the highest marginal likelihood under weak priors, for all parts together."""
    return jointly({name: Evidence(part, observed.get(name, ())) for name, part in parts.items()})


def jointly(evidence: Mapping[str, Evidence]) -> dict[str, Amplitudes]:
    """The same from the evidence of each part, which may be used again where it has not changed.

    A model that is wrong about one part is likely to be wrong about the others: one scale for the
    whole, a scale for each part around it. The noise is each part's own. Then single columns and
    the pairs of each part.

    Of a part's scale and of what is a signature's own the mean is taken and not the likeliest: a
    few measurements that happen to lie close together are no proof that others do.
    """
    scales = np.log(SCALES)
    noises = noises_of(evidence)
    chosen: dict[str, FloatArray] = {}
    best = -np.inf
    for whole in scales:
        own = {
            n: e.grid(noises[n]) - 0.5 * ((scales - whole) / PART_WIDTH)[:, None] ** 2
            for n, e in evidence.items()
        }
        total = sum(float(s.max()) for s in own.values()) - 0.5 * (whole / WHOLE_WIDTH) ** 2
        if total > best:
            best = total
            chosen = own
    return {
        name: e.refined(e.mean(chosen[name], e.noises[noises[name]]))
        for name, e in evidence.items()
    }


def noises_of(evidence: Mapping[str, Evidence]) -> dict[str, int]:
    """Which of `NOISES` each part has, by its own runs.

    Loading and saving of milliseconds differ by half from run to run where a step, which is the
    mean of many, does not: what is seen of one part is not believed of another.
    """
    return {
        name: int(np.argmax(e.loudness - np.asarray(QUIET[: len(e.noises)])))
        for name, e in evidence.items()
    }


def _with_main(amplitudes: Amplitudes, column: int, value: float) -> Amplitudes:
    mains = (*amplitudes.mains[:column], value, *amplitudes.mains[column + 1 :])
    return replace(amplitudes, mains=mains)


def _best(scores: FloatArray, factors: Iterable[float], width: float) -> int:
    return int(np.argmax(scores - 0.5 * (np.log(tuple(factors)) / width) ** 2))

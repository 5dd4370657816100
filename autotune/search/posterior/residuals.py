"""One small Gaussian process per component over log(measured / predicted).

Kernel over the columns that a summand (`Term`) of the component reads; a component without
summands is one:

    k = s0^2 + sum_k sk^2 R_k + p^2 sum_{j<k} sj sk R_j R_k

R_k: equality for a categorical column, exp(-distance of positions / 3) for an ordinal one: a walk
from level to level. The pairs are the interactions: strong columns interact strongly, and more than
two at a time are left to the noise of what remains. Summands add up, each weighed by its share of
the prediction. The posterior is evaluated once per distinct signature of the reads, never per
candidate.

Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), algorithm 2.1 and
section 5.4; kernel: Duvenaud et al., "Additive Gaussian Processes" (2011), of order two.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray
    from autotune.search.priced import Part

    Codes = NDArray[np.int64]
    Singles = NDArray[np.float32]

ORDINAL_LENGTH = 3.0  # positions over which the effect of a count is forgotten
# Proportions that are expected of the constant and of a column's own effect. Together they make up
# the spread that the cost model states for the part, over the columns that vary.
CONSTANT, MAIN = 1.5, 1.0
PAIR = 0.45  # of the columns' own effects
SCALES = tuple(3.0 ** (k / 4.0) for k in range(-4, 5))  # times what the cost model states
COLUMNS = (0.35, 1.0, 2.8)  # times a column's expected amplitude
PAIRS = (0.5, 1.0, 2.0)  # times PAIR
# Weak priors: sd of the log of how wrong the model is as a whole, of a part's scale given that, of
# a column's amplitude, of the pairs'.
WHOLE_WIDTH, PART_WIDTH, COLUMN_WIDTH, PAIR_WIDTH = 0.6, 0.4, 0.6, 0.5
LEAST_SPREAD = 0.01
ENOUGH = 3  # observations from which single columns are judged
JITTER = 1e-8


@dataclass(frozen=True, slots=True)
class Observed:
    """log(measured/predicted) of one part at one signature. codes: [reads].

    least: what is known is that the log ratio is larger (an out-of-memory). disturbed: other
    programs made it larger; later searches never hear of it.
    """

    codes: tuple[int, ...]
    log_ratio: float
    noise: float
    least: bool = False
    disturbed: bool = False


@dataclass(frozen=True, slots=True)
class Amplitudes:
    """Standard deviations of the kernel's terms; pair: of two columns', relative to their own."""

    constant: float
    mains: tuple[float, ...]
    pair: float


class Residual:
    """The posterior of one part's log factor, at every signature of the part."""

    def __init__(
        self, part: Part, observed: Sequence[Observed], amplitudes: Amplitudes | None = None
    ) -> None:
        """Fit amplitudes to the observations, unless they are given, and solve."""
        self.part = part
        self._observed = tuple(observed)
        self._shape = _Shape(part)
        self._codes = codes_of(part, observed)
        self._values = np.asarray([o.log_ratio for o in observed], np.float64)
        self._noise = np.asarray([o.noise for o in observed], np.float64)
        if amplitudes is None:
            amplitudes = fitted_amplitudes({part.name: part}, {part.name: observed})[part.name]
        self.amplitudes = amplitudes
        self._solve()

    def _solve(self) -> None:
        shape, amplitudes = self._shape, self.amplitudes
        prior = shape.variance(amplitudes)
        if not len(self._values):
            self.mean: FloatArray = np.zeros(len(prior))
            self.variance: FloatArray = np.maximum(prior, 1e-10)
            self._whitened = np.zeros((len(prior), 0), np.float32)
            return
        kernel = shape.kernel(self._codes, self._codes, amplitudes)
        kernel = kernel + np.diag(self._noise**2 + JITTER)
        inverse = np.linalg.inv(np.linalg.cholesky(kernel))
        cross = shape.cross(self._codes, amplitudes)
        weights = (inverse @ self._values).astype(np.float32)
        whitened = _product(cross, inverse.T.astype(np.float32))
        self.mean = _product(whitened, weights).astype(np.float64)
        if not np.isfinite(self.mean).all():
            msg = f"the residual of {self.part.name} is not finite"
            raise FloatingPointError(msg)
        self._whitened = whitened
        explained = np.einsum("ij,ij->i", whitened, whitened).astype(np.float64)
        self.variance = np.maximum(prior - explained, 1e-10)

    def covariance(self, row: int) -> FloatArray:
        """[signatures] posterior covariance of every signature with one of them."""
        prior = self._shape.cross(self.part.codes[row : row + 1], self.amplitudes)[:, 0]
        explained = _product(self._whitened, self._whitened[row])
        shared: FloatArray = (prior - explained).astype(np.float64)
        return shared

    def at(self, codes: Codes) -> tuple[FloatArray, FloatArray]:
        """Posterior mean and covariance at some codes, whether a candidate has them or not."""
        shape, amplitudes = self._shape, self.amplitudes
        prior = shape.kernel(codes, codes, amplitudes)
        if not len(self._values):
            return np.zeros(len(codes)), prior
        kernel = shape.kernel(self._codes, self._codes, amplitudes)
        factor = np.linalg.cholesky(kernel + np.diag(self._noise**2 + JITTER))
        white = np.linalg.solve(factor, shape.kernel(self._codes, codes, amplitudes))
        mean: FloatArray = white.T @ np.linalg.solve(factor, self._values)
        return mean, prior - white.T @ white

    def joint(self, rows: NDArray[np.intp]) -> FloatArray:
        """[r, r] posterior covariance of some signatures."""
        codes = self.part.codes[rows]
        prior = self._shape.kernel(codes, codes, self.amplitudes)
        white = self._whitened[rows].astype(np.float64)
        found: FloatArray = prior - white @ white.T
        return found

    def with_believed(self, rows: Sequence[int]) -> Residual:
        """The same process as if pending signatures had been measured at their posterior mean.

        Amplitudes stay. Source: Ginsbourger et al., "Kriging is well-suited to parallelize
        optimization" (2010): kriging believer.
        """
        believed = [r for r in dict.fromkeys(rows) if self.part.predicted[r] > 0]
        if not believed:
            return self
        part = self.part
        pending = [
            Observed(tuple(int(c) for c in part.codes[row]), float(self.mean[row]), part.noise)
            for row in believed
        ]
        return Residual(part, [*self._observed, *pending], self.amplitudes)


def _product(one: NDArray[np.float32], other: NDArray[np.float32]) -> NDArray[np.float32]:
    """The matrix product of finite numbers.

    The vector kernels of some BLAS raise the flag of an invalid operation over lanes that they do
    not use; callers check that what comes out is finite.
    """
    with np.errstate(invalid="ignore"):
        found: NDArray[np.float32] = one @ other
    return found


def codes_of(part: Part, observed: Sequence[Observed]) -> Codes:
    """[observed, reads] level of each dimension."""
    return np.asarray([o.codes for o in observed], np.int64).reshape(-1, len(part.reads))


@dataclass(frozen=True, slots=True)
class _Summand:
    """columns: positions of its reads. share: [signatures]."""

    columns: tuple[int, ...]
    share: FloatArray


class _Shape:
    """Correlations of a part's levels, without amplitudes."""

    def __init__(self, part: Part) -> None:
        self.part = part
        self.tables = []
        for dimension in part.reads:
            size = len(dimension.levels)
            gap = np.abs(np.subtract.outer(np.arange(size), np.arange(size))).astype(np.float64)
            table = np.exp(-gap / ORDINAL_LENGTH) if dimension.ordinal else gap == 0
            self.tables.append(np.asarray(table, np.float64))
        every = tuple(range(len(part.reads)))
        whole = _Summand(every, np.ones(len(part.predicted)))
        self.summands = tuple(_Summand(t.reads, t.share) for t in part.terms) or (whole,)

    @cached_property
    def _keys(self) -> tuple[NDArray[np.int64], NDArray[np.intp]]:
        keys = self._key(self.part.codes)
        order = np.argsort(keys)
        return keys[order], order

    def _key(self, codes: Codes) -> NDArray[np.int64]:
        key = np.zeros(len(codes), np.int64)
        for k, table in enumerate(self.tables):
            key = key * len(table) + codes[:, k]
        return key

    def shares(self, codes: Codes) -> list[FloatArray]:
        """By summand, its share at some codes; the mean where no candidate has them."""
        if len(self.summands) == 1:
            return [np.ones(len(codes))]
        keys, order = self._keys
        place = np.minimum(np.searchsorted(keys, self._key(codes)), len(keys) - 1)
        known = keys[place] == self._key(codes)
        return [
            np.where(known, s.share[order[place]], float(np.mean(s.share))) for s in self.summands
        ]

    def variance(self, amplitudes: Amplitudes) -> FloatArray:
        """[signatures] prior variance."""
        total: FloatArray = np.zeros(len(self.part.predicted))
        for summand in self.summands:
            mains = np.asarray([amplitudes.mains[k] for k in summand.columns])
            pairs = (mains.sum() ** 2 - (mains**2).sum()) / 2.0
            own = amplitudes.constant**2 + (mains**2).sum() + amplitudes.pair**2 * pairs
            total += summand.share**2 * own
        return total

    def kernel(self, left: Codes, right: Codes, amplitudes: Amplitudes) -> FloatArray:
        """[l, r] prior covariance."""
        total = np.zeros((len(left), len(right)))
        shares = zip(self.summands, self.shares(left), self.shares(right), strict=True)
        for summand, near, far in shares:
            main, single, squared = (np.zeros(total.shape) for _ in range(3))
            for k in summand.columns:
                own = self.tables[k][left[:, k]][:, right[:, k]] * amplitudes.mains[k]
                main += own * amplitudes.mains[k]
                single += own
                squared += own * own
            main += amplitudes.constant**2
            main += amplitudes.pair**2 / 2.0 * (single * single - squared)
            total += np.outer(near, far) * main
        return total

    def cross(self, others: Codes, amplitudes: Amplitudes) -> Singles:
        """[signatures, m] prior covariance of all signatures with a few, in single precision.

        Derived: every sum over columns is a product with one-hot rows, one matrix product for
        thousands of signatures instead of a lookup for each column.
        """
        hot, starts = self._hot
        count = len(others)
        total = np.zeros((len(hot), count), np.float32)
        for summand, share in zip(self.summands, self.shares(others), strict=True):
            right = np.zeros((hot.shape[1], 3 * count), np.float32)
            for k in summand.columns:
                span = slice(starts[k], starts[k + 1])
                own = self.tables[k][:, others[:, k]] * amplitudes.mains[k]
                right[span] = np.concatenate(
                    [own * amplitudes.mains[k], own, own * own], axis=1, dtype=np.float32
                )
            sums = hot @ right
            main, single, squared = (sums[:, k * count : (k + 1) * count] for k in range(3))
            added = main + np.float32(amplitudes.constant**2)
            added += np.float32(amplitudes.pair**2 / 2.0) * (single * single - squared)
            added *= share.astype(np.float32)
            if len(self.summands) > 1:
                added *= summand.share.astype(np.float32)[:, None]
            total += added
        return total

    @cached_property
    def _hot(self) -> tuple[Singles, NDArray[np.int64]]:
        starts = np.concatenate([[0], np.cumsum([len(t) for t in self.tables])])
        codes = self.part.codes
        hot = np.zeros((len(codes), int(starts[-1])), np.float32)
        rows = np.arange(len(codes))
        for k in range(len(self.tables)):
            hot[rows, starts[k] + codes[:, k]] = 1.0
        return hot, starts


class Evidence:
    """Log marginal likelihood of many amplitudes of a part at once, and the best of them."""

    def __init__(self, part: Part, observed: Sequence[Observed]) -> None:
        """Keep what the likelihood needs of the observations."""
        self.part = part
        shape, codes = _Shape(part), codes_of(part, observed)
        self.values = np.asarray([o.log_ratio for o in observed], np.float64)
        self._noise = np.diag(np.asarray([o.noise for o in observed], np.float64) ** 2 + JITTER)
        self._columns = [list(s.columns) for s in shape.summands]
        self._shares = [np.outer(s, s) for s in shape.shares(codes)]
        self._grams = np.stack(
            [t[np.ix_(codes[:, k], codes[:, k])] for k, t in enumerate(shape.tables)]
        )
        self.varied = [k for k in range(codes.shape[1]) if len(set(codes[:, k].tolist())) > 1]
        self._refined: dict[float, Amplitudes] = {}

    @cached_property
    def by_scale(self) -> FloatArray:
        """[SCALES] score of the expected amplitudes at every scale."""
        return self.scores([expected_amplitudes(self.part, scale) for scale in SCALES])

    def refined(self, scale: float) -> Amplitudes:
        """One pass over the columns that were varied, and over the strength of the pairs."""
        if scale not in self._refined:
            self._refined[scale] = self._search(expected_amplitudes(self.part, scale))
        return self._refined[scale]

    def _search(self, start: Amplitudes) -> Amplitudes:
        if len(self.values) < ENOUGH:
            return start
        best = start
        for k in self.varied:
            choices = [_with_main(best, k, start.mains[k] * factor) for factor in COLUMNS]
            best = choices[_best(self.scores(choices), COLUMNS, COLUMN_WIDTH)]
        choices = [Amplitudes(best.constant, best.mains, best.pair * factor) for factor in PAIRS]
        return choices[_best(self.scores(choices), PAIRS, PAIR_WIDTH)]

    def scores(self, choices: Sequence[Amplitudes]) -> FloatArray:
        """[choices] up to a constant."""
        size = len(self.values)
        if not size:
            return np.zeros(len(choices))
        mains = np.asarray([a.mains for a in choices])
        constant = np.asarray([a.constant**2 for a in choices])[:, None, None]
        pair = np.asarray([a.pair**2 for a in choices])[:, None, None] / 2.0
        kernel = np.broadcast_to(self._noise, (len(choices), size, size)).copy()
        for columns, share in zip(self._columns, self._shares, strict=True):
            own, grams = mains[:, columns], self._grams[columns]
            single = np.tensordot(own, grams, axes=1)
            squared = np.tensordot(own**2, grams**2, axes=1)
            main = constant + np.tensordot(own**2, grams, axes=1)
            kernel += share * (main + pair * (single * single - squared))
        factor = np.linalg.cholesky(kernel)
        white = np.linalg.solve(
            factor, np.broadcast_to(self.values[:, None], (*factor.shape[:2], 1))
        )
        logdet = np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
        found: FloatArray = -0.5 * (white[..., 0] ** 2).sum(axis=1) - logdet
        return found


def expected_amplitudes(part: Part, scale: float = 1.0) -> Amplitudes:
    """What a part that is as wrong as the cost model says, times a scale, is expected to have."""
    varied = int((part.codes != part.codes[:1]).any(axis=0).sum())
    pairs = varied * (varied - 1) / 2.0
    parts = CONSTANT**2 + MAIN**2 * (varied + PAIR**2 * pairs)
    unit = max(part.spread, LEAST_SPREAD) * scale / np.sqrt(parts)
    return Amplitudes(float(CONSTANT * unit), (float(MAIN * unit),) * len(part.reads), PAIR)


def fitted_amplitudes(
    parts: Mapping[str, Part], observed: Mapping[str, Sequence[Observed]]
) -> dict[str, Amplitudes]:
    """Amplitudes of the highest marginal likelihood under weak priors, for all parts together."""
    return jointly({name: Evidence(part, observed.get(name, ())) for name, part in parts.items()})


def jointly(evidence: Mapping[str, Evidence]) -> dict[str, Amplitudes]:
    """The same from the evidence of each part, which may be used again where it has not changed.

    A model that is wrong about one part is likely to be wrong about the others: one scale for the
    whole, a scale for each part around it, then single columns and the pairs of each part.
    """
    logs = np.log(SCALES)
    chosen: dict[str, int] = {}
    best = -np.inf
    for whole in logs:
        own = {
            n: e.by_scale - 0.5 * ((logs - whole) / PART_WIDTH) ** 2 for n, e in evidence.items()
        }
        total = sum(float(s.max()) for s in own.values()) - 0.5 * (whole / WHOLE_WIDTH) ** 2
        if total > best:
            best, chosen = total, {name: int(s.argmax()) for name, s in own.items()}
    return {name: e.refined(SCALES[chosen[name]]) for name, e in evidence.items()}


def _with_main(amplitudes: Amplitudes, column: int, value: float) -> Amplitudes:
    mains = (*amplitudes.mains[:column], value, *amplitudes.mains[column + 1 :])
    return Amplitudes(amplitudes.constant, mains, amplitudes.pair)


def _best(scores: FloatArray, factors: Iterable[float], width: float) -> int:
    return int(np.argmax(scores - 0.5 * (np.log(tuple(factors)) / width) ** 2))

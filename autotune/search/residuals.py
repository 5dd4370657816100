"""One small Gaussian process per component over log(measured / predicted).

Kernel over the columns that the component declares to read:

    k = s0^2 + sum_k sk^2 R_k + si^2 exp(-Hamming / 1.5)

R_k: equality for a categorical column, a Gaussian of the distance of positions for an ordinal one.
Hyper-parameters maximise marginal likelihood x a weak log-normal prior over a grid, then column by
column. The posterior is evaluated once per distinct signature of the reads, never per candidate.

Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), algorithm 2.1 and
section 5.4; kernel: additive plus a Hamming term for interactions.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray
    from autotune.search.priced import Dimension, Part

HAMMING_LENGTH = 1.5  # differing columns after which an interaction is forgotten
ORDINAL_LENGTH = 1.5  # positions
CONSTANTS = (0.5, 1.0, 2.0)  # times the spread that the cost model expects of itself
MAINS = (0.03, 0.05, 0.1, 0.2, 0.4)  # sd of one column's effect, for a part of usual spread
INTERACTIONS = (0.03, 0.08, 0.16)
PRIOR_MAIN, PRIOR_INTERACTION, PRIOR_CONSTANT = 0.12, 0.06, 1.0
PRIOR_WIDTH = 0.8  # sd of the log of each amplitude: weak, a factor of two either way
USUAL_SPREAD = 0.2  # of a part that the amplitudes above speak of; others are scaled
PASSES = 2
JITTER = 1e-8


@dataclass(frozen=True, slots=True)
class Observed:
    """log(measured/predicted) of one part at one signature. codes: [reads]."""

    codes: tuple[int, ...]
    log_ratio: float
    noise: float


@dataclass(frozen=True, slots=True)
class Amplitudes:
    """Standard deviations of the kernel's terms."""

    constant: float
    mains: tuple[float, ...]
    interaction: float


class Residual:
    """The posterior of one part's log factor, at every signature of the part."""

    def __init__(
        self, part: Part, observed: Sequence[Observed], amplitudes: Amplitudes | None = None
    ) -> None:
        """Fit amplitudes to the observations, unless they are given, and solve."""
        self.part = part
        self._observed = tuple(observed)
        self._shape = _Shape.of(part.reads)
        self._codes = np.asarray([o.codes for o in observed], np.int64).reshape(-1, len(part.reads))
        self._values = np.asarray([o.log_ratio for o in observed], np.float64)
        self._noise = np.asarray([o.noise for o in observed], np.float64)
        self.amplitudes = amplitudes or self._shape.fit(
            self._codes, self._values, self._noise, part.spread
        )
        self._solve()

    def _solve(self) -> None:
        amplitudes = self.amplitudes
        self.prior_variance = float(
            amplitudes.constant**2
            + sum(s * s for s in amplitudes.mains)
            + amplitudes.interaction**2
        )
        rows = len(self.part.predicted)
        if not len(self._values):
            self.mean: FloatArray = np.zeros(rows)
            self.variance: FloatArray = np.full(rows, self.prior_variance)
            self._whitened = np.zeros((rows, 0), np.float32)
            return
        kernel = self._shape.kernel(self._codes, self._codes, amplitudes)
        kernel = kernel + np.diag(self._noise**2 + JITTER)
        inverse = np.linalg.inv(np.linalg.cholesky(kernel))
        cross = self._shape.cross(self.part.codes, self._codes, amplitudes)
        whitened = cross @ inverse.T.astype(np.float32)
        self._whitened = whitened
        self.mean = (whitened @ (inverse @ self._values).astype(np.float32)).astype(np.float64)
        explained = np.einsum("ij,ij->i", whitened, whitened).astype(np.float64)
        self.variance = np.maximum(self.prior_variance - explained, 1e-10)

    def covariance(self, row: int) -> FloatArray:
        """[signatures] posterior covariance of every signature with one of them."""
        own = self.part.codes[row : row + 1]
        prior = self._shape.cross(self.part.codes, own, self.amplitudes)[:, 0]
        if not len(self._values):
            return prior.astype(np.float64)
        shared: FloatArray = (prior - self._whitened @ self._whitened[row]).astype(np.float64)
        return shared

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


@dataclass(frozen=True, slots=True)
class _Shape:
    """Correlations of the columns' levels, without amplitudes."""

    tables: tuple[FloatArray, ...]  # [levels, levels] a column
    starts: tuple[int, ...] = field(default=())

    @classmethod
    def of(cls, reads: Sequence[Dimension]) -> _Shape:
        tables = []
        for dimension in reads:
            size = len(dimension.levels)
            gap = np.abs(np.subtract.outer(np.arange(size), np.arange(size))).astype(np.float64)
            table = np.exp(-0.5 * (gap / ORDINAL_LENGTH) ** 2) if dimension.ordinal else gap == 0
            tables.append(np.asarray(table, np.float64))
        starts = np.concatenate([[0], np.cumsum([len(t) for t in tables])])
        return cls(tuple(tables), tuple(int(s) for s in starts))

    def _gram(self, codes: NDArray[np.int64]) -> tuple[FloatArray, FloatArray]:
        """[reads, m, m] correlation by column, and [m, m] the interactions' term."""
        grams = np.stack([t[np.ix_(codes[:, k], codes[:, k])] for k, t in enumerate(self.tables)])
        differing = (codes[:, None, :] != codes[None, :, :]).sum(axis=2)
        return grams, np.exp(-differing / HAMMING_LENGTH)

    def kernel(
        self, left: NDArray[np.int64], right: NDArray[np.int64], amplitudes: Amplitudes
    ) -> FloatArray:
        """[l, r] prior covariance."""
        total = np.full((len(left), len(right)), amplitudes.constant**2)
        for k, table in enumerate(self.tables):
            total += amplitudes.mains[k] ** 2 * table[left[:, k]][:, right[:, k]]
        differing = (left[:, None, :] != right[None, :, :]).sum(axis=2)
        total += amplitudes.interaction**2 * np.exp(-differing / HAMMING_LENGTH)
        return total

    def cross(
        self, codes: NDArray[np.int64], others: NDArray[np.int64], amplitudes: Amplitudes
    ) -> NDArray[np.float32]:
        """[signatures, m] prior covariance of many signatures with a few, in single precision.

        Derived: both terms are products with one-hot rows, one matrix product for thousands of
        signatures instead of a lookup for each column.
        """
        hot = np.zeros((len(codes), self.starts[-1]), np.float32)
        rows = np.arange(len(codes))
        additive = np.zeros((self.starts[-1], len(others)), np.float32)
        equal = np.zeros((self.starts[-1], len(others)), np.float32)
        for k, table in enumerate(self.tables):
            hot[rows, self.starts[k] + codes[:, k]] = 1.0
            span = slice(self.starts[k], self.starts[k + 1])
            additive[span] = amplitudes.mains[k] ** 2 * table[:, others[:, k]]
            equal[self.starts[k] + others[:, k], np.arange(len(others))] = 1.0
        same = hot @ equal
        steps = np.exp(-np.arange(len(self.tables), -1, -1) / HAMMING_LENGTH)
        joint = (amplitudes.interaction**2 * steps).astype(np.float32)
        cross: NDArray[np.float32] = hot @ additive
        cross += joint[np.rint(same).astype(np.int8)]
        cross += np.float32(amplitudes.constant**2)
        return cross

    def fit(
        self, codes: NDArray[np.int64], values: FloatArray, noise: FloatArray, spread: float
    ) -> Amplitudes:
        """Amplitudes of the highest marginal likelihood under weak priors."""
        count = len(self.tables)
        scale = spread / USUAL_SPREAD
        mains = [scale * main for main in MAINS]
        usual = Amplitudes(spread, (scale * PRIOR_MAIN,) * count, PRIOR_INTERACTION)
        if len(values) < 2:  # noqa: PLR2004 - one value says nothing about amplitudes
            return usual
        evidence = _Evidence(*self._gram(codes), values, noise, spread)
        grid = [
            Amplitudes(c * spread, (m,) * count, i)
            for c, m, i in product(CONSTANTS, mains, INTERACTIONS)
        ]
        best = evidence.best(grid)
        for _ in range(PASSES):
            before = best
            for k in range(count):
                best = evidence.best(
                    [
                        Amplitudes(
                            best.constant, (*best.mains[:k], s, *best.mains[k + 1 :]),
                            best.interaction,
                        )
                        for s in mains
                    ]
                )  # fmt: skip
            if best == before:
                break
        return best


@dataclass(frozen=True, slots=True)
class _Evidence:
    """Log marginal likelihood plus log prior of many amplitudes at once."""

    grams: FloatArray
    joint: FloatArray
    values: FloatArray
    noise: FloatArray
    spread: float

    def best(self, choices: Sequence[Amplitudes]) -> Amplitudes:
        squares = np.asarray([a.mains for a in choices]) ** 2
        kernel = np.tensordot(squares, self.grams, axes=1)
        kernel += (np.asarray([a.constant for a in choices]) ** 2)[:, None, None]
        kernel += (np.asarray([a.interaction for a in choices]) ** 2)[:, None, None] * self.joint
        kernel += np.diag(self.noise**2 + JITTER)
        factor = np.linalg.cholesky(kernel)
        white = np.linalg.solve(
            factor, np.broadcast_to(self.values[:, None], (*factor.shape[:2], 1))
        )
        logdet = np.log(np.diagonal(factor, axis1=1, axis2=2)).sum(axis=1)
        score = -0.5 * (white[..., 0] ** 2).sum(axis=1) - logdet
        score += np.asarray([self._log_prior(a) for a in choices])
        return choices[int(np.argmax(score))]

    def _log_prior(self, amplitudes: Amplitudes) -> float:
        z = [
            np.log(amplitudes.constant / self.spread / PRIOR_CONSTANT),
            np.log(amplitudes.interaction / PRIOR_INTERACTION),
            *(np.log(s / PRIOR_MAIN * USUAL_SPREAD / self.spread) for s in amplitudes.mains),
        ]
        return float(-0.5 * np.sum(np.square(z)) / PRIOR_WIDTH**2)

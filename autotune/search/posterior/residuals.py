"""One small Gaussian process per component over log(measured / predicted).

The posterior is evaluated once per distinct signature of the reads, never per candidate.

Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), algorithm 2.1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.search.posterior.amplitudes import fitted_amplitudes
from autotune.search.posterior.kernel import Amplitudes, Observed, Shape, codes_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray
    from autotune.search.posterior.kernel import Codes
    from autotune.search.priced import Part

JITTER = 1e-8


class Residual:
    """The posterior of one part's log factor, at every signature of the part."""

    def __init__(
        self, part: Part, observed: Sequence[Observed], amplitudes: Amplitudes | None = None
    ) -> None:
        """Fit amplitudes to the observations, unless they are given, and solve."""
        self.part = part
        self._observed = tuple(observed)
        self._shape = Shape(part)
        self._codes = codes_of(part, observed)
        self._values = np.asarray([o.log_ratio for o in observed], np.float64)
        if amplitudes is None:
            amplitudes = fitted_amplitudes({part.name: part}, {part.name: observed})[part.name]
        self.amplitudes = amplitudes
        self._noise = np.asarray([np.hypot(o.noise, amplitudes.noise) for o in observed])
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

    @property
    def noise(self) -> float:
        """Sd of the log of one more measurement, as the measurements so far show it."""
        return float(np.hypot(self.part.noise, self.amplitudes.noise))

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

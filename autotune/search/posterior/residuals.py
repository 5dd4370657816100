"""What measurements teach beyond the model: a small Gaussian process for each component.

It is over log(measured / predicted), evaluated once per distinct signature of the reads, never per
candidate. A run that did not fit says "more than there is": of the same signature what is larger
cannot fit either (`dominated`), and of all others the residual of memory learns a lower bound.
Expectation propagation replaces each bound by the normal observation that moves the posterior as
the bound does. A bound that was expected teaches next to nothing, a surprising one a lot, and two
surprises more than the sum of both.

Source: Rasmussen and Williams, "Gaussian Processes for Machine Learning" (2006), algorithm 2.1; for
bounds section 3.6 and algorithm 3.5, with the probit of a bound in place of a class, and Minka,
"Expectation Propagation for Approximate Bayesian Inference" (2001).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.search.posterior.amplitudes import Evidence, fitted_amplitudes, jointly
from autotune.search.posterior.kernel import Amplitudes, Observed, Shape, codes_of
from autotune.search.priced import MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.search.posterior.kernel import Codes
    from autotune.search.posterior.measurements import History
    from autotune.search.priced import Part, Priced

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


SWEEPS = 8
SETTLED = 1e-4  # change of a mean, in standard deviations, that ends the sweeps
LEAST_PRECISION = 1e-4  # of an observation that is worth keeping; log ratios are of the order of 1
FAR_BELOW = -30.0  # from where the tail's series is exact to 1e-10
PASSES = 2  # of what bounds are worth under the amplitudes, and the amplitudes under that


def hazard(z: float) -> float:
    """Normal density over distribution function, phi(z)/Phi(z), without underflow.

    Source of the series: Abramowitz and Stegun (1964), 26.2.12, inverted.
    """
    if z < FAR_BELOW:
        w = 1.0 / (z * z)
        return -z * (1.0 + w * (1.0 - w * (2.0 - 10.0 * w)))
    density = math.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    return density / (0.5 * math.erfc(-z / math.sqrt(2.0)))


def equivalent_observations(
    mean: FloatArray, covariance: FloatArray, bounds: FloatArray, noise: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Values and sds [bounds] of the normal observations that stand for lower bounds.

    mean, covariance: of the unknowns before the bounds. noise: sd of what was compared with them.
    The sd is infinite where a bound teaches nothing.
    """
    centre, spread = mean.astype(np.float64), covariance.astype(np.float64)
    precision, shift = np.zeros(len(bounds)), np.zeros(len(bounds))
    for _ in range(SWEEPS):
        moved = 0.0
        for i in range(len(bounds)):
            own, at, column = float(spread[i, i]), float(centre[i]), spread[:, i].copy()
            left = 1.0 / max(1.0 / own - precision[i], 1e-9)  # variance without this bound
            middle = left * (at / own - shift[i])
            total = left + noise[i] ** 2
            z = (middle - bounds[i]) / math.sqrt(total)
            slope = hazard(z)
            bend = slope * (z + slope) / total
            remains = 1.0 - bend * left
            more = bend / remains - precision[i]
            push = (middle * bend + slope / math.sqrt(total)) / remains - shift[i]
            step = (push - more * at) / (1.0 + more * own)
            centre += step * column
            spread -= more / (1.0 + more * own) * np.outer(column, column)
            precision[i] += more
            shift[i] += push
            moved = max(moved, abs(step) * math.sqrt(own))
        if moved < SETTLED:
            break
    worth = precision > LEAST_PRECISION
    safe = np.where(worth, precision, 1.0)
    return np.where(worth, shift / safe, mean), np.where(worth, 1.0 / np.sqrt(safe), np.inf)


def residuals_of(
    parts: Mapping[str, Part], observed: Mapping[str, Sequence[Observed]]
) -> dict[str, Residual]:
    """The posterior of every part, with lower bounds as the observations they are worth."""
    exact = {name: [o for o in observed.get(name, ()) if not o.least] for name in parts}
    bounds = {
        name: found for name in parts if (found := [o for o in observed.get(name, ()) if o.least])
    }
    known = dict(exact)
    evidence = {name: Evidence(part, exact[name]) for name, part in parts.items()}
    amplitudes = jointly(evidence)
    for _ in range(PASSES if bounds else 0):
        for name, found in bounds.items():
            before = Residual(parts[name], exact[name], amplitudes[name])
            known[name] = [*exact[name], *_worth(before, found)]
            evidence[name] = Evidence(parts[name], known[name])
        amplitudes = jointly(evidence)
    return {name: Residual(part, known[name], amplitudes[name]) for name, part in parts.items()}


def _worth(residual: Residual, bounds: Sequence[Observed]) -> list[Observed]:
    mean, covariance = residual.at(codes_of(residual.part, bounds))
    values, sds = equivalent_observations(
        mean,
        covariance,
        np.asarray([o.log_ratio for o in bounds]),
        np.asarray([o.noise for o in bounds]),
    )
    return [
        Observed(o.codes, float(value), float(sd))
        for o, value, sd in zip(bounds, values, sds, strict=True)
        if math.isfinite(sd)
    ]


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

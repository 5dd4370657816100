"""Robust least squares with priors, by damped Gauss-Newton steps (Levenberg-Marquardt).

    minimise  sum rho(r_i(x)^2) + sum ((x - m) / s)^2,   rho(z) = 2 (sqrt(1 + z) - 1)

Residuals far above one grow linearly (soft L1), so that a doubtful row cannot bend the fit.
Deterministic; a handful of parameters and some hundreds of rows take a fraction of a second.

Source: Marquardt (1963); Triggs et al., "Bundle Adjustment: A Modern Synthesis" (2000), section 4.3
(robust weights); Charbonnier et al. (1997) for rho.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    FloatArray = np.ndarray[Any, np.dtype[np.float64]]
    Function = Callable[[FloatArray], FloatArray]

STEP = 1e-6  # of the central differences, in the parameters' own scale
MOST_STEPS = 100
CONVERGED = 1e-10  # relative fall of the cost
DAMPING = 1e-3
LEAST_DAMPING, MOST_DAMPING = 1e-12, 1e8


@dataclass(frozen=True, slots=True, eq=False)
class Minimum:
    """Where the cost is least, and the covariance of the parameters there. Shapes: [p], [p, p]."""

    x: FloatArray
    covariance: FloatArray
    cost: float


@dataclass(frozen=True, slots=True, eq=False)
class Effects:
    """Residuals of some parameters, and of effects that reach each row through their sum alone.

    of: (parameters, [m] sum of every row's effects) -> [n], where n is a multiple of m and block
    after block of m has the rows in their order. design: [m, effects] which row has which. All
    derivatives by effects take two evaluations together.
    """

    of: Callable[[FloatArray, FloatArray], FloatArray]
    design: FloatArray
    parameters: int

    def residuals(self, x: FloatArray) -> FloatArray:
        """[n] at the parameters, and the effects after them."""
        return self.of(x[: self.parameters], self.design @ x[self.parameters :])

    def jacobian(self, x: FloatArray) -> FloatArray:
        """[n, parameters + effects] derivatives."""
        own, total = x[: self.parameters], self.design @ x[self.parameters :]
        by_sum = (self.of(own, total + STEP) - self.of(own, total - STEP)) / (2.0 * STEP)
        rows = np.tile(self.design, (len(by_sum) // max(len(total), 1), 1))
        return np.hstack((central(lambda y: self.of(y, total), own), by_sum[:, None] * rows))


def central(residuals: Function, x: FloatArray) -> FloatArray:
    """[n, p] derivatives by central differences."""
    columns = []
    for i in range(len(x)):
        shift = np.zeros(len(x))
        shift[i] = STEP
        columns.append((residuals(x + shift) - residuals(x - shift)) / (2.0 * STEP))
    return np.stack(columns, axis=1)


def minimise(
    residuals: Function | Effects,
    mean: FloatArray,
    sd: FloatArray,
    start: FloatArray | None = None,
) -> Minimum:
    """The minimum. residuals: x -> [n]; mean, sd: the prior, [p]; start: else the prior's mean."""
    if isinstance(residuals, Effects):
        return _minimum(residuals.residuals, residuals.jacobian, (mean, sd), start)
    return _minimum(residuals, lambda x: central(residuals, x), (mean, sd), start)


def _minimum(
    residuals: Function,
    jacobian: Function,
    prior: tuple[FloatArray, FloatArray],
    start: FloatArray | None,
) -> Minimum:
    mean, precision = prior[0], 1.0 / prior[1] ** 2

    def place(x: FloatArray) -> _Place:
        r = residuals(x)
        return _Place(x, r, _cost(r, x, mean, precision))

    here, damping = place((mean if start is None else start).copy()), DAMPING
    for _ in range(MOST_STEPS):
        normal, gradient = _normal(jacobian(here.x), here, mean, precision)
        there = here
        while there.cost >= here.cost and damping <= MOST_DAMPING:
            damped = normal + damping * np.diag(np.diag(normal))
            there = place(here.x - np.linalg.solve(damped, gradient))
            damping *= 4.0
        if there.cost >= here.cost:
            break
        fell, here = (here.cost - there.cost) / here.cost, there
        damping = max(damping / 20.0, LEAST_DAMPING)
        if fell < CONVERGED:
            break
    normal, _ = _normal(jacobian(here.x), here, mean, precision)
    return Minimum(here.x, np.asarray(np.linalg.inv(normal), np.float64), here.cost)


@dataclass(frozen=True, slots=True, eq=False)
class _Place:
    x: FloatArray
    r: FloatArray
    cost: float


def _cost(r: FloatArray, x: FloatArray, mean: FloatArray, precision: FloatArray) -> float:
    robust = 2.0 * (np.sqrt(1.0 + r**2) - 1.0)
    return float(robust.sum() + (precision * (x - mean) ** 2).sum())


def _normal(
    jacobian: FloatArray, here: _Place, mean: FloatArray, precision: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """([p, p], [p]) half the approximate second and the first derivative of the cost."""
    weighted = jacobian / np.sqrt(1.0 + here.r**2)[:, None]
    normal = weighted.T @ jacobian + np.diag(precision)
    gradient = weighted.T @ here.r + precision * (here.x - mean)
    return normal, gradient

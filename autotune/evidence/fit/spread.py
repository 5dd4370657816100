"""How far measured steps scatter around predictions of fits that have not seen them.

The log of a squared residual is regressed on the log of its predicted variance; then one factor on
all spreads makes the 80 % interval hold four of five left-out rows.

Source: Harvey, "Estimating Regression Models with Multiplicative Heteroscedasticity" (1976): the
log of a chi-squared variable has mean -1.27 and standard deviation 2.22.
"""

from __future__ import annotations

from dataclasses import fields, replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.constants import Spreads
from autotune.cost.spread.uncertainty import Z90
from autotune.evidence.fit.least_squares import minimise

if TYPE_CHECKING:
    from autotune.cost.columns import FloatArray
    from autotune.evidence.fit.time import LeftOut

# Hand estimates, half a logarithm wide.
PRIOR = Spreads(
    residual=0.08, issuing=0.20, quantised=0.05, mixture=0.08, ragged=0.12, sharded=0.05
)
PRIOR_SD = 0.5
LOG_CHI2_MEAN, LOG_CHI2_SD = -1.27, 2.22
SMALLEST = 0.005  # [log] residuals below are as good as this one
WANTED = 0.80
STEPS = 50  # halvings of the bracket around the common factor
LARGEST_FACTOR = 8.0


def fit_spreads(left_out: LeftOut) -> Spreads:
    """Spreads under which the 80 % interval holds `WANTED` of the left-out rows."""
    shaped = _shape(left_out)
    low, high = 0.0, LARGEST_FACTOR
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        if coverage(left_out, _scaled(shaped, middle)) < WANTED:
            low = middle
        else:
            high = middle
    return _scaled(shaped, high)


def coverage(left_out: LeftOut, spreads: Spreads, weights: FloatArray | None = None) -> float:
    """Share of measured steps inside the 80 % interval; rows count the same unless weighted."""
    inside = np.abs(left_out.log_ratio) <= Z90 * left_out.log_sd(spreads)
    return float(np.average(inside, weights=weights))


def _scaled(spreads: Spreads, factor: float) -> Spreads:
    changed = {item.name: getattr(spreads, item.name) * factor for item in fields(Spreads)}
    return replace(spreads, **changed)


def _shape(left_out: LeftOut) -> Spreads:
    names = [item.name for item in fields(Spreads)]
    mean = np.log([getattr(PRIOR, name) for name in names])
    squared = np.log(np.maximum(np.abs(left_out.log_ratio), SMALLEST) ** 2) - LOG_CHI2_MEAN
    weights = np.sqrt(left_out.weights * len(set(left_out.groups)))

    def residuals(x: FloatArray) -> FloatArray:
        spread = left_out.log_sd(_spreads(names, x))
        own: FloatArray = weights * (squared - 2.0 * np.log(spread)) / LOG_CHI2_SD
        return own

    return _spreads(names, minimise(residuals, mean, np.full(len(names), PRIOR_SD)).x)


def _spreads(names: list[str], x: FloatArray) -> Spreads:
    return Spreads(**{name: float(np.exp(v)) for name, v in zip(names, x, strict=True)})

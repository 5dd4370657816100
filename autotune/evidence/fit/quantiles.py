"""Weighted quantiles, and half-widths under which an 80 % interval holds 80 %."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.spread.uncertainty import Z90

if TYPE_CHECKING:
    from autotune.cost.columns import FloatArray

WANTED = 0.80
STEPS = 40  # halvings of the bracket
LARGEST = 2.0  # [log] no spread is above


def weighted_median(values: FloatArray, weights: FloatArray) -> float:
    """The value at half of the weight, linear between the middles of the steps."""
    order = np.argsort(values, kind="stable")
    own = weights[order]
    middle = np.cumsum(own) - own / 2.0
    return float(np.interp(0.5 * own.sum(), middle, values[order]))


def held_by(
    error: FloatArray,
    weights: FloatArray,
    known_sd: FloatArray | float = 0.0,
    scale: FloatArray | float = 1.0,
) -> float:
    """The smallest spread under which the 80 % interval holds `WANTED` of the weight.

    error: [n] absolute log errors. known_sd: spread that is there anyway; scale: on the sum.
    """
    low, high = 0.0, LARGEST
    for _ in range(STEPS):
        middle = (low + high) / 2.0
        inside = error <= Z90 * scale * np.hypot(known_sd, middle)
        if float(np.average(inside, weights=weights)) < WANTED:
            low = middle
        else:
            high = middle
    return high

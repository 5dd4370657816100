"""The normal distribution and what is expected of one below zero."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from autotune.cost.columns import FloatArray


def normal_cdf(z: FloatArray) -> FloatArray:
    """Phi(z) to 1e-7. Source: Abramowitz and Stegun (1964), 26.2.17."""
    t = 1.0 / (1.0 + 0.2316419 * np.abs(z))
    tail = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    tail = tail * t * (0.319381530 + t * (-0.356563782 + t * (
        1.781477937 + t * (-1.821255978 + t * 1.330274429))))  # fmt: skip
    found: FloatArray = np.where(z >= 0, 1.0 - tail, tail)
    return found


def expected_improvement(mean: FloatArray, sd: FloatArray) -> FloatArray:
    """E[max(0, -x)] of a normal x."""
    safe = np.maximum(sd, 1e-9)
    z = -mean / safe
    density = np.exp(-0.5 * z * z) / math.sqrt(2.0 * math.pi)
    gain: FloatArray = safe * (z * normal_cdf(z) + density)
    return np.maximum(gain, 0.0)

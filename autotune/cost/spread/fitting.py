"""How likely a run fits, given what it is predicted to need and how far that may be off.

    P(fits) = (1 - w) Phi(log(capacity / needed) / s) + w Phi(log(capacity / needed) / W)

w: the share of runs that hold what their configuration does not say (a copy kept by the loop,
weights loaded twice, a release that differs); W: how far such runs are off, in logarithms; s: how
far the others are. The spread is sized by the interval that holds eight runs in ten, so s is what
leaves that interval as it is: capacity at its end fits with 0.9, whatever the tails.

Covers: every prediction from a configuration. Does not cover: peaks measured on the machine, where
what is untold was measured too; claims that are bounded by tested ones (`spread.memory`).

Source of the form: a contaminated normal; Tukey, "A survey of sampling from contaminated
distributions" (1960). Sizes: 123 readings of 47 sources outside the record; verdicts, of which
none sized it, are in docs/accuracy.md.
"""

from __future__ import annotations

from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.outcome import FEASIBLE_PROBABILITY, Z90

if TYPE_CHECKING:
    from autotune.cost.columns import FloatArray

UNTOLD_SHARE, UNTOLD_LOG_SD = 0.10, 0.5
HOPELESS = 0.05  # probability of fitting under which a run is said to fail


def chance_of_fitting(margin: FloatArray, spread: FloatArray, *, told: bool = False) -> FloatArray:
    """[n] probability that a run fits.

    margin: log(capacity / needed). told: the runs were measured, so nothing is untold.
    """
    if told:
        return normal_cdf(margin / spread)
    wide = np.maximum(spread, UNTOLD_LOG_SD)
    known = normal_cdf(margin / (spread * _core(spread / wide)))
    mixed: FloatArray = (1.0 - UNTOLD_SHARE) * known + UNTOLD_SHARE * normal_cdf(margin / wide)
    return mixed


def memory_violation(total: FloatArray, usable: FloatArray, chance: FloatArray) -> FloatArray:
    """[n] the larger of the relative excess of bytes and the missing probability of fitting.

    At most 0 where a device holds the run.
    """
    return np.maximum(total / usable - 1.0, FEASIBLE_PROBABILITY - chance)


def _core(ratio: FloatArray) -> FloatArray:
    """[n] s as a share of the spread, where the spread is `ratio` of W: from 0.8 to 1."""
    found: FloatArray = np.interp(ratio, *_shares())
    return found


@cache
def _shares() -> tuple[FloatArray, FloatArray]:
    plain, at = NormalDist(), np.linspace(0.0, 1.0, 257)
    known = [(0.9 - UNTOLD_SHARE * plain.cdf(Z90 * each)) / (1.0 - UNTOLD_SHARE) for each in at]
    return at, np.asarray([Z90 / plain.inv_cdf(each) for each in known])


def normal_cdf(z: FloatArray) -> FloatArray:
    """The normal distribution function.

    Source: Abramowitz and Stegun 1964, formula 7.1.26: within 1.5e-7 of the error function.
    """
    x = np.abs(z) / np.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * x)
    tail = np.zeros_like(t)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = t * (tail + coefficient)
    upper: FloatArray = 0.5 * tail * np.exp(-(x**2))
    return np.where(z < 0, upper, 1.0 - upper)

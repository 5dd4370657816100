"""How the rows of a data set spread around a mean, where nothing else of them is known.

A gamma distribution has a stated mean and spread and no negative lengths. The table
`datasets.csv` says how wide instruction data is.
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.domain.job import Lengths

if TYPE_CHECKING:
    FloatArray = np.ndarray[Any, np.dtype[np.float64]]

QUANTILES = 41
GRID_MEANS = 12.0  # [means] where the tail of a length distribution is cut off
MOST_ROUNDS, SAME_MEAN = 500, 1e-9  # of bringing a cut distribution to its mean
REACHED_MEANS = 4.0  # [means] a cap this near is reached by some row of thousands

# Standard deviation over mean of instruction data, where nobody states one, and what is as likely.
# Source: `datasets.csv`: of 17 sets the middle one has 0.62, a sixth of them each side of these.
ASSUMED_SPREAD = 0.6
OTHER_SPREADS = (0.4, 0.8)


def constant(length: int, *, known: bool = True) -> Lengths:
    """Every row `length` tokens long."""
    return Lengths((float(length), float(length)), float(length), length, known=known)


@lru_cache(maxsize=256)
def _gamma_quantiles(shape: float) -> tuple[FloatArray, FloatArray]:
    """(probabilities, quantiles) of a gamma distribution with mean 1, on a fine grid."""
    x = np.linspace(1e-4, GRID_MEANS, 8001)
    density = np.exp((shape - 1) * np.log(x) - shape * (x - 1))
    cumulative = np.concatenate(([0.0], np.cumsum((density[1:] + density[:-1]) / 2)))
    return cumulative / cumulative[-1], x


@lru_cache(maxsize=1024)
def spread_lengths(
    mean: float, relative_sd: float, low: float, cap: int, *, dropped: bool
) -> Lengths:
    """Lengths of a data set with a known mean and spread, after a cap at `cap`.

    dropped: rows above the cap are left out, else they are cut to it.
    Formula: quantiles of a gamma distribution, conditioned on the cap when rows are dropped.
    Source: derived; a gamma distribution has the two stated moments and no negative lengths.
    """
    probability, x = _gamma_quantiles(1 / relative_sd**2)
    kept = float(np.interp(cap / mean, x, probability)) if dropped else 1.0
    u = (np.arange(QUANTILES) + 0.5) / QUANTILES * kept
    values = np.clip(np.interp(u, probability, x) * mean, min(low, float(cap)), float(cap))
    return _lengths(values, int(np.ceil(values[-1])))


@lru_cache(maxsize=1024)
def lengths_below(mean: float, longest: int, relative_sd: float = ASSUMED_SPREAD) -> Lengths:
    """Lengths with a mean after truncation, whose longest row has `longest` tokens."""
    trial = spread_lengths(mean, relative_sd, 1.0, longest, dropped=False)
    values = np.asarray(trial.quantiles)
    for _ in range(MOST_ROUNDS):
        found = _mean(values)
        if abs(found / mean - 1.0) < SAME_MEAN:
            break
        values = np.minimum(values * (mean / found), float(longest))
    return Lengths(tuple(float(v) for v in values), _mean(values), longest, known=True)


def _mean(values: FloatArray) -> float:
    """Mean of the piecewise linear quantile function."""
    return float((values[1:] + values[:-1]).sum() / 2 / (len(values) - 1))


def _lengths(values: FloatArray, maximum: int) -> Lengths:
    return Lengths(tuple(float(v) for v in values), _mean(values), maximum, known=True)

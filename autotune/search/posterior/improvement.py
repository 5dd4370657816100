"""What a probe is expected to gain: by itself, and with the probe that follows it.

Expected improvement looks at the next probe alone and gives nothing for what it teaches. So the
promising candidates are each played through on worlds drawn from the posterior: in a world the
probe measures what the world says, every residual is updated, the next probe is then chosen by
expected improvement, and the world says what both were worth. The reward is the saving held after
the first probe plus that after the second, so that a gain now is not put off for one later.
The second counts as if it showed the truth, which is too much where a part is noisy; counting what
its reading changes was no better (docs/search.md).

Source: derived: one-step rollout of the expected-improvement policy; Bertsekas, "Dynamic
Programming and Optimal Control" (2005), section 6.4; for Bayesian optimization, Lam et al. (2016).
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.frozen import dataclass
from autotune.search.posterior.residuals import hazard

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import BoolArray, FloatArray


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


WORLDS = 96  # draws from the posterior, half of them mirrored
FIRST = 12  # candidates that are played through
SECOND = 400  # candidates among which the probe after them is chosen
JITTER = 1e-7


@dataclass(frozen=True, slots=True)
class Belief:
    """A part's posterior at the candidates. The incumbent is the last of them everywhere.

    mean: [c] log factor. covariance: [u, u] of its distinct signatures, row_of: [c] among them.
    weight: [c] how much the log objective moves with the log factor. noise: of a measurement.
    """

    mean: FloatArray
    covariance: FloatArray
    row_of: NDArray[np.intp]
    weight: FloatArray
    noise: float

    def draw(self, normal: np.random.Generator, worlds: int) -> FloatArray:
        """[c, worlds] log factors, mirrored by pairs."""
        size = len(self.covariance)
        ridge = JITTER * max(float(np.trace(self.covariance)) / size, 1e-6)
        covariance = self.covariance + ridge * np.eye(size)
        try:
            factor = np.linalg.cholesky(covariance)
        except np.linalg.LinAlgError:  # rounding left an eigenvalue below zero
            values, vectors = np.linalg.eigh((covariance + covariance.T) / 2.0)
            factor = vectors * np.sqrt(np.maximum(values, 0.0))
        half = factor @ normal.standard_normal((size, worlds // 2))
        found: FloatArray = self.mean[:, None] + np.concatenate([half, -half], axis=1)[self.row_of]
        return found

    def shift(self, first: int) -> tuple[FloatArray, float]:
        """[c] movement for one standard deviation seen at a candidate, and that deviation."""
        row = self.row_of[first]
        sd = math.sqrt(max(float(self.covariance[row, row]), 0.0) + self.noise**2)
        return (self.covariance[:, row] / sd)[self.row_of], sd


@dataclass(frozen=True, slots=True)
class Table:
    """What is known of the candidates, the incumbent last.

    mean: [c] of the log objective minus the incumbent's; variance: [c] of it, as far as a probe can
    settle it. memory: log of the predicted memory over the limit, which its belief corrects; None
    where nothing limits it. known: [c] fits for certain (1), cannot (0), open (NaN). keeps: [c]
    probability that all other limits are kept. rivals: before the incumbent, so many that were
    measured too. worlds: [c, worlds] the objective's log minus the incumbent's, fits: [c, worlds].
    """

    mean: FloatArray
    variance: FloatArray
    timed: Sequence[Belief]
    memory: Belief | None
    over_limit: FloatArray
    known: FloatArray
    keeps: FloatArray
    drawn: Mapping[int, FloatArray]  # belief -> [c, worlds]; memory is -1
    worlds: FloatArray
    fits: BoolArray
    rivals: int = 0


def reward(table: Table, first: int) -> float:
    """Mean over worlds of the saving after a probe plus that after the one that follows it."""
    count = table.worlds.shape[1]
    each = np.arange(count)
    fits = table.fits[first]
    measured = slice(len(table.mean) - 1 - table.rivals, None)
    mean = np.repeat(table.mean[:, None], count, axis=1)
    variance = table.variance.copy()
    blur = np.random.default_rng(0).standard_normal((len(table.timed), count))
    for number, belief in enumerate(table.timed):
        moved, sd = belief.shift(first)
        moved = belief.weight * moved
        moved = moved - moved[-1]
        seen = table.drawn[number][first] - belief.mean[first] + belief.noise * blur[number]
        seen = seen / sd
        mean += moved[:, None] * np.where(fits, seen, 0.0)
        variance -= moved * moved
    open_fit = fit_after(table, first, fits)
    held = mean[measured].min(axis=0)
    base = np.minimum(held, np.where(fits, mean[first], np.inf))
    kept = (held - base) * table.keeps[first]
    gain = mean[-1] - held + kept
    sd_after = np.sqrt(np.maximum(variance, 1e-8))[:, None]
    worth = expected_improvement(mean - base, np.broadcast_to(sd_after, mean.shape))
    worth *= open_fit * table.keeps[:, None]
    worth[first] = worth[measured] = -1.0
    second = worth.argmax(axis=0)
    later = np.where(table.fits[second, each], -table.worlds[second, each], 0.0)
    later = np.maximum(later, 0.0) * table.keeps[second]
    return float(np.mean(gain + np.maximum(gain, later)))


def fit_after(table: Table, first: int, fits: BoolArray) -> FloatArray:
    """[c, worlds] probability of fitting once the first probe's memory is known."""
    known = np.broadcast_to(table.known[:, None], table.worlds.shape)
    if table.memory is None:
        return np.where(np.isnan(known), 1.0, known)
    belief = table.memory
    moved, sd = belief.shift(first)
    centre = table.over_limit + belief.mean
    exact = table.over_limit[first] + table.drawn[-1][first]
    # An out-of-memory shows that it is over the limit: mean and variance of what is.
    z = float(centre[first]) / sd
    slope = hazard(z)
    seen = np.where(fits, (exact - centre[first]) / sd, slope)
    settled = np.where(fits, 1.0, slope * (z + slope))
    after = centre[:, None] + moved[:, None] * seen
    own = np.diagonal(belief.covariance)[belief.row_of]
    left = own[:, None] - (moved * moved)[:, None] * settled
    sd_after = np.sqrt(np.maximum(left, 0.0) + belief.noise**2)
    return np.where(np.isnan(known), normal_cdf(-after / sd_after), known)

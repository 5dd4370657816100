"""When steps have become steady, and what a steady step takes. Free of torch.

A step's seconds are judged against `a + b x tokens`, fitted with a, b >= 0: batches of different
lengths may differ by what their lengths explain. Where every batch has the same shape this is the
plain median.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

WINDOW = 6  # steps; a shorter one, or medians of neighbouring ones, let a compile step pass
TOLERANCE = 0.12  # of the fitted seconds
OUTLIER = 1.5  # times the fitted seconds


@dataclass(frozen=True)
class Step:
    """One optimizer step. [s] wall time from the end of the step before, and its parts."""

    wall_s: float
    tokens: int  # padding included
    data_s: float  # blocked in the data loader
    micro_s: float  # forward and backward of all micro-steps
    optimizer_s: float
    cpu_s: float = 0.0  # of all threads of this process; far below wall_s: others had the processor


@dataclass(frozen=True)
class Fit:
    """[s] seconds of a step with that many tokens: a + b x tokens."""

    a: float
    b: float

    def at(self, tokens: float) -> float:
        """[s] of a step."""
        return self.a + self.b * tokens


def fit_steps(tokens: Sequence[float], seconds: Sequence[float]) -> Fit:
    """The line through the median of the steps with the median slope, within a, b >= 0.

    Source: Theil (1950) and Sen (1968): the median of pairwise slopes withstands outliers.
    """
    slopes = [
        (t2 - t1) / (n2 - n1)
        for i, (n1, t1) in enumerate(zip(tokens, seconds, strict=True))
        for n2, t2 in list(zip(tokens, seconds, strict=True))[i + 1 :]
        if n2 != n1
    ]
    steepest = statistics.median(t / n if n else 0.0 for n, t in zip(tokens, seconds, strict=True))
    b = min(max(statistics.median(slopes), 0.0), steepest) if slopes else 0.0
    a = statistics.median(t - b * n for n, t in zip(tokens, seconds, strict=True))
    return Fit(max(a, 0.0), b)


def is_steady(steps: Sequence[Step], tolerance: float = TOLERANCE) -> bool:
    """Whether every one of these steps is within the tolerance of the line through them."""
    fit = fit_steps([s.tokens for s in steps], [s.wall_s for s in steps])
    return all(abs(s.wall_s - fit.at(s.tokens)) <= tolerance * fit.at(s.tokens) for s in steps)


def first_steady(steps: Sequence[Step], window: int = WINDOW) -> int | None:
    """Index of the first step of the earliest steady window, or None."""
    for start in range(len(steps) - window + 1):
        if is_steady(steps[start : start + window]):
            return start
    return None


def summary(steps: Sequence[Step], tokens: Sequence[int] | None = None) -> dict[str, float | int]:
    """What the steady steps say. [s] step_s is the mean step at these batches, outliers apart.

    Formula: median(t_i / f_i) x mean(f_i), f the fitted seconds: robust to stalls, and unbiased
    over batches of different lengths. Data, micro and optimizer seconds likewise; they do not sum
    to the step, because the Trainer's own work lies between them.
    """
    counts = [s.tokens for s in steps]
    found: dict[str, float | int] = {"steps": len(steps), "tokens": statistics.fmean(counts)}
    walls = [s.wall_s for s in steps]
    fit = fit_steps(counts, walls)
    ratios = ratios_of(steps)
    centre = statistics.median(ratios)
    inside = [r for r in ratios if r <= OUTLIER * centre]
    found["step_s"] = _typical(counts, walls)
    found["micro_s"] = _typical(counts, [s.micro_s for s in steps])
    found["optimizer_s"] = statistics.median(s.optimizer_s for s in steps)
    found["data_s"] = statistics.median(s.data_s for s in steps)
    found["cpu_s"] = _typical(counts, [s.cpu_s for s in steps])
    found["median_s"] = statistics.median(walls)
    found["mean_s"] = statistics.fmean(walls)
    found["relative_error"] = error_of(ratios)
    found["outliers"] = len(ratios) - len(inside)
    found["slope_per_step"] = _drift(ratios) / centre
    found["seconds_fixed"], found["seconds_per_token"] = fit.a, fit.b
    found["expected_s"] = centre * fit.at(statistics.fmean(tokens)) if tokens else found["step_s"]
    return found


def error_of(ratios: Sequence[float]) -> float:
    """Relative standard error of a step: of the median of its ratios, outliers apart.

    Formula: 1.25 x sd / sqrt(n), of normal values.
    """
    centre = statistics.median(ratios)
    inside = [r for r in ratios if r <= OUTLIER * centre]
    spread = statistics.stdev(inside) / centre if len(inside) > 1 else 0.0
    return 1.25 * spread / math.sqrt(len(ratios))


def ratios_of(steps: Sequence[Step]) -> list[float]:
    """Seconds of each step over what its length explains, in order."""
    fit = fit_steps([s.tokens for s in steps], [s.wall_s for s in steps])
    return [s.wall_s / max(fit.at(s.tokens), 1e-12) for s in steps]


def typical_s(steps: Sequence[Step]) -> float:
    """[s] the mean step at these batches, outliers apart."""
    return _typical([s.tokens for s in steps], [s.wall_s for s in steps])


def _typical(tokens: Sequence[int], seconds: Sequence[float]) -> float:
    fit = fit_steps(tokens, seconds)
    fitted = [fit.at(n) for n in tokens]
    if min(fitted) <= 0:
        return statistics.median(seconds)
    ratios = [t / f for t, f in zip(seconds, fitted, strict=True)]
    return statistics.median(ratios) * statistics.fmean(fitted)


def _drift(ratios: Sequence[float]) -> float:
    """Change of the ratio per step: warming up, throttling, fragmenting."""
    if len(ratios) < WINDOW:
        return 0.0
    slopes = [
        (later - earlier) / (j - i)
        for i, earlier in enumerate(ratios)
        for j, later in enumerate(ratios)
        if j > i
    ]
    return statistics.median(slopes)

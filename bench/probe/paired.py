"""Two things measured in turns on one machine: the ratio of their times, and how sure it is."""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

CLOCKS = {"wall": "step_s", "cpu": "cpu_s"}  # what a step is timed by -> its name in a probe


def spread(values: Sequence[float]) -> float:
    """Sd of the values over their mean, from the median deviation: one stalled run is no spread.

    Formula: 1.4826 x median |x - median| / median. Source: Rousseeuw and Croux (1993).
    """
    centre = statistics.median(values)
    return 1.4826 * statistics.median(abs(v - centre) for v in values) / centre


def against(ours: Sequence[float], theirs: Sequence[float]) -> dict[str, float]:
    """Median ratio of runs that followed each other, and its standard error.

    Formula: 1.2533 x sd / sqrt(n), the standard error of a median of normal values.
    """
    ratios = [a / b for a, b in zip(ours, theirs, strict=True)]
    error = 1.2533 * spread(ratios) / math.sqrt(len(ratios))
    return {"ratio": statistics.median(ratios), "error": error}

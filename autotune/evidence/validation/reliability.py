"""Whether runs fitted as often as the probability of fitting said: by bin, with counts.

Every configuration once. Sources that report only runs that finished cannot show a failure; how
many of a bin's runs are theirs is counted beside it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.cost.spread.uncertainty import Z90
from autotune.evidence.fit.memory_rows import once
from autotune.evidence.validation.fit_claims import both_outcomes

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.evidence.record.case import MeasuredCase
    from autotune.evidence.validation.residuals import Prediction

EDGES = (0.0, 0.01, 0.1, 0.5, 0.9, 0.95, 0.99, 1.0)


@dataclass(frozen=True, slots=True)
class ReliabilityBin:
    """Runs whose probability of fitting was said to lie from `low` up to `high`.

    n: runs, `finished_only` of them of sources that report no failures. predicted: mean of what was
    said. observed: share that fitted, with its 80 % interval. None where there is no run.
    """

    low: float
    high: float
    n: int
    finished_only: int
    predicted: float | None = None
    observed: float | None = None
    p10: float | None = None
    p90: float | None = None


def reliability(
    cases: Sequence[MeasuredCase], predictions: Mapping[str, Prediction]
) -> tuple[ReliabilityBin, ...]:
    """Every bin, the least sure first."""
    kept = once(cases)
    sources = both_outcomes(kept)
    binned: list[list[MeasuredCase]] = [[] for _ in EDGES[1:]]
    for case in kept:
        binned[bin_of(predictions[case.id].fits_probability)].append(case)
    return tuple(
        _bin(i, own, [predictions[c.id].fits_probability for c in own], sources)
        for i, own in enumerate(binned)
    )


def bin_of(probability: float) -> int:
    """The bin that a probability falls into; an edge belongs to the bin above it."""
    return max(sum(probability >= edge for edge in EDGES[:-1]) - 1, 0)


def _bin(
    i: int, cases: Sequence[MeasuredCase], said: Sequence[float], sources: set[str]
) -> ReliabilityBin:
    n, low, high = len(cases), EDGES[i], EDGES[i + 1]
    hidden = sum(case.group[0] not in sources for case in cases)
    if not n:
        return ReliabilityBin(low, high, 0, 0)
    fitted = sum(not case.oom for case in cases)
    p10, p90 = share_interval(fitted, n)
    return ReliabilityBin(low, high, n, hidden, sum(said) / n, fitted / n, p10, p90)


def share_interval(hits: int, n: int) -> tuple[float, float]:
    """80 % interval of a share.

    Source: Wilson, "Probable inference, the law of succession, and statistical inference" (1927).
    """
    share, extra = hits / n, Z90**2 / n
    middle = (share + extra / 2.0) / (1.0 + extra)
    half = Z90 * math.sqrt(share * (1.0 - share) / n + extra / (4.0 * n)) / (1.0 + extra)
    return max(middle - half, 0.0), min(middle + half, 1.0)

"""Errors and coverage in which every group of source, model and GPU has the same weight.

Inside a group rows are equal. The median is the error that half of the weight is below.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.evidence.cases import equal_weights, weighted_quantile
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.evidence.accuracy import Residual


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one kind of figure; groups weigh the same. None where nothing was compared.

    coverage: share of the readings inside their 80 % interval.
    """

    n: int
    median_ape: float | None = None
    mape: float | None = None
    p90_ape: float | None = None
    bias: float | None = None
    groups: int = 0
    coverage: float | None = None


def _weights(items: Sequence[Residual]) -> np.ndarray:
    """[n] weights that give every (source, model, GPU) the same share; they sum to 1."""
    weights = equal_weights([item.case.group[:3] for item in items])
    shares: np.ndarray = weights / weights.sum()
    return shares


def errors_of(items: Sequence[Residual]) -> Errors:
    """Errors with every (source, model, GPU) weighted equally."""
    if not items:
        return Errors(0)
    weights = _weights(items)
    error = np.asarray([item.error for item in items])
    ratio = np.asarray([item.ratio for item in items])
    return Errors(
        n=len(items),
        median_ape=weighted_quantile(error, weights, 0.5),
        mape=float((error * weights).sum()),
        p90_ape=weighted_quantile(error, weights, 0.9),
        bias=weighted_quantile(ratio, weights, 0.5) - 1.0,
        groups=len({item.case.group[:3] for item in items}),
        coverage=coverage_of(items),
    )


def coverage_of(items: Sequence[Residual]) -> float | None:
    """Share of actual values inside the predicted p10 to p90, groups weighted equally."""
    if not items:
        return None
    inside = np.asarray([item.inside for item in items], np.float64)
    return float((inside * _weights(items)).sum())


def coverage_by_source(items: Sequence[Residual]) -> float | None:
    """The same with sources weighted equally, and groups inside each."""
    sources: dict[str, list[Residual]] = {}
    for item in items:
        sources.setdefault(item.case.group[0], []).append(item)
    shares = [share for own in sources.values() if (share := coverage_of(own)) is not None]
    return sum(shares) / len(shares) if shares else None


def primary(item: Residual) -> bool:
    """Whether a reading of memory is the source's own."""
    return bool(item.case.peak and item.kind == item.case.peak.kind)


def once(items: Sequence[Residual]) -> list[Residual]:
    """One residual of a kind per replicated configuration: that of the newest snapshot."""
    kept: dict[tuple[str, str], Residual] = {}
    for item in items:
        own = item.case.replicate_key, item.kind
        if own not in kept or (kept[own].case.older and not item.case.older):
            kept[own] = item
    return list(kept.values())

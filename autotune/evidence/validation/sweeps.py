"""Whether the model puts configurations of one job in the right order.

A sweep: runs of one source and snapshot that train the same model with the same method, lengths,
kernels and devices, and differ in knobs that a search turns. At least three of them, the slowest
at least a tenth slower than the fastest. What is compared is seconds per row, because sources that
raise the micro-batch often raise the global batch with it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.evidence.record.case import MeasuredCase

LEAST_POINTS, LEAST_SPREAD = 3, 0.10
APART = 0.05  # pairs closer than this measure the same


@dataclass(frozen=True, slots=True)
class Sweeps:
    """Order and regret over all sweeps. None where there is no sweep."""

    sweeps: int
    points: int
    pairs: int
    right_order: float | None  # share of the pairs
    mean_regret: float | None  # seconds of the predicted best over the measured best, minus 1
    worst_regret: float | None


def sweeps_of(cases: Sequence[MeasuredCase], predicted_s: Sequence[float]) -> Sweeps:
    """Order and regret of predicted step times against the cases' own."""
    groups: dict[str, list[tuple[float, float]]] = {}
    for case, seconds in zip(cases, predicted_s, strict=True):
        if case.step_time_s is None:
            continue
        rows = case.job.global_batch_size
        pair = (case.step_time_s / rows, float(seconds) / rows)
        groups.setdefault(case.sweep_key or case.id, []).append(pair)
    kept = [np.asarray(points) for points in groups.values() if _is_sweep(points)]
    right = [_right(a, b) for points in kept for a, b in combinations(points, 2) if _apart(a, b)]
    regrets = [_regret(points) for points in kept]
    return Sweeps(
        sweeps=len(kept),
        points=sum(len(points) for points in kept),
        pairs=len(right),
        right_order=float(np.mean(right)) if right else None,
        mean_regret=float(np.mean(regrets)) if regrets else None,
        worst_regret=max(regrets, default=None),
    )


def _is_sweep(points: list[tuple[float, float]]) -> bool:
    measured = [point[0] for point in points]
    return len(points) >= LEAST_POINTS and max(measured) >= (1 + LEAST_SPREAD) * min(measured)


def _apart(a: np.ndarray, b: np.ndarray) -> bool:
    return bool(abs(np.log(a[0] / b[0])) > np.log1p(APART))


def _right(a: np.ndarray, b: np.ndarray) -> bool:
    return bool((a[0] - b[0]) * (a[1] - b[1]) > 0)


def _regret(points: np.ndarray) -> float:
    pick = int(np.argmin(points[:, 1]))
    return float(points[pick, 0] / points[:, 0].min() - 1.0)

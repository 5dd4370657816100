"""How the bill grows with the data: a line through the variants that differ only in their rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.domain.answer.comparison import Compared, Comparison, Scaling

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.domain.device import Offer
    from autotune.domain.job import Job

Point = tuple[Comparison, Compared]


def scaling_of(parts: Sequence[Comparison]) -> tuple[Scaling, ...]:
    """A line for each offer on which two or more sizes of one job have a row."""
    groups: dict[tuple[Any, ...], list[Comparison]] = {}
    for part in parts:
        groups.setdefault(_all_but_rows(part.job), []).append(part)
    several = [group for group in groups.values() if len({p.job.rows for p in group}) > 1]
    return tuple(
        _line(points, _label(several, group))
        for group in several
        for points in _by_offer(group)
        if len({part.job.rows for part, _ in points}) > 1
    )


def _all_but_rows(job: Job) -> tuple[Any, ...]:
    return (
        job.model.name, job.method, job.max_length, job.lengths.quantiles, job.padding, job.epochs,
        job.global_batch_size,
    )  # fmt: skip


def _label(groups: Sequence[Sequence[Comparison]], group: Sequence[Comparison]) -> str:
    """What tells a group of variants from the others; empty where there is only one."""
    if len(groups) == 1:
        return ""
    shared = set.intersection(*({*part.variant.split(", ")} for part in group))
    return ", ".join(word for word in group[0].variant.split(", ") if word in shared)


def _by_offer(group: Sequence[Comparison]) -> Iterable[list[Point]]:
    found: dict[Offer, list[Point]] = {}
    for part in group:
        for row in part.rows:
            found.setdefault(row.row.offer, []).append((part, row))
    return found.values()


def _line(points: Sequence[Point], label: str) -> Scaling:
    """Least squares through the medians.

    Source: derived: loading, compiling and the final save happen once, everything else by the row.
    """
    ordered = sorted(points, key=lambda point: point[0].job.rows)
    sizes = np.asarray([part.job.rows for part, _ in ordered], np.float64)
    seconds = np.asarray([row.row.duration_s.p50 for _, row in ordered], np.float64)
    slope, fixed = (float(x) for x in np.polyfit(sizes, seconds, 1, w=1.0 / seconds))
    offer = ordered[0][1].row.offer
    usd_per_s = offer.usd_per_s
    return Scaling(
        offer=offer,
        sizes=tuple(int(size) for size in sizes),
        fixed_s=fixed,
        s_per_row=slope,
        fixed_usd=fixed * usd_per_s,
        usd_per_row=slope * usd_per_s,
        off=float(np.max(np.abs((fixed + slope * sizes) / seconds - 1.0))),
        label=label,
    )

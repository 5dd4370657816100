"""Candidates that come closest to fitting, and what each is short of."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.candidates import OFFER
from autotune.domain.outcome import Infeasible
from autotune.search.selection import TIE, best_index, figures, identity, violations

if TYPE_CHECKING:
    from autotune.cost.bill import Bill
    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.domain.outcome import ShortOf
    from autotune.search.selection import Indices, Objective


def nearest_misses(
    bill: Bill, k: int = 3, *, pick: int | None = None, objective: Objective = "cost"
) -> list[int]:
    """Candidates that come closest to fitting, one for each amount of memory, closest first.

    With a pick, those that would beat it if they fitted come first.
    """
    worst = np.maximum(*violations(bill))
    first, _ = figures(bill, objective)
    missing = (worst > 0) & np.isfinite(worst) & np.isfinite(first)
    better = missing & (first < first[pick]) if pick is not None else missing
    found = _misses_in(bill, better, worst, first, k)
    if len(found) < k and pick is not None:
        rest = _misses_in(bill, missing & ~better, worst, first, k)
        found += rest[: k - len(found)]
    return found


def _misses_in(
    bill: Bill, pool: BoolArray, worst: FloatArray, first: FloatArray, k: int
) -> list[int]:
    at: Indices = np.flatnonzero(pool)
    rows = bill.tables["memory"].row_of[at]
    least = np.full(int(rows.max(initial=-1)) + 1, np.inf)
    np.minimum.at(least, rows, worst[at])
    found: list[int] = []
    seen: set[tuple[int, float]] = set()
    for row in np.argsort(least, kind="stable"):
        if len(found) == k or not np.isfinite(least[row]):
            break
        members: Indices = at[(rows == row) & (worst[at] <= least[row])]
        members = members[first[members] <= first[members].min()]
        index = int(members[np.lexsort(identity(bill, members)[::-1])[0]])
        mark = (int(bill.candidates.codes[OFFER][index]), float(bill.memory_bytes[index]))
        if mark not in seen:
            seen.add(mark)
            found.append(index)
    return found


def as_infeasible(bill: Bill, index: int) -> Infeasible:
    """A candidate that does not do as an outcome: what it needs, what there is, and of what."""
    estimated = bill.estimate(index)
    short = short_of(bill, index)
    if short == "ram":
        available = estimated.offer.host.ram_bytes
        required = available + bill.ram_short_bytes[index]
    elif short == "disk":
        available = estimated.offer.host.disk_bytes
        required = available + bill.disk_short_bytes[index]
    else:
        required, available = bill.memory_bytes[index], bill.usable_bytes[index]
    return Infeasible(
        estimated.offer, estimated.config, float(required), float(available), short, short
    )


def short_of(bill: Bill, index: int) -> ShortOf:
    """What a candidate that does not do has too little of; the limits, where it fits."""
    memory, host = (float(values[index]) for values in violations(bill))
    if memory > 0:
        return "memory"
    if bill.ram_short_bytes[index] > 0:
        return "ram"
    return "disk" if host > 0 else "limit"


def late_rival(bill: Bill, pick: int, objective: Objective) -> int | None:
    """The best that fits and would beat the pick, were it not for the job's limits.

    What keeps them and is better than the pick by more than the tie would be the pick.
    """
    without = replace(bill.job.limits, deadline_s=None, budget_usd=None, max_session_s=None)
    rival = best_index(bill, objective, without).index
    first, _ = figures(bill, objective)
    better = rival is not None and first[rival] < first[pick] * (1.0 - TIE)
    return rival if better and without != bill.job.limits else None

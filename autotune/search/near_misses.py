"""Candidates that come closest to fitting, and what each is short of."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.candidates import OFFER
from autotune.domain.outcome import Infeasible
from autotune.search.selection import figures, identity, violations

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.cost.model import Bill
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
    """A candidate that does not fit as an outcome: what it needs, what there is, and of what."""
    estimated = bill.estimate(index)
    memory, disk = (float(values[index]) for values in violations(bill))
    if memory > 0 or disk <= 0:
        required, available, reason = bill.memory_bytes[index], bill.usable_bytes[index], "memory"
    else:
        available = estimated.offer.host.disk_bytes
        required, reason = available + bill.disk_short_bytes[index], "disk"
    return Infeasible(estimated.offer, estimated.config, float(required), float(available), reason)

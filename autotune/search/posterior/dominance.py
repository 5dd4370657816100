"""What one probe's memory says of others: larger than too large is too large."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.search.priced import MEMORY

if TYPE_CHECKING:
    from collections.abc import Iterable

    from autotune.cost.columns import BoolArray
    from autotune.search.measured.measurements import History
    from autotune.search.priced import Part, Priced


def dominated(priced: Priced, history: History) -> tuple[BoolArray, BoolArray]:
    """[memory signatures] that cannot fit after an out-of-memory, and those known to fit.

    The same signature but for the dimensions along which memory grows: at larger or equal levels
    after an out-of-memory, at smaller or equal ones after a fit.
    """
    part = next((p for p in priced.parts if p.name == MEMORY), None)
    if part is None:
        return np.zeros(0, np.bool_), np.zeros(0, np.bool_)
    growing = [k for k, d in enumerate(part.reads) if d.name in set(priced.grows)]
    excluded = _beyond(part, growing, history.oom, larger=True)
    known = _beyond(part, growing, history.fitting(priced), larger=False)
    return excluded, known & ~excluded


def _beyond(part: Part, growing: list[int], at: Iterable[int], *, larger: bool) -> BoolArray:
    fixed = [k for k in range(len(part.reads)) if k not in growing]
    found = np.zeros(len(part.predicted), np.bool_)
    for row in {int(part.row_of[index]) for index in at}:
        own = part.codes[row]
        same = (part.codes[:, fixed] == own[fixed]).all(axis=1)
        moved = part.codes[:, growing]
        side = moved >= own[growing] if larger else moved <= own[growing]
        found |= same & side.all(axis=1)
    return found

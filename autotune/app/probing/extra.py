"""What probes did not show of a user's own knobs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Collection

    from autotune.cost.model import Bill


def unproven_levels(bill: Bill, ran: Collection[int], pick: int | None) -> list[str]:
    """Levels of the pick that are not today's and did not run beside today's."""
    found, candidates = [], bill.candidates
    if pick is None:
        return []
    for name in candidates.extra:
        if candidates.codes[name][pick] == 0:
            continue
        same = candidates.codes[name] == 0
        for axis, codes in candidates.codes.items():
            same &= (axis == name) | (codes == codes[pick])
        if not set(np.flatnonzero(same)) & set(ran):
            value, present = candidates.value(name, pick), candidates.levels[name][0]
            found.append(
                f"{name} {value} is the pick's, and the pick did not run with {present} beside "
                "it: what it is worth rests on other configurations"
            )
    return found

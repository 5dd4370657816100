"""Which candidates are too close to call: the 80 % interval of their difference spans zero.

What is unknown of the job, the device or the fitted constants is shared, and cancels as far as
both candidates feel it alike (`cost.spread.joint`); what is left is what one may be off by alone.

A pick of least median is of least expected bill too: E[other / pick] = ratio x exp(sd^2 / 2) is at
least the ratio of medians, which is at least 1. What is held back by a gain or a device that nobody
measured may be expected to be better, and says so here.
Source: the mean of a lognormal variable.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.spread.joint import difference_log_sd, loadings
from autotune.domain.answer.recommendation import Difference
from autotune.domain.outcome import Z90
from autotune.search.selection import TIE, scores

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.cost.bill import Bill
    from autotune.search.selection import Objective


def differences(
    bill: Bill, pick: int, others: Sequence[int], objective: Objective
) -> tuple[Difference, ...]:
    """By how much each of the others may be worse than the pick, in their order.

    Of what is minimised; of time where both are free. A free one against a priced one has none:
    they differ without doubt, and by no ratio.
    """
    own, *rest = loadings(bill, [pick, *others])
    found = []
    for place, (index, other) in enumerate(zip(others, rest, strict=True)):
        ratio = _ratio(bill, pick, index, objective)
        if not 0.0 < ratio < math.inf:
            continue
        sd = difference_log_sd(own, other)
        grow, mean = math.exp(Z90 * sd), math.exp(sd**2 / 2.0)
        found.append(Difference(place, ratio / grow - 1.0, ratio * grow - 1.0, ratio * mean - 1.0))
    return tuple(found)


def too_close(found: Sequence[Difference]) -> tuple[int, ...]:
    """Places of those whose interval spans zero, or that differ by less than can be measured."""
    return tuple(
        each.place for each in found
        if each.low <= TIE and each.high >= -TIE
    )  # fmt: skip


def _ratio(bill: Bill, pick: int, other: int, objective: Objective) -> float:
    """What is minimised of the other, over that of the pick; infinite against a free pick."""
    values = scores(bill, objective)
    if values[pick] <= 0 and values[other] <= 0:
        values = bill.duration_s
    with np.errstate(divide="ignore"):
        return float(np.divide(values[other], values[pick]))

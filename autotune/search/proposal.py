"""The order in which the calibrated sampler tries candidates while nothing has been measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.search.near_misses import nearest_misses
from autotune.search.selection import (
    Objective,
    alternatives,
    best_index,
    choosable,
    neighbours,
    pareto_front,
    scores,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.cost.bill import Bill

MISSES = 100  # tried when nothing fits; each has another amount of memory


def proposal_order(bill: Bill, objective: Objective) -> Iterator[int]:
    """Candidates in the order worth trying, none twice.

    The optimum and the plainer candidate that ties with it, the runner-ups, the time-cost front,
    the pick's one-knob neighbours (feasible or not), and then whatever fits, best first. When
    nothing fits: the nearest misses.
    """
    seen: set[int] = set()
    for index in _in_turn(bill, objective):
        if index not in seen:
            seen.add(index)
            yield index


def _in_turn(bill: Bill, objective: Objective) -> Iterator[int]:
    selection = best_index(bill, objective, bill.job.limits)
    if selection.index is None or selection.optimum is None:
        yield from nearest_misses(bill, MISSES, objective=objective)
        return
    yield selection.optimum
    yield selection.index
    if selection.runner_up is not None:
        yield selection.runner_up
    yield from alternatives(bill, selection.index, objective)
    yield from pareto_front(bill)
    for neighbour in neighbours(bill, selection.index):
        yield neighbour.index
    at = np.flatnonzero(choosable(bill))
    for index in at[np.argsort(scores(bill, objective)[at], kind="stable")]:
        yield int(index)

"""What stands beside the pick: the front, alternatives, neighbours, offers, what nearly fits.

Pure functions over a bill, and the order in which all of them are worth trying while nothing is
measured. Which candidate is the pick, and what a tie is, is in `selection`.

Two candidates are too close to call where the 80 % interval of their difference spans zero. What is
unknown of the job, the device or the fitted constants is shared, and cancels as far as both feel it
alike (`cost.spread.joint`). A pick of least median is of least expected bill too: E[other / pick] =
ratio x exp(sd^2 / 2) is at least the ratio of medians, which is at least 1. What is held back by a
gain or a device that nobody measured may be expected to be better, and says so.
Source: the mean of a lognormal variable.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.spread.joint import loadings, sides_of_difference
from autotune.domain.answer.recommendation import Difference
from autotune.domain.candidates import OFFER, Candidates
from autotune.domain.config import KNOBS
from autotune.domain.outcome import Z90, Infeasible
from autotune.frozen import dataclass
from autotune.search.selection import (
    TIE,
    best_index,
    choosable,
    excess,
    figures,
    identity,
    is_near,
    least_of,
    scores,
    violations,
)

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from autotune.cost.bill import Bill
    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.domain.outcome import ShortOf
    from autotune.search.selection import Indices, Objective, Selection


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
        lower, higher = sides_of_difference(own, other)
        low, high = ratio * math.exp(-Z90 * lower), ratio * math.exp(Z90 * higher)
        mean = math.exp((lower**2 + higher**2) / 4.0)
        found.append(Difference(place, low - 1.0, high - 1.0, ratio * mean - 1.0))
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


VISIBLE = (OFFER, "precision", "activation_checkpointing", "micro_batch_size")
DISTINCT = 5  # alternatives that differ visibly
PER_OFFER = 2  # alternatives of one offer while other offers have some
MISSES = 100  # tried when nothing fits; each has another amount of memory


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A candidate that differs from another in one knob."""

    knob: str
    index: int


def with_runner_up(
    bill: Bill, chosen: Selection, others: list[int], objective: Objective
) -> list[int]:
    """The alternatives with the runner-up among them where it is within the tie of the optimum."""
    rival, optimum = chosen.runner_up, chosen.optimum
    if rival is None or optimum is None or rival in others:
        return others
    if not is_near(bill, objective, rival, optimum):
        return others
    first, second = figures(bill, objective)
    kept = [*others[: max(len(others) - 1, 0)], rival]
    return sorted(kept, key=lambda i: (first[i], second[i]))


def pareto_front(bill: Bill, among: Iterable[int] | None = None) -> list[int]:
    """Feasible candidates that no other beats in both time and cost, soonest first; exact."""
    return _front(bill, choosable(bill, among))


def beyond_front(bill: Bill) -> list[int]:
    """Infeasible candidates that nothing beats in both time and cost, soonest first.

    What more memory (or disk) would buy: each would stand on the front, if it fitted.
    """
    every = np.isfinite(bill.duration_s) & np.isfinite(bill.cost_usd)
    fitting = pareto_front(bill)
    time, cost = bill.duration_s * bill.caution, bill.cost_usd * bill.caution
    return [
        i
        for i in _front(bill, every)
        if not bill.feasible[i]
        and not ((time[fitting] <= time[i]) & (cost[fitting] <= cost[i])).any()
    ]


def _front(bill: Bill, pool: BoolArray) -> list[int]:
    if not pool.any():
        return []
    soonest, cheapest = least_of(bill, pool, "time"), least_of(bill, pool, "cost")
    time, cost = bill.duration_s * bill.caution, bill.cost_usd * bill.caution
    pool = pool & (cost <= cost[soonest])
    pool &= time <= max(time[soonest], time[cheapest])
    at: Indices = np.flatnonzero(pool)
    at = at[np.lexsort([*identity(bill, at)[::-1], cost[at], time[at]])]
    before = np.concatenate([[np.inf], np.minimum.accumulate(cost[at])[:-1]])
    return [int(i) for i in at[cost[at] < before]]


def distinct_alternatives(
    bill: Bill, pick: int, objective: Objective = "cost", among: Iterable[int] | None = None
) -> list[int]:
    """The best feasible candidates that differ visibly from the pick and from each other.

    Visibly: another offer, precision, activation checkpointing or micro-batch size. At most two of
    one offer while other offers have some left. Where the pick keeps the job's limits, so do they.
    """
    pool = choosable(bill, among)
    over = excess(bill, bill.job.limits)
    if over[pick] <= 0:
        pool &= over <= 0
    groups = _best_of_groups(bill, pool, VISIBLE, objective, but=pick)
    chosen: list[int] = []
    spare: list[int] = []
    taken: dict[int, int] = {}
    offers = bill.candidates.codes[OFFER]
    for index in groups:
        offer = int(offers[index])
        taken[offer] = taken.get(offer, 0) + 1
        (chosen if taken[offer] <= PER_OFFER else spare).append(index)
    first, second = figures(bill, objective)
    kept = (chosen[:DISTINCT] + spare)[:DISTINCT]
    return sorted(kept, key=lambda i: (first[i], second[i]))


def _best_of_groups(
    bill: Bill, pool: BoolArray, axes: tuple[str, ...], objective: Objective, but: int
) -> list[int]:
    """The best of each distinct combination of axes but one's own, best first."""
    at: Indices = np.flatnonzero(pool)
    if len(at) == 0:
        return []
    key = _group_keys(bill, axes)
    own, at = key[but], at[key[at] != key[but]]
    first, second = figures(bill, objective)
    least = np.full(int(key.max()) + 1, np.inf)
    np.minimum.at(least, key[at], first[at])
    at = at[first[at] <= least[key[at]]]  # only the best of each group remain, with their equals
    order = np.lexsort([*identity(bill, at)[::-1], second[at], first[at]])
    found: dict[int, int] = {int(own): but}
    for index in at[order]:
        found.setdefault(int(key[index]), int(index))
    return list(found.values())[1:]


def _group_keys(bill: Bill, axes: tuple[str, ...]) -> NDArray[np.int64]:
    key = np.zeros(len(bill), np.int64)
    for axis in axes:
        key = key * len(bill.candidates.levels[axis]) + bill.candidates.codes[axis]
    return key


def neighbours(bill: Bill, pick: int) -> list[Neighbour]:
    """Candidates, feasible or not, that differ from the pick in one knob on the same offer.

    For a knob that is a count, the next smaller and the next larger value; accumulation follows
    the micro-batch and is no difference of its own.
    """
    candidates = bill.candidates
    axes = [
        axis
        for axis, values in candidates.levels.items()
        if len(values) > 1 and axis not in {OFFER, "gradient_accumulation_steps"}
    ]
    offers = candidates.codes[OFFER]
    at: Indices = np.flatnonzero(offers == offers[pick])
    differs = {axis: candidates.codes[axis][at] != candidates.codes[axis][pick] for axis in axes}
    total = np.zeros(len(at), np.int16)
    for mask in differs.values():
        total += mask
    found: list[Neighbour] = []
    for axis in axes:
        near = at[(total == 1) & differs[axis]]
        found.extend(Neighbour(axis, int(i)) for i in _adjacent(bill, axis, near, pick))
    return found


def _adjacent(bill: Bill, axis: str, near: Indices, pick: int) -> list[int]:
    values = bill.candidates.levels[axis]
    by_value = sorted(near, key=lambda i: str(values[bill.candidates.codes[axis][i]]))
    if axis not in KNOBS or KNOBS[axis].kind != "count":
        return [int(i) for i in by_value]
    own = bill.candidates.value(axis, pick)
    counts = {int(bill.candidates.value(axis, int(i))): int(i) for i in near}
    below = [counts[max(c for c in counts if c < own)]] if min(counts, default=own) < own else []
    above = [counts[min(c for c in counts if c > own)]] if max(counts, default=own) > own else []
    return below + above


def best_of_each_offer(
    bill: Bill, objective: Objective, among: Iterable[int] | None = None
) -> list[int]:
    """The cheapest (or soonest) candidate of every offer; where memory is short, the nearest to it.

    An offer whose host alone is short (disk, memory) is left out: its figures are of no run.
    among: of these alone; an offer none of whose fitting candidates is among them is left out.
    """
    first, second = figures(bill, objective)
    fits, offers = choosable(bill, among), bill.candidates.codes[OFFER]
    found = []
    for number in range(len(bill.job.offers)):
        at = np.flatnonzero(offers == number)
        pool = at[fits[at]]
        if len(pool):  # what is free is free whatever it takes: then the soonest
            found.append(int(pool[np.lexsort((second[pool], first[pool]))[0]]))
        elif len(at) and (bill.memory_violation[at] > 0).all():
            found.append(int(at[np.argmin(bill.memory_violation[at])]))
    return found


def bill_of_offer(bill: Bill, number: int) -> Bill:
    """The candidates of the offer at `number` of the job, in their order; may be empty.

    Rules of choice see exactly what they would see if it were the job's only offer.
    """
    offer = bill.job.offers[number]
    at = np.flatnonzero(bill.candidates.codes[OFFER] == number)
    taken = bill.candidates.take(at)
    candidates = Candidates(
        {**taken.levels, OFFER: (offer,)}, {**taken.codes, OFFER: np.zeros(len(at), np.int32)}
    )
    job = replace(bill.job, offers=(offer,))
    return bill.take(at, job, candidates)


SECOND_SHORTAGE = 1e-6  # weight of what is short besides: it decides between equals only


def nearest_misses(
    bill: Bill, k: int = 3, *, pick: int | None = None, objective: Objective = "cost"
) -> list[int]:
    """Candidates that come closest to fitting, one for each amount of memory, closest first.

    With a pick, those that would beat it if they fitted come first. Of two that miss by as much,
    as where all lack the same disk, the one that is short of nothing else is closer.
    """
    memory, host = violations(bill)
    worst = np.maximum(memory, host) + SECOND_SHORTAGE * np.clip(np.minimum(memory, host), 0.0, 1.0)
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
    yield from distinct_alternatives(bill, selection.index, objective)
    yield from pareto_front(bill)
    for neighbour in neighbours(bill, selection.index):
        yield neighbour.index
    at = np.flatnonzero(choosable(bill))
    for index in at[np.argsort(scores(bill, objective)[at], kind="stable")]:
        yield int(index)

"""Choosing among priced candidates: the optimum, ties, the front, alternatives, near misses.

Pure functions over a bill. No answer depends on the order of offers or of a knob's values: what is
equal to the last bit is settled by what the candidates are, never by where they stand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from autotune.cost.bill import duration_log_sd
from autotune.domain.answer.limits import BUDGET, DEADLINE, SESSION, standard
from autotune.domain.candidates import OFFER
from autotune.domain.config import KNOBS
from autotune.search.simplicity import ATTENTION_ORDER, column, simplicity

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

    from autotune.cost.bill import Bill
    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.domain.job import Limits

Objective = Literal["cost", "time"]
Indices = np.ndarray[tuple[int], np.dtype[np.intp]]

TIE = 0.01  # relative; engine study: separating 1 % needs a hundred repeats of a measurement
# Knobs that feed the device; two candidates that differ in nothing else are the same training.
FEEDING = frozenset(
    {"num_dataloader_workers", "prefetch_factor", "pin_memory", "checkpoint_every_steps",
     "save_total_limit", "gradient_accumulation_steps"}
)  # fmt: skip
VISIBLE = (OFFER, "precision", "activation_checkpointing", "micro_batch_size")
PER_OFFER = 2  # alternatives shown of one offer while other offers have some


@dataclass(frozen=True, slots=True)
class Selection:
    """What to recommend. `index` is None when nothing is feasible.

    optimum: the exact optimum; `index` is it, or the simplest candidate that ties with it.
    runner_up: the best candidate that trains differently from `index`.
    tie: the runner-up is within 1 % of the optimum.
    """

    index: int | None
    optimum: int | None
    runner_up: int | None
    tie: bool


@dataclass(frozen=True, slots=True)
class Neighbour:
    """A candidate that differs from another in one knob."""

    knob: str
    index: int


def score_name(bill: Bill, objective: Objective) -> str:
    """What is minimised: cost_usd, or duration_s when asked for or when nothing costs anything."""
    return "cost_usd" if objective == "cost" and bool(np.any(bill.cost_usd > 0)) else "duration_s"


def scores(bill: Bill, objective: Objective) -> FloatArray:
    """[n] the number that is minimised: dollars or seconds."""
    return bill.cost_usd if score_name(bill, objective) == "cost_usd" else bill.duration_s


def cautious_scores(bill: Bill, objective: Objective) -> FloatArray:
    """[n] what decides between candidates: the score at the pessimistic end of what is unmeasured.

    A gain that is only expected wins where it would win even if nothing of it came true.
    """
    return scores(bill, objective) * bill.caution


def violations(bill: Bill) -> tuple[FloatArray, FloatArray]:
    """[n] violations of memory and of the host, relative to what there is; at most 0: it suffices.

    The host's is the larger of its disk's and, where something is offloaded, its memory's.
    """
    codes = bill.candidates.codes[OFFER]
    hosts = [offer.host for offer in bill.candidates.levels[OFFER]]
    disk = np.asarray([max(host.disk_bytes, 1.0) for host in hosts], np.float64)[codes]
    ram = np.asarray([max(host.ram_bytes, 1.0) for host in hosts], np.float64)[codes]
    short: FloatArray = np.maximum(bill.disk_short_bytes / disk, bill.ram_short_bytes / ram)
    return bill.memory_violation, short


def choosable(bill: Bill, among: Iterable[int] | None = None) -> BoolArray:
    """[n] feasible with finite figures; among: of these alone."""
    finite = np.isfinite(bill.duration_s) & np.isfinite(bill.cost_usd)
    usable: BoolArray = np.asarray(bill.feasible, np.bool_) & finite
    if among is not None:
        listed = np.zeros(len(bill), np.bool_)
        listed[list(among)] = True
        usable &= listed
    return usable


def best_index(
    bill: Bill, objective: Objective, limits: Limits, among: Iterable[int] | None = None
) -> Selection:
    """The best feasible candidate that keeps deadline and budget with the asked probability.

    When none keeps them, the candidate nearest to the limits: the soonest for a deadline, the
    cheapest for a budget, the smallest relative excess for both. `among` restricts the choice.
    """
    pool = choosable(bill, among)
    if not pool.any():
        return Selection(None, None, None, tie=False)
    over = excess(bill, limits)
    within = pool & (over <= 0)
    if within.any():
        optimum = _least(bill, within, objective)
        index = _simplest(bill, within, objective, optimum)
        pool = within
    else:
        nearest = pool & (over <= over[pool].min())
        index = optimum = _least(bill, nearest, objective)
    runner_up = _runner_up(bill, pool, objective, index)
    tie = runner_up is not None and _near(bill, objective, runner_up, optimum)
    tie = tie and runner_up is not None and _expected_alike(bill, objective, runner_up, index)
    return Selection(index, optimum, runner_up, tie)


def excess(bill: Bill, limits: Limits) -> FloatArray:
    """[n] by how much, relatively, the worst of the limits is missed; at most 0 where all are kept.

    A limit is kept where the bill's own distribution stays within it with the probability that the
    job asks for: what lies at that quantile is held against it. A gain that nobody measured keeps
    no limit: it is left out.
    """
    found = np.full(len(bill), -np.inf)
    if not limits.stated:
        return found
    spread = duration_log_sd(bill, np.arange(len(bill)))
    grow = np.exp(standard(limits.confidence) * spread) * bill.unmeasured_gain
    held = {DEADLINE: bill.duration_s * grow, BUDGET: bill.cost_usd * grow}
    held[SESSION] = held[DEADLINE]
    for name, limit in limits.stated:
        over = held[name] - limit
        found = np.maximum(found, over / limit if limit > 0 else over)
    return found


def figures(bill: Bill, objective: Objective) -> tuple[FloatArray, FloatArray]:
    """What is minimised first, and what decides between equals: both as `cautious_scores`."""
    first = cautious_scores(bill, objective)
    by_cost = score_name(bill, objective) == "cost_usd"
    return first, (bill.duration_s if by_cost else bill.cost_usd) * bill.caution


def identity(bill: Bill, at: Indices) -> list[FloatArray]:
    """Sort keys by what the candidates are, the weightiest first: plain settings win."""
    levels = bill.candidates.levels
    texts = [repr(offer) for offer in levels[OFFER]]
    in_order = sorted(texts)
    keys = [column(bill, OFFER, [in_order.index(text) for text in texts], at)]
    for name, knob in KNOBS.items():
        order = ATTENTION_ORDER if name == "attention" else knob.choices
        ranks = [float(order.index(v)) if order else float(v) for v in levels[name]]
        keys.append(column(bill, name, ranks, at))
    own = bill.candidates.extra  # the present level first
    return keys + [column(bill, name, range(len(levels[name])), at) for name in own]


def _least(bill: Bill, pool: BoolArray, objective: Objective) -> int:
    """The candidate of the pool with the least score, then the least of the other figure."""
    first, second = figures(bill, objective)
    at: Indices = np.flatnonzero(pool & (first <= first[pool].min()))
    at = at[second[at] <= second[at].min()]
    return int(at[np.lexsort(identity(bill, at)[::-1])[0]])


def _near(bill: Bill, objective: Objective, index: int, optimum: int) -> bool:
    first, second = figures(bill, objective)
    if first[optimum] > 0 or first[index] > 0:
        return bool(first[index] <= first[optimum] * (1 + TIE))
    return bool(second[index] <= second[optimum] * (1 + TIE))


def _expected_alike(bill: Bill, objective: Objective, one: int, other: int) -> bool:
    """Whether two candidates are expected to score alike: no unmeasured gain lies between them."""
    values = scores(bill, objective)
    return bool(abs(values[one] - values[other]) <= TIE * max(values[one], values[other]))


def _simplest(bill: Bill, pool: BoolArray, objective: Objective, optimum: int) -> int:
    """Of one offer's candidates that tie with the optimum, the simplest (`simplicity`)."""
    first, second = figures(bill, objective)
    free = first[optimum] <= 0
    figure = second if free else first
    offers = bill.candidates.codes[OFFER]
    level = pool & (offers == offers[optimum]) & (figure <= figure[optimum] * (1 + TIE))
    at: Indices = np.flatnonzero(level)
    keys = [*simplicity(bill, at), figure[at], *identity(bill, at)]
    return int(at[np.lexsort(keys[::-1])[0]])


def _runner_up(bill: Bill, pool: BoolArray, objective: Objective, index: int) -> int | None:
    candidates = bill.candidates
    other = np.zeros(len(bill), np.bool_)
    for axis, codes in candidates.codes.items():
        if axis not in FEEDING and len(candidates.levels[axis]) > 1:
            other |= codes != codes[index]
    other &= pool
    return _least(bill, other, objective) if other.any() else None


def with_runner_up(
    bill: Bill, chosen: Selection, others: list[int], objective: Objective
) -> tuple[list[int], tuple[int, ...]]:
    """The alternatives with the runner-up of a tie among them, and which of them are the tie."""
    if not chosen.tie or chosen.runner_up is None or chosen.optimum is None:
        return others, ()
    first, second = figures(bill, objective)
    if chosen.runner_up not in others:
        kept = [*others[: max(len(others) - 1, 0)], chosen.runner_up]
        others = sorted(kept, key=lambda i: (first[i], second[i]))
    optimum = chosen.optimum
    return others, tuple(
        place for place, i in enumerate(others) if _near(bill, objective, i, optimum)
    )


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
    soonest, cheapest = _least(bill, pool, "time"), _least(bill, pool, "cost")
    time, cost = bill.duration_s * bill.caution, bill.cost_usd * bill.caution
    pool = pool & (cost <= cost[soonest])
    pool &= time <= max(time[soonest], time[cheapest])
    at: Indices = np.flatnonzero(pool)
    at = at[np.lexsort([*identity(bill, at)[::-1], cost[at], time[at]])]
    before = np.concatenate([[np.inf], np.minimum.accumulate(cost[at])[:-1]])
    return [int(i) for i in at[cost[at] < before]]


def alternatives(
    bill: Bill, pick: int, objective: Objective = "cost", k: int = 5,
    among: Iterable[int] | None = None,
) -> list[int]:  # fmt: skip
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
    kept = (chosen[:k] + spare)[:k]
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

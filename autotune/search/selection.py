"""Which candidate is chosen: the optimum within the job's limits, ties, and what is plainer.

A difference that no measurement shows buys simplicity first and headroom next: nobody should
install, start or change something for nothing. Between machines it buys the other figure: of those
that cost the same, the one that ends clearly sooner (`tiebreak`). No answer depends on the order of
offers or of a knob's values: what is equal to the last bit is settled by what the candidates are,
never by where they stand. Pure functions over a bill; what stands beside the pick is in
`alternatives`.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

import numpy as np

from autotune.cost.spread.joint import difference_log_sd, loadings
from autotune.domain.answer.limits import standard
from autotune.domain.candidates import OFFER
from autotune.domain.config import ACCUMULATION, CLOSED_FORMS, KNOBS
from autotune.domain.job import BUDGET, DEADLINE, SESSION
from autotune.domain.outcome import Z90
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from autotune.cost.bill import Bill
    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.cost.spread.joint import Loadings
    from autotune.domain.config import KnobValue
    from autotune.domain.job import Limits

Objective = Literal["cost", "time"]
Indices = np.ndarray[tuple[int], np.dtype[np.intp]]

TIE = 0.01  # relative; engine study: separating 1 % needs a hundred repeats of a measurement
# Knobs that feed the device; two candidates that differ in nothing else are the same training.
FEEDING = frozenset(
    {"num_dataloader_workers", "prefetch_factor", "pin_memory", "checkpoint_every_steps",
     "save_total_limit", "gradient_accumulation_steps"}
)  # fmt: skip


MEMORY_STEP = 0.01  # of usable memory; less than this between two candidates is no difference
SHARDING_ORDER = ("none", "ddp", "fsdp", "zero2", "zero3")  # what needs less to run comes first
ATTENTION_ORDER = ("sdpa", "flash_attention_2", "flash_attention_3", "eager")
# Knobs whose values need a package beside the trainer and torch; sharding has an order of its own.
PACKAGED: Mapping[str, frozenset[str]] = {
    "attention": frozenset({"flash_attention_2", "flash_attention_3"}),
    "kernels": frozenset({"liger", "chunked_loss"}),
    "optimizer": frozenset({"adamw_bnb_8bit", "paged_adamw_8bit"}),
}
# What transformers' Trainer does where nothing is stated, of knobs that say how it runs.
DEFAULTS: Mapping[str, KnobValue] = {
    "prefetch_factor": 2, "pin_memory": True, "compile": "off", "compile_scope": "model",
    "activation_checkpointing": "none", "attention": "sdpa", "optimizer": "adamw_torch_fused",
    "adapter_dtype": "fp32", "packing": "off", "length_grouping": "off", "kernels": "none",
    "offload": "none",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Selection:
    """What to recommend. `index` is None when nothing is feasible.

    optimum: the exact optimum; `index` is it, or the simplest candidate that ties with it.
    runner_up: the best candidate that trains differently from `index`.
    over: the pick of the machine that `index` was preferred to by a tiebreak; None: by none.
    """

    index: int | None
    optimum: int | None
    runner_up: int | None
    over: int | None = None


@dataclass(frozen=True, slots=True)
class Contender:
    """A machine with its pick, where machines stand against each other.

    score: of the pick, what is minimised, at the pessimistic end of what nobody measured; least:
    of the best there, which the pick may be simpler than. other: the figure that is not minimised,
    as it is expected. unsure: how far the pick's time may be off.
    """

    score: float
    least: float
    other: float
    devices: int
    caution: float
    unsure: Callable[[], Loadings]


def tiebreak(machines: Sequence[Contender], leader: int) -> int:
    """The leader, or of the machines that tie with it one that is clearly better otherwise.

    Of those that cost the same, the one that ends soonest; asked for the least time, the one that
    costs least. Clearly: the 80 % interval of the difference lies beyond what is too close to
    call. It needs no more devices, and no more of it rests on what nobody measured.
    """
    own = machines[leader]
    level = min(each.least for each in machines) * (1 + TIE)
    if level <= 0:  # what is free is the soonest already
        return leader
    better = [
        (each.other, each.score, place)
        for place, each in enumerate(machines)
        if each.score <= level
        and each.devices <= own.devices
        and each.caution <= own.caution
        and each.other < own.other
        and each.other * math.exp(Z90 * difference_log_sd(each.unsure(), own.unsure()))
        < own.other * (1 - TIE)
    ]
    return min(better, default=(own.other, own.score, leader))[2]


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
        return Selection(None, None, None)
    over = excess(bill, limits)
    within = pool & (over <= 0)
    if within.any():
        optimum = least_of(bill, within, objective)
        index, passed = _of_machines(bill, within, objective, optimum)
        pool = within
    else:
        nearest = pool & (over <= over[pool].min())
        index = optimum = least_of(bill, nearest, objective)
        passed = None
    runner_up = _runner_up(bill, pool, objective, index)
    return Selection(index, optimum, runner_up, passed)


def excess(bill: Bill, limits: Limits) -> FloatArray:
    """[n] by how much, relatively, the worst of the limits is missed; at most 0 where all are kept.

    A limit is kept where the bill's own distribution stays within it with the probability that the
    job asks for: what lies at that quantile is held against it. A gain that nobody measured keeps
    no limit: it is left out.
    """
    found = np.full(len(bill), -np.inf)
    if not limits.stated:
        return found
    grow = np.exp(standard(limits.confidence) * bill.slow_log_sd) * bill.unmeasured_gain
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
    here = sorted(set(bill.candidates.codes[OFFER][at].tolist()))
    texts = {place: repr(levels[OFFER][place]) for place in here} if len(here) > 1 else {}
    in_order = sorted(texts.values())
    places = [in_order.index(texts[n]) if n in texts else 0 for n in range(len(levels[OFFER]))]
    keys = [column(bill, OFFER, places, at)]
    for name, knob in KNOBS.items():
        order = ATTENTION_ORDER if name == "attention" else knob.choices
        ranks = [float(order.index(v)) if order else float(v) for v in levels[name]]
        keys.append(column(bill, name, ranks, at))
    own = bill.candidates.extra  # the present level first
    return keys + [column(bill, name, range(len(levels[name])), at) for name in own]


def least_of(bill: Bill, pool: BoolArray, objective: Objective) -> int:
    """The candidate of the pool with the least score, then the least of the other figure."""
    first, second = figures(bill, objective)
    at: Indices = np.flatnonzero(pool & (first <= first[pool].min()))
    at = at[second[at] <= second[at].min()]
    return int(at[np.lexsort(identity(bill, at)[::-1])[0]] if len(at) > 1 else at[0])


def is_near(bill: Bill, objective: Objective, index: int, optimum: int) -> bool:
    """Whether a candidate is within the tie of the optimum, in time where both are free."""
    first, second = figures(bill, objective)
    if first[optimum] > 0 or first[index] > 0:
        return bool(first[index] <= first[optimum] * (1 + TIE))
    return bool(second[index] <= second[optimum] * (1 + TIE))


def _of_machines(
    bill: Bill, pool: BoolArray, objective: Objective, optimum: int
) -> tuple[int, int | None]:
    """The pick among the machines that tie with the optimum, and what a tiebreak passed over.

    The simplest of each machine stand against each other, as in `compare`.
    """
    first, second = figures(bill, objective)
    level = pool & (first <= first[optimum] * (1 + TIE))
    offers = bill.candidates.codes[OFFER]
    here = sorted(set(offers[level].tolist()))
    best = [least_of(bill, level & (offers == n), objective) for n in here]
    at: Indices = np.asarray([_simplest(bill, pool, objective, i) for i in best], np.intp)
    order = np.lexsort([*identity(bill, at)[::-1], second[at], first[at]])
    ordered = [(int(at[k]), best[k]) for k in order]
    if len(ordered) == 1:
        return ordered[0][0], None
    machines = [contender(bill, pick, i, objective) for pick, i in ordered]
    taken = tiebreak(machines, 0)
    return ordered[taken][0], ordered[0][0] if taken else None


def contender(bill: Bill, pick: int, best: int, objective: Objective) -> Contender:
    """A machine's pick as others are held against it. best: what scores least there."""
    first, second = figures(bill, objective)
    return Contender(
        score=float(first[pick]),
        least=float(first[best]),
        other=float(second[pick] / bill.caution[pick]),
        devices=bill.candidates.offer(pick).count,
        caution=float(bill.caution[pick]),
        unsure=lambda: loadings(bill, [pick])[0],
    )


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
    return least_of(bill, other, objective) if other.any() else None


def simplicity(bill: Bill, at: Indices) -> list[FloatArray]:
    """Sort keys of candidates, the weightiest first: the simplest sorts lowest.

    Settings that are not today's; then the way to share the work, packages that today's run does
    not have, loader processes, settings that are not the trainer's default; then memory, the
    micro-batch, and the attention kernel of today.
    """
    return [
        _moved(bill, at),
        column(bill, "sharding", _ranks(bill, "sharding", SHARDING_ORDER[1:]), at),
        sum((_odd(bill, name, values, at) for name, values in PACKAGED.items()), np.zeros(len(at))),
        column(
            bill, "num_dataloader_workers", bill.candidates.levels["num_dataloader_workers"], at
        ),
        sum((_changed(bill, name, at) for name in DEFAULTS), np.zeros(len(at))),
        np.floor(bill.memory_bytes[at] / bill.usable_bytes[at] / MEMORY_STEP),
        column(bill, "micro_batch_size", bill.candidates.levels["micro_batch_size"], at),
        column(bill, "attention", _attention_ranks(bill), at),
    ]


def column(bill: Bill, axis: str, ranks: Iterable[float], at: Indices) -> FloatArray:
    """[at] a number for each level of an axis, gathered for candidates."""
    of_level = np.asarray(list(ranks), np.float64)
    found: FloatArray = of_level[bill.candidates.codes[axis][at]]
    return found


def _ranks(bill: Bill, axis: str, order: tuple[str, ...]) -> list[int]:
    levels = bill.candidates.levels[axis]
    return [order.index(str(value)) if value in order else -1 for value in levels]


def _todays(bill: Bill, name: str) -> KnobValue | None:
    today = bill.job.today
    found: KnobValue | None = getattr(today, name) if today is not None else None
    return found


def _odd(bill: Bill, name: str, values: frozenset[str], at: Indices) -> FloatArray:
    """1 where a value needs a package that today's run does not use."""
    if name not in bill.candidates.levels:
        return np.zeros(len(at))
    own = _todays(bill, name)
    ranks = [value in values and value != own for value in bill.candidates.levels[name]]
    return column(bill, name, ranks, at)


def _changed(bill: Bill, name: str, at: Indices) -> FloatArray:
    """1 where a value is neither the trainer's default nor today's."""
    if name not in bill.candidates.levels:
        return np.zeros(len(at))
    usual = {DEFAULTS[name], _todays(bill, name)}
    return column(bill, name, [v not in usual for v in bill.candidates.levels[name]], at)


def _moved(bill: Bill, at: Indices) -> FloatArray:
    """How many settings are not today's; none where there is no today's run.

    When to save is no setting of the search, and the accumulation follows from the micro-batch.
    """
    found = np.zeros(len(at))
    if bill.job.today is None:
        return found
    for name, values in bill.candidates.levels.items():
        if name in KNOBS and name not in CLOSED_FORMS and name != ACCUMULATION:
            own = _todays(bill, name)
            found += column(bill, name, [value != own for value in values], at)
    return found


def _attention_ranks(bill: Bill) -> list[int]:
    """The kernel that is used today first: nobody should change it for nothing."""
    own = _todays(bill, "attention")
    levels = bill.candidates.levels["attention"]
    return [-1 if value == own else ATTENTION_ORDER.index(str(value)) for value in levels]

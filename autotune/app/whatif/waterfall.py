"""From one way to run a job to another: each change is worth what it is worth given the others.

The changes are the players of a game whose value is the bill; a change is worth its Shapley value,
the mean of what it adds over all orders, so that the steps add up exactly. Up to eight changes are
taken exactly: all 2^k mixtures of old and new are priced by the cost model, one columnar call for
each job among them.
Source: Shapley, "A value for n-person games" (1953).

A mixture need not fit in memory: its time is what is asked. Where its devices and global batch are
not those of its split, the split is the nearest that makes the batch. One that could not run at all
(another precision than the device has) has no time, so changes that only go together are one step.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from autotune.cost.model import COMPONENTS
from autotune.domain.answer.waterfall import Waterfall, WaterfallStep
from autotune.domain.candidates import Candidate
from autotune.domain.config import ACCUMULATION, KNOBS, SPLIT, Config
from autotune.domain.edit import Edit, most_of
from autotune.domain.units import HOUR_S, format_usd
from autotune.frozen import dataclass
from autotune.pricing import Pricing
from autotune.space.rules import violations

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.cost.columns import FloatArray
    from autotune.domain.config import KnobValue
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.domain.observation import Calibration

EXACT = 8  # changes taken one by one: 2^8 mixtures; the smallest others are one step together
OUTSIDE_COMPONENTS = {"checkpoint_every_steps": ("checkpoint",)}  # read by the composition itself


@dataclass(frozen=True, slots=True)
class State(Candidate):
    """One way to run a job: everything that the bill depends on.

    extra_s: seconds that no component counts (copying the data set). other_disk: what was measured
    of saves does not speak of its disk.
    """

    extra_s: float = 0.0
    other_disk: bool = False


RunEdit = Edit[State]


class PriceStates(Protocol):
    """Prices states: arrays of seconds and of dollars, one of each a state."""

    def __call__(self, states: Sequence[State]) -> tuple[FloatArray, FloatArray]:
        """[n] seconds and [n] dollars."""


def pricer(calibration: Calibration) -> PriceStates:
    """Seconds and dollars of states: one columnar call for each job among them."""
    factors = {name: f for name, f in calibration.factors.items() if name != "checkpoint"}
    elsewhere = replace(calibration, factors=factors)

    def price(states: Sequence[State]) -> tuple[FloatArray, FloatArray]:
        seconds, dollars = np.zeros(len(states)), np.zeros(len(states))
        by_job: dict[tuple[int, bool], list[int]] = defaultdict(list)
        for number, state in enumerate(states):
            by_job[id(state.job), state.other_disk].append(number)
        for (_, other_disk), numbers in by_job.items():
            job = states[numbers[0]].job
            pairs = [(states[n].offer, states[n].config) for n in numbers]
            bill = Pricing(job, elsewhere if other_disk else calibration).of(pairs)
            extra = np.asarray([states[n].extra_s for n in numbers])
            hourly = bill.tables["price"].gather("usd_per_hour")
            seconds[numbers] = bill.duration_s + extra
            dollars[numbers] = bill.cost_usd + extra / HOUR_S * hourly
        return seconds, dollars

    return price


def waterfall_between(
    start: State,
    edits: Sequence[RunEdit],
    price: PriceStates,
) -> Waterfall:
    """The edits of a state as steps that add up, the largest saving first."""
    players = _few(_valid(start, list(edits)), start, price)
    states = _mixtures(start, players)
    seconds, dollars = price(states)
    worth_s, worth_usd = shapley(seconds), shapley(dollars)
    steps = [
        WaterfallStep(
            change=player.label,
            from_=player.before,
            to=player.value,
            duration_s=float(worth_s[i]),
            cost_usd=float(worth_usd[i]),
            touches=touched(player.columns),
            yours=player.changes_training,
            note=player.note,
        )
        for i, player in enumerate(players)
    ]
    order = sorted(steps, key=lambda step: (step.cost_usd, step.duration_s, step.change))
    return Waterfall(
        start_s=float(seconds[0]),
        start_usd=float(dollars[0]),
        end_s=float(seconds[-1]),
        end_usd=float(dollars[-1]),
        steps=tuple(order),
    )


def shapley(values: FloatArray) -> FloatArray:
    """[k] worth of each of k players. values: [2^k] of every coalition, bit i for player i.

    Formula: sum over coalitions S without i of |S|! (k - |S| - 1)! / k! (v(S + i) - v(S)).
    Source: Shapley (1953).
    """
    count = len(values).bit_length() - 1
    coalitions = np.arange(len(values))
    sizes = np.asarray([int(n).bit_count() for n in coalitions])
    weight = np.asarray([1.0 / (count * math.comb(count - 1, s)) for s in range(count)])
    worth = np.zeros(count)
    for i in range(count):
        without = coalitions[coalitions & (1 << i) == 0]
        worth[i] = np.sum(weight[sizes[without]] * (values[without | (1 << i)] - values[without]))
    return worth


def touched(columns: Sequence[str]) -> tuple[str, ...]:
    """Components of the bill that read any of the columns, memory and price left aside."""
    found = [
        component.name
        for component in COMPONENTS
        if component.name not in {"memory", "price"} and set(columns) & set(component.reads)
    ]
    for name in columns:
        found += OUTSIDE_COMPONENTS.get(name, ())
    return tuple(dict.fromkeys(found))


def _mixtures(start: State, players: Sequence[RunEdit]) -> list[State]:
    """[2^k] states; bit i of the position says whether player i has moved.

    Mixtures that share a job share the object, so that it is priced in one call.
    """
    states = [start]
    jobs: dict[tuple[int, ...], Job] = {}
    movers = [player.apply(start).job is not start.job for player in players]
    for i, player in enumerate(players):
        states += [player.apply(state) for state in states]
        assert len(states) == 2 ** (i + 1)  # noqa: S101 - the order of the positions
    kept = []
    for position, mixed in enumerate(states):
        state = _split_again(mixed)
        moved = tuple(i for i, own in enumerate(movers) if own and position >> i & 1)
        kept.append(replace(state, job=jobs.setdefault(moved, state.job)))
    return kept


def _split_again(state: State) -> State:
    """The state with a split that makes its global batch, as near to its own as there is.

    Formula: micro = gcd(micro, batch / devices), accumulation = batch / devices / micro.
    Source: derived.
    """
    per_device, rest = divmod(state.job.global_batch_size, state.offer.count)
    config = state.config
    made = config.micro_batch_size * config.gradient_accumulation_steps
    if rest or made == per_device or not state.job.steps:
        return state
    micro = math.gcd(config.micro_batch_size, per_device)
    accumulation = per_device // micro
    return replace(
        state,
        config=config.with_knobs(micro_batch_size=micro, gradient_accumulation_steps=accumulation),
    )


def _valid(start: State, players: list[RunEdit]) -> list[RunEdit]:
    """Players of which every mixture could run; those that need one another become one.

    Where a mixture cannot run, one of its players is joined with one outside it that mends it.
    """
    while len(players) > 1:
        pair = _clash(start, players)
        if pair is None:
            return players
        first, second = sorted(pair)
        joined = players[first].then(players[second])
        players = [p for i, p in enumerate(players) if i not in pair]
        players.insert(first, joined)
    return players


def _clash(start: State, players: Sequence[RunEdit]) -> set[int] | None:
    """Two players of the smallest mixture that cannot run; None where all can.

    What cannot run before or after every change is not a clash of the changes.
    """
    count = len(players)
    if count > EXACT:
        # Two at a time: rules join at most two knobs and an offer.
        masks = [1 << i for i in range(count)]
        masks += [1 << i | 1 << k for i in range(count) for k in range(i)]
    else:
        masks = sorted(range(1, 2**count - 1), key=lambda mask: (mask.bit_count(), mask))
    known = _broken(start, players, 0) | _broken(start, players, 2**count - 1)
    for mask in masks:
        if not _broken(start, players, mask) - known:
            continue
        inside = [i for i in range(count) if mask >> i & 1]
        outside = [i for i in range(count) if not mask >> i & 1]
        mends = [k for k in outside if not _broken(start, players, mask | 1 << k) - known]
        return {inside[0], (mends or outside)[0]}
    return None


def _broken(start: State, players: Sequence[RunEdit], mask: int) -> set[str]:
    """Reasons why a mixture cannot run."""
    state = start
    for i, player in enumerate(players):
        if mask >> i & 1:
            state = player.apply(state)
    state = _split_again(state)
    job = replace(state.job, lock={name: state.config.as_dict()[name] for name in state.job.lock})
    # fp16 beside native bf16 is a choice of the search, not something that cannot run.
    job = replace(job, lock={**job.lock, "precision": state.config.precision})
    return set(violations(job, state.offer, state.config))


def _few(
    players: list[RunEdit],
    start: State,
    price: PriceStates,
) -> list[RunEdit]:
    """At most `EXACT` players: of more, those that alone move the bill least become one."""
    if len(players) <= EXACT:
        return players
    alone, _ = price([start, *(_split_again(player.apply(start)) for player in players)])
    moved = np.abs(alone[1:] - alone[0])
    order = np.argsort(moved, kind="stable")
    together = sorted(int(i) for i in order[: len(players) - EXACT + 1])
    joined = players[together[0]]
    for i in together[1:]:
        joined = joined.then(players[i])
    return [p for i, p in enumerate(players) if i not in together] + [joined]


def config_edits(start: State, end: State) -> list[RunEdit]:
    """The machine and every knob in which two states differ; the split is one change.

    Of the split only the micro-batch changes of itself: the accumulation follows from the batch.
    """
    found: list[RunEdit] = []
    if start.offer != end.offer:
        found.append(_machine_edit(start, end))
    if _differs(start, end, SPLIT[0]) or (not end.job.steps and _differs(start, end, ACCUMULATION)):
        found.append(_knobs_edit(start, end, SPLIT))
    found += [
        _knobs_edit(start, end, (name,))
        for name in KNOBS
        if name not in SPLIT and _differs(start, end, name)
    ]
    return found


def _differs(start: State, end: State, name: str) -> bool:
    return bool(getattr(start.config, name) != getattr(end.config, name))


def _machine_edit(start: State, end: State) -> RunEdit:
    offer = end.offer
    columns = tuple(f"offer.{name}" for name in ("device", "count", "host", "price", "spot"))
    same = start.offer.label == offer.label

    def moved(state: State) -> State:
        return replace(state, offer=offer)

    before, after = (_machine_text(state.offer, priced=same) for state in (start, end))
    name = _terms(start.offer, offer) if same else "machine"
    return Edit(moved, name, before=before, value=after, columns=columns)


def _machine_text(offer: Offer, *, priced: bool) -> str:
    return f"{format_usd(offer.usd_per_hour)}/h" if priced else offer.label


def _terms(before: Offer, after: Offer) -> str:
    """What of one machine differs."""
    if before.host == after.host:
        return "price"
    return "host" if before.usd_per_hour == after.usd_per_hour else "price and host"


def _knobs_edit(start: State, end: State, names: tuple[str, ...]) -> RunEdit:
    return knobs_edit(start.config, {name: getattr(end.config, name) for name in names})


def knobs_edit(now: Config, knobs: Mapping[str, KnobValue]) -> RunEdit:
    """Other values of knobs, as one change of a run."""
    names, after = tuple(knobs), now.with_knobs(**knobs)

    def changed(state: State) -> State:
        return replace(state, config=state.config.with_knobs(**knobs))

    together = names == SPLIT
    return Edit(
        changed,
        "split" if together else names[0],
        before=_values_text(now, names),
        value=_values_text(after, names),
        typed=" ".join(f"--set {name}={value}" for name, value in knobs.items()),
        changes=most_of(*(KNOBS[name].knob_class for name in names)),
        columns=names,
    )


def _values_text(config: Config, names: tuple[str, ...]) -> str:
    values = config.as_dict()
    shown = [str(values[name]).lower() if values[name] in {True, False} and isinstance(
        values[name], bool) else str(values[name]) for name in names]  # fmt: skip
    return " x ".join(shown)

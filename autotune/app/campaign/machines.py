"""Which machine a campaign is planned on: one for all runs, or each run's own (`mixed`).

One machine is chosen by the rule of `tune`; a mix starts with what is best for each run and then

    moves runs to sooner machines until the deadline is kept: each run takes the least of
    money + price of an hour x hours, with the lowest price of an hour that keeps it
    moves runs back where that saves money and the deadline stays kept
    drops a kind of machine that saves less than a tie

Source: the price of an hour is the Lagrange multiplier of the deadline (Everett, "Generalized
Lagrange Multiplier Method", 1963): exact on the lower hull of money and hours, near it between.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.app.campaign.limits import ends_of
from autotune.app.campaign.list_schedule import schedule
from autotune.app.campaign.schedule import tasks_of
from autotune.app.campaign.subset import Item, best_subset
from autotune.domain.answer.limits import held_with, worst_excess
from autotune.domain.answer.plan import Apart
from autotune.domain.answer.tiebreak import Tiebreak
from autotune.domain.errors import InputError
from autotune.frozen import dataclass
from autotune.search.selection import TIE, Contender, tiebreak

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.app.campaign.file import Campaign
    from autotune.app.campaign.limits import When
    from autotune.app.campaign.subset import Budget
    from autotune.cost.spread.joint import Loadings
    from autotune.domain.answer.plan import OfferTotal, PlannedRun, RunOnOffer, Subset
    from autotune.search.selection import Objective

MOST_MOVES = 20_000  # runs x tasks that are placed again to move runs back


@dataclass(frozen=True, slots=True)
class Question:
    """A campaign with all that decides between machines for it."""

    campaign: Campaign
    runs: tuple[PlannedRun, ...]
    machines: int  # at the same time
    objective: Objective
    confidence: float
    budget: Budget | None
    when: When | None

    def on(self, machines: Sequence[int], *, mix: bool = False) -> tuple[PlannedRun, ...]:
        """The runs, each planned on its place in the offers. mix: one's own machine is one."""
        offers = self.campaign.offers
        return tuple(
            replace(run, machine=machine, single=mix and offers[machine].owned)
            for run, machine in zip(self.runs, machines, strict=True)
        )  # fmt: skip

    def subset(self, runs: Sequence[PlannedRun]) -> Subset | None:
        """What the budget keeps of planned runs. Raises InputError where it keeps none."""
        if self.budget is None or any(run.here.reason for run in runs):
            return None
        items = items_of(self.campaign, runs, self.confidence)
        return best_subset(items, self.budget, self.confidence)

    def excess(self, runs: Sequence[PlannedRun], subset: Subset | None) -> float:
        """By how much, relatively, planned runs miss the campaign's deadline; at most 0: kept."""
        if self.when is None:
            return 0.0
        odds = self.when.of(ends_of(self.campaign, runs, subset))
        return max(odds.excess, 0.0)


def items_of(campaign: Campaign, runs: Sequence[PlannedRun], confidence: float) -> list[Item]:
    """Planned runs as a budget chooses among them."""
    found = []
    for run in runs:
        on, count = run.here, campaign.offers[run.machine].count
        item = Item(
            name=run.name,
            count=run.repeat,
            priority=run.priority,
            cost_usd=on.cost_usd.p50,
            device_s=on.duration_s.p50 * count,
            after=run.after,
            held_usd=held_with(on.cost_usd, confidence),
            held_s=held_with(on.duration_s, confidence) * count,
        )
        found.append(item)
    return found


def one_machine(
    asked: Question, totals: Sequence[OfferTotal], unsure: Callable[[int], Loadings]
) -> tuple[int, Tiebreak | None]:
    """The offer that all runs are planned on together, and why in a tie.

    unsure: how far all runs together may be off on an offer.

    All runs fit, then their limits are kept (or missed by least), then the least money or time at
    the pessimistic end of what nobody measured. A machine of one's own is one machine: where
    several are asked for, rented ones go first.
    """
    runs, objective = asked.runs, asked.objective

    def late(number: int) -> float:
        own = max(worst_excess(run.on[number].limits) for run in runs)
        if asked.budget is not None or totals[number].missing:
            return own  # a budget keeps fewer runs on a dearer machine, which so ends sooner
        return max(own, asked.excess(asked.on([number] * len(runs)), None))

    def rank(number: int) -> tuple[float, ...]:
        total = totals[number]
        owned = total.offer.owned and asked.machines > 1
        money, seconds = _at_worst(runs, number)
        first = (money, seconds) if objective == "cost" else (seconds, money)
        return (-total.runs, float(owned), max(late(number), 0.0), *first, number)

    ranks = {number: rank(number) for number in range(len(totals))}
    ordered = sorted(ranks, key=lambda number: ranks[number])
    least = ranks[ordered[0]]
    alike = [n for n in ordered if ranks[n][:3] == least[:3] and not totals[n].missing]
    if not alike:
        return ordered[0], None
    taken = alike[tiebreak([_contender(runs, totals, n, objective, unsure) for n in alike], 0)]
    if taken == alike[0]:
        return taken, None
    over = totals[alike[0]]
    return taken, Tiebreak.of(over.offer, objective, over.duration_s, over.cost_usd)


def _contender(
    runs: Sequence[PlannedRun], totals: Sequence[OfferTotal], number: int, objective: Objective,
    unsure: Callable[[int], Loadings],
) -> Contender:  # fmt: skip
    """All runs on an offer, as other offers are held against it."""
    total, (money, seconds) = totals[number], _at_worst(runs, number)
    score = money if objective == "cost" else seconds
    expected = total.duration_s.p50
    return Contender(
        score=score,
        least=score,
        other=expected if objective == "cost" else total.cost_usd.p50,
        devices=total.offer.count,
        caution=seconds / expected if expected > 0 else 1.0,
        unsure=lambda: unsure(number),
    )


def _at_worst(runs: Sequence[PlannedRun], number: int) -> tuple[float, float]:
    """[USD], [s] of all runs on an offer at the pessimistic end of what nobody measured."""
    own = [(run.on[number], run.repeat) for run in runs if not run.on[number].reason]
    money = math.fsum(on.cost_usd.p50 * on.caution * repeat for on, repeat in own)
    return money, math.fsum(on.duration_s.p50 * on.caution * repeat for on, repeat in own)


@dataclass(frozen=True, slots=True)
class Mix:
    """Every run on a machine of its own choice, and what that comes to."""

    runs: tuple[PlannedRun, ...]
    subset: Subset | None
    excess: float  # over the deadline, relatively
    objective: Objective

    @property
    def machines(self) -> tuple[int, ...]:
        """The place in the offers of each run."""
        return tuple(run.machine for run in self.runs)

    @property
    def score(self) -> tuple[float, float, float]:
        """Least for the best: how late it is, the priority left out, money or time at worst."""
        lost = 0.0 if self.subset is None else self.subset.of_priority - self.subset.priority
        number = 0 if self.objective == "cost" else 1
        each = [_own_worst(run.here)[number] * run.repeat for run in self.runs]
        return self.excess, lost, math.fsum(each)

    def told(self, asked: Question, *, barrier: bool) -> Apart:
        """As the answer has it."""
        tasks = tasks_of(asked.campaign, self.runs, self.subset)[1]
        on = [(run.here, run.repeat) for run in self.runs]
        kept = None if self.subset is None else sum(self.subset.kept.values())
        return Apart(
            cost_usd=math.fsum(each.cost_usd.p50 * repeat for each, repeat in on),
            duration_s=math.fsum(each.duration_s.p50 * repeat for each, repeat in on),
            machines=self.machines,
            makespan_s=schedule(tasks, asked.machines, barrier=barrier).makespan_s,
            kept_runs=sum(run.repeat for run in self.runs) if kept is None else kept,
        )


def mixed(asked: Question, one: int) -> Mix | None:
    """The best mix of machines; None where a run fits on none, or there is one machine.

    one: the machine for all runs together. No mix is worse than it: then all runs are on it.
    None too where the budget pays no run.
    """
    able = all(any(not on.reason for on in run.on) for run in asked.runs)
    if len(asked.campaign.offers) == 1 or not able:
        return None
    best = _at(asked, 0.0)
    if math.isinf(best.excess):
        return None
    alone = _mix(asked, [one] * len(asked.runs), mix=False)
    able = not any(run.here.reason or run.here.misses for run in alone.runs)
    able = able and not (asked.campaign.offers[one].owned and asked.machines > 1)
    if best.excess > 0:
        begun = [_in_time(asked), _in_time(asked, owned=False)]
        begun += [alone] if able else []
        found = [_moved_back(asked, each) if asked.budget is None else each for each in begun]
        best = min(found, key=lambda mix: mix.score)
    best = _fewer_kinds(asked, best)
    return alone if able and alone.score < best.score else best


def _mix(asked: Question, machines: Sequence[int], *, mix: bool = True) -> Mix:
    """Runs on these machines; as late as can be where the budget pays no run of it."""
    runs = asked.on(machines, mix=mix)
    try:
        kept = asked.subset(runs)
    except InputError:
        return Mix(runs, None, math.inf, asked.objective)
    return Mix(runs, kept, asked.excess(runs, kept), asked.objective)


def _at(asked: Question, second_usd: float, *, owned: bool = True) -> Mix:
    """Each run on what is best for it, where a second costs so much beside its machine.

    owned: on one's own machine too; else only where nothing rented holds it.
    """
    machines = []
    for run in asked.runs:
        able = [n for n, on in enumerate(run.on) if not on.reason]
        rented = [n for n in able if owned or not asked.campaign.offers[n].owned]
        machines.append(_own(run, rented or able, asked.objective, second_usd))
    return _mix(asked, machines)


def _own(run: PlannedRun, able: Sequence[int], objective: Objective, second_usd: float) -> int:
    """The machine of one run: its limits first, then the least."""

    def rank(number: int) -> tuple[float, ...]:
        on = run.on[number]
        money, seconds = _own_worst(on)
        first = (money + second_usd * seconds, seconds, money)
        if objective == "time" and second_usd <= 0:
            first = (seconds, money, 0.0)
        return (max(worst_excess(on.limits), 0.0), *first, number)

    return min(able, key=rank)


def _own_worst(on: RunOnOffer) -> tuple[float, float]:
    return on.cost_usd.p50 * on.caution, on.duration_s.p50 * on.caution


def _prices_of_an_hour(asked: Question) -> list[float]:
    """[USD/s], rising: where some run would rather take a dearer and sooner machine."""
    found: set[float] = set()
    for run in asked.runs:
        ways: list[tuple[float, float]] = []
        for money, seconds in sorted(_own_worst(on) for on in run.on if not on.reason):
            if not ways or seconds < ways[-1][1]:
                ways.append((money, seconds))
        found |= {
            (dear - cheap) / (slow - soon) * (1 + TIE * TIE)
            for n, (cheap, slow) in enumerate(ways)
            for dear, soon in ways[n + 1 :]
        }
    return sorted(found)


def _in_time(asked: Question, *, owned: bool = True) -> Mix:
    """The mix at the lowest price of an hour that keeps the deadline; else the soonest."""
    prices = [0.0, *_prices_of_an_hour(asked)]
    low, high = 0, len(prices) - 1
    best = soonest = None
    while low <= high:
        middle = (low + high) // 2
        tried = _at(asked, prices[middle], owned=owned)
        if tried.excess <= 0:
            best, high = tried, middle - 1
        elif math.isinf(tried.excess):  # the budget pays no run at this price
            high = middle - 1
        else:
            soonest, low = tried, middle + 1
    return best or soonest or _at(asked, 0.0)


def _moved_back(asked: Question, mix: Mix) -> Mix:
    """Runs on cheaper machines again, where the deadline is missed by no more than before."""
    tasks = sum(run.repeat for run in mix.runs)
    tries = MOST_MOVES // max(tasks, 1)
    ways = []
    for index, run in enumerate(mix.runs):
        here, late = _own_worst(run.here)[0], max(worst_excess(run.here.limits), 0.0)
        for number, on in enumerate(run.on):
            if not on.reason and max(worst_excess(on.limits), 0.0) <= late:
                saved = (here - _own_worst(on)[0]) * run.repeat
                ways += [(saved, index, number)] if saved > 0 else []
    moved: set[int] = set()
    for _, index, number in sorted(ways, key=lambda way: (-way[0], *way[1:])):
        if not tries:
            break
        if index in moved:
            continue
        tries -= 1
        machines = list(mix.machines)
        machines[index] = number
        tried = _mix(asked, machines)
        if tried.excess <= mix.excess:
            mix = tried
            moved.add(index)
    return mix


def _fewer_kinds(asked: Question, mix: Mix) -> Mix:
    """The mix without kinds of machines that together save less than a tie."""
    most = mix.score[2] * (1 + TIE)
    while len(used := sorted(set(mix.machines))) > 1:
        without = [tried for gone in used if (tried := _without(asked, mix, used, gone))]
        able = [each for each in without if _no_worse(each, mix, most)]
        if not able:
            return mix
        mix = min(able, key=lambda each: each.score)
    return mix


def _without(asked: Question, mix: Mix, used: Sequence[int], gone: int) -> Mix | None:
    """The mix with the runs of one machine on the other ones of it; None where some fit on none."""
    machines = []
    for run in mix.runs:
        left = [n for n in used if n != gone and not run.on[n].reason]
        if run.machine != gone:
            machines.append(run.machine)
        elif not left:
            return None
        else:
            machines.append(_own(run, left, asked.objective, 0.0))
    return _mix(asked, machines)


def _no_worse(tried: Mix, mix: Mix, most: float) -> bool:
    """Whether no limit is missed by more, no run is lost, and the rest is at most a tie worse."""
    late = [
        max(worst_excess(new.here.limits), 0.0) <= max(worst_excess(old.here.limits), 0.0)
        for new, old in zip(tried.runs, mix.runs, strict=True)
    ]
    return all(late) and tried.score[:2] <= mix.score[:2] and tried.score[2] <= most

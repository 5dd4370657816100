"""`autotune plan`: a campaign of runs, priced, placed on machines, cut to a budget.

campaign file -> bills of each run on each machine -> the machines -> schedule, subset, cuts
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.app.campaign.bills import bills_of
from autotune.app.campaign.claims import contradictions, hours_device
from autotune.app.campaign.limits import When, confidence_of, ends_of
from autotune.app.campaign.list_schedule import longest_chain, schedule
from autotune.app.campaign.machines import Mix, Question, items_of, mixed, one_machine
from autotune.app.campaign.notes import notes_of
from autotune.app.campaign.schedule import (
    enough_machines,
    other_barrier_s,
    scaling_of,
    sharing_of,
    stated_s,
    stated_tasks,
    tasks_of,
)
from autotune.app.campaign.subset import parse_budget, what_to_cut
from autotune.app.tune.priced import check_choices
from autotune.catalog.files import write_whole
from autotune.cost.outputs import reusing_tables
from autotune.domain.answer.plan import OfferTotal, PhaseTotal, Plan, PlannedRun, RunsTotal
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.errors import LIMIT_MISSED, NOTHING_FEASIBLE, InputError
from autotune.domain.outcome import Spread
from autotune.domain.typed.values import MAX_DEVICES
from autotune.domain.units import HOUR_S, parse_seconds
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from autotune.app.campaign.file import Campaign
    from autotune.domain.answer.plan import Hours
    from autotune.search.selection import Objective

USUAL = (1, 2, 4, 8)  # machines that the schedule is also worked out for
KWH_J = 3.6e6


@dataclass(frozen=True, slots=True)
class PlanOptions:
    """How to plan. None: what the campaign file says."""

    parallel: int | None = None
    budget: str | None = None
    deadline: str | None = None
    hours: Hours | None = None
    hours_per_day: float | None = None
    barrier: bool = False
    share: bool = False
    mixed: bool = False
    objective: Objective = "cost"
    fidelity: str = "formula"
    space: str | None = None


@reusing_tables()
def plan(
    campaign: Campaign,
    options: PlanOptions | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Plan:
    """The plan of a campaign. Raises InputError for bad input."""
    options = options or PlanOptions()
    check_choices(objective=options.objective, fidelity=options.fidelity, hours=options.hours)
    begun = time.perf_counter()
    budget = parse_budget(options.budget) if options.budget is not None else None
    machines, hours_per_day = _checked(campaign, options)
    hours = options.hours or campaign.file.hours_from
    runs, warnings, unsure = bills_of(
        campaign,
        hours,
        objective=options.objective,
        fidelity=options.fidelity,
        space=options.space,
        progress=progress,
    )
    totals = tuple(_offer_total(campaign, runs, n) for n in range(len(campaign.offers)))
    barrier, share = options.barrier or campaign.file.barrier, options.share or campaign.file.share
    confidence = confidence_of(campaign)
    when = options.deadline and When(
        _deadline_s(options.deadline), machines, barrier, share, hours_per_day, confidence
    )
    asked = Question(
        campaign, runs, machines, options.objective, confidence, budget, when or None
    )  # fmt: skip
    progress("placing the runs on machines")
    one, broken = one_machine(asked, totals, unsure)
    mix = mixed(asked, one)
    runs = asked.on([one] * len(runs))
    if mix is not None and (options.mixed or campaign.file.mixed or _only_mixed(asked, runs, mix)):
        runs, broken = mix.runs, None
    whole, subset = not any(run.here.reason for run in runs), asked.subset(runs)
    task_runs, tasks = tasks_of(campaign, runs, subset)
    placed = schedule(tasks, machines, barrier=barrier) if whole else None
    sharing = sharing_of(tasks, [runs[r] for r in task_runs], placed)
    if share and sharing.schedule is not None:
        placed = sharing.schedule
    stated = stated_tasks(campaign)
    numbers = {
        *USUAL,
        machines,
        enough_machines(tasks),
        *([enough_machines(stated)] if stated else []),
    }
    found = Plan(
        name=campaign.name,
        hours=hours,
        runs=runs,
        offers=totals,
        machine=_main(runs),
        one_machine=one,
        total=_total(campaign, runs),
        tiebreak=broken,
        apart=mix.told(asked, barrier=barrier) if mix is not None else None,
        phases=_phases(campaign, runs),
        tasks=tuple(task.name for task in tasks),
        task_runs=tuple(task_runs),
        schedule=placed,
        barrier_s=other_barrier_s(tasks, machines, campaign, barrier=barrier) if whole else None,
        sharing=sharing,
        scaling=scaling_of(tasks, numbers) if whole else (),
        stated_scaling=scaling_of(stated, numbers),
        enough_machines=enough_machines(tasks),
        longest_chain_s=longest_chain(tasks),
        hours_per_day=hours_per_day,
        days=placed.makespan_s / (hours_per_day * HOUR_S) if placed is not None else None,
        cuts=what_to_cut(items_of(campaign, runs, confidence)) if whole else (),
        subset=subset,
        deadline=when.told(ends_of(campaign, runs, subset)) if when and whole else None,
        contradictions=contradictions(campaign, runs),
        warnings=warnings,
        assumed=campaign.assumed,
        wall_seconds=0.0,
    )
    notes = notes_of(found, campaign, [task.duration_s for task in tasks], machines)
    if options.mixed and not found.mixed and whole:
        notes.append(Decisive(_no_mix(campaign)))
    if options.hours == "stated" and all(run.hours is None for run in campaign.runs):
        notes.append("no run of the campaign states hours: these are the model's")
    return replace(
        found,
        warnings=(*notes, *found.warnings),
        wall_seconds=time.perf_counter() - begun,
    )


def write_chart(path: Path, drawing: str) -> None:
    """Keep the drawing of a schedule. Raises InputError where it cannot be."""
    if path.suffix.casefold() != ".svg":
        msg = f"--chart {path} is no .svg file"
        raise InputError(msg, "name a file such as schedule.svg, or put --chart last and alone")
    if path.is_dir() or not path.parent.is_dir():
        what = "is a folder" if path.is_dir() else "is in a folder that does not exist"
        msg = f"--chart {path} {what}"
        raise InputError(msg, "name a file in a folder that exists, such as schedule.svg")
    write_whole(path, drawing)


def exit_status(found: Plan) -> int:
    """As `tune`: 0 an answer, 3 a run fits nowhere, 4 the deadline or a run's limit is missed."""
    if found.missing:
        return NOTHING_FEASIBLE
    late = any(run.here.misses for run in found.runs)
    late = late or (found.deadline is not None and not found.deadline.odds.kept)
    return LIMIT_MISSED if late else 0


def _checked(campaign: Campaign, options: PlanOptions) -> tuple[int, float]:
    machines = options.parallel if options.parallel is not None else campaign.file.parallel
    if not 1 <= machines <= MAX_DEVICES:
        msg = f"--parallel {machines} must be from 1 to {MAX_DEVICES}"
        raise InputError(msg)
    per_day = options.hours_per_day
    if per_day is None:
        return machines, campaign.file.hours_per_day
    if not 0.0 < per_day <= 24.0:  # noqa: PLR2004 - hours of a day
        msg = f"--hours-per-day {per_day:g} must be above 0 and at most 24"
        raise InputError(msg)
    return machines, per_day


def _deadline_s(text: str) -> float:
    """[s] of `--deadline`. Raises InputError for what is none."""
    deadline_s = parse_seconds(text[:60])
    if deadline_s <= 0:
        msg = f"--deadline {text[:60]!r} must be above zero"
        raise InputError(msg, 'write a time such as "48h" or "3d"')
    return deadline_s


def _only_mixed(asked: Question, runs: Sequence[PlannedRun], mix: Mix) -> bool:
    """Whether no one machine holds all runs, keeps the deadline or is within a budget, as it is."""
    if any(run.here.reason for run in runs):
        return True
    try:
        kept = asked.subset(runs)
    except InputError:  # it pays no run on this machine
        return True
    return kept is None and mix.excess <= 0 < asked.excess(runs, None)


def _no_mix(campaign: Campaign) -> str:
    """Why all runs are on one machine though several were asked for."""
    if len(campaign.offers) == 1:
        return "the campaign names one machine, so there is nothing to mix"
    return "no mix of these machines is better than one machine for all runs"


def _main(runs: Sequence[PlannedRun]) -> int:
    """The machine that most of the bill is paid for; where nothing costs, that is used longest."""
    bills: dict[int, tuple[float, float]] = {}
    for run in runs:
        money, seconds = bills.get(run.machine, (0.0, 0.0))
        money += run.here.cost_usd.p50 * run.repeat
        bills[run.machine] = money, seconds + run.here.duration_s.p50 * run.repeat
    return max(bills, key=lambda number: (*bills[number], -number))


def _total(campaign: Campaign, runs: Sequence[PlannedRun]) -> RunsTotal:
    """All runs where they are planned; of those that cannot run there, nothing."""
    can = [run for run in runs if not run.here.reason]
    return RunsTotal(
        duration_s=_summed([(run.here.duration_s, run.repeat) for run in can]),
        device_s=math.fsum(
            run.here.duration_s.p50 * run.repeat * campaign.offers[run.machine].count for run in can
        ),
        cost_usd=_summed([(run.here.cost_usd, run.repeat) for run in can]),
        stated_s=stated_s(runs),
    )


def _offer_total(campaign: Campaign, runs: Sequence[PlannedRun], number: int) -> OfferTotal:
    """Everything on one machine. Ranges add end to end: one model errs for all runs."""
    offer = campaign.offers[number]
    can = [run for run in runs if not run.on[number].reason]
    seconds = _summed([(run.on[number].duration_s, run.repeat) for run in can])
    watts = offer.watts if offer.watts is not None else offer.device.tdp_w
    kwh = watts * offer.count * seconds.p50 / KWH_J
    stated = stated_s(runs)
    stated_kwh = None if stated is None else watts * offer.count * stated / KWH_J
    full = offer.full_usd_per_hour
    elsewhere = offer.device.name != hours_device(campaign)
    return OfferTotal(
        offer=offer,
        runs=sum(run.repeat for run in can),
        missing=tuple(run.name for run in runs if run.on[number].reason),
        duration_s=seconds,
        device_s=seconds.p50 * offer.count,
        cost_usd=_summed([(seconds, 1)], offer.usd_per_hour / HOUR_S),
        full_usd=None if full is None else full * seconds.p50 / HOUR_S,
        energy_kwh=kwh,
        watts=watts,
        watts_stated=offer.watts is not None,
        electricity_usd=None if offer.usd_per_kwh is None else kwh * offer.usd_per_kwh,
        stated_s=stated,
        stated_usd=None if stated is None else stated / HOUR_S * offer.usd_per_hour,
        stated_kwh=stated_kwh,
        hours_from_elsewhere=elsewhere and any(r.on[number].hours == "stated" for r in can),
    )


def _summed(parts: Sequence[tuple[Spread, int]], factor: float = 1.0) -> Spread:
    return Spread(
        math.fsum(of.p10 * n for of, n in parts) * factor,
        math.fsum(of.p50 * n for of, n in parts) * factor,
        math.fsum(of.p90 * n for of, n in parts) * factor,
    )


def _phases(campaign: Campaign, runs: Sequence[PlannedRun]) -> tuple[PhaseTotal, ...]:
    """Every phase, followed by its parts."""
    found = []
    for phase in campaign.phases:
        inside = [run for run in runs if run.phase == phase]
        parts = list(dict.fromkeys(run.part for run in inside if run.part))
        for part in ("", *parts):
            group = [run for run in inside if part in {"", run.part}]
            found.append(_phase(phase, part, group))
    return tuple(found)


def _phase(phase: str, part: str, group: Sequence[PlannedRun]) -> PhaseTotal:
    return PhaseTotal(
        phase=phase,
        part=part,
        runs=sum(run.repeat for run in group),
        steps=sum(run.steps * run.repeat for run in group),
        duration_s=sum(run.here.duration_s.p50 * run.repeat for run in group),
        cost_usd=sum(run.here.cost_usd.p50 * run.repeat for run in group),
        stated_s=stated_s(group),
    )

"""A campaign's runs as tasks on machines: one machine or many, one run a card or two.

The rules of placing are `autotune.app.campaign.list_schedule`'s; here is what is placed.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from autotune.app.campaign.list_schedule import go_together, longest_chain, schedule
from autotune.domain.answer.plan import Makespan, Sharing, Task

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.app.campaign.file import Campaign
    from autotune.domain.answer.plan import PlannedRun, Schedule, Subset

SHORTER = 0.99  # a shared schedule at most so long, against the plain one, is worth its trouble


def tasks_of(
    campaign: Campaign, runs: Sequence[PlannedRun], subset: Subset | None,
    end: Literal["p10", "p50", "p90"] = "p50",
) -> tuple[list[int], list[Task]]:  # fmt: skip
    """One task a run, repeats apart; only those that the budget keeps. end: of their ranges."""
    counts = [run.repeat if subset is None else subset.kept.get(run.name, 0) for run in runs]
    at = _numbered(counts)
    tasks, of = [], []
    for index, (run, count) in enumerate(zip(runs, counts, strict=True)):
        on = run.here
        after = tuple(task for i in run.after for task in at[i])
        for copy in range(count):
            name = f"{run.name} {copy + 1}/{run.repeat}" if run.repeat > 1 else run.name
            tasks.append(
                Task(
                    name=name,
                    duration_s=getattr(on.duration_s, end),
                    after=after,
                    phase=campaign.phases.index(run.phase),
                    busy=on.busy,
                    memory=on.memory,
                    shareable=on.shareable,
                    kind=run.machine,
                    single=run.single,
                )
            )
            of.append(index)
    return of, tasks


def sharing_of(
    tasks: Sequence[Task], runs: Sequence[PlannedRun], placed: Schedule | None
) -> Sharing:
    """Two launch-bound runs to a card: where both fit and both together are done sooner."""
    launch = [
        run.name
        for run in runs
        if (row := run.here.row) is not None
        and run.here.hours == "model"
        and row.bound_by == "launch"
    ]
    names = tuple(dict.fromkeys(launch))
    if not names or placed is None:
        return Sharing(names, None, "no run is bound by launching kernels")
    able = [task for task in tasks if task.shareable]
    if not able:
        return Sharing(names, None, "the host has too few cores to feed two runs on one card")
    kinds = list(dict.fromkeys(replace(task, name="", after=(), phase=0) for task in able))
    if not any(go_together(a, b) for a in kinds for b in kinds):
        return Sharing(
            names, None, "no two of them fit in memory together, or they slow each other"
        )
    shared = schedule(tasks, placed.machines, barrier=placed.barrier, share=True)
    if shared.makespan_s > SHORTER * placed.makespan_s:
        return Sharing(names, None, "sharing cards would not end the campaign sooner")
    return Sharing(names, shared, "")


def other_barrier_s(
    tasks: Sequence[Task], machines: int, campaign: Campaign, *, barrier: bool
) -> float | None:
    """[s] the same with barriers between phases, or without them; None where there is one phase."""
    if len(campaign.phases) == 1:
        return None
    return schedule(tasks, machines, barrier=not barrier).makespan_s


def enough_machines(tasks: Sequence[Task]) -> int:
    """Machines from which on the longest chain, not the work, bounds the makespan."""
    work, chain = sum(task.duration_s for task in tasks), longest_chain(tasks)
    return max(math.ceil(work / chain - 1e-9), 1) if chain > 0 else 1


def scaling_of(tasks: Sequence[Task], numbers: set[int]) -> tuple[Makespan, ...]:
    """The campaign on several numbers of machines."""
    found = []
    for number in sorted(numbers) if tasks else ():
        plain = schedule(tasks, number)
        walled = schedule(tasks, number, barrier=True)
        found.append(Makespan(number, plain.makespan_s, plain.lower_bound_s, walled.makespan_s))
    return tuple(found)


def stated_tasks(campaign: Campaign) -> list[Task]:
    """One task a run, with the stated hours; none where some runs have none."""
    if stated_s(campaign.runs) is None:
        return []
    at = _numbered([run.repeat for run in campaign.runs])
    return [
        Task(
            name=run.name,
            duration_s=run.stated_s or 0.0,
            after=tuple(task for i in run.after for task in at[i]),
            phase=campaign.phases.index(run.phase),
        )
        for run in campaign.runs
        for _ in range(run.repeat)
    ]


def _numbered(counts: Sequence[int]) -> list[range]:
    """Consecutive numbers of tasks for runs that stand so often."""
    ends = list(itertools.accumulate(counts))
    return [range(end - count, end) for count, end in zip(counts, ends, strict=True)]


def stated_s(runs: Sequence[PlannedRun]) -> float | None:
    """[s] of all runs by the stated hours; None where some have none."""
    each = [run.stated_s for run in runs]
    if None in each:
        return None
    return sum(own * run.repeat for own, run in zip(each, runs, strict=True) if own is not None)

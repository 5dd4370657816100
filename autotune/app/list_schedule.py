"""Runs on N machines: greedy list scheduling, and the bound that says how good it is.

    at every moment a machine is free, start the ready task with the longest tail
    tail = the task and the longest chain of tasks that wait for it
    makespan >= max(work / machines, longest chain); with phase barriers the sum of that by phase

Source: Graham, "Bounds on Multiprocessing Timing Anomalies" (1969): any list schedule is within
2 - 1/N of the best; longest first does better in practice (same paper, section 3).

Two runs share a machine only if both may, their memory fits together and both are slowed little.
A pair whose devices' shares add to more than one runs at 1 / (sum of shares) of its speed each.
Does not cover: migrating a run, machines of different speed, pausing to make room.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from autotune.domain.schedule import Placement, Schedule

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.domain.schedule import Task

PAYS = 1.5  # busy shares of a pair at most: then both together are done a third sooner. Assumption
TOGETHER = 2  # runs that share a device at most
_END = 1e-9  # [s, relative] work left that counts as done


def schedule(
    tasks: Sequence[Task], machines: int, *, barrier: bool = False, share: bool = False
) -> Schedule:
    """Every task placed on one of `machines`. The order of `after` must not be circular."""
    waits = with_barriers(tasks) if barrier else [set(task.after) for task in tasks]
    placements = _Floor(tasks, waits, machines, share=share).run()
    return Schedule(
        machines=machines,
        placements=tuple(placements),
        makespan_s=max((placed.end_s for placed in placements), default=0.0),
        lower_bound_s=lower_bound(tasks, machines, barrier=barrier, share=share),
        barrier=barrier,
        shared=share,
    )


def with_barriers(tasks: Sequence[Task]) -> list[set[int]]:
    """What each task waits for when a phase starts only after the whole one before it."""
    phases = sorted({task.phase for task in tasks})
    before = dict(zip(phases[1:], phases, strict=False))
    members = {p: {i for i, task in enumerate(tasks) if task.phase == p} for p in phases}
    return [
        set(task.after) | (members[before[task.phase]] if task.phase in before else set())
        for task in tasks
    ]


def lower_bound(
    tasks: Sequence[Task], machines: int, *, barrier: bool = False, share: bool = False
) -> float:
    """[s] that no schedule can beat.

    Formula: max(work / machines, longest chain). Sharing: the work of a run is the smaller claim
    that any pair can make good, its busy share or half of it, whichever bound is larger.
    Source: Graham (1969); derived for sharing: rates x busy shares add to one at most.
    """
    if not barrier:
        return max(
            _work(tasks, machines, share=share), max(_tails(tasks, _own(tasks)), default=0.0)
        )
    total = 0.0
    for phase in sorted({task.phase for task in tasks}):
        at = [i for i, task in enumerate(tasks) if task.phase == phase]
        inside = [task for task in tasks if task.phase == phase]
        number = {old: new for new, old in enumerate(at)}
        own = [{number[b] for b in task.after if b in number} for task in inside]
        chain = max(_tails(inside, own), default=0.0)
        total += max(_work(inside, machines, share=share), chain)
    return total


def longest_chain(tasks: Sequence[Task]) -> float:
    """[s] of the longest run and what must wait for it: no number of machines beats it."""
    return max(_tails(tasks, _own(tasks)), default=0.0)


def _own(tasks: Sequence[Task]) -> list[set[int]]:
    return [set(task.after) for task in tasks]


def _work(tasks: Sequence[Task], machines: int, *, share: bool) -> float:
    """[s] of work a machine, as evenly as can be."""
    if not share:
        return sum(task.duration_s for task in tasks) / machines
    by_half = sum(t.duration_s * (1 / TOGETHER if t.shareable else 1.0) for t in tasks)
    by_busy = sum(t.duration_s * (t.busy if t.shareable else 1.0) for t in tasks)
    return max(by_half, by_busy) / machines


def _tails(tasks: Sequence[Task], waits: Sequence[Iterable[int]]) -> list[float]:
    """[s] from the start of each task to the end of the longest chain behind it."""
    order = topological(waits)
    tails = [0.0] * len(tasks)
    for index in reversed(order):
        tails[index] += tasks[index].duration_s
        for before in waits[index]:
            tails[before] = max(tails[before], tails[index])
    return tails


def topological(waits: Sequence[Iterable[int]]) -> list[int]:
    """Indices in an order that respects `waits`; those on or behind a circle are left out."""
    left = [set(before) for before in waits]
    behind: list[list[int]] = [[] for _ in waits]
    for index, before in enumerate(left):
        for other in before:
            behind[other].append(index)
    order = [index for index, before in enumerate(left) if not before]
    for index in order:
        for after in behind[index]:
            left[after].discard(index)
            if not left[after]:
                order.append(after)  # noqa: B909 - a queue: what became ready is visited next
    return order


@dataclass(slots=True)
class _Machine:
    """What runs on one machine now, and how much of each is left [s of its own time]."""

    left: dict[int, float] = field(default_factory=dict)

    def rate(self, tasks: Sequence[Task]) -> float:
        """Speed of each task on it, against running alone."""
        if len(self.left) < TOGETHER:
            return 1.0
        return min(1.0, 1.0 / sum(tasks[i].busy for i in self.left))

    def next_s(self, tasks: Sequence[Task]) -> float:
        """[s] until the first of its tasks is done."""
        return min(self.left.values()) / self.rate(tasks)


class _Floor:
    """The simulation: at each event tasks end, and ready ones start on free machines."""

    def __init__(
        self, tasks: Sequence[Task], waits: Sequence[set[int]], machines: int, *, share: bool
    ) -> None:
        self._tasks = tasks
        self._left = [set(before) for before in waits]
        self._behind: list[list[int]] = [[] for _ in tasks]
        for index, before in enumerate(waits):
            for other in before:
                self._behind[other].append(index)
        tails = _tails(tasks, waits)
        self._rank = sorted(
            range(len(tasks)), key=lambda i: (-tails[i], -tasks[i].duration_s, i)
        )
        self._place = {index: place for place, index in enumerate(self._rank)}
        self._machines = [_Machine() for _ in range(min(machines, max(len(tasks), 1)))]
        self._share = share
        self._begun: dict[int, tuple[int, float]] = {}
        self._done: dict[int, Placement] = {}

    def run(self) -> list[Placement]:
        """The placements, in the order of the tasks."""
        now = 0.0
        ready = sorted(self._place[i] for i, before in enumerate(self._left) if not before)
        while len(self._done) < len(self._tasks):
            self._start(ready, now)
            running = [machine for machine in self._machines if machine.left]
            step = min(machine.next_s(self._tasks) for machine in running)
            now += step
            for number, machine in enumerate(self._machines):
                for index in self._advance(number, machine, step, now):
                    insort(ready, self._place[index])
        return [self._done[index] for index in range(len(self._tasks))]

    def _start(self, ready: list[int], now: float) -> None:
        """Start what has room, first those with the longest tails. `ready` holds their places."""
        for place in list(ready):
            index = self._rank[place]
            number = self._room_for(index)
            if number is not None:
                ready.remove(place)
                self._machines[number].left[index] = self._tasks[index].duration_s
                self._begun[index] = (number, now)
            elif not self._share:
                return

    def _room_for(self, index: int) -> int | None:
        """A free machine, or one to share; None when the task must wait."""
        free = next((n for n, machine in enumerate(self._machines) if not machine.left), None)
        if free is not None or not self._share:
            return free
        return next(
            (
                number
                for number, machine in enumerate(self._machines)
                if len(machine.left) == 1
                and go_together(self._tasks[next(iter(machine.left))], self._tasks[index])
            ),
            None,
        )

    def _advance(self, number: int, machine: _Machine, step: float, now: float) -> set[int]:
        """Let time pass on one machine; the tasks that what ended there has made ready."""
        if not machine.left:
            return set()
        rate = machine.rate(self._tasks)
        freed: set[int] = set()
        for index in list(machine.left):
            left = machine.left[index] - step * rate
            machine.left[index] = left
            if left > _END * max(self._tasks[index].duration_s, now):
                continue
            del machine.left[index]
            self._done[index] = Placement(index, number, self._begun[index][1], now)
            for after in self._behind[index]:
                self._left[after].discard(index)
                if not self._left[after]:
                    freed.add(after)
        return freed


def go_together(first: Task, second: Task) -> bool:
    """Whether two runs may share a device and it pays."""
    return (
        first.shareable
        and second.shareable
        and first.memory + second.memory <= 1.0
        and first.busy + second.busy <= PAYS
    )

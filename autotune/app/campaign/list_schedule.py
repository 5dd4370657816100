"""Runs on N machines: greedy list scheduling, and the bound that says how good it is.

    at every moment a machine is free, start the ready task with the longest tail
    tail = the task and the longest chain of tasks that wait for it
    makespan >= max(work / machines, longest chain); with phase barriers the sum of that by phase

Source: Graham, "Bounds on Multiprocessing Timing Anomalies" (1969): any list schedule is within
2 - 1/N of the best; longest first does better in practice (same paper, section 3).

Two runs share a machine only if both may, their memory fits together and both are slowed little.
A pair whose devices' shares add to more than one runs at 1 / (sum of shares) of its speed each.
Of several kinds of machines each task knows its own: "machines" are how many run at once, of
whatever kind, and tasks of a kind of which there is one machine wait for each other.
Does not cover: migrating a run, a task that may choose its machine, pausing to make room.
"""

from __future__ import annotations

from bisect import insort
from dataclasses import field, replace
from itertools import pairwise
from typing import TYPE_CHECKING

from autotune.domain.answer.plan import Placement, Schedule
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from autotune.domain.answer.plan import Task

PAYS = 1.5  # busy shares of a pair at most: then both together are done a third sooner. Assumption
TOGETHER = 2  # runs that share a device at most
_END = 1e-9  # [s, relative] work left that counts as done


def schedule(
    tasks: Sequence[Task], machines: int, *, barrier: bool = False, share: bool = False
) -> Schedule:
    """Every task placed on one of `machines`. The order of `after` must not be circular."""
    placements = _Floor(tasks, waits_of(tasks, barrier=barrier), machines, share=share).run()
    return Schedule(
        machines=machines,
        placements=tuple(placements),
        makespan_s=max((placed.end_s for placed in placements), default=0.0),
        lower_bound_s=lower_bound(tasks, machines, barrier=barrier, share=share),
        barrier=barrier,
        shared=share,
    )


def waits_of(tasks: Sequence[Task], *, barrier: bool) -> list[frozenset[int]]:
    """What each task waits for; with barriers also for the whole phase before its own.

    Tasks that wait for the same ones share one set, so that a thousand repeats stay cheap.
    """
    before: dict[int, frozenset[int]] = {}
    if barrier:
        phases = sorted({task.phase for task in tasks})
        members = {p: frozenset(i for i, t in enumerate(tasks) if t.phase == p) for p in phases}
        before = {later: members[p] for p, later in pairwise(phases)}
    known: dict[tuple[int, int], frozenset[int]] = {}
    equal: dict[frozenset[int], frozenset[int]] = {}
    found = []
    for task in tasks:
        key = (id(task.after), task.phase if barrier else 0)
        if key not in known:
            waits = frozenset(task.after) | before.get(task.phase, frozenset())
            known[key] = equal.setdefault(waits, waits)
        found.append(known[key])
    return found


@dataclass(frozen=True, slots=True)
class _Gates:
    """The order as gates: a gate opens when all that it waits for is done, and lets tasks in."""

    waits: tuple[frozenset[int], ...]  # by gate
    members: tuple[list[int], ...]  # by gate
    behind: tuple[list[int], ...]  # by task: the gates that wait for it

    @classmethod
    def of(cls, waits: Sequence[Iterable[int]]) -> _Gates:
        """One gate for each set that tasks wait for."""
        number: dict[int, int] = {}
        sets: list[frozenset[int]] = []
        members: list[list[int]] = []
        behind: list[list[int]] = [[] for _ in waits]
        for index, before in enumerate(waits):
            gate = number.setdefault(id(before), len(sets))
            if gate == len(sets):
                sets.append(frozenset(before))
                members.append([])
                for other in sets[gate]:
                    behind[other].append(gate)
            members[gate].append(index)
        return cls(tuple(sets), tuple(members), tuple(behind))

    def left(self) -> list[int]:
        """How many tasks each gate waits for at the start."""
        return [len(before) for before in self.waits]

    def open_now(self) -> list[int]:
        """Tasks that wait for nothing."""
        return [
            i for gate, before in enumerate(self.waits) if not before for i in self.members[gate]
        ]

    def done(self, task: int, left: list[int]) -> Iterator[int]:
        """The tasks that may start now that one more is done."""
        for gate in self.behind[task]:
            left[gate] -= 1
            if not left[gate]:
                yield from self.members[gate]


def lower_bound(
    tasks: Sequence[Task], machines: int, *, barrier: bool = False, share: bool = False
) -> float:
    """[s] that no schedule can beat.

    Formula: max(work / machines, longest chain). Sharing: the work of a run is the smaller claim
    that any pair can make good, its busy share or half of it, whichever bound is larger.
    Source: Graham (1969); derived for sharing: rates x busy shares add to one at most.
    """
    if not barrier:
        return max(_work(tasks, machines, share=share), longest_chain(tasks, share=share))
    total = 0.0
    for phase in sorted({task.phase for task in tasks}):
        at = [i for i, task in enumerate(tasks) if task.phase == phase]
        inside = [task for task in tasks if task.phase == phase]
        number = {old: new for new, old in enumerate(at)}
        own = [
            replace(task, after=tuple(number[b] for b in task.after if b in number))
            for task in inside
        ]
        chain = longest_chain(own, share=share)
        total += max(_work(inside, machines, share=share), chain)
    return total


def longest_chain(tasks: Sequence[Task], *, share: bool = False) -> float:
    """[s] of the longest run and what must wait for it: no number of machines beats it.

    Runs that all need the one machine of a kind wait for each other, and the shortest of what
    waits for one of them comes last.
    """
    tails = _tails(tasks, waits_of(tasks, barrier=False))
    queues: dict[int, list[int]] = {}
    for index, task in enumerate(tasks):
        if task.single:
            queues.setdefault(task.kind, []).append(index)
    lines = (
        _work([tasks[i] for i in queue], 1, share=share)
        + min(tails[i] - tasks[i].duration_s for i in queue)
        for queue in queues.values()
    )
    return max((*tails, *lines), default=0.0)


def _work(tasks: Sequence[Task], machines: int, *, share: bool) -> float:
    """[s] of work a machine, as evenly as can be."""
    if not share:
        return sum(task.duration_s for task in tasks) / machines
    by_half = sum(t.duration_s * (1 / TOGETHER if t.shareable else 1.0) for t in tasks)
    by_busy = sum(t.duration_s * (t.busy if t.shareable else 1.0) for t in tasks)
    return max(by_half, by_busy) / machines


def _tails(tasks: Sequence[Task], waits: Sequence[Iterable[int]]) -> list[float]:
    """[s] from the start of each task to the end of the longest chain behind it."""
    gates = _Gates.of(waits)
    gate_of = {index: gate for gate, inside in enumerate(gates.members) for index in inside}
    behind_gate = [0.0] * len(gates.waits)
    tails = [0.0] * len(tasks)
    for index in reversed(topological(waits)):
        behind = max((behind_gate[gate] for gate in gates.behind[index]), default=0.0)
        tails[index] = tasks[index].duration_s + behind
        gate = gate_of[index]
        behind_gate[gate] = max(behind_gate[gate], tails[index])
    return tails


def topological(waits: Sequence[Iterable[int]]) -> list[int]:
    """Indices in an order that respects `waits`; those on or behind a circle are left out."""
    gates = _Gates.of(waits)
    left = gates.left()
    order = sorted(gates.open_now())
    for index in order:
        order.extend(gates.done(index, left))  # a queue: what became ready is visited next
    return order


@dataclass(slots=True)
class _Machine:
    """What runs on one machine now, and how much of each is left [s of its own time]."""

    left: dict[int, float] = field(default_factory=dict)
    kind: int | None = None  # of the last task

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
        self, tasks: Sequence[Task], waits: Sequence[frozenset[int]], machines: int, *, share: bool
    ) -> None:
        self._tasks = tasks
        self._gates = _Gates.of(waits)
        self._left = self._gates.left()
        tails = _tails(tasks, waits)
        self._rank = sorted(range(len(tasks)), key=lambda i: (-tails[i], -tasks[i].duration_s, i))
        self._place = {index: place for place, index in enumerate(self._rank)}
        self._machines = [_Machine() for _ in range(min(machines, max(len(tasks), 1)))]
        self._share = share
        self._begun: dict[int, tuple[int, float]] = {}
        self._done: dict[int, Placement] = {}

    def run(self) -> list[Placement]:
        """The placements, in the order of the tasks."""
        now = 0.0
        ready = sorted(self._place[i] for i in self._gates.open_now())
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
                self._machines[number].kind = self._tasks[index].kind
                self._begun[index] = (number, now)
            elif not self._share and all(machine.left for machine in self._machines):
                return

    def _room_for(self, index: int) -> int | None:
        """A free machine, or one to share; None when the task must wait."""
        free = self._free_for(self._tasks[index])
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

    def _free_for(self, task: Task) -> int | None:
        """A free machine: one of its kind before one that nobody used yet, then any other."""
        kinds = [machine.kind for machine in self._machines if machine.left]
        if task.single and task.kind in kinds:
            return None
        free = [n for n, machine in enumerate(self._machines) if not machine.left]
        order = {task.kind: 0, None: 1}
        return min(free, key=lambda n: (order.get(self._machines[n].kind, 2), n), default=None)

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
            freed.update(self._gates.done(index, self._left))
        return freed


def go_together(first: Task, second: Task) -> bool:
    """Whether two runs may share a device and it pays."""
    return (
        first.shareable
        and second.shareable
        and first.kind == second.kind
        and first.memory + second.memory <= 1.0
        and first.busy + second.busy <= PAYS
    )

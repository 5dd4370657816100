"""What is to be run on several machines, and when each of them runs it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Task:
    """One run to place. `after`: indices of the tasks that must be done before it starts.

    busy: share of the device's time that it needs when nothing else runs there; below 1 only for
    runs that may share a device. memory: share of the device's usable memory.
    """

    name: str
    duration_s: float
    after: tuple[int, ...] = ()
    phase: int = 0
    busy: float = 1.0
    memory: float = 1.0
    shareable: bool = False


@dataclass(frozen=True, slots=True)
class Placement:
    """One task on one machine, from when to when."""

    task: int
    machine: int
    start_s: float
    end_s: float


@dataclass(frozen=True, slots=True)
class Schedule:
    """Every task placed. `lower_bound_s`: no schedule of these tasks can be shorter."""

    machines: int
    placements: tuple[Placement, ...]  # in the order of the tasks
    makespan_s: float
    lower_bound_s: float
    barrier: bool = False
    shared: bool = False

    @property
    def gap(self) -> float:
        """By which share the schedule may at most be longer than the best one."""
        return self.makespan_s / self.lower_bound_s - 1.0 if self.lower_bound_s > 0 else 0.0

    @property
    def busy_fraction(self) -> float:
        """Share of the machines' time in which at least one run is on them."""
        if self.makespan_s <= 0:
            return 0.0
        return sum(
            _covered([p for p in self.placements if p.machine == number])
            for number in range(self.machines)
        ) / (self.machines * self.makespan_s)


def _covered(placements: list[Placement]) -> float:
    """[s] in which one machine runs something; runs that share it count once."""
    total, until = 0.0, 0.0
    for placed in sorted(placements, key=lambda p: p.start_s):
        total += max(placed.end_s - max(placed.start_s, until), 0.0)
        until = max(until, placed.end_s)
    return total

"""A planned campaign: what every run takes on every machine, when it runs, what to leave out."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from autotune.domain.answer.contract import Answer
from autotune.domain.answer.limits import misses, sum_within
from autotune.domain.units import HOUR_S
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.domain.answer.limits import LimitOdds, Miss
    from autotune.domain.answer.tiebreak import Tiebreak
    from autotune.domain.device import Offer
    from autotune.domain.job import Assumption
    from autotune.domain.outcome import Estimated, Spread

Hours = Literal["model", "stated"]


@dataclass(frozen=True, slots=True)
class RunOnOffer:
    """One run on one machine. `duration_s` is what is expected, with early stopping.

    row: the best config, of its longest stage; None where only hours are stated.
    reason: why it cannot run there; empty: it can.
    """

    row: Estimated | None
    duration_s: Spread
    full_s: float  # without early stopping
    cost_usd: Spread
    hours: Hours
    model_s: float | None = None  # what the model expects, also where stated hours count
    busy: float = 1.0  # share of its time in which it needs the device
    memory: float = 1.0  # share of the device's usable memory
    shareable: bool = False
    limits: tuple[LimitOdds, ...] = ()  # of its stages, each against the limits of its job
    reason: str = ""

    @property
    def caution(self) -> float:
        """Its duration at the pessimistic end of what nobody measured, over the duration."""
        return self.row.caution if self.row is not None and self.hours == "model" else 1.0

    @property
    def misses(self) -> tuple[Miss, ...]:
        """The limits that its stages do not keep with the asked probability."""
        return misses(self.limits)


@dataclass(frozen=True, slots=True)
class Piece:
    """A job and how often a run trains it: once, or once for each of its stages."""

    job: int  # which of the campaign's
    times: int


@dataclass(frozen=True, slots=True)
class PlannedRun:
    """A run of a campaign with everything that it inherits, `repeat` times.

    pieces: empty where only hours are stated. on: once priced, one entry for each offer.
    """

    name: str
    phase: str
    part: str
    repeat: int
    stages: int
    pieces: tuple[Piece, ...]
    steps: int
    tokens: int
    after: tuple[int, ...]  # the runs that come before
    priority: float
    expected_fraction: float
    hours: float | None  # stated
    on: tuple[RunOnOffer, ...] = ()
    machine: int = 0  # the place in the offers of the one that it is planned on
    single: bool = False  # of which there is one: its runs wait for each other

    @property
    def here(self) -> RunOnOffer:
        """The run on the machine that it is planned on."""
        return self.on[self.machine]

    @property
    def stated_s(self) -> float | None:
        """[s] one of it takes by the stated hours, with early stopping; None without any."""
        return None if self.hours is None else self.hours * HOUR_S * self.expected_fraction


@dataclass(frozen=True, slots=True)
class OfferTotal:
    """The whole campaign on one machine, each run at its best config there."""

    offer: Offer
    runs: int  # that can run there
    missing: tuple[str, ...]  # names of those that cannot
    duration_s: Spread
    device_s: float  # devices x duration
    cost_usd: Spread
    full_usd: float | None  # owned: with the purchase
    energy_kwh: float
    watts: float
    watts_stated: bool
    electricity_usd: float | None
    stated_s: float | None  # the stated hours, whatever machine they are of
    stated_usd: float | None
    stated_kwh: float | None
    hours_from_elsewhere: bool = False  # stated hours of another device count here


@dataclass(frozen=True, slots=True)
class Apart(Answer):
    """Every run on a machine of its own choice. machines: of each run, its place in the offers.

    cost_usd, duration_s: of all runs, end to end, whatever a budget keeps of them. makespan_s: from
    the first start to the last end. kept_runs: that the budget keeps; all of them without one.
    """

    cost_usd: float
    duration_s: float
    machines: tuple[int, ...]
    makespan_s: float
    kept_runs: int


@dataclass(frozen=True, slots=True)
class RunsTotal(Answer):
    """What runs take, each on the machine that it is planned on."""

    duration_s: Spread
    device_s: float  # devices x duration
    cost_usd: Spread
    stated_s: float | None  # by the stated hours; None where some have none


@dataclass(frozen=True, slots=True)
class PhaseTotal:
    """A phase (part empty) or a part of one, on the campaign's machine."""

    phase: str
    part: str
    runs: int
    steps: int
    duration_s: float
    cost_usd: float
    stated_s: float | None


@dataclass(frozen=True, slots=True)
class Makespan(Answer):
    """How long the campaign takes on so many machines."""

    machines: int
    makespan_s: float
    lower_bound_s: float
    barrier_makespan_s: float


@dataclass(frozen=True, slots=True)
class Cut(Answer):
    """A kind of run to leave out, with those that wait for it."""

    run: str
    runs: int
    also: tuple[str, ...]
    priority: float
    saves_device_s: float
    saves_usd: float


@dataclass(frozen=True, slots=True)
class Subset:
    """The most valuable runs within a budget. kept, left_out: how many of each name."""

    budget_usd: float | None
    budget_device_s: float | None
    kept: dict[str, int]
    left_out: dict[str, int]
    priority: float
    of_priority: float
    cost_usd: float
    device_s: float
    confidence: float  # with which the budget is kept


@dataclass(frozen=True, slots=True)
class Deadline(Answer):
    """How likely the campaign ends in time, and with which probability it was asked to.

    enough_machines: the fewest that keep it; None where more machines do not help.
    """

    odds: LimitOdds
    confidence: float
    enough_machines: int | None


@dataclass(frozen=True, slots=True)
class Sharing:
    """Whether two runs to a card would pay. pairs: kinds of runs that may go together."""

    launch_bound: tuple[str, ...]
    schedule: Schedule | None
    reason: str


@dataclass(frozen=True, slots=True)
class Plan:
    """What `autotune plan` answers.

    machine: the offer that all runs are planned on; of a mixed plan, the one that most of the
    bill is paid for. `PlannedRun.machine` is each run's own.
    """

    name: str
    hours: Hours
    runs: tuple[PlannedRun, ...]
    offers: tuple[OfferTotal, ...]
    machine: int
    one_machine: int  # that all runs would be planned on together
    total: RunsTotal
    tiebreak: Tiebreak | None  # why this machine, where a tiebreak decided
    apart: Apart | None  # None where there is one machine, or a run fits on none
    phases: tuple[PhaseTotal, ...]
    tasks: tuple[str, ...]  # names of the schedule's tasks
    task_runs: tuple[int, ...]  # the run that each task is of
    schedule: Schedule | None
    barrier_s: float | None  # the same with, or without, barriers between phases
    sharing: Sharing
    scaling: tuple[Makespan, ...]
    stated_scaling: tuple[Makespan, ...]
    enough_machines: int  # from so many on, the longest chain decides
    longest_chain_s: float
    hours_per_day: float
    days: float | None
    cuts: tuple[Cut, ...]
    subset: Subset | None
    deadline: Deadline | None
    contradictions: tuple[str, ...]
    warnings: tuple[str, ...]
    assumed: tuple[Assumption, ...]
    wall_seconds: float

    @property
    def mixed(self) -> bool:
        """Whether the runs are planned on several kinds of machines."""
        return len({run.machine for run in self.runs}) > 1

    @property
    def missing(self) -> tuple[str, ...]:
        """Names of the runs that cannot run where they are planned."""
        return tuple(run.name for run in self.runs if run.here.reason)

    @property
    def budget_probability(self) -> float | None:
        """The probability that the runs kept stay within the budget; None where none can be told.

        Their ranges are added end to end: one model prices them all, so they err together.
        """
        subset = self.subset
        if subset is None:
            return None
        kept = [(run, subset.kept.get(run.name, 0)) for run in self.runs]
        if subset.budget_usd is not None:
            dollars = [(run.here.cost_usd, times) for run, times in kept]
            return sum_within(dollars, subset.budget_usd)
        hours = [
            (run.here.duration_s, self.offers[run.machine].offer.count * times)
            for run, times in kept
        ]
        return sum_within(hours, subset.budget_device_s or 0.0)


@dataclass(frozen=True, slots=True)
class Task:
    """One run to place. `after`: indices of the tasks that must be done before it starts.

    busy: share of the device's time that it needs when nothing else runs there; below 1 only for
    runs that may share a device. memory: share of the device's usable memory. kind: the machines
    it runs on; single: of which there is one, so that others of the kind wait for it.
    """

    name: str
    duration_s: float
    after: tuple[int, ...] = ()
    phase: int = 0
    busy: float = 1.0
    memory: float = 1.0
    shareable: bool = False
    kind: int = 0
    single: bool = False


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
        return self.busy_s / (self.machines * self.makespan_s) if self.makespan_s > 0 else 0.0

    @property
    def busy_s(self) -> float:
        """[s] of all machines together in which at least one run is on them."""
        return sum(
            _covered([p for p in self.placements if p.machine == number])
            for number in range(self.machines)
        )


def _covered(placements: list[Placement]) -> float:
    """[s] in which one machine runs something; runs that share it count once."""
    total, until = 0.0, 0.0
    for placed in sorted(placements, key=lambda p: p.start_s):
        total += max(placed.end_s - max(placed.start_s, until), 0.0)
        until = max(until, placed.end_s)
    return total

"""The answer: the pick, what stands beside it, what was rejected and why.

Why one configuration does not fit, too: how much is missing, what holds it, which batch decides.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING

from autotune.domain.answer.contract import ABSENT, Answer
from autotune.domain.answer.limits import misses, odds
from autotune.domain.outcome import FEASIBLE_PROBABILITY
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.answer.limits import LimitOdds, Miss, ShortRows
    from autotune.domain.answer.tiebreak import Tiebreak
    from autotune.domain.answer.waterfall import WhatIf
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated


@dataclass(frozen=True, slots=True, kw_only=True)
class Relaxation(Answer):
    """The smallest change that would make an infeasible job fit. quality: the user's call.

    kind: setting (a knob that the search may not touch), lock (one that was pinned), machine,
    quality. apply: options of the command line that make the change. short_of: what the job is
    short of without it; the bytes are of that. class_: what it does to the training. The figures
    are those of `config` on the device that is named.
    """

    change: str
    required_bytes: float
    available_bytes: float
    quality: bool
    duration_s: float = 0.0
    cost_usd: float = 0.0
    kind: str = "setting"
    apply: str = ""
    short_of: str = "memory"
    fits_probability: float = 1.0
    device: str | None = None
    device_count: int | None = None
    config: dict[str, int | bool | str] | None = None
    price_marks: tuple[str, ...] = ()  # as of a row
    class_: str = "neutral"  # neutral, numeric or quality

    @property
    def numeric(self) -> bool:
        """Whether numbers of the training change, and what it learns from does not."""
        return self.class_ == "numeric"


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest(Answer):
    """A candidate that does not do, and by how much. short_of: memory, disk, ram, shm or limit."""

    config: dict[str, int | bool | str]
    device: str
    device_count: int
    required_bytes: float
    available_bytes: float
    short_of: str | None = None
    reason: str


@dataclass(frozen=True, slots=True)
class Part(Answer):
    """One part of the memory."""

    name: str
    bytes: float


@dataclass(frozen=True, slots=True)
class LongestBatch(Answer):
    """The batch at which memory peaks, on one device.

    tokens: of all its rows, padding included. origin: where the length of its rows comes from.
    """

    rows: int
    tokens_per_row: int
    tokens: int = field(init=False)
    origin: str

    def __post_init__(self) -> None:
        """The tokens follow."""
        object.__setattr__(self, "tokens", self.rows * self.tokens_per_row)


LARGEST = 4  # parts of the memory that are named


@dataclass(frozen=True, slots=True, kw_only=True)
class Shortfall(Answer):
    """Why a configuration does not fit. Bytes: of a device, or of the host's disk or RAM.

    resource: memory, disk or ram. over_bytes: missing; at most 0 where it only comes too close.
    memory_bytes: parts, and their total; largest: those that hold most. instant: of a step, in
    words; phase: what it is in. fills: what takes the disk or the RAM, in words.
    """

    device: str
    device_count: int
    config: dict[str, int | bool | str]
    resource: str
    required_bytes: float
    available_bytes: float
    over_bytes: float = field(init=False)
    fits_probability: float
    memory_bytes: dict[str, float]
    largest: tuple[Part, ...] = field(init=False)
    phase: str
    instant: str
    longest_batch: LongestBatch
    memory_source: str
    fills: str = ""

    def __post_init__(self) -> None:
        """What is missing and the largest parts follow."""
        parts = [Part(name, size) for name, size in self.memory_bytes.items() if name != "total"]
        parts = [part for part in sorted(parts, key=lambda part: -part.bytes) if part.bytes > 0]
        object.__setattr__(self, "over_bytes", self.required_bytes - self.available_bytes)
        object.__setattr__(self, "largest", tuple(parts[:LARGEST]))

    def of_words(self, listed: float | None) -> bool:
        """Whether only what nobody said is in the way. listed: P(fits) as the settings are listed.

        listed: None where nothing was left unsaid.
        """
        return self.over_bytes <= 0 and listed is not None and listed >= FEASIBLE_PROBABILITY


@dataclass(frozen=True, slots=True)
class Rejected(Answer):
    """Candidates that were not priced or do not fit."""

    count: int
    by_reason: dict[str, int]
    nearest: tuple[Nearest, ...] = ()
    relaxations: tuple[Relaxation, ...] = ()
    shortfall: Shortfall | None = None  # of the nearest miss, where nothing fits


@dataclass(frozen=True, slots=True)
class SearchBound(Answer):
    """So probably, no configuration at all is more than `fraction` better than the pick."""

    probability: float
    fraction: float


@dataclass(frozen=True, slots=True)
class SearchRecord(Answer):
    """How the answer was found."""

    score: str
    sampler: str
    fidelity: str
    space_size: int
    priced: int
    traced: int
    probes: int
    probe_seconds: float
    wall_seconds: float
    stopped_because: str
    objective: str = "cost"  # what was minimised: cost or time
    probe_budget_s: float | None = None  # as asked for; None where nothing is probed
    # `probes` are configurations: these are all runs of them, repeats and confirmations included.
    probe_runs: int = field(default=0, metadata=ABSENT)
    bound: SearchBound | None = None  # None: every candidate was priced, or nothing was measured
    noise: NoiseSeen | None = field(default=None, metadata=ABSENT)  # None: nothing was measured


@dataclass(frozen=True, slots=True)
class NoiseSeen(Answer):
    """What other programs did to the measurements, and whether there is an answer in spite of it.

    load: [cores] that they used on average while steps were measured; None: nobody counts that.
    windows: series of steps that were measured; contaminated_windows: those that were disturbed.
    disturbed_probes: probes all of whose windows were. repeat_spread: sd of the log between two
    probes of one configuration; unnoticed: share of probes that were too long and betrayed it by
    nothing. cannot_tell: the pick cannot be told from others; why: in words.
    """

    load: float | None
    cores: float | None
    windows: int
    contaminated_windows: int
    disturbed_probes: int
    repeat_spread: float
    unnoticed: float
    cannot_tell: bool
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbedRun(Answer):
    """One probe, as it is told. role: search, repeat or confirm. None: not measured."""

    config: dict[str, int | bool | str]
    status: str
    role: str
    reused: bool
    predicted_step_s: float | None
    predicted_p10_s: float | None = None
    predicted_p90_s: float | None = None
    step_time_s: float | None
    memory_bytes: float | None
    wall_s: float
    disturbed: tuple[str, ...] = ()  # why its time is not the machine's own pace


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity(Answer):
    """What one change of the pick is worth, never applied: a closed knob, or the user's choice.

    change: as --set takes it; knob: a knob, or a key of the job file, as `key` has it. class_:
    neutral, numeric or quality. opens: options of the command line that make the change.
    duration_s and saved_s [s], cost_usd and saved_usd [USD]: None where it does not fit, where
    nobody can tell (padding saved of rows of unknown length), and saved where there is no pick.
    saved: against the pick. unmeasured: it rests on a gain that nobody measured on this stack.
    basis: as of a row's bill; a change is never measured itself. config: the best with the change,
    on the device that is named.
    """

    change: str = field(init=False)
    knob: str = field(init=False)
    class_: str
    opens: str
    key: str
    value: str
    duration_s: float | None
    cost_usd: float | None
    saved_s: float | None
    saved_usd: float | None
    memory_bytes: float
    fits: bool
    unmeasured: bool
    note: str
    basis: str
    device: str | None
    device_count: int | None
    config: dict[str, int | bool | str] | None

    def __post_init__(self) -> None:
        """The change in one word, and the knob, follow."""
        object.__setattr__(self, "change", f"{self.key}={self.value}")
        object.__setattr__(self, "knob", self.key)


@dataclass(frozen=True, slots=True)
class WorthProbe(Answer):
    """A change of the pick whose gain nobody measured. p10, p90: of the saving in USD."""

    change: str  # knobs and their values, as --set takes them, or a machine, as --gpu does
    knob: str  # "machine" for another machine
    expected_saving_s: float
    expected_saving_usd: float
    p10: float
    p90: float
    why: str


@dataclass(frozen=True, slots=True)
class Narrowing(Answer):
    """What one fact would make of the pick's range. p10, p90: [s] of its duration by then.

    fact: lengths, padding, compile, probe, doctor, or a component of the bill. what: how to get it.
    """

    fact: str
    what: str
    p10: float
    p90: float


@dataclass(frozen=True, slots=True)
class FitsIf(Answer):
    """How sure it is that a run fits if one thing that nobody said of it has this value.

    required_bytes: on each device, with all else as it is listed. assumed: the value is listed.
    """

    fact: str
    value: str
    fits_probability: float
    required_bytes: float
    assumed: bool


TURNS = 0.1  # of P(fits): less between two values decides nothing


def open_facts_of(fits_if: Sequence[FitsIf]) -> list[str]:
    """The facts on which it turns whether the run fits, the most decisive first."""
    by_fact: dict[str, list[float]] = {}
    for each in fits_if:
        by_fact.setdefault(each.fact, []).append(each.fits_probability)
    apart = {fact: max(own) - min(own) for fact, own in by_fact.items()}
    return sorted((fact for fact in apart if apart[fact] > TURNS), key=lambda fact: -apart[fact])


@dataclass(frozen=True, slots=True)
class Difference(Answer):
    """By how much an alternative may be worse than the pick: the ends of an 80 % interval.

    place: among the alternatives. low, high: relative, of what is minimised; below 0: better.
    expected: the mean of it, in which what both share cancels.
    """

    place: int
    low: float
    high: float
    expected: float = 0.0


class Decisive(str):
    """A warning that may change what the reader does: it is on the first screen of an answer."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Asked(Answer):
    """The command line that asked for an answer, without what only says how to print or keep it.

    folder: where it was typed, so that its relative paths can be typed again.
    """

    words: tuple[str, ...]
    folder: str


@dataclass(frozen=True, slots=True)
class NextStep(Answer):
    """A command to type next, and what it does."""

    command: str
    what: str


@dataclass(frozen=True, slots=True)
class Recommendation:
    """What `autotune tune` answers. `best` is None when nothing fits."""

    job: Job
    best: Estimated | None
    today: Estimated | None
    alternatives: tuple[Estimated, ...]
    pareto: tuple[Estimated, ...]
    tie: bool  # with the alternatives at `ties`
    rejected: Rejected
    search: SearchRecord
    reasons: dict[str, str] = field(default_factory=dict)  # knob -> one clause why
    narrowest: str = ""  # the input that would narrow the pick's range most
    differences: tuple[Difference, ...] = ()  # of the alternatives; none where they were measured
    narrowings: tuple[Narrowing, ...] = ()  # and what each single fact would, the narrowest first
    warnings: tuple[str, ...] = ()
    run_dir: str | None = None
    files: tuple[str, ...] = ()  # what to run, written below run_dir
    other_formats: tuple[str, ...] = ()  # that the pick can be written in as well
    sensitivities: tuple[Sensitivity, ...] = ()
    worth_a_probe: tuple[WorthProbe, ...] = ()
    probed: tuple[ProbedRun, ...] = ()
    machines: tuple[Estimated, ...] = ()  # the best of each offer, or its nearest miss
    tiebreak: Tiebreak | None = None  # why this machine, where a tiebreak decided
    beyond: tuple[Estimated, ...] = ()  # would beat the front, but do not fit
    contradictions: tuple[str, ...] = ()  # what the job file says that does not hold
    journey: WhatIf | None = None  # from today to the pick, where both are there
    ties: tuple[int, ...] = ()  # places among the alternatives that cannot be told apart from best
    asked: Asked | None = None  # None: not from a command line
    short_rows: ShortRows | None = None  # of best, where nobody stated how long the rows are
    keeping: tuple[Relaxation, ...] = ()  # what would keep the limits that `best` misses
    writes_to: str | None = None  # where the user's own file makes its trainer write, if it says so

    @property
    def limits(self) -> tuple[LimitOdds, ...]:
        """How likely each limit of the job is kept by `best`; nothing where nothing fits."""
        best = self.best
        return odds(self.job.limits, best.duration_s, best.cost_usd) if best else ()

    @property
    def misses(self) -> tuple[Miss, ...]:
        """The limits that `best` does not keep with the asked probability."""
        return misses(self.limits)

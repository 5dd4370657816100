"""What a log says of one run, whoever wrote it, and the seconds of a step that it implies.

A log's time comes in stretches: so many steps in so many seconds, in which so many checkpoints were
saved. Stretches without a save give the step; what those with saves have in excess gives the save.
The first stretch of a session also holds compiling and the first batches, so it is left out where
there are others. How far the step's mean may be off is read from the stretches too.
"""

from __future__ import annotations

import math
import statistics
from bisect import bisect_left
from dataclasses import field, replace
from typing import TYPE_CHECKING, Any, Literal

from autotune.domain.observation import (
    BETWEEN_RUNS_SD,
    EVALUATED,
    LOG_SD,
    MARKED,
    MEMORY_KINDS,
    Observation,
)
from autotune.domain.outcome import Z90
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.domain.config import KnobValue
    from autotune.domain.observation import MemoryKind, Quantity

FEW = 3  # stretches from which on the first of a session is left out
LEAST_STEP_S = 1e-6  # no optimizer step is shorter
BUSY = 0.2  # share of its threads' time spent waiting, from which on the machine was not its own
UNSTEADY = 0.3  # log standard deviation between parts of a run: no training does that by itself
LEAST_SAVES = 2  # excesses that a save's seconds are taken from
SHORT_SD = 0.3  # assumption: of one step around the mean of all that a run may meet
WINDOWS, WINDOW_STEPS, FEWEST_WINDOWS = 10, 5, 3
# 90th percentile of Student's t over that of the normal distribution, by degrees of freedom.
_STUDENT = (2.40, 1.47, 1.28, 1.20, 1.15, 1.12, 1.10, 1.09, 1.08)


@dataclass(frozen=True, slots=True)
class Stretch:
    """Steps after `begin` up to `end`, in so many seconds, evaluations included.

    saves: checkpoints written in it; None: as the run's save interval says. warm_up: it opens a
    session, so it holds compiling and the first batches. pure: neither saves nor evaluations are
    in its seconds.
    """

    begin: int
    end: int
    seconds: float
    saves: int | None = None
    warm_up: bool = False
    pure: bool = False

    @property
    def steps(self) -> int:
        """Steps of the stretch."""
        return self.end - self.begin


@dataclass(frozen=True, slots=True)
class RunLog:
    """What a log says. None: it does not say."""

    path: str
    form: Literal["trainer_state", "csv", "record", "console"]
    steps_done: int
    max_steps: int | None = None
    epoch: float | None = None  # done so far
    epochs: int | None = None  # planned, rounded up
    micro_batch_size: int | None = None
    gradient_accumulation_steps: int | None = None
    samples_per_step: float | None = None
    save_every_steps: int | None = None
    gpu: str | None = None
    gpus: int | None = None
    knobs: Mapping[str, KnobValue] = field(default_factory=dict)  # further ones that it states
    model: Mapping[str, int] = field(default_factory=dict)  # sizes, by the names of `Model`
    method: Mapping[str, Any] = field(default_factory=dict)  # kind, rank, base: as in a job file
    stretches: tuple[Stretch, ...] = ()
    saves_s: tuple[float, ...] = ()
    evaluations: tuple[tuple[int, float], ...] = ()  # step, seconds
    evaluation_rows: int | None = None  # of each, over all sets of data
    memory_bytes: Mapping[MemoryKind, float] = field(default_factory=dict)
    tokens: float | None = None  # input tokens that the trainer counted
    data_wait_s: float | None = None  # of a step, mean
    whole_s: float | None = None  # wall time of the whole program
    before_s: float | None = None  # from its begin to the training's: imports, weights
    prepare_s: float | None = None  # tokenising, which a program did before it; None: unknown
    before_waiting: float | None = None  # as `waiting`, before the training began
    sessions: int = 1
    waiting: float | None = None  # share of the time its threads waited for a busy processor
    ended: str = ""  # how a training ended that did not reach its last step, where the log says it
    timed_by: str = ""
    dated: bool = False  # timed by the dates of files, which copying changes
    notes: tuple[str, ...] = ()

    @property
    def is_timed(self) -> bool:
        """Whether the log, or its surroundings, say how long steps took."""
        return bool(self.stretches)

    @property
    def tells_evaluations(self) -> bool:
        """Whether an evaluation that ran is in it: a CSV need not have the column."""
        return bool(self.evaluations) or self.form != "csv"

    @property
    def evaluated_s(self) -> tuple[float, ...]:
        """[s] of each evaluation; over several sets of data after one step it is one."""
        by_step: dict[int, float] = {}
        for step, seconds in self.evaluations:
            by_step[step] = by_step.get(step, 0.0) + seconds
        return tuple(by_step.values())

    @property
    def covered_steps(self) -> int:
        """Steps whose seconds are known."""
        return sum(part.steps for part in self.stretches)

    @property
    def covered_s(self) -> float:
        """[s] of those steps, with the saves and evaluations among them."""
        return sum(part.seconds for part in self.stretches)

    def saves_in(self, part: Stretch) -> int:
        """Checkpoints written in a stretch. The Trainer logs a step before it saves it."""
        if part.saves is not None:
            return part.saves
        every = self.save_every_steps
        if not every or part.pure:
            return 0
        at_end = self.max_steps is not None and part.end >= self.max_steps
        return (part.end - 1) // every - max(part.begin - 1, 0) // every + at_end

    def evaluations_in(self, part: Stretch) -> tuple[float, ...]:
        """[s] of each evaluation in a stretch. They follow the log line of their step, as saves do.

        `evaluations` are in the order of their steps.
        """
        if part.pure:
            return ()
        at_end = self.max_steps is not None and part.end >= self.max_steps
        low = bisect_left(self.evaluations, (part.begin, 0.0))
        high = bisect_left(self.evaluations, (part.end + at_end, 0.0))
        return tuple(seconds for _, seconds in self.evaluations[low:high])


@dataclass(frozen=True, slots=True)
class Speed:
    """Seconds of a step and, where they could be told apart, of a save."""

    step_s: float
    save_s: float | None
    steps: int  # that the step's seconds are the mean of
    save_assumed: bool = False  # saves were taken off at their predicted seconds
    log_sd: float = BETWEEN_RUNS_SD  # of the mean step of another such run, by what this one shows
    seen_sd: float | None = None  # how far windows of this log scatter; None: too few steps


def speed_of(log: RunLog, predicted_save_s: float, predicted_first_s: float) -> Speed | None:
    """The speed that a log shows; None where it shows none.

    Formula: step = sum(seconds - evaluations - saves x save) / sum(steps). Source: derived.
    predicted_first_s: compiling and first batches, taken off a first stretch that is all there is.
    """
    parts = _steady(log.stretches)
    if not parts:
        return None
    own_save = sum(log.saves_s) / len(log.saves_s) if any(log.saves_s) else None
    clean = [part for part in parts if not log.saves_in(part)]
    save_s = 0.0 if clean else (own_save or predicted_save_s)
    used = clean or parts
    step_s = _mean_step(log, used, save_s, predicted_first_s)
    if step_s < LEAST_STEP_S:
        return None
    windows = [
        _mean_step(log, window, save_s, predicted_first_s) / step_s for window in _windows(used)
    ]
    seen = _scatter(windows)
    return Speed(
        step_s=step_s,
        save_s=own_save or (_excess(log, parts, step_s) if clean else None),
        steps=_count(used),
        save_assumed=not clean and own_save is None,
        log_sd=max(_other_run_sd(seen, len(windows), _count(used)), _idle_sd(log)),
        seen_sd=seen,
    )


def _windows(parts: Sequence[Stretch]) -> list[list[Stretch]]:
    """The stretches in their order, in up to ten windows of five steps or more each."""
    least = max(_count(parts) / WINDOWS, WINDOW_STEPS)
    found: list[list[Stretch]] = [[]]
    for part in parts:
        if _count(found[-1]) >= least:
            found.append([])
        found[-1].append(part)
    if len(found) > 1 and _count(found[-1]) < least:
        rest = found.pop()
        found[-1] += rest
    return found


def _scatter(ratios: Sequence[float]) -> float | None:
    """Log standard deviation of the windows; None where there are too few of them."""
    if len(ratios) < FEWEST_WINDOWS:
        return None
    return statistics.stdev(math.log(max(ratio, LEAST_STEP_S)) for ratio in ratios)


def _other_run_sd(seen: float | None, windows: int, steps: int) -> float:
    """Log standard deviation of the mean step of another run, judged by this log.

    Formula: hypot(between runs, one step's scatter / sqrt(steps), t x windows' scatter x sqrt(1 +
    1 / windows)): what disturbed some windows may disturb all of the next run, and few steps have
    not seen what may come. Source: prediction interval of a normal sample.
    """
    short = SHORT_SD / math.sqrt(max(steps, 1))
    if seen is None:
        return math.hypot(BETWEEN_RUNS_SD, short)
    student = _STUDENT[min(windows - 1, len(_STUDENT)) - 1]
    return math.hypot(BETWEEN_RUNS_SD, short, student * seen * math.sqrt(1.0 + 1.0 / windows))


def _steady(stretches: Sequence[Stretch]) -> list[Stretch]:
    later = [part for part in stretches if not part.warm_up]
    return later if len(later) >= FEW - 1 else list(stretches)


def _count(parts: Sequence[Stretch]) -> int:
    return sum(part.steps for part in parts)


def _mean_step(log: RunLog, parts: Sequence[Stretch], save_s: float, first_s: float) -> float:
    """[s] of a step. What is taken off never exceeds nine tenths of a stretch's seconds."""
    seconds = 0.0
    for part in parts:
        rest = sum(log.evaluations_in(part)) + save_s * log.saves_in(part)
        rest += first_s if part.warm_up else 0.0
        seconds += part.seconds - min(rest, 0.9 * part.seconds)
    return seconds / _count(parts)


def _excess(log: RunLog, parts: Sequence[Stretch], step_s: float) -> float | None:
    """[s] of a save: what stretches with saves take longer than their steps and evaluations."""
    with_saves = [part for part in parts if log.saves_in(part)]
    count = sum(log.saves_in(part) for part in with_saves)
    if count < LEAST_SAVES:
        return None
    excess = sum(
        part.seconds - sum(log.evaluations_in(part)) - part.steps * step_s for part in with_saves
    )
    return excess / count if excess > 0 else None


def _idle_sd(log: RunLog) -> float:
    """Log standard deviation whose 80 % interval reaches the step of a machine without others."""
    waiting = min(log.waiting or 0.0, 0.99)
    return -math.log(1.0 - waiting) / Z90 if waiting >= BUSY else 0.0


def observations_of_log(
    log: RunLog, speed: Speed, knobs: Mapping[str, object], facts: Mapping[str, object]
) -> tuple[Observation, ...]:
    """The log as Observations of a configuration on a machine: step, save, evaluation, memory.

    Times of a machine that was busy with other work are marked; memory is what it is. An evaluation
    whose rows no fact states teaches nothing.
    """
    found: list[tuple[Quantity, float, MemoryKind | None]] = [("step_time_s", speed.step_s, None)]
    if speed.save_s is not None:
        found.append(("checkpoint_save_s", speed.save_s, None))
    evaluated = log.evaluated_s
    if EVALUATED in facts and sum(evaluated) > 0:
        found.append(("evaluation_s", sum(evaluated) / len(evaluated), None))
    best = best_memory(log)
    if best is not None:
        found.append(("memory_bytes", best[1], best[0]))
    return tuple(
        Observation(
            id=f"{log.path}, {quantity}",
            quantity=quantity,
            value=value,
            provenance=f"{log.path}, timed by {log.timed_by}",
            kind=kind,
            knobs=dict(knobs),
            facts={**facts, **_how_sure(log, speed, quantity)},
        )
        for quantity, value, kind in found
    )


def _how_sure(log: RunLog, speed: Speed, quantity: Quantity) -> dict[str, object]:
    marked = spoiled_by(log, speed) if quantity != "memory_bytes" else ""
    known: dict[str, object] = {MARKED: marked} if marked else {}
    return known | ({LOG_SD: speed.log_sd} if quantity == "step_time_s" else {})


def spoiled_by(log: RunLog, speed: Speed) -> str:
    """Why the times of a log speak of a busy machine and not of the training; empty: they do.

    Rows grouped by length make some parts of a quiet run slower than others.
    """
    if log.waiting is not None and log.waiting >= BUSY:
        return f"its threads waited {_percent(log.waiting)} of their time for a busy processor"
    grouped = log.knobs.get("length_grouping") == "on"
    if speed.seen_sd is not None and speed.seen_sd >= UNSTEADY and not grouped:
        return f"its steps took longer in some parts than in others, by {_percent(speed.seen_sd)}"
    return ""


def _percent(share: float) -> str:
    return f"{100 * share:.0f} %"


def best_memory(log: RunLog) -> tuple[MemoryKind, float] | None:
    """The peak that says most: allocated before reserved before the driver's."""
    sizes = log.memory_bytes
    return next(((kind, sizes[kind]) for kind in MEMORY_KINDS if kind in sizes), None)


def with_elapsed(log: RunLog, elapsed_s: float, before_s: float) -> RunLog:
    """The log timed by what the user says passed up to its last step.

    Where the log times its own steps that stands, and this is the whole program's time.
    before_s: [s] that pass before the first step: loading and preparing, as predicted.
    """
    if not log.steps_done or (log.is_timed and not log.dated):
        return replace(log, whole_s=elapsed_s)
    whole = Stretch(0, log.steps_done, max(elapsed_s - before_s, 0.1 * elapsed_s), warm_up=True)
    return replace(log, stretches=(whole,), timed_by="what --elapsed says", dated=False)

"""How long a step of a training took, how sure that is, and what else is inside.

The slope of a log's clock where it has one, else `train_runtime` over the steps that it covers.
Source: transformers, `speed_metrics` of trainer_utils.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.app.learn.found import number
from autotune.evidence.cases import Refused
from autotune.evidence.log.run_log import speed_of

if TYPE_CHECKING:
    from autotune.app.learn.found import Found
    from autotune.evidence.learned.run import Grade
    from autotune.trainers.parsed import Parsed


FEWEST_STEPS, LONG_STEPS = 10, 50

UNEVEN = 0.2  # log sd of a step between parts of a run

SHORT_S = 120.0  # a run whose warm-up is part of its time


@dataclass(frozen=True, slots=True)
class Timed:
    """Seconds of a step and of a save, over how many steps; `grade` says how sure that is."""

    step_s: float
    grade: Grade
    save_s: float | None
    steps: int
    notes: tuple[str, ...]
    saves: int = 0  # inside, and not timed


def timed_run(found: Found, parsed: Parsed) -> Timed:
    """[s] of a step, how sure that is, and what is inside. Raises Refused."""
    log, runtime = found.log, found.runtime_s
    steps = found.steps or (log.steps_done if log else None)
    if log is not None and log.is_timed and log.timed_by != "train_runtime":
        speed = speed_of(log, 0.0, 0.0)
        if speed is not None and speed.steps >= FEWEST_STEPS:
            inside = sum(log.saves_in(part) for part in log.stretches) if speed.save_assumed else 0
            saves = max(inside, 0 if speed.save_s else _saves(found, parsed, speed.steps))
            grade: Grade = "B" if saves or speed.log_sd > UNEVEN else "A"
            if log.dated or found.clock:
                grade = "C"
            kept = log.evaluations and not all(part.pure for part in log.stretches)
            notes = [f"slope of {log.timed_by} over {speed.steps} steps"]
            notes += _said(saves)
            notes += ["evaluations taken off as timed"] if kept else []
            told = tuple(notes)
            return Timed(speed.step_s, grade, speed.save_s, speed.steps, told, saves)
    if runtime is None and found.elapsed_s and steps and steps >= LONG_STEPS:
        saves = _saves(found, parsed, steps)
        note = f"its logger's clock over {steps} steps; it did not end"
        return Timed(found.elapsed_s / steps, "C", None, steps, (note, *_said(saves)), saves)
    if runtime is None or not steps:
        msg = "it ended before its time was written, and no progress bar has a clock"
        raise Refused(msg)
    if steps < FEWEST_STEPS:
        msg = f"fewer than {FEWEST_STEPS} steps: mostly warm-up"
        raise Refused(msg)
    return _by_runtime(found, parsed, runtime, steps)


def _by_runtime(found: Found, parsed: Parsed, runtime: float, steps: int) -> Timed:
    rate = found.results.get("train_steps_per_second")
    covered = steps
    notes = []
    if rate is not None and 0 < rate * runtime < 0.9 * steps:
        covered = max(round(rate * runtime), 1)
        notes.append(f"resumed: its runtime covers {covered} of {steps} steps")
    log = found.log
    evaluations = sum(seconds for _, seconds in log.evaluations) if log else 0.0
    own = runtime - evaluations if 0 < evaluations < 0.9 * runtime else runtime
    notes.append(f"train_runtime over {covered} steps")
    if evaluations:
        notes.append("evaluations taken off as timed")
    saves = _saves(found, parsed, covered)
    notes += _said(saves)
    short = own < SHORT_S or covered < 5 * FEWEST_STEPS
    if short:
        notes.append("short: its warm-up is inside")
    untimed = found.arguments.get("eval_strategy", found.arguments.get("evaluation_strategy")) in {
        "steps", "epoch",
    } and not evaluations  # fmt: skip
    if untimed:
        notes.append("evaluations inside")
    grade: Grade = "B" if saves or short or untimed or covered < steps else "A"
    return Timed(own / covered, grade, None, covered, tuple(notes), saves)


def _saves(found: Found, parsed: Parsed, steps: int) -> int:
    """How many checkpoints were saved while it trained."""
    strategy = str(found.arguments.get("save_strategy") or "").casefold().rpartition(".")[2]
    if strategy == "no":
        return 0
    if strategy == "epoch":
        return max(round(steps / steps_an_epoch(found)), 1)
    every = parsed.knobs.get("checkpoint_every_steps")
    return steps // int(every) if isinstance(every, int) and every else 0


def _said(saves: int) -> list[str]:
    return [f"about {saves} save{'s' * (saves != 1)} inside"] if saves else []


def steps_an_epoch(found: Found) -> float:
    """Optimizer steps that one pass over the rows takes; a very large number where untold."""
    epochs = number(found.arguments.get("num_train_epochs"))
    return (found.steps or 1) / epochs if epochs and (found.steps or 0) > epochs else 1e9

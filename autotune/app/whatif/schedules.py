"""What the user's own schedules of saves and of evaluations cost, as changes that would be free.

Neither changes what is trained, and neither is applied: checkpoints to choose among and points on
the curve of an evaluation are the user's.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.domain.edit import Edit
from autotune.space.enumerate import without

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.domain.job import Job
    from autotune.pricing import Question, QuestionEdit

SAVES, EVALUATIONS = "checkpoint_every_steps", "evaluation.every_steps"
BEST = "load_best_model_at_end"  # saves must then meet the evaluations
IN_FILE = "change it in your own file as well"
WORTH = 0.01  # of the pick's time: less is no reason to change a schedule


def schedule_changes(job: Job, steps: int) -> Iterator[QuestionEdit]:
    """Saves at the interval that costs least, and evaluations once an epoch, or once.

    steps: optimizer steps of the run, fewer than the job's where rows are packed.
    """
    if steps and saves_are_kept(job):
        yield Edit(
            _saved_freely, key=SAVES, columns=(SAVES,),
            note="other checkpoints to choose among: as your file has it, they are by the epoch",
        )  # fmt: skip
    plan = job.evaluation
    fewer = _rarer(job, steps)
    if fewer and plan is not None:
        note = f"{steps // fewer} evaluations, not {steps // plan.every_steps}"
        note += f"; {IN_FILE}" if job.origin is not None else ""
        yield Edit(
            _evaluated(fewer), key=EVALUATIONS, value=str(fewer),
            typed=f"--set {EVALUATIONS}={fewer}", note=note,
        )  # fmt: skip


def saves_are_kept(job: Job) -> bool:
    """Whether the schedule of saves is what the trainer's own file says, and free to be moved."""
    origin = job.origin
    if origin is None or SAVES not in job.lock or _meets_evaluations(job):
        return False
    return job.lock[SAVES] == _file_locks(job).get(SAVES) == origin.knobs.get(SAVES)


def _meets_evaluations(job: Job) -> bool:
    """Whether the best checkpoint is loaded at the end."""
    return any(item.key == BEST for item in job.assumed)


def _file_locks(job: Job) -> dict[str, object]:
    found: dict[str, object] = json.loads(job.spec or "{}").get("lock") or {}
    return found


def _saved_freely(question: Question) -> Question:
    job, space = question
    return replace(job, lock=without(job.lock, SAVES)), space


def _rarer(job: Job, steps: int) -> int:
    """[steps] between evaluations that are rarer than stated: an epoch's, or all; 0: none is."""
    plan = job.evaluation
    if plan is None or not plan.every_steps or not steps:
        return 0
    an_epoch = int(steps / max(job.epochs, 1.0))
    return next((every for every in (an_epoch, steps) if every > plan.every_steps), 0)


def _evaluated(every_steps: int) -> Callable[[Question], Question]:
    def edited(question: Question) -> Question:
        job, space = question
        plan = job.evaluation
        changed = plan and replace(plan, every_steps=every_steps)
        return replace(job, evaluation=changed), space

    return edited

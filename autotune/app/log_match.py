"""Is a log of this job's run, and of which of its configurations? What does not match is named."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.domain.config import Config
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.domain.job import Job
    from autotune.evidence.run_log import RunLog

SAME_BATCH = 0.03  # rates and epochs are rounded, and an epoch's last batch may be short


@dataclass(frozen=True, slots=True)
class Plan:
    """A configuration of a run's answer, and what it is there."""

    role: str  # pick, or the config in use today
    row: Mapping[str, Any]


def check_same_job(job: Job, steps: int, log: RunLog) -> None:
    """Refuse a log of another job. Raises InputError that lists all that differs."""
    found = [
        *_model(job, log),
        *_steps(job, steps, log),
        *_epochs(job, log),
        *_batch(job, log),
    ]
    if found:
        msg = f"{log.path} is of another job than {job.name}: {'; '.join(found)}"
        hint = "name the run that it belongs to: `autotune runs` lists them"
        raise InputError(msg, hint)


def _model(job: Job, log: RunLog) -> list[str]:
    return [
        f"its model has {what} {found:,}, and {job.model.name} has {wanted:,}"
        for what, found, wanted in (
            ("num_layers", log.num_layers, job.model.num_layers),
            ("hidden_size", log.hidden_size, job.model.hidden_size),
        )
        if found is not None and found != wanted
    ]


def _steps(job: Job, steps: int, log: RunLog) -> list[str]:
    """The Trainer rounds an epoch's last step up; before 4.46 it rounded down."""
    slack = math.ceil(job.epochs)
    if log.max_steps is not None and abs(log.max_steps - steps) > slack:
        return [f"max_steps is {log.max_steps:,}, and the job has {steps:,} steps"]
    if log.steps_done > steps + slack:
        return [f"it reaches step {log.steps_done:,}, and the job has {steps:,} steps"]
    return []


def _epochs(job: Job, log: RunLog) -> list[str]:
    if log.epochs is None or log.epochs == math.ceil(job.epochs - 1e-9):
        return []
    return [f"num_train_epochs is {log.epochs:,}, and the job has {job.epochs:g}"]


def _batch(job: Job, log: RunLog) -> list[str]:
    """The global batch, from the rates at the end or from how far the epochs have come."""
    batch = job.global_batch_size
    micro, accumulation = log.micro_batch_size, log.gradient_accumulation_steps
    if micro is not None and batch % micro:
        return [f"train_batch_size is {micro:,}, which does not divide the job's {batch:,}"]
    seen = log.samples_per_step
    if seen is None and log.epoch and log.steps_done:
        seen = job.rows * log.epoch / log.steps_done
        per_epoch = log.steps_done / log.epoch
        if abs(per_epoch - math.ceil(job.rows / batch)) <= 1.0:
            return []
    if micro and accumulation:
        seen = float(micro * accumulation * (log.gpus or 1))
    if seen is not None and abs(seen / batch - 1.0) > SAME_BATCH:
        return [f"its global batch is {seen:,.4g}, and the job's is {batch:,}"]
    return []


def plan_of(plans: Sequence[Plan], log: RunLog) -> tuple[Plan, Config]:
    """The configuration that a log is of: the first whose knobs agree with it.

    Where none does, the first one at the log's own micro-batch and saves. Raises InputError when
    that micro-batch cannot make the global batch.
    """
    for plan in plans:
        config = Config.of(plan.row["config"])
        if differences(config, log) == {}:
            return plan, config
    config = Config.of(plans[0].row["config"])
    changed = differences(config, log)
    micro = changed.get("micro_batch_size")
    if micro is not None:
        whole = config.micro_batch_size * config.gradient_accumulation_steps
        if whole % micro:
            split = f"the {whole} rows of a step on each device"
            msg = f"{log.path} ran a micro-batch of {micro}, which does not divide {split}"
            raise InputError(msg, "name the run that it belongs to: `autotune runs` lists them")
        changed["gradient_accumulation_steps"] = whole // micro
    return plans[0], config.with_knobs(**changed)


def differences(config: Config, log: RunLog) -> dict[str, Any]:
    """Knobs that the log says otherwise."""
    stated = {
        **log.knobs,
        "micro_batch_size": log.micro_batch_size,
        "gradient_accumulation_steps": log.gradient_accumulation_steps,
        "checkpoint_every_steps": log.save_every_steps,
    }
    return {
        name: value
        for name, value in stated.items()
        if value is not None and getattr(config, name) != value
    }

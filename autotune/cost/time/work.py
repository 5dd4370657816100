"""Seconds of an optimizer step and of what happens once, for every candidate."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.time import data

if TYPE_CHECKING:
    from autotune.cost.columns import FloatArray, Table
    from autotune.domain.candidates import Candidates
    from autotune.domain.job import Job


@dataclass(frozen=True, slots=True)
class StepWork:
    """Seconds of one optimizer step and of what happens once, for every candidate. Shapes [n]."""

    steps: FloatArray
    step_s: FloatArray  # wall seconds of an optimizer step, data wait included
    wait_s: FloatArray  # of which waiting for data
    once_s: FloatArray  # load, prepare, compile, first batches, final save

    @classmethod
    def of(cls, job: Job, tables: dict[str, Table], candidates: Candidates) -> StepWork:
        """Compose the step of every candidate from the components' tables. Shapes [n]."""
        micro = knob_values(candidates, "micro_batch_size")
        count = np.asarray([o.count for o in candidates.levels["offer"]], np.float64)
        accumulation = job.global_batch_size / (micro * count[candidates.codes["offer"]])
        busy = tables["compute"].gather("micro_step_s") + tables["collectives"].gather(
            "per_micro_s"
        )
        wait = data.wait_s(
            busy_s=busy,
            batch_s=tables["data"].gather("batch_s"),
            workers=knob_values(candidates, "num_dataloader_workers"),
        )
        per_step = tables["compute"].gather("optimizer_s") + tables["collectives"].gather(
            "per_step_s"
        )
        startup_table, data_table = tables["startup"], tables["data"]
        once = (
            startup_table.gather("load_s")
            + startup_table.gather("compile_s")
            + data_table.gather("prepare_s")
            + data_table.gather("first_batch_s")
            + tables["checkpoint"].gather("final_save_s") * (job.steps > 0)
        )
        return cls(
            steps=tables["compute"].gather("steps"),
            step_s=accumulation * (busy + wait) + per_step,
            wait_s=accumulation * wait,
            once_s=once,
        )


def knob_values(candidates: Candidates, name: str) -> FloatArray:
    """[n] a numeric knob of every candidate."""
    levels = np.asarray(candidates.levels[name], np.float64)
    values: FloatArray = levels[candidates.codes[name]]
    return values


def saves(steps: FloatArray, interval: FloatArray) -> FloatArray:
    """[n] checkpoints the Trainer writes: every `interval` steps and once more at the last step."""
    return np.ceil(steps / np.maximum(interval, 1.0))


def evaluations(job: Job, steps: FloatArray) -> FloatArray:
    """[n] evaluations of the run: every so many steps, or once: no interval, or no training."""
    if job.evaluation is None:
        return np.zeros_like(steps)
    if job.evaluation.every_steps <= 0 or job.steps == 0:
        return np.ones_like(steps)
    return np.floor(steps / job.evaluation.every_steps)

"""What the seconds of a run are composed of, for every candidate: a step, what happens once, all.

    train       = steps x (accumulation x (micro-step + exposed gather) + optimizer + all-reduce)
    data_wait   = steps x accumulation x what the loader cannot hide behind the micro-step
    checkpoint  = saves x save seconds, at the interval of the closed form unless locked
    lost_work   = expected work redone after interruptions (spot offers), and starting again where
                  a run outlasts the longest session
    evaluation, load, prepare, compile, final_save: once or by count

The cost model composes what the components say, and a measured search the same with what it
measured. Not in here: the components' formulas (`time`), and what a bill answers (`bill`).
"""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.time import checkpoint, data
from autotune.domain.candidates import OFFER
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray, Tables
    from autotune.domain.candidates import Candidates
    from autotune.domain.job import Job, Limits


@dataclass(frozen=True)
class RunTime:
    """Seconds and counts of every candidate, by the part of a run that takes them. Shapes [n]."""

    steps: FloatArray
    accumulation: FloatArray  # micro-steps of an optimizer step
    busy_s: FloatArray  # of a micro-step, communication that it waits for included
    batch_s: FloatArray  # of a micro-batch in one loader worker
    workers: FloatArray
    per_step_s: FloatArray  # the optimizer, and what is sent once a step
    load_s: FloatArray
    compile_s: FloatArray
    prepare_s: FloatArray
    first_batch_s: FloatArray
    save_s: FloatArray
    final_save_s: FloatArray
    evaluations: FloatArray
    evaluation_s: FloatArray  # of one
    interruptions_per_s: FloatArray
    locked_interval: FloatArray  # 0 where the closed form says it

    @classmethod
    def of(cls, job: Job, tables: Tables, candidates: Candidates) -> RunTime:
        """What the components' tables say."""
        compute, links, loader = tables["compute"], tables["collectives"], tables["data"]
        startup, saved = tables["startup"], tables["checkpoint"]
        steps = compute.gather("steps")
        return cls(
            steps=steps,
            accumulation=micro_steps(job, candidates),
            busy_s=compute.gather("micro_step_s") + links.gather("per_micro_s"),
            batch_s=loader.gather("batch_s"),
            workers=knob_values(candidates, "num_dataloader_workers"),
            per_step_s=compute.gather("optimizer_s") + links.gather("per_step_s"),
            load_s=startup.gather("load_s"),
            compile_s=startup.gather("compile_s"),
            prepare_s=loader.gather("prepare_s"),
            first_batch_s=loader.gather("first_batch_s"),
            save_s=saved.gather("save_s"),
            final_save_s=saved.gather("final_save_s") * (job.steps > 0),
            evaluations=evaluations(job, steps),
            evaluation_s=tables["evaluation"].gather("once_s"),
            interruptions_per_s=tables["price"].gather("interruptions_per_s"),
            locked_interval=knob_values(candidates, "checkpoint_every_steps"),
        )

    def at(self, rows: NDArray[np.intp]) -> RunTime:
        """The same of some candidates."""
        return RunTime(**{item.name: getattr(self, item.name)[rows] for item in fields(self)})

    def times(self, factors: Mapping[str, FloatArray]) -> RunTime:
        """With what a probe measures so many times as long: compute, data, save, compile, ..."""
        save = factors["save"]
        return replace(
            self,
            busy_s=self.busy_s * factors["compute"],
            per_step_s=self.per_step_s * factors["compute"],
            batch_s=self.batch_s * factors["data"],
            compile_s=self.compile_s * factors["compile"],
            save_s=self.save_s * save,
            final_save_s=self.final_save_s * save,
            evaluation_s=self.evaluation_s * factors.get("evaluation", 1.0),
        )

    @cached_property
    def _wait_each_s(self) -> FloatArray:
        return data.wait_s(busy_s=self.busy_s, batch_s=self.batch_s, workers=self.workers)

    @property
    def wait_s(self) -> FloatArray:
        """[s] of an optimizer step, waiting for data."""
        return self.accumulation * self._wait_each_s

    @cached_property
    def step_s(self) -> FloatArray:
        """[s] of an optimizer step, the wait for data included."""
        return self.accumulation * (self.busy_s + self._wait_each_s) + self.per_step_s

    @property
    def restart_s(self) -> FloatArray:
        """[s] of starting again."""
        return self.load_s + self.compile_s

    def interval_steps(self, limits: Limits) -> FloatArray:
        """[n] steps between saves."""
        free = checkpoint.young_daly_interval_steps(
            step_s=self.step_s,
            save_s=self.save_s,
            steps=self.steps,
            interruptions_per_s=self.interruptions_per_s,
            max_lost_work_s=limits.max_lost_work_s,
        )
        return np.where(self.locked_interval > 0, self.locked_interval, free)

    def duration_s(self, limits: Limits, interval: FloatArray) -> FloatArray:
        """[s] of the run, with saves that far apart."""
        running = (
            self.steps * self.step_s
            + checkpoint.saves(self.steps, interval) * self.save_s
            + (
                self.load_s
                + self.compile_s
                + self.prepare_s
                + self.first_batch_s
                + self.final_save_s
            )
            + self.evaluations * self.evaluation_s
        )
        lost = checkpoint.lost_work_s(
            running_s=running,
            interval_s=interval * self.step_s,
            interruptions_per_s=self.interruptions_per_s,
            restart_s=self.restart_s,
        )
        again = checkpoint.resumed_s(
            running_s=running + lost,
            session_s=limits.max_session_s,
            save_s=self.save_s,
            restart_s=self.restart_s,
        )
        duration: FloatArray = running + lost + again
        return duration

    def parts(self, interval: FloatArray, duration_s: FloatArray) -> dict[str, FloatArray]:
        """[s] that duration by the names of `TimeParts`: work lost is what the others leave."""
        parts = {
            "load": self.load_s,
            "prepare": self.prepare_s,
            "compile": self.compile_s,
            "train": self.steps * (self.step_s - self.wait_s),
            "data_wait": self.steps * self.wait_s + self.first_batch_s,
            "evaluation": self.evaluations * self.evaluation_s,
            "checkpoint": checkpoint.saves(self.steps, interval) * self.save_s,
            "final_save": self.final_save_s,
        }
        total: FloatArray = np.sum(list(parts.values()), axis=0)
        return {**parts, "lost_work": np.maximum(duration_s - total, 0.0)}


def knob_values(candidates: Candidates, name: str) -> FloatArray:
    """[n] a numeric knob of every candidate."""
    levels = np.asarray(candidates.levels[name], np.float64)
    values: FloatArray = levels[candidates.codes[name]]
    return values


def micro_steps(job: Job, candidates: Candidates) -> FloatArray:
    """[n] micro-steps of an optimizer step: what makes the global batch exactly."""
    count = np.asarray([offer.count for offer in candidates.levels[OFFER]], np.float64)
    rows = knob_values(candidates, "micro_batch_size") * count[candidates.codes[OFFER]]
    return job.global_batch_size / rows


def links_s(tables: Tables, accumulation: FloatArray) -> FloatArray:
    """[s] of an optimizer step, communication that it waits for."""
    links = tables["collectives"]
    return accumulation * links.gather("per_micro_s") + links.gather("per_step_s")


def evaluations(job: Job, steps: FloatArray) -> FloatArray:
    """[n] evaluations of the run: every so many steps, or once: no interval, or no training."""
    plan = job.evaluation
    if plan is None:
        return np.zeros_like(steps)
    if job.steps == 0:
        return np.ones_like(steps)
    while_training = np.floor(steps / plan.every_steps) if plan.every_steps > 0 else 1.0
    return np.zeros_like(steps) + while_training + plan.at_start

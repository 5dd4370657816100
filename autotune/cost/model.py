"""The bill of the finished run: components composed over candidates.

    train       = steps x (accumulation x (micro-step + exposed gather) + optimizer + all-reduce)
    data_wait   = steps x accumulation x what the loader cannot hide behind the micro-step
    checkpoint  = saves x save seconds, at the interval of the closed form unless locked
    lost_work   = expected work redone after interruptions (spot offers)
    evaluation, load, prepare, compile, final_save: once or by count
    cost        = duration x price

Does not cover: quality of the trained model; queueing for a machine.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import checkpoint, collectives, compute, data, evaluation, memory, startup
from autotune.cost.columns import Component, FloatArray, Table, tabulate
from autotune.cost.price import price_component
from autotune.domain.calibration import Calibration
from autotune.domain.outcome import (
    FEASIBLE_PROBABILITY,
    Bound,
    Estimated,
    MemoryParts,
    Spread,
    TimeParts,
)

if TYPE_CHECKING:
    from autotune.domain.candidates import Candidates
    from autotune.domain.job import Job
    from autotune.domain.outcome import Basis, Verdict

COMPONENTS: tuple[Component, ...] = (
    memory.COMPONENT,
    compute.COMPONENT,
    collectives.COMPONENT,
    data.COMPONENT,
    checkpoint.COMPONENT,
    evaluation.COMPONENT,
    startup.COMPONENT,
    price_component,
)
Z90 = 1.2815515655446004  # 90th percentile of the standard normal distribution


@dataclass(frozen=True, slots=True)
class Bill:
    """Every candidate priced. Arrays have shape [n]."""

    job: Job
    candidates: Candidates
    tables: dict[str, Table]
    basis: Basis
    steps: FloatArray
    step_s: FloatArray
    interval_steps: FloatArray
    save_total_limit: FloatArray
    duration_s: FloatArray
    cost_usd: FloatArray
    memory_bytes: FloatArray
    usable_bytes: FloatArray
    fits_probability: FloatArray
    disk_short_bytes: FloatArray  # > 0: checkpoints do not fit the disk by so much

    def __len__(self) -> int:
        return len(self.duration_s)

    @property
    def memory_violation(self) -> FloatArray:
        """[n] continuous violation of the memory constraint: at most 0 when feasible.

        The larger of the relative excess of bytes and the missing probability of fitting.
        """
        excess = self.memory_bytes / self.usable_bytes - 1.0
        return np.maximum(excess, FEASIBLE_PROBABILITY - self.fits_probability)

    @property
    def feasible(self) -> np.ndarray:
        """[n] fits in memory and on the disk."""
        return (self.memory_violation <= 0) & (self.disk_short_bytes <= 0)

    def _at(self, table: str, output: str, index: int) -> float:
        own = self.tables[table]
        return float(own.outputs[output][own.row_of[index]])

    def time_parts(self, index: int) -> TimeParts:
        """[s] the parts of candidate `index`."""
        return _time_parts(self, index)

    def estimate(self, index: int) -> Estimated:
        """Candidate `index` as a full Estimated, with its breakdowns and intervals."""
        return _estimate(self, index)


class CostModel:
    """Prices candidates of one job. Calibration multiplies components; empty: the plain model."""

    def __init__(self, job: Job, calibration: Calibration | None = None) -> None:
        """Keep the job and what evidence taught."""
        self.job = job
        self.calibration = calibration or Calibration()

    def price(self, candidates: Candidates) -> Bill:
        """The bill of every candidate. [n] candidates cost a few array passes."""
        job = self.job
        tables = {c.name: self._calibrated(c, candidates) for c in COMPONENTS}
        work = _StepWork.of(job, tables, candidates)
        save_s = tables["checkpoint"].gather("save_s")
        rate = tables["price"].gather("interruptions_per_s")
        locked = _knob(candidates, "checkpoint_every_steps")
        interval = checkpoint.interval_steps(
            step_s=work.step_s,
            save_s=save_s,
            steps=work.steps,
            interruptions_per_s=rate,
            max_lost_work_s=job.limits.max_lost_work_s,
        )
        interval = np.where(locked > 0, locked, interval)
        limit, short = checkpoint.kept_on_disk(
            _knob(candidates, "save_total_limit"),
            tables["checkpoint"].gather("bytes"),
            tables["checkpoint"].gather("disk_bytes"),
        )
        running = (
            work.steps * work.step_s
            + _saves(work.steps, interval) * save_s
            + work.once_s
            + _evaluations(job, work.steps) * tables["evaluation"].gather("once_s")
        )
        lost = checkpoint.lost_work_s(
            running_s=running,
            interval_s=interval * work.step_s,
            interruptions_per_s=rate,
            restart_s=tables["startup"].gather("load_s") + tables["startup"].gather("compile_s"),
        )
        duration = running + lost
        return Bill(
            job=job,
            candidates=candidates,
            tables=tables,
            basis="modelled" if self.calibration.is_empty else "calibrated",
            steps=work.steps,
            step_s=work.step_s,
            interval_steps=interval,
            save_total_limit=limit,
            duration_s=duration,
            cost_usd=duration / 3600.0 * tables["price"].gather("usd_per_hour"),
            memory_bytes=tables["memory"].gather("total"),
            usable_bytes=tables["memory"].gather("usable"),
            fits_probability=tables["memory"].gather("fits_probability"),
            disk_short_bytes=short,
        )

    def _calibrated(self, component: Component, candidates: Candidates) -> Table:
        table = tabulate(component, self.job, candidates)
        factor = self.calibration.factors.get(component.name, 1.0)
        if factor != 1.0 and component.name != "memory":
            for name, array in table.outputs.items():
                if name.endswith("_s"):
                    table.outputs[name] = array * factor
        if component.name in self.calibration.log_sds:
            log_sd = self.calibration.log_sds[component.name]
            table.outputs["log_sd"] = np.full_like(table.outputs["log_sd"], log_sd)
        return table


@dataclass(frozen=True, slots=True)
class _StepWork:
    """Seconds of one optimizer step and of what happens once, for every candidate. Shapes [n]."""

    steps: FloatArray
    step_s: FloatArray  # wall seconds of an optimizer step, data wait included
    wait_s: FloatArray  # of which waiting for data
    once_s: FloatArray  # load, prepare, compile, first batches, final save

    @classmethod
    def of(cls, job: Job, tables: dict[str, Table], candidates: Candidates) -> _StepWork:
        micro = _knob(candidates, "micro_batch_size")
        count = np.asarray([o.count for o in candidates.levels["offer"]], np.float64)
        accumulation = job.global_batch_size / (micro * count[candidates.codes["offer"]])
        busy = tables["compute"].gather("micro_step_s") + tables["collectives"].gather(
            "per_micro_s"
        )
        wait = data.wait_s(
            busy_s=busy,
            batch_s=tables["data"].gather("batch_s"),
            workers=_knob(candidates, "num_dataloader_workers"),
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


def _knob(candidates: Candidates, name: str) -> FloatArray:
    levels = np.asarray(candidates.levels[name], np.float64)
    values: FloatArray = levels[candidates.codes[name]]
    return values


def _saves(steps: FloatArray, interval: FloatArray) -> FloatArray:
    """[n] checkpoints the Trainer writes: every `interval` steps and once more at the last step."""
    return np.ceil(steps / np.maximum(interval, 1.0))


def _evaluations(job: Job, steps: FloatArray) -> FloatArray:
    """[n] evaluations of the run: every so many steps, or once when no interval is given."""
    if job.evaluation is None:
        return np.zeros_like(steps)
    if job.evaluation.every_steps <= 0:
        return np.ones_like(steps)
    return np.floor(steps / job.evaluation.every_steps)


def _time_parts(bill: Bill, i: int) -> TimeParts:
    one = bill.candidates.take(np.asarray([i]))
    tables = {name: Table(t.outputs, t.row_of[[i]]) for name, t in bill.tables.items()}
    work = _StepWork.of(bill.job, tables, one)
    steps = float(bill.steps[i])
    first = bill._at("data", "first_batch_s", i)
    parts = {
        "load": bill._at("startup", "load_s", i),
        "prepare": bill._at("data", "prepare_s", i),
        "compile": bill._at("startup", "compile_s", i),
        "train": steps * float(work.step_s[0] - work.wait_s[0]),
        "data_wait": steps * float(work.wait_s[0]) + first,
        "evaluation": float(_evaluations(bill.job, bill.steps[[i]])[0])
        * bill._at("evaluation", "once_s", i),
        "checkpoint": float(_saves(bill.steps[[i]], bill.interval_steps[[i]])[0])
        * bill._at("checkpoint", "save_s", i),
        "final_save": bill._at("checkpoint", "final_save_s", i) * (bill.job.steps > 0),
    }
    return TimeParts(**parts, lost_work=max(float(bill.duration_s[i]) - sum(parts.values()), 0.0))


_SPREAD_OF = {
    "train": "compute", "data_wait": "data", "prepare": "data", "checkpoint": "checkpoint",
    "final_save": "checkpoint", "lost_work": "checkpoint", "evaluation": "evaluation",
    "load": "startup", "compile": "startup",
}  # fmt: skip


def _spread(bill: Bill, i: int, parts: TimeParts) -> float:
    """Log standard deviation of the duration: parts that share a component err together.

    Source: derived: first-order error propagation over independent components.
    """
    by_component: dict[str, float] = {}
    for part, seconds in parts.as_dict().items():
        component = _SPREAD_OF[part]
        by_component[component] = by_component.get(component, 0.0) + seconds
    variance = sum((s * bill._at(c, "log_sd", i)) ** 2 for c, s in by_component.items())
    return math.sqrt(variance) / max(parts.total, 1e-9)


def _bound(bill: Bill, i: int, parts: TimeParts) -> Bound:
    """The largest share of the bill; inside training, the largest of the step's own terms."""
    shares: dict[Bound, float] = {
        "data": parts.data_wait + parts.prepare,
        "checkpoint": parts.checkpoint + parts.lost_work + parts.final_save,
        "evaluation": parts.evaluation,
        "startup": parts.load + parts.compile,
    }
    terms: dict[Bound, float] = {
        "compute": bill._at("compute", "compute_s", i),
        "bandwidth": bill._at("compute", "bandwidth_s", i),
        "launch": bill._at("compute", "launch_s", i),
        "communication": bill._at("collectives", "per_micro_s", i),
    }
    inside = max(terms, key=lambda name: terms[name])
    return max({**shares, inside: parts.train}.items(), key=lambda item: item[1])[0]


def _estimate(bill: Bill, i: int) -> Estimated:
    offer = bill.candidates.offer(i)
    parts = _time_parts(bill, i)
    steps = round(float(bill.steps[i]))
    count = offer.count
    micro = int(bill.candidates.value("micro_batch_size", i))
    interval = max(int(bill.interval_steps[i]), 1)
    config = bill.candidates.config(
        i,
        gradient_accumulation_steps=max(bill.job.global_batch_size // (micro * count), 1),
        checkpoint_every_steps=interval,
        save_total_limit=max(int(bill.save_total_limit[i]), 1),
    )
    step_s = float(bill.step_s[i])
    real_tokens = bill._at("compute", "real_tokens_per_step", i)
    peak = offer.device.peak_flop_per_s(config.precision) * count
    useful = bill._at("compute", "useful_flop_per_step", i)
    grow = math.exp(Z90 * _spread(bill, i, parts))
    duration = parts.total
    usd_per_s = offer.usd_per_hour / 3600.0
    memory_parts = MemoryParts(
        **{name: bill._at("memory", name, i) for name in MemoryParts.__dataclass_fields__}
    )
    return Estimated(
        offer=offer,
        config=config,
        basis=bill.basis,
        steps=steps,
        duration_s=Spread(duration / grow, duration, duration * grow),
        cost_usd=Spread(
            duration / grow * usd_per_s, duration * usd_per_s, duration * grow * usd_per_s
        ),
        step_time_s=step_s if steps else 0.0,
        tokens_per_s=real_tokens / step_s if steps and step_s > 0 else 0.0,
        mfu=useful / (step_s * peak) if steps and peak > 0 and step_s > 0 else 0.0,
        bound_by=_bound(bill, i, parts),
        time_s=parts,
        memory_bytes=memory_parts,
        usable_bytes=float(bill.usable_bytes[i]),
        fits_probability=float(bill.fits_probability[i]),
        verdict=_verdict(bill, i),
        checkpoints=math.ceil(steps / interval) if steps else 0,
        checkpoint_bytes=bill._at("checkpoint", "bytes", i),
    )


def _verdict(bill: Bill, i: int) -> Verdict:
    if bill._at("memory", "certain_oom", i) > 0:
        return "certain_oom"
    return "fits" if bill.memory_violation[i] <= 0 else "at_risk"

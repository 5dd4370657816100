"""The bill of the finished run: components composed over candidates.

    train       = steps x (accumulation x (micro-step + exposed gather) + optimizer + all-reduce)
    data_wait   = steps x accumulation x what the loader cannot hide behind the micro-step
    checkpoint  = saves x save seconds, at the interval of the closed form unless locked
    lost_work   = expected work redone after interruptions (spot offers), and starting again where
                  a run outlasts the longest session
    evaluation, load, prepare, compile, final_save: once or by count
    cost        = duration x price

Does not cover: quality of the trained model; queueing for a machine.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.cost.assemble import estimate, time_parts
from autotune.cost.columns import Component, FloatArray, Table, tabulate
from autotune.cost.memory import component as memory
from autotune.cost.memory.component import learned_memory
from autotune.cost.price import price_component
from autotune.cost.time import checkpoint, collectives, compute, data, evaluation, startup
from autotune.cost.time.work import StepWork, evaluations, knob_values, saves
from autotune.domain.calibration import Calibration
from autotune.domain.candidates import OFFER
from autotune.domain.outcome import FEASIBLE_PROBABILITY

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.domain.candidates import Candidates
    from autotune.domain.job import Job
    from autotune.domain.outcome import Basis, Estimated, TimeParts

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


UNKNOWN_RAM = 1e18  # [bytes]; nothing offloads as much


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
    ram_short_bytes: FloatArray  # > 0: what is offloaded does not fit the host's memory by so much

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
    def caution(self) -> FloatArray:
        """[n] a step at the pessimistic end of what nobody measured, over the step.

        Without the gain of a knob that was not measured, and at the slow end of a device that no
        step was measured on; 1 where both were.
        """
        return self.tables["compute"].gather("unseen_device") * self.unmeasured_gain

    @property
    def unmeasured_gain(self) -> FloatArray:
        """[n] a step without the gain of knobs that nobody measured, over the step; at least 1."""
        return self.tables["compute"].gather("unmeasured_gain")

    @property
    def feasible(self) -> np.ndarray:
        """[n] fits in memory, on the disk and, what is offloaded, in the host's memory."""
        on_host = (self.disk_short_bytes <= 0) & (self.ram_short_bytes <= 0)
        return (self.memory_violation <= 0) & on_host

    def at(self, table: str, output: str, index: int) -> float:
        """One output of one component for candidate `index`."""
        own = self.tables[table]
        return float(own.outputs[output][own.row_of[index]])

    def take(self, at: NDArray[np.intp], job: Job, candidates: Candidates | None = None) -> Bill:
        """The bill of the candidates at `at` for that job; candidates: the same in other codes."""
        arrays: dict[str, Any] = {
            item.name: getattr(self, item.name)[at]
            for item in fields(self)
            if isinstance(getattr(self, item.name), np.ndarray)
        }
        tables = {name: Table(own.outputs, own.row_of[at]) for name, own in self.tables.items()}
        taken = candidates or self.candidates.take(at)
        return replace(self, job=job, candidates=taken, tables=tables, **arrays)

    def time_parts(self, index: int) -> TimeParts:
        """[s] the parts of candidate `index`."""
        return time_parts(self, index)

    def estimate(self, index: int) -> Estimated:
        """Candidate `index` as a full Estimated, with its breakdowns and intervals."""
        return estimate(self, index)


def _stated_ram(candidates: Candidates) -> FloatArray:
    """[n, bytes] of host memory that somebody stated; what was only assumed forbids nothing."""
    hosts = [offer.host for offer in candidates.levels[OFFER]]
    sizes = [UNKNOWN_RAM if "ram_bytes" in host.assumed else host.ram_bytes for host in hosts]
    found: FloatArray = np.asarray(sizes, np.float64)[candidates.codes[OFFER]]
    return found


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
        work = StepWork.of(job, tables, candidates)
        save_s = tables["checkpoint"].gather("save_s")
        rate = tables["price"].gather("interruptions_per_s")
        locked = knob_values(candidates, "checkpoint_every_steps")
        interval = checkpoint.interval_steps(
            step_s=work.step_s,
            save_s=save_s,
            steps=work.steps,
            interruptions_per_s=rate,
            max_lost_work_s=job.limits.max_lost_work_s,
        )
        interval = np.where(locked > 0, locked, interval)
        limit, short = checkpoint.kept_on_disk(
            knob_values(candidates, "save_total_limit"),
            tables["checkpoint"].gather("bytes"),
            tables["checkpoint"].gather("disk_bytes"),
            saves(work.steps, interval),
        )
        running = (
            work.steps * work.step_s
            + saves(work.steps, interval) * save_s
            + work.once_s
            + evaluations(job, work.steps) * tables["evaluation"].gather("once_s")
        )
        restart_s = tables["startup"].gather("load_s") + tables["startup"].gather("compile_s")
        lost = checkpoint.lost_work_s(
            running_s=running,
            interval_s=interval * work.step_s,
            interruptions_per_s=rate,
            restart_s=restart_s,
        )
        again = checkpoint.resumed_s(
            running_s=running + lost,
            session_s=job.limits.max_session_s,
            save_s=save_s,
            restart_s=restart_s,
        )
        duration = running + lost + again
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
            ram_short_bytes=tables["memory"].gather("host_bytes") - _stated_ram(candidates),
        )

    def _calibrated(self, component: Component, candidates: Candidates) -> Table:
        table = tabulate(component, self.job, candidates)
        factor = self.calibration.factors.get(component.name, 1.0)
        if component.name == memory.COMPONENT.name:
            return self._remembered(table, factor)
        if factor != 1.0:
            for name, array in table.outputs.items():
                if name.endswith("_s"):
                    table.outputs[name] = array * factor
        if component.name in self.calibration.log_sds:
            log_sd = np.full_like(table.outputs["log_sd"], self.calibration.log_sds[component.name])
            kept = table.outputs.get("knob_log_sd", np.zeros_like(log_sd))
            table.outputs["log_sd"] = np.hypot(log_sd, kept)
            if "unseen_device" in table.outputs:  # measured steps settle it
                table.outputs["unseen_device"] = np.ones_like(log_sd)
        return table

    def _remembered(self, table: Table, factor: float) -> Table:
        """Memory under what was measured of it."""
        log_sd = self.calibration.log_sds.get(memory.COMPONENT.name)
        if not len(table.row_of) or (factor == 1.0 and log_sd is None):
            return table
        return Table(learned_memory(table.outputs, factor, log_sd), table.row_of)

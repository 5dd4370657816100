"""The bill: every candidate priced, and one of them as a full `Estimated`.

In here: the arrays of a bill, the parts and the interval of one candidate, what bounds it, its
verdict, and when a longer start has paid for itself. Not in here: the components' formulas (`time`,
`memory`) and what they add up to (`run_time`).
"""

from __future__ import annotations

import math
from dataclasses import field, fields, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.cost.run_time import links_s
from autotune.cost.spread.fitting import memory_violation
from autotune.cost.time.checkpoint import interruptions_variance, saves
from autotune.domain.candidates import OFFER
from autotune.domain.job import BUDGET
from autotune.domain.outcome import (
    COMPONENT_OF,
    Z90,
    DiskUse,
    Estimated,
    MemoryParts,
    Spread,
    TimeParts,
    bound_of,
)
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.cost.columns import BoolArray, FloatArray, Tables
    from autotune.cost.run_time import RunTime
    from autotune.domain.candidates import Candidates
    from autotune.domain.job import Job, Limits
    from autotune.domain.outcome import Basis, Bound, Verdict

    Indices = NDArray[np.intp]


# Instants at which the host's memory may fill: while it trains, loads and saves.
ON_HOST = ("host_bytes", "loading_host_bytes", "saving_host_bytes")


@dataclass(frozen=True)
class Bill:
    """Every candidate priced. Arrays have shape [n]. Memory is priced when it is asked for.

    other_memory: arrays that stand in place of the memory component's, by their names here.
    """

    job: Job
    candidates: Candidates
    tables: Tables
    basis: Basis
    run: RunTime
    interval_steps: FloatArray
    save_total_limit: FloatArray
    disk_checkpoints: FloatArray  # that lie on the disk at once
    disk_final_bytes: FloatArray  # of the final model, where it comes beside all of those
    disk_bytes: FloatArray  # that the run's results fill of the disk when it is fullest
    duration_s: FloatArray
    cost_usd: FloatArray
    other_memory: dict[str, FloatArray] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.duration_s)

    @property
    def steps(self) -> FloatArray:
        """[n] optimizer steps."""
        return self.run.steps

    @property
    def step_s(self) -> FloatArray:
        """[n, s] of one, the wait for data included."""
        return self.run.step_s

    @cached_property
    def memory_bytes(self) -> FloatArray:
        """[n, bytes] of the device at the instant of peak."""
        return self._memory("memory_bytes", "total")

    @cached_property
    def usable_bytes(self) -> FloatArray:
        """[n, bytes] that the job may take of the device."""
        return self._memory("usable_bytes", "usable")

    @cached_property
    def fits_probability(self) -> FloatArray:
        """[n] how sure it is that the run does not end out of memory."""
        return self._memory("fits_probability", "fits_probability")

    @cached_property
    def disk_short_bytes(self) -> FloatArray:
        """[n] > 0: what the run writes does not fit the stated disk by so much."""
        return self.disk_bytes - self.tables["checkpoint"].gather("stated_disk_bytes")

    @cached_property
    def ram_short_bytes(self) -> FloatArray:
        """[n] > 0: what is offloaded, loaded or saved does not fit the host's memory by so much."""
        sizes = [o.host.stated_bytes("ram_bytes") for o in self.candidates.levels[OFFER]]
        stated = np.asarray(sizes, np.float64)[self.candidates.codes[OFFER]]
        needed = [self.tables["memory"].gather(name) for name in ON_HOST]
        short: FloatArray = np.max(needed, axis=0) - stated
        return short

    def _memory(self, name: str, output: str) -> FloatArray:
        other = self.other_memory.get(name)
        return self.tables["memory"].gather(output) if other is None else other

    def with_memory(self, **arrays: FloatArray) -> Bill:
        """The bill with other `memory_bytes`, `usable_bytes` or `fits_probability`."""
        return replace(self, other_memory=self.other_memory | arrays)

    @property
    def memory_violation(self) -> FloatArray:
        """[n] continuous violation of the memory constraint: at most 0 when feasible."""
        return memory_violation(self.memory_bytes, self.usable_bytes, self.fits_probability)

    @property
    def caution(self) -> FloatArray:
        """[n] a step at the pessimistic end of what nobody measured, over the step.

        Without the gain of a knob that was not measured, and at the slow end of a device that no
        step was measured on; 1 where both were.
        """
        return self.tables["compute"].gather("unseen_device") * self.unmeasured_gain

    @cached_property
    def slow_log_sd(self) -> FloatArray:
        """[n] log standard deviation of the durations on the side of longer runs."""
        return slow_log_sd(self, np.arange(len(self)))

    @property
    def unmeasured_gain(self) -> FloatArray:
        """[n] a step without the gain of knobs that nobody measured, over the step; at least 1."""
        return self.tables["compute"].gather("unmeasured_gain")

    @property
    def mostly_missed(self) -> BoolArray:
        """[n] expected to miss a limit of the job."""
        return mostly_missed(self.job.limits, self.duration_s, self.cost_usd)

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
        other = {name: own[at] for name, own in self.other_memory.items()}
        taken = candidates or self.candidates.take(at)
        return replace(
            self, job=job, candidates=taken, tables=self.tables.at(at), run=self.run.at(at),
            other_memory=other, **arrays,
        )  # fmt: skip

    def time_parts(self, index: int) -> TimeParts:
        """[s] the parts of candidate `index`; they sum to its duration."""
        return TimeParts(**{n: float(s[0]) for n, s in _parts(self, np.asarray([index])).items()})

    def estimate(self, index: int, *, spread: bool = True) -> Estimated:
        """Candidate `index` as a full Estimated, with its breakdowns and intervals.

        spread: False where nobody reads how far its time may be off.
        """
        return _estimate(self, index, spread=spread)


def _parts(bill: Bill, at: Indices) -> dict[str, FloatArray]:
    """[s] the parts of the candidates at `at`, by the names of `TimeParts`."""
    return bill.run.at(at).parts(bill.interval_steps[at], bill.duration_s[at])


def component_seconds(bill: Bill, at: Indices) -> dict[str, FloatArray]:
    """[s] by which the bill moves with each component: communication apart from the step's rest.

    Work that is lost and done again is as much longer as the run is: each part counts with its
    share of it. How much is lost errs with the checkpoints besides.
    """
    found: dict[str, FloatArray] = {}
    parts = _parts(bill, at)
    lost, duration = parts["lost_work"], bill.duration_s[at]
    again = duration / np.maximum(duration - lost, 1e-9)
    for part, seconds in parts.items():
        component = COMPONENT_OF[part]
        counted = seconds if part == "lost_work" else seconds * again
        found[component] = found.get(component, 0.0) + counted
    of_links = again * bill.steps[at] * links_s(bill.tables.at(at), bill.run.accumulation[at])
    found["collectives"] = np.minimum(of_links, found["compute"])
    found["compute"] = found["compute"] - found["collectives"]
    return found


def duration_log_sd(bill: Bill, at: Indices) -> FloatArray:
    """Log standard deviation of the durations at `at`: parts that share a component err together.

    On a machine that may be taken back, the luck of how often is in it too.
    Source: derived: first-order error propagation over independent components.
    """
    return _log_sds(bill, at)[0]


def slow_log_sd(bill: Bill, at: Indices) -> FloatArray:
    """The same on the side of longer runs, which a program that nobody measured makes wider."""
    return _log_sds(bill, at)[1]


def _log_sds(bill: Bill, at: Indices) -> tuple[FloatArray, FloatArray]:
    """Both sides."""
    seconds = component_seconds(bill, at)
    variance = sum((s * bill.tables[c].gather("log_sd")[at]) ** 2 for c, s in seconds.items())
    duration = bill.duration_s[at]
    startup, compute = bill.tables["startup"], bill.tables["compute"]
    luck = interruptions_variance(
        running_s=duration,
        interval_s=bill.interval_steps[at] * bill.step_s[at],
        interruptions_per_s=bill.tables["price"].gather("interruptions_per_s")[at],
        restart_s=(startup.gather("load_s") + startup.gather("compile_s"))[at],
    )
    fast: FloatArray = np.sqrt(variance + luck) / np.maximum(duration, 1e-9)
    share = seconds["compute"] / np.maximum(duration, 1e-9)
    more = share**2 * compute.gather("slow_variance")[at]
    return fast, np.sqrt(np.maximum(fast**2 + more, 0.0))


def step_log_sd(bill: Bill, *, slower: bool) -> FloatArray:
    """[distinct steps] log standard deviation on the side of slower or of faster ones."""
    outputs = bill.tables["compute"].outputs
    more = outputs["slow_variance"] if slower else 0.0
    return np.sqrt(np.maximum(outputs["log_sd"] ** 2 + more, 0.0))


def _step_bound(bill: Bill, i: int, accumulation: int) -> Bound:
    """The largest of a training step's own terms, each by the micro-step."""
    once_s = bill.at("collectives", "per_step_s", i) / accumulation
    terms: dict[Bound, float] = {
        "compute": bill.at("compute", "compute_s", i),
        "bandwidth": bill.at("compute", "bandwidth_s", i),
        "launch": bill.at("compute", "launch_s", i),
        "communication": bill.at("collectives", "per_micro_s", i) + once_s,
    }
    return max(terms, key=lambda name: terms[name])


def _estimate(bill: Bill, i: int, *, spread: bool) -> Estimated:
    """Candidate `i` with its breakdowns and its 80 % intervals."""
    offer = bill.candidates.offer(i)
    parts = bill.time_parts(i)
    steps = round(float(bill.steps[i]))
    count = offer.count
    micro = int(bill.candidates.value("micro_batch_size", i))
    interval = max(int(bill.interval_steps[i]), 1)
    accumulation = max(bill.job.global_batch_size // (micro * count), 1)
    config = bill.candidates.config(
        i,
        gradient_accumulation_steps=accumulation,
        checkpoint_every_steps=interval,
        save_total_limit=max(int(bill.save_total_limit[i]), 1),
    )
    step_s, step_bound = float(bill.step_s[i]), _step_bound(bill, i, accumulation)
    real_tokens = bill.at("compute", "real_tokens_per_step", i)
    peak = offer.device.peak_flop_per_s(config.precision) * count
    useful = bill.at("compute", "useful_flop_per_step", i)
    place = np.asarray([i])
    sides = _log_sds(bill, place) if spread else np.zeros((2, 1))
    fast, slow = (math.exp(Z90 * float(side[0])) for side in sides)
    duration = parts.total
    usd_per_s = offer.usd_per_s
    memory_parts = MemoryParts(
        **{name: bill.at("memory", name, i) for name in MemoryParts.__dataclass_fields__}
    )
    return Estimated(
        offer=offer,
        config=config,
        basis=bill.basis,
        steps=steps,
        duration_s=Spread(duration / fast, duration, duration * slow),
        cost_usd=Spread(
            duration / fast * usd_per_s, duration * usd_per_s, duration * slow * usd_per_s
        ),
        step_time_s=step_s if steps else 0.0,
        tokens_per_s=real_tokens / step_s if steps and step_s > 0 else 0.0,
        mfu=useful / (step_s * peak) if steps and peak > 0 and step_s > 0 else 0.0,
        bound_by=bound_of(parts, step_bound),
        time_s=parts,
        memory_bytes=memory_parts,
        usable_bytes=float(bill.usable_bytes[i]),
        fits_probability=float(bill.fits_probability[i]),
        verdict=_verdict(bill, i),
        checkpoints=int(saves(float(steps), float(interval))),
        checkpoint_bytes=bill.at("checkpoint", "bytes", i),
        reserved_bytes=bill.at("memory", "reserved", i),
        step_bound=step_bound,
        disk=_disk_use(bill, i),
        disk_short_bytes=max(float(bill.disk_short_bytes[i]), 0.0),
        caution=bill.at("compute", "unseen_device", i) * bill.at("compute", "unmeasured_gain", i),
    )


def _disk_use(bill: Bill, i: int) -> DiskUse:
    """What candidate `i` writes to a disk."""
    return DiskUse(
        checkpoints=int(bill.disk_checkpoints[i]),
        checkpoint_bytes=bill.at("checkpoint", "bytes", i),
        final_model_bytes=float(bill.disk_final_bytes[i]),
        fetched_bytes=bill.at("startup", "fetched_bytes", i),
        tokenised_bytes=bill.at("data", "tokenised_bytes", i),
    )


def _verdict(bill: Bill, i: int) -> Verdict:
    if bill.at("memory", "certain_oom", i) > 0:
        return "certain_oom"
    return "fits" if bill.memory_violation[i] <= 0 else "at_risk"


def mostly_missed(limits: Limits, duration_s: FloatArray, cost_usd: FloatArray) -> BoolArray:
    """[n] expected to miss a limit: its chance is below one half, which no job asks for."""
    missed = np.zeros(len(duration_s), np.bool_)
    for name, value in limits.stated:
        missed |= (cost_usd if name == BUDGET else duration_s) > value
    return missed


def break_even_steps(bill: Bill, on: int, off: int) -> float:
    """Optimizer steps after which candidate `on` has paid its longer start back against `off`.

    Formula: (once_on - once_off) / (step_off - step_on), rounded up; infinite where a step gains
    nothing, 0 where the start is no longer.
    Source: derived.
    """
    once = [bill.at("startup", "compile_s", i) + bill.at("startup", "load_s", i) for i in (on, off)]
    longer, gain = once[0] - once[1], float(bill.step_s[off] - bill.step_s[on])
    if longer <= 0:
        return 0.0
    return math.ceil(longer / gain) if gain > 0 else math.inf

"""One candidate of a bill as a full `Estimated`: parts, intervals, what bounds it, verdict."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.columns import Table
from autotune.cost.time.checkpoint import interruptions_variance
from autotune.cost.time.work import StepWork, evaluations, knob_values, saves
from autotune.domain.candidates import OFFER
from autotune.domain.outcome import Z90, Estimated, MemoryParts, Spread, TimeParts, bound_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray
    from autotune.cost.model import Bill
    from autotune.domain.outcome import Bound, Verdict

    Indices = NDArray[np.intp]


def time_parts(bill: Bill, i: int) -> TimeParts:
    """[s] the parts of candidate `i`; they sum to its duration."""
    parts = {name: float(seconds[0]) for name, seconds in _parts(bill, np.asarray([i])).items()}
    return TimeParts(**parts)


def _parts(bill: Bill, at: Indices) -> dict[str, FloatArray]:
    """[s] the parts of the candidates at `at`, by the names of `TimeParts`."""
    tables = {name: Table(t.outputs, t.row_of[at]) for name, t in bill.tables.items()}
    work = StepWork.of(bill.job, tables, bill.candidates.take(at))
    steps = bill.steps[at]
    checkpoint, startup = tables["checkpoint"], tables["startup"]
    parts = {
        "load": startup.gather("load_s"),
        "prepare": tables["data"].gather("prepare_s"),
        "compile": startup.gather("compile_s"),
        "train": steps * (work.step_s - work.wait_s),
        "data_wait": steps * work.wait_s + tables["data"].gather("first_batch_s"),
        "evaluation": evaluations(bill.job, steps) * tables["evaluation"].gather("once_s"),
        "checkpoint": saves(steps, bill.interval_steps[at]) * checkpoint.gather("save_s"),
        "final_save": checkpoint.gather("final_save_s") * (bill.job.steps > 0),
    }
    total: FloatArray = np.sum(list(parts.values()), axis=0)
    return {**parts, "lost_work": np.maximum(bill.duration_s[at] - total, 0.0)}


_SPREAD_OF = {
    "train": "compute", "data_wait": "data", "prepare": "data", "checkpoint": "checkpoint",
    "final_save": "checkpoint", "lost_work": "checkpoint", "evaluation": "evaluation",
    "load": "startup", "compile": "startup",
}  # fmt: skip


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
        component = _SPREAD_OF[part]
        counted = seconds if part == "lost_work" else seconds * again
        found[component] = found.get(component, 0.0) + counted
    candidates, links = bill.candidates, bill.tables["collectives"]
    micro = knob_values(candidates, "micro_batch_size")[at]
    count = np.asarray([offer.count for offer in candidates.levels[OFFER]], np.float64)
    micro_steps = bill.job.global_batch_size / (micro * count[candidates.codes[OFFER][at]])
    per_step, per_micro = links.gather("per_step_s")[at], links.gather("per_micro_s")[at]
    of_links = again * bill.steps[at] * (micro_steps * per_micro + per_step)
    found["collectives"] = np.minimum(of_links, found["compute"])
    found["compute"] = found["compute"] - found["collectives"]
    return found


def duration_log_sd(bill: Bill, at: Indices) -> FloatArray:
    """Log standard deviation of the durations at `at`: parts that share a component err together.

    On a machine that may be taken back, the luck of how often is in it too.
    Source: derived: first-order error propagation over independent components.
    """
    seconds = component_seconds(bill, at)
    variance = sum((s * bill.tables[c].gather("log_sd")[at]) ** 2 for c, s in seconds.items())
    duration = bill.duration_s[at]
    startup = bill.tables["startup"]
    luck = interruptions_variance(
        running_s=duration,
        interval_s=bill.interval_steps[at] * bill.step_s[at],
        interruptions_per_s=bill.tables["price"].gather("interruptions_per_s")[at],
        restart_s=(startup.gather("load_s") + startup.gather("compile_s"))[at],
    )
    found: FloatArray = np.sqrt(variance + luck) / np.maximum(duration, 1e-9)
    return found


def _step_bound(bill: Bill, i: int) -> Bound:
    """The largest of a training step's own terms."""
    terms: dict[Bound, float] = {
        "compute": bill.at("compute", "compute_s", i),
        "bandwidth": bill.at("compute", "bandwidth_s", i),
        "launch": bill.at("compute", "launch_s", i),
        "communication": bill.at("collectives", "per_micro_s", i),
    }
    return max(terms, key=lambda name: terms[name])


def estimate(bill: Bill, i: int) -> Estimated:
    """Candidate `i` with its breakdowns and its 80 % intervals."""
    offer = bill.candidates.offer(i)
    parts = time_parts(bill, i)
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
    step_s, step_bound = float(bill.step_s[i]), _step_bound(bill, i)
    real_tokens = bill.at("compute", "real_tokens_per_step", i)
    peak = offer.device.peak_flop_per_s(config.precision) * count
    useful = bill.at("compute", "useful_flop_per_step", i)
    grow = math.exp(Z90 * float(duration_log_sd(bill, np.asarray([i]))[0]))
    duration = parts.total
    usd_per_s = offer.usd_per_hour / 3600.0
    memory_parts = MemoryParts(
        **{name: bill.at("memory", name, i) for name in MemoryParts.__dataclass_fields__}
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
        bound_by=bound_of(parts, step_bound),
        time_s=parts,
        memory_bytes=memory_parts,
        usable_bytes=float(bill.usable_bytes[i]),
        fits_probability=float(bill.fits_probability[i]),
        verdict=_verdict(bill, i),
        checkpoints=math.ceil(steps / interval) if steps else 0,
        checkpoint_bytes=bill.at("checkpoint", "bytes", i),
        reserved_bytes=bill.at("memory", "reserved", i),
        step_bound=step_bound,
        disk_short_bytes=max(float(bill.disk_short_bytes[i]), 0.0),
        caution=bill.at("compute", "unseen_device", i) * bill.at("compute", "unmeasured_gain", i),
    )


def _verdict(bill: Bill, i: int) -> Verdict:
    if bill.at("memory", "certain_oom", i) > 0:
        return "certain_oom"
    return "fits" if bill.memory_violation[i] <= 0 else "at_risk"

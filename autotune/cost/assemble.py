"""One candidate of a bill as a full `Estimated`: parts, intervals, what bounds it, verdict."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.columns import Table
from autotune.cost.uncertainty import Z90
from autotune.cost.work import StepWork, evaluations, saves
from autotune.domain.outcome import Estimated, MemoryParts, Spread, TimeParts, bound_of

if TYPE_CHECKING:
    from autotune.cost.model import Bill
    from autotune.domain.outcome import Bound, Verdict


def time_parts(bill: Bill, i: int) -> TimeParts:
    """[s] the parts of candidate `i`; they sum to its duration."""
    one = bill.candidates.take(np.asarray([i]))
    tables = {name: Table(t.outputs, t.row_of[[i]]) for name, t in bill.tables.items()}
    work = StepWork.of(bill.job, tables, one)
    steps = float(bill.steps[i])
    first = bill.at("data", "first_batch_s", i)
    parts = {
        "load": bill.at("startup", "load_s", i),
        "prepare": bill.at("data", "prepare_s", i),
        "compile": bill.at("startup", "compile_s", i),
        "train": steps * float(work.step_s[0] - work.wait_s[0]),
        "data_wait": steps * float(work.wait_s[0]) + first,
        "evaluation": float(evaluations(bill.job, bill.steps[[i]])[0])
        * bill.at("evaluation", "once_s", i),
        "checkpoint": float(saves(bill.steps[[i]], bill.interval_steps[[i]])[0])
        * bill.at("checkpoint", "save_s", i),
        "final_save": bill.at("checkpoint", "final_save_s", i) * (bill.job.steps > 0),
    }
    return TimeParts(**parts, lost_work=max(float(bill.duration_s[i]) - sum(parts.values()), 0.0))


_SPREAD_OF = {
    "train": "compute", "data_wait": "data", "prepare": "data", "checkpoint": "checkpoint",
    "final_save": "checkpoint", "lost_work": "checkpoint", "evaluation": "evaluation",
    "load": "startup", "compile": "startup",
}  # fmt: skip


def component_seconds(bill: Bill, i: int, parts: TimeParts) -> dict[str, float]:
    """[s] of the bill by the component that errs: communication apart from the rest of a step."""
    found: dict[str, float] = {}
    for part, seconds in parts.as_dict().items():
        component = _SPREAD_OF[part]
        found[component] = found.get(component, 0.0) + seconds
    micro = float(bill.candidates.value("micro_batch_size", i))
    micro_steps = bill.job.global_batch_size / (micro * bill.candidates.offer(i).count)
    per_step = bill.at("collectives", "per_step_s", i)
    links = micro_steps * bill.at("collectives", "per_micro_s", i) + per_step
    found["collectives"] = min(float(bill.steps[i]) * links, found["compute"])
    found["compute"] -= found["collectives"]
    return found


def _spread(bill: Bill, i: int, parts: TimeParts) -> float:
    """Log standard deviation of the duration: parts that share a component err together.

    Source: derived: first-order error propagation over independent components.
    """
    by_component = component_seconds(bill, i, parts)
    variance = sum((s * bill.at(c, "log_sd", i)) ** 2 for c, s in by_component.items())
    return math.sqrt(variance) / max(parts.total, 1e-9)


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
    grow = math.exp(Z90 * _spread(bill, i, parts))
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

"""The figures of a probe's record as the search and the bill want them."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.app.probing.plan import depths_of
from autotune.app.probing.repeats import believed_of
from autotune.domain.answer.limits import odds
from autotune.domain.observation import value_of
from autotune.probe.record import observations

if TYPE_CHECKING:
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated
    from autotune.probe.record import ProbeRecord

DEPTH_SD = {"compute": 0.05, "memory": 0.01}  # of the log: a line through two depths
MEANS = ("step_s", "micro_s", "optimizer_s", "data_s")


def probe_step_s(predicted: Estimated, request: dict[str, Any]) -> float:
    """[s] the predicted step at the accumulation that is probed."""
    share: float = (
        request["gradient_accumulation_steps"] / predicted.config.gradient_accumulation_steps
    )
    return predicted.step_time_s * min(share, 1.0)


def figures_of(predicted: Estimated, request: dict[str, Any], probe_s: float) -> dict[str, float]:
    """What the cost model says of a probe, kept beside what it measures."""
    duration, step_s = predicted.duration_s, predicted.step_time_s
    return {
        "step_s": probe_step_s(predicted, request), "whole_step_s": step_s,
        "whole_step_p10_s": step_s * duration.p10 / max(duration.p50, 1e-9),
        "whole_step_p90_s": step_s * duration.p90 / max(duration.p50, 1e-9),
        "memory_bytes": predicted.memory_bytes.total, "probe_s": probe_s,
    }  # fmt: skip


def is_measurement(record: ProbeRecord) -> bool:
    """Whether its figures can be what a device did: a file may have been edited."""
    step, memory = record.result.get("step") or {}, record.result.get("memory") or {}
    values = [step.get(name) for name in MEANS]
    values += [memory.get(f"{kind}_bytes") for kind in ("allocated", "driver", "context")]
    numbers = [v for v in values if isinstance(v, int | float) and math.isfinite(v) and v >= 0]
    return len(numbers) == len(values) and float(step["step_s"]) > 0


def late(job: Job, row: Estimated) -> dict[str, float]:
    """Limits of the run as constraints: at most 0 where kept with the asked probability."""
    found = odds(job.limits, row.duration_s, row.cost_usd)
    return {each.limit: each.excess for each in found}


def parts_of(record: ProbeRecord, row: Estimated) -> dict[str, float]:
    """The measured parts by the names that samplers know. row: the bill with what was measured."""
    seen = observations(record, row.config.gradient_accumulation_steps)
    wait_s = value_of(seen, "data_wait_s") or 0.0
    found = {"compute": max(row.step_time_s - wait_s, 1e-9), "memory": row.memory_bytes.total}
    if row.config.compile != "off":
        found["compile"] = row.time_s.compile
    measured = {"data": value_of(seen, "batch_s"), "save": value_of(seen, "checkpoint_save_s")}
    return found | {part: value for part, value in measured.items() if value is not None}


def noise_of(record: ProbeRecord) -> dict[str, float]:
    """Sd of the log of what this probe could measure less well than is usual."""
    own = record.step_log_sd
    extra = DEPTH_SD if depths_of(record) else {}
    found = {"compute": math.hypot(own, extra.get("compute", 0.0)), **extra}
    return {name: sd for name, sd in found.items() if math.isfinite(sd) and sd > 0}


def merged(records: list[ProbeRecord]) -> ProbeRecord:
    """One record of all probes of one configuration: mean times of those that are believed.

    The largest memory of all. `seen` of its step: the least and the most seconds that what was seen
    leaves room for. It is disturbed where all of them were.
    """
    kept = believed_of(records)
    last = kept[-1]
    step = dict(last.result["step"])
    for name in MEANS:
        step[name] = sum(float(r.result["step"][name]) for r in kept) / len(kept)
    step["seen"] = _seen(kept, records)
    largest = max(records, key=lambda r: r.needed_bytes).result["memory"]
    return replace(last, result={**last.result, "step": step, "memory": largest})


def _seen(kept: list[ProbeRecord], records: list[ProbeRecord]) -> dict[str, float]:
    """[s] of a step: what was seen and could not be explained by other programs.

    A disturbed step may have been shorter by what disturbed it.
    """
    disturbed = all(record.disturbed for record in records)
    pool = records if disturbed else [record for record in records if not record.disturbed]
    steps = [float(record.result["step"]["step_s"]) for record in pool]
    low = min(float(r.result["step"]["step_s"]) / r.slowdown for r in kept)
    if disturbed:
        steps += [
            float(window["step_s"])
            for record in pool
            for window in record.result["step"].get("windows", ())
        ]
    return {"low_s": min(low, *steps), "high_s": max(steps)}

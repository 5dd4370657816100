"""A deep model from two shallow copies of it: time and memory are linear in layers.

    value(L) = value(d1) + (L - d1) x (value(d2) - value(d1)) / (d2 - d1)

taken apart for forward and backward, optimizer, evaluation, checkpoint and each phase of memory, so
that what does not grow with depth (embedding, head, loss, context) stays what was measured. A peak
is the largest of its phases at full depth, which need not be the phase that was largest at the
small depths.

Does not cover: models whose layers differ within the measured depths beyond their pattern; memory
peaks that move inside one phase between the small depths and the full one.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.frozen import dataclass
from autotune.probe.outcomes import OK
from autotune.probe.request import key_of, request_for, two_depths
from autotune.trace.worker import layer_period

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.probe.record import ProbeRecord
    from autotune.probe.request import Effort

KINDS = ("allocated", "reserved", "driver")
STEP_TIMES = ("step_s", "micro_s", "optimizer_s", "cpu_s", "median_s", "mean_s", "expected_s",
              "block_s")  # fmt: skip


@dataclass(frozen=True, slots=True)
class Line:
    """A straight line through what two depths gave."""

    low: int
    high: int
    depth: int

    def at(self, low: float, high: float) -> float:
        """The value at full depth; it never falls below what the deeper copy had."""
        grown = low + (self.depth - self.low) * (high - low) / (self.high - self.low)
        return max(grown, high, 0.0)


def requests_at_depths(
    job: Job, offer: Offer, config: Config, effort: Effort | None = None
) -> tuple[dict[str, Any], dict[str, Any]] | None:
    """The two requests of a candidate; None where the model is too shallow to gain by it."""
    depths = two_depths(job, layer_period(json.loads(job.model.hf_config)))
    if depths is None:
        return None
    low, high = (
        request_for(job, offer, config, effort=effort, num_layers=depth) for depth in depths
    )
    return low, high


def run_two(
    job: Job, run: Callable[[dict[str, Any]], ProbeRecord],
    requests: tuple[dict[str, Any], dict[str, Any]],
) -> ProbeRecord:  # fmt: skip
    """Both probes and the model that they imply; a failure of either is the result."""
    low = run(requests[0])
    if not low.ok:
        return low
    high = run(requests[1])
    spent_s = 0.0
    nearest = 2 * int(requests[0]["num_layers"])
    if high.fits is False and requests[1]["num_layers"] > nearest:  # a shallower one may be held
        nearer = {**requests[1], "num_layers": nearest}
        spent_s, high = high.wall_s, run(nearer | {"key": key_of(nearer)})
    if not high.ok:
        return replace(high, wall_s=high.wall_s + low.wall_s + spent_s)
    found = extrapolated(low, high, job.model.num_layers)
    return replace(found, wall_s=found.wall_s + spent_s)


def extrapolated(low: ProbeRecord, high: ProbeRecord, depth: int) -> ProbeRecord:
    """The record of the full depth. The key is the deeper probe's, marked with the depth.

    Its result says so: `extrapolated` holds the depths that ran and the one that did not.
    """
    line = Line(low.request["num_layers"], high.request["num_layers"], depth)
    a, b = low.result, high.result
    step = dict(b["step"])
    for name in STEP_TIMES:
        if name in step and name in a["step"]:
            step[name] = line.at(float(a["step"][name]), float(step[name]))
    result = {
        **b,
        "step": step,
        "memory": _memory(a["memory"], b["memory"], line),
        "extrapolated": {"depths": [line.low, line.high], "num_layers": depth},
    }
    for part, names in (("evaluation", ("batch_s",)), ("checkpoint", ("bytes", "save_s", "load_s")),
                        ("compile", ("extra_s",))):  # fmt: skip
        if a.get(part) and b.get(part):
            result[part] = {**b[part], **_grown(a[part], b[part], names, line)}
    return replace(
        high, key=f"{high.key}@{depth}", status=OK, wall_s=low.wall_s + high.wall_s, result=result,
        request={**high.request, "num_layers": depth},
        disturbed=list(dict.fromkeys([*low.disturbed, *high.disturbed])),
    )  # fmt: skip


def _grown(
    low: dict[str, Any], high: dict[str, Any], names: tuple[str, ...], line: Line
) -> dict[str, float]:
    return {
        name: line.at(float(low[name]), float(high[name]))
        for name in names
        if name in low and name in high
    }


def _memory(low: dict[str, Any], high: dict[str, Any], line: Line) -> dict[str, Any]:
    phases = {
        phase: _grown(low["phases"][phase], peak, KINDS, line)
        for phase, peak in high.get("phases", {}).items()
        if phase in low.get("phases", {})
    }
    largest = {
        f"{kind}_bytes": max((p.get(kind, 0.0) for p in phases.values()), default=0.0)
        for kind in KINDS
    }
    if not phases:
        names = tuple(f"{kind}_bytes" for kind in KINDS)
        largest = _grown(low, high, names, line)
    return {**high, **largest, "phases": phases}


def agreement(extrapolated_record: ProbeRecord, full: ProbeRecord) -> dict[str, float]:
    """Extrapolated over measured at full depth: time of a step, and each kind of memory."""
    a, b = extrapolated_record.result, full.result
    found = {"step_s": a["step"]["step_s"] / b["step"]["step_s"]}
    for kind in KINDS:
        measured = float(b["memory"][f"{kind}_bytes"])
        if measured > 0:
            found[f"{kind}_bytes"] = float(a["memory"][f"{kind}_bytes"]) / measured
    return found

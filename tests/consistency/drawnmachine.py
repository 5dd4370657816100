"""Machines that answer probes as no model would: speeds, memory and failures are drawn."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from autotune.app.probing.plan import AnyRunner
from autotune.probe.record import ProbeRecord

if TYPE_CHECKING:
    from collections.abc import Callable

KNOBS = ("precision", "attention", "activation_checkpointing", "compile", "num_dataloader_workers")


@dataclass
class DrawnMachine(AnyRunner):
    """A runner. speed: of one row; knobs: what each level multiplies; memory: of one row.

    wait: share of a step that is waiting for data. fails: every so manieth probe ends in `how`.
    """

    speed_s: float
    knobs: dict[str, float]
    memory_bytes: float
    wait: float
    save_s: float
    wall_s: float
    fails: int
    how: str
    spread: float
    count: int = 0

    def _step_s(self, config: dict[str, Any], number: int) -> float:
        found = self.speed_s * (1.0 + 0.2 / config["micro_batch_size"])
        for name in KNOBS:
            found *= self.knobs.get(f"{name} {config[name]}", 1.0)
        return found * (1.0 + self.spread * (-1) ** number)

    def run(
        self, request: dict[str, Any], config: dict[str, Any], *,
        predicted: dict[str, float] | None = None, role: str = "search",
        timeout_s: float | None = None,  # noqa: ARG002 - a runner's signature
    ) -> ProbeRecord:  # fmt: skip
        self.count += 1
        layers = int(request["num_layers"])
        accumulation = request["gradient_accumulation_steps"]
        step_s = self._step_s(config, self.count) * accumulation * config["micro_batch_size"]
        step_s *= layers / 2
        memory = 2e8 + self.memory_bytes * layers * config["micro_batch_size"]
        ok = not (self.fails and self.count % self.fails == 0)
        result = {
            "step": {"step_s": step_s, "micro_s": step_s / accumulation, "optimizer_s": 0.0,
                     "data_s": self.wait * step_s, "accumulation": accumulation, "tokens": 1000,
                     "relative_error": self.spread},
            "memory": {"allocated_bytes": memory, "reserved_bytes": 1.2 * memory,
                       "driver_bytes": 1.2 * memory + 2e8, "context_bytes": 2e8,
                       "total_bytes": 1e12},
            "checkpoint": {"save_s": self.save_s, "bytes": 1000},
            "evaluation": {"batch_s": 0.3 * step_s},
            "loader": [{"workers": 0, "batch_s": 0.001, "start_s": 0.0, "batches": 9}],
        }  # fmt: skip
        if config["compile"] != "off":
            result["compile"] = {"extra_s": 7.0}
        return ProbeRecord(
            request["key"], "ok" if ok else self.how, "" if ok else "drawn", self.wall_s, config,
            "cpu", "", request, result, when=str(self.count), role=role, predicted=predicted or {},
        )  # fmt: skip


@st.composite
def machines(draw: st.DrawFn) -> Callable[[], DrawnMachine]:
    """A maker of one machine: every search has a new one, so that none remembers another."""
    levels = (
        "precision bf16", "attention eager", "activation_checkpointing full", "compile default",
        "num_dataloader_workers 1",
    )  # fmt: skip
    figures: dict[str, Any] = {
        "speed_s": draw(st.sampled_from([1e-4, 0.01, 0.5])),
        "knobs": {level: draw(st.sampled_from([0.7, 1.0, 1.0, 1.5])) for level in levels},
        "memory_bytes": draw(st.sampled_from([1e7, 3e8, 2e9])),
        "wait": draw(st.sampled_from([0.0, 0.1, 0.8])),
        "save_s": draw(st.sampled_from([0.001, 0.1, 30.0])),
        "wall_s": draw(st.sampled_from([2.0, 9.0, 40.0])),
        "fails": draw(st.sampled_from([0, 0, 3])),
        "how": draw(st.sampled_from(["oom", "crash"])),
        "spread": draw(st.sampled_from([0.0, 0.02, 0.2])),
    }
    return lambda: DrawnMachine(**{**figures, "knobs": dict(figures["knobs"])})

"""Predicted against measured, row by row: memory with memory of its kind, a step with a step.

Like with like: torch's allocated bytes against the model's allocated bytes, reserved against
reserved, the driver's reading against the total with context. A step is the steady training step:
no loading, no saves, no evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Literal

import numpy as np

from autotune.cost.memory.constants import KINDS, RESERVED_KINDS
from autotune.domain.candidates import Candidates
from autotune.domain.outcome import FEASIBLE_PROBABILITY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from autotune.cost.columns import FloatArray
    from autotune.cost.model import Bill
    from autotune.domain.job import Job
    from autotune.evidence.record.case import MeasuredCase

    Price = Callable[[Job, Candidates], Bill]

Kind = Literal["allocated", "reserved", "nvidia-smi", "time"]
_OUTPUT = {"allocated": "allocated", "reserved": "reserved", "nvidia-smi": "driver"}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the cost model says of one case. Bytes are of one device; log_sd: relative spread."""

    step_s: float
    step_log_sd: float
    memory: dict[str, float] = field(default_factory=dict)
    memory_log_sd: float = 0.0  # of allocated bytes
    reserved_log_sd: float = 0.0  # of reserved bytes and of the driver's reading
    slack_log_sd: float = 0.0  # of what a run needs beside its tensors
    usable_bytes: float = 0.0
    fits_probability: float = 0.0
    certain_oom: bool = False
    accepted: bool = False  # tune would offer this configuration
    band: str = ""  # the kind of run whose spread the allocated peak has
    reserved_band: str = ""  # the same of what the allocator holds

    @property
    def over(self) -> bool:
        """Whether the predicted total is more than the device has."""
        return self.certain_oom or self.memory["total"] > self.usable_bytes


@dataclass(frozen=True, slots=True)
class Residual:
    """One predicted figure beside its measurement, in seconds or bytes."""

    case: MeasuredCase
    kind: Kind
    predicted: float
    actual: float
    log_sd: float
    band: str = ""  # the kind of run whose spread this is

    @property
    def ratio(self) -> float:
        """Predicted over actual."""
        return self.predicted / self.actual

    @property
    def error(self) -> float:
        """Absolute error as a fraction of the actual value."""
        return abs(self.ratio - 1.0)


def predict(cases: Iterable[MeasuredCase], price: Price) -> dict[str, Prediction]:
    """The cost model's answer for every case by id; cases of one job are priced together."""
    by_job: dict[int, list[MeasuredCase]] = {}
    for case in cases:
        by_job.setdefault(id(case.job), []).append(case)
    found: dict[str, Prediction] = {}
    for group in by_job.values():
        candidates = Candidates.of([(case.offer, case.config) for case in group])
        found.update(_predictions(group, price(group[0].job, candidates)))
    return found


def _predictions(cases: Sequence[MeasuredCase], bill: Bill) -> dict[str, Prediction]:
    table = bill.tables["memory"]
    memory = {name: table.gather(name) for name in OUTPUTS}
    memory["usable"], memory["fits_probability"] = bill.usable_bytes, bill.fits_probability
    spread = _step_spread(bill)
    found = {}
    for i, case in enumerate(cases):
        own = {name: float(values[i]) for name, values in memory.items()}
        found[case.id] = with_memory(
            Prediction(step_s=float(bill.step_s[i]), step_log_sd=float(spread[i])), own
        )
    return found


OUTPUTS = (
    "allocated", "reserved", "driver", "total", "log_sd", "reserved_log_sd", "certain_oom", "kind",
    "reserved_kind", "slack_log_sd",
)  # fmt: skip


def with_memory(found: Prediction, own: Mapping[str, float]) -> Prediction:
    """The prediction with other outputs of the memory component."""
    certain = own["certain_oom"] > 0
    fits = own["total"] <= own["usable"] and own["fits_probability"] >= FEASIBLE_PROBABILITY
    return replace(
        found,
        memory={name: own[name] for name in ("allocated", "reserved", "driver", "total")},
        memory_log_sd=own["log_sd"],
        reserved_log_sd=own["reserved_log_sd"],
        slack_log_sd=own["slack_log_sd"],
        usable_bytes=own["usable"],
        fits_probability=own["fits_probability"],
        certain_oom=certain,
        accepted=fits and not certain,
        band=KINDS[int(own["kind"])],
        reserved_band=RESERVED_KINDS[int(own["reserved_kind"])],
    )


def _step_spread(bill: Bill) -> FloatArray:
    """[n] log standard deviation of a step: compute and communication err independently."""
    compute, links = bill.tables["compute"], bill.tables["collectives"]
    micro = _knob(bill, "micro_batch_size")
    counts = np.asarray([o.count for o in bill.candidates.levels["offer"]], np.float64)
    per_step = bill.job.global_batch_size / (micro * counts[bill.candidates.codes["offer"]])
    link_s = per_step * links.gather("per_micro_s") + links.gather("per_step_s")
    share = np.clip(link_s / np.maximum(bill.step_s, 1e-12), 0.0, 1.0)
    spread: FloatArray = np.hypot(
        (1 - share) * compute.gather("log_sd"), share * links.gather("log_sd")
    )
    return spread


def _knob(bill: Bill, name: str) -> FloatArray:
    levels = np.asarray(bill.candidates.levels[name], np.float64)
    values: FloatArray = levels[bill.candidates.codes[name]]
    return values


def residuals(cases: Iterable[MeasuredCase], predictions: dict[str, Prediction]) -> list[Residual]:
    """Every measured figure of the cases beside its prediction."""
    found: list[Residual] = []
    for case in cases:
        if case.oom:
            continue
        predicted = predictions[case.id]
        if case.step_time_s is not None:
            spread = predicted.step_log_sd
            found.append(Residual(case, "time", predicted.step_s, case.step_time_s, spread))
        readings: list[tuple[str | None, float | None]] = [
            (case.peak_kind, case.peak_bytes),
            ("nvidia-smi", case.driver_bytes),
        ]
        found.extend(
            Residual(
                case,
                kind,  # type: ignore[arg-type]  # a key of _OUTPUT
                predicted.memory[_OUTPUT[kind]],
                actual,
                predicted.memory_log_sd if kind == "allocated" else predicted.reserved_log_sd,
                predicted.band if kind == "allocated" else predicted.reserved_band,
            )
            for kind, actual in readings
            if kind in _OUTPUT and actual is not None
        )
    return found

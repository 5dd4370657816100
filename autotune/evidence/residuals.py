"""Predicted against measured, row by row: memory with memory of its kind, a step with a step.

Like with like: torch's allocated bytes against the model's allocated bytes, reserved against
reserved, the driver's reading against the total with context. A step is the steady training step:
no loading, no saves, no evaluation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from autotune.domain.candidates import Candidates

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from autotune.cost.columns import FloatArray
    from autotune.cost.model import Bill
    from autotune.domain.job import Job
    from autotune.evidence.case import MeasuredCase

    Price = Callable[[Job, Candidates], Bill]

Kind = Literal["allocated", "reserved", "nvidia-smi", "time"]
_OUTPUT = {"allocated": "allocated", "reserved": "reserved", "nvidia-smi": "driver"}


@dataclass(frozen=True, slots=True)
class Prediction:
    """What the cost model says of one case. Bytes are of one device; log_sd: relative spread."""

    step_s: float
    step_log_sd: float
    memory: dict[str, float]
    memory_log_sd: float  # of allocated bytes
    reserved_log_sd: float  # of reserved bytes and of the driver's reading
    usable_bytes: float
    fits_probability: float
    certain_oom: bool
    accepted: bool  # tune would offer this configuration

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
    memory = bill.tables["memory"]
    outputs = {name: memory.gather(name) for name in (*_OUTPUT.values(), "total")}
    spread, memory_spread = _step_spread(bill), memory.gather("log_sd")
    reserved_spread = memory.gather("reserved_log_sd")
    certain = memory.gather("certain_oom")
    accepted = bill.memory_violation <= 0
    return {
        case.id: Prediction(
            step_s=float(bill.step_s[i]),
            step_log_sd=float(spread[i]),
            memory={name: float(values[i]) for name, values in outputs.items()},
            memory_log_sd=float(memory_spread[i]),
            reserved_log_sd=float(reserved_spread[i]),
            usable_bytes=float(bill.usable_bytes[i]),
            fits_probability=float(bill.fits_probability[i]),
            certain_oom=bool(certain[i] > 0),
            accepted=bool(accepted[i]) and not certain[i] > 0,
        )
        for i, case in enumerate(cases)
    }


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
            )
            for kind, actual in readings
            if kind in _OUTPUT and actual is not None
        )
    return found

"""How far predicted steps are from measured ones, by scope and by device, and in which order."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.spread.uncertainty import Z90
from autotune.evidence.fit.time import REFERENCE, left_out_key
from autotune.evidence.validation.sweeps import Sweeps, sweeps_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.evidence.record.case import MeasuredCase
    from autotune.evidence.validation.residuals import Residual

LEAST_ROWS = 8  # a device with fewer rows has a figure, but counts for no median over devices


@dataclass(frozen=True, slots=True)
class Scope:
    """Errors of some rows; rows count the same. coverage: of the 80 % interval."""

    n: int
    groups: int
    median_ape: float
    p90_ape: float
    bias: float
    coverage: float


@dataclass(frozen=True, slots=True)
class Accuracy:
    """Errors by scope and by device, and the order of sweeps."""

    scopes: dict[str, Scope]
    devices: dict[str, Scope]
    median_over_devices: float | None  # of the medians of devices with `LEAST_ROWS` rows
    sweeps: Sweeps


def _one_trainer(case: MeasuredCase) -> bool:
    offer, stack = case.offer, case.job.software.stack
    return (offer.count, offer.device.name, stack) == (1, REFERENCE["device"], REFERENCE["stack"])


ALL_ROWS = "all rows"
SCOPES: dict[str, Callable[[MeasuredCase], bool]] = {
    ALL_ROWS: lambda _: True,
    "one A100 80 GB, Hugging Face's Trainer": _one_trainer,
    "2 to 8 GPUs": lambda case: case.offer.count > 1,
}


def accuracy_of(steps: Sequence[Residual]) -> Accuracy:
    """Errors of predicted steps in the scopes above and for every device."""
    scopes = {name: [s for s in steps if rule(s.case)] for name, rule in SCOPES.items()}
    devices: dict[str, list[Residual]] = {}
    for step in steps:
        devices.setdefault(step.case.offer.device.name, []).append(step)
    of_devices = {name: _scope(own) for name, own in sorted(devices.items())}
    medians = [own.median_ape for own in of_devices.values() if own.n >= LEAST_ROWS]
    return Accuracy(
        {name: _scope(own) for name, own in scopes.items() if own},
        of_devices,
        float(np.median(medians)) if medians else None,
        sweeps_of([s.case for s in steps], [s.predicted for s in steps]),
    )


def _scope(steps: Sequence[Residual]) -> Scope:
    error = np.asarray([step.error for step in steps])
    log_ratio = np.log([step.ratio for step in steps])
    inside = np.abs(log_ratio) <= Z90 * np.asarray([step.log_sd for step in steps])
    return Scope(
        n=len(steps),
        groups=len({left_out_key(step.case) for step in steps}),
        median_ape=float(np.median(error)),
        p90_ape=float(np.quantile(error, 0.9)),
        bias=float(np.expm1(np.median(log_ratio))),
        coverage=float(inside.mean()),
    )

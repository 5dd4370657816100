"""Peak memory of one device: the largest of the instants of a training step.

Covers: the instants of the forward and backward head, the first and last layer of the backward, the
end of the backward, the optimizer step, evaluation, generation and saving.
Does not cover: offloading, pipeline and tensor parallelism, other processes on the device.

Legend: B rows, S longest length, T = B S tokens, L layers, h hidden, V vocabulary.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import device_memory
from autotune.cost.columns import Component, Outputs
from autotune.cost.instants import PARTS, instants
from autotune.cost.memory_spread import SLACK_LOG_SD, reserved_spread, uncertainty
from autotune.cost.step_memory import Step

if TYPE_CHECKING:
    from autotune.cost.columns import Columns, FloatArray
    from autotune.domain.job import Job

READS = (
    "offer.device",
    "offer.count",
    "sharding",
    "micro_batch_size",
    "precision",
    "activation_checkpointing",
    "attention",
    "optimizer",
    "adapter_dtype",
    "packing",
    "compile",
)


def price_memory(job: Job, columns: Columns) -> Outputs:
    """[bytes] on one device at the instant of peak, by part, and whether it fits. Shapes [rows]."""
    step = Step.of(job, columns)
    candidates = list(instants(step).values())
    totals = np.stack([item.total for item in candidates])
    peak = np.argmax(totals, axis=0)
    rows = np.arange(columns.rows)
    parts = {
        name: np.stack([getattr(item, name) for item in candidates])[peak, rows] for name in PARTS
    }
    parts["workspace"] = parts["workspace"] + device_memory.blas_workspace(columns)
    allocated: FloatArray = np.sum(list(parts.values()), axis=0)
    context, capacity = device_memory.context(columns), device_memory.capacity(columns)
    usable = capacity - job.limits.vram_headroom * device_memory.driver_total(columns)
    parts["context"] = context
    parts["fragmentation"] = device_memory.fragmentation(allocated)
    total: FloatArray = np.sum(list(parts.values()), axis=0)
    moving = allocated - parts["weights"] - parts["adapters"] - parts["optimizer"]
    room = capacity - context - allocated
    reserved = allocated + device_memory.cached(job, columns, allocated, moving, room)
    log_sd = uncertainty(job, columns)
    return {
        **parts,
        "total": total,
        "usable": usable,
        "capacity": capacity,
        "allocated": allocated,
        "reserved": reserved,
        "driver": reserved + context,
        "fits_probability": _normal_cdf(np.log(capacity / total) / np.hypot(log_sd, SLACK_LOG_SD)),
        "certain_oom": (allocated + context > capacity).astype(np.float64),
        "log_sd": log_sd,
        "reserved_log_sd": np.hypot(log_sd, reserved_spread(job, columns)),
    }


def _normal_cdf(z: FloatArray) -> FloatArray:
    """Source: Abramowitz and Stegun 1964, formula 7.1.26: within 1.5e-7 of the error function."""
    x = np.abs(z) / np.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * x)
    tail = np.zeros_like(t)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = t * (tail + coefficient)
    upper: FloatArray = 0.5 * tail * np.exp(-(x**2))
    return np.where(z < 0, upper, 1.0 - upper)


COMPONENT = Component("memory", READS, price_memory)

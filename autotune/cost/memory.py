"""Peak memory of one device: the largest of the instants of a training step.

Covers: the instants of the forward and backward head, the first and last layer of the backward, the
end of the backward, the optimizer step, evaluation, generation and saving.
Does not cover: offloading, pipeline and tensor parallelism, other processes on the device.

Legend: B rows, S longest length, T = B S tokens, L layers, h hidden, V vocabulary.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import device_memory
from autotune.cost.columns import Component, Outputs
from autotune.cost.instants import PARTS, instants
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
    parts["fragmentation"] = device_memory.fragmentation(
        job, columns, allocated, usable - context, capacity - context
    )
    log_sd = _log_sd(job, columns)
    needed = device_memory.needed(allocated, context)
    return {
        **parts,
        "total": np.sum(list(parts.values()), axis=0),
        "usable": usable,
        "capacity": capacity,
        "allocated": allocated,
        "reserved": allocated + parts["fragmentation"],
        "fits_probability": _normal_cdf(np.log(capacity / needed) / log_sd),
        "certain_oom": (allocated + context > capacity).astype(np.float64),
        "log_sd": log_sd,
    }


def _normal_cdf(z: FloatArray) -> FloatArray:
    return np.asarray([0.5 * (1.0 + math.erf(value / math.sqrt(2.0))) for value in z])


def _log_sd(job: Job, columns: Columns) -> FloatArray:
    """Relative spread of the predicted need, as a standard deviation of its logarithm.

    One device and plain kernels: the 5 % that the allocator adds to an allocated peak known to
    about 1 %. Elsewhere what published runs show: sharded LoRA and nf4 runs of fms-acceleration
    took 11 to 17 % more than predicted (medians), fused kernels as much less or more. Experts,
    int8 and torch.compile: priors.
    """
    spread = np.where(columns.equals("compile", "off"), 0.05, 0.10)
    if job.model.is_moe or job.method.base == "int8":
        spread = np.maximum(spread, 0.12)
    if job.software.kernels != "eager":
        spread = np.maximum(spread, 0.15)
    alone = columns.equals("sharding", "none", "ddp") | (columns.number("offer.count") == 1)
    return np.where(alone, spread, np.maximum(spread, 0.15))


COMPONENT = Component("memory", READS, price_memory)

"""Peak memory of one device: the largest of the instants of a training step.

Covers: the instants of the forward and backward head, the first and last layer of the backward, the
end of the backward, the optimizer step, evaluation, generation and saving.
Does not cover: pipeline and tensor parallelism, other processes on the device.

Legend: B rows, S longest length, T = B S tokens, L layers, h hidden, V vocabulary.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import offloading
from autotune.cost.columns import Component, Outputs
from autotune.cost.fused_kernels import under_each
from autotune.cost.memory import device as device_memory
from autotune.cost.memory.constants import KINDS, RESERVED_KINDS, memory_constants
from autotune.cost.memory.instants import PARTS, instants
from autotune.cost.memory.step import Step
from autotune.cost.spread.fit_claims import borne, is_certain_oom, is_crowded
from autotune.cost.spread.memory import by_kind, by_reserved_kind, uncertainty

if TYPE_CHECKING:
    from autotune.cost.columns import Columns, FloatArray
    from autotune.cost.memory.constants import MemoryConstants
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
    "compile_scope",
    "kernels",
    "offload",
)

KIND_INDEX = {kind: float(i) for i, kind in enumerate(KINDS)}
RESERVED_INDEX = {kind: float(i) for i, kind in enumerate(RESERVED_KINDS)}
LEAST_LOG_SD = 1e-6  # keeps a certain verdict finite


def price_memory(job: Job, columns: Columns, model: MemoryConstants | None = None) -> Outputs:
    """[bytes] on one device at the instant of peak, by part, and whether it fits. Shapes [rows].

    model: other constants than the shipped ones.
    """
    model = model or memory_constants()
    parts = _peak(job, columns, math.exp(model.offset(job.software, job.model.family).log_factor))
    allocated: FloatArray = np.sum(list(parts.values()), axis=0)
    moving = allocated - parts["weights"] - parts["adapters"] - parts["optimizer"]
    live = (parts["activations"] + parts["logits"]) / allocated
    context, capacity = device_memory.context(columns), device_memory.capacity(columns)
    slack = device_memory.fragmentation(columns, moving, model.slack)
    parts["context"], parts["fragmentation"] = context, slack
    total: FloatArray = allocated + context + slack
    room = capacity - context - allocated
    reserved = allocated + device_memory.cached(job, columns, moving, room, model)
    log_sd = np.hypot(uncertainty(job, columns, live, model), offloading.memory_sd(columns))
    slack_log_sd = model.slack.sd * moving / total
    spread = np.maximum(np.hypot(log_sd, slack_log_sd), LEAST_LOG_SD)
    usable = capacity - job.limits.vram_headroom * device_memory.driver_total(columns)
    crowded = is_crowded(reserved + context, usable)
    fits = borne(normal_cdf(np.log(capacity / total) / spread), crowded, model.claims)
    return {
        **parts,
        "total": total,
        "usable": usable,
        "capacity": capacity,
        "allocated": allocated,
        "reserved": reserved,
        "driver": reserved + context,
        "slack_log_sd": slack_log_sd,
        "crowded": crowded.astype(np.float64),
        "fits_probability": fits,
        "certain_oom": is_certain_oom(allocated + context, capacity, fits).astype(np.float64),
        "log_sd": log_sd,
        "host_bytes": offloading.host_bytes(job, columns),
        "reserved_log_sd": np.hypot(log_sd, by_reserved_kind(job, columns, model.reserved)),
        "kind": by_kind(job, columns, KIND_INDEX),
        "reserved_kind": by_reserved_kind(job, columns, RESERVED_INDEX),
    }


def _peak(job: Job, columns: Columns, own_code: float) -> dict[str, FloatArray]:
    """[bytes] the parts at the instant of peak. own_code: on activations and logits."""
    step = Step.of(job, columns)
    candidates = list(instants(step).values())
    if own_code != 1.0:
        candidates = [
            replace(item, activations=item.activations * own_code, logits=item.logits * own_code)
            for item in candidates
        ]
    peak = np.argmax(np.stack([item.total for item in candidates]), axis=0)
    rows = np.arange(columns.rows)
    parts = {
        name: np.stack([getattr(item, name) for item in candidates])[peak, rows] for name in PARTS
    }
    parts["workspace"] = parts["workspace"] + device_memory.blas_workspace(columns)
    return parts


def normal_cdf(z: FloatArray) -> FloatArray:
    """The normal distribution function.

    Source: Abramowitz and Stegun 1964, formula 7.1.26: within 1.5e-7 of the error function.
    """
    x = np.abs(z) / np.sqrt(2.0)
    t = 1.0 / (1.0 + 0.3275911 * x)
    tail = np.zeros_like(t)
    for coefficient in (1.061405429, -1.453152027, 1.421413741, -0.284496736, 0.254829592):
        tail = t * (tail + coefficient)
    upper: FloatArray = 0.5 * tail * np.exp(-(x**2))
    return np.where(z < 0, upper, 1.0 - upper)


COMPONENT = Component("memory", READS, under_each(price_memory))

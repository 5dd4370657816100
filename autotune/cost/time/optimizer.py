"""Seconds of an optimizer step: clipping, AdamW, and the Trainer's own work.

Covers: fused and multi-tensor AdamW, bitsandbytes 8-bit and paged 8-bit, shards of FSDP and ZeRO.
An offloaded optimizer steps on the processor: see `offloading`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from autotune.cost import deepspeed, whole_modules
from autotune.cost.parameters import trainable_parameters
from autotune.cost.time import flops
from autotune.cost.time.launch import host_factor
from autotune.domain.config import OFFLOADED_STATES, SHARDED
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.cost.columns import Columns, FloatArray
    from autotune.cost.constants import Constants
    from autotune.domain.job import Job


class OptimizerWork(NamedTuple):
    """Traffic per trainable parameter and processor work per trainable tensor."""

    passes: float  # reads and writes of a value in the parameter's dtype
    state_bytes: float  # further bytes, independent of the dtype
    tensor_s: float  # processor seconds per tensor


# Clipping reads every gradient twice and writes it once. Fused AdamW reads p, g, m, v and writes
# p, m, v in one kernel; the multi-tensor form runs a dozen kernels over whole lists; 8-bit AdamW
# reads and writes one-byte moments, one kernel for each tensor. Paged states cross PCIe only when
# evicted. Source: torch.optim.adamw, torch.nn.utils.clip_grad, bitsandbytes.optim; derived.
OPTIMIZERS = {
    "adamw_torch_fused": OptimizerWork(3 + 7, 0.0, 3e-6),
    "adamw_torch": OptimizerWork(3 + 22, 0.0, 9e-6),
    "adamw_bnb_8bit": OptimizerWork(3 + 3, 4.2, 30e-6),
    "paged_adamw_8bit": OptimizerWork(3 + 3, 4.2, 40e-6),
}
CLIPPING = 3.0  # of those passes
# torch's GradScaler reads and writes every gradient once more, to divide it and to look for what
# overflowed. Source: torch.amp.grad_scaler, unscale_.
UNSCALING = 2.0


def trainable_tensors(job: Job) -> float:
    """Number of tensors the optimizer walks over."""
    if job.method.is_lora:
        return len(job.method.modules_to_save) + (3.0 if job.method.is_dora else 2.0) * sum(
            p.matrices * p.adapted / p.active for p in flops.products(job.model, job.method)
        )
    each = (x.num_layers * (len(x.linears) + x.norms_per_layer) for x in job.model.layers)
    return float(sum(each) + 2)


@dataclass(frozen=True, slots=True, eq=False)
class OptimizerTerms:
    """Terms of an optimizer step before the fitted constants. Shapes: [rows]."""

    traffic_s: FloatArray  # at the data sheet's bandwidth
    issue_s: FloatArray  # on the fitted host
    host: FloatArray  # seconds of the host's work against the fitted host's

    def seconds(self, c: Constants) -> FloatArray:
        """[s] one optimizer step on one device."""
        issued = (self.issue_s + c.optimizer_overhead_s) * self.host
        total: FloatArray = self.traffic_s / c.bandwidth_share + issued
        return total


def optimizer_terms(job: Job, columns: Columns) -> OptimizerTerms:
    """Terms of one optimizer step on one device.

    Formula: trainable bytes x passes / bandwidth / shards + tensors x processor time + overhead.
    Under DeepSpeed the passes go over fp32 masters, with copies to and from the model's dtype.
    """
    passes = columns.choose("optimizer", {n: w.passes for n, w in OPTIMIZERS.items()})
    state = columns.choose("optimizer", {n: w.state_bytes for n, w in OPTIMIZERS.items()})
    tensor_s = columns.choose("optimizer", {n: w.tensor_s for n, w in OPTIMIZERS.items()})
    size = deepspeed.trained_bytes(job, columns)
    scaled = columns.equals("precision", "fp16") & ~deepspeed.runs(columns)
    passes = passes + np.where(scaled, UNSCALING, 0.0)
    each = whole_modules.trained_bytes(job, columns) / trainable_parameters(job)
    moved = np.where(
        deepspeed.runs(columns),
        deepspeed.step_traffic_bytes(passes - CLIPPING, size, deepspeed.master_bytes(job, columns)),
        passes * each,
    )
    moved = np.where(columns.equals("offload", *OFFLOADED_STATES), 0.0, moved + state)
    shards = np.where(columns.equals("sharding", *SHARDED), columns.number("offer.count"), 1.0)
    traffic = trainable_parameters(job) * moved / shards
    return OptimizerTerms(
        traffic_s=traffic / columns.device("memory_bandwidth_bytes_per_s"),
        issue_s=trainable_tensors(job) * tensor_s,
        host=host_factor(columns),
    )

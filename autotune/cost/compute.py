"""Seconds of a micro-step (forward and backward) and of the optimizer, on one device.

    gpu     = products / (peak x efficiency(shape)) + attention + traffic / bandwidth
    launch  = kernels x seconds to issue one + the Trainer's own work
    micro   = (gpu^p + launch^p)^(1/p), p between 1 (never overlap) and infinity (always)

Covers: full fine-tuning, LoRA on 16-bit, 32-bit, int8 and nf4 bases, activation checkpointing,
eager, sdpa and flash attention, padding, packing, torch.compile, fused kernel sets.
Does not cover: thermal throttling; other processes on the device; fp8.

Source: roofline terms: Williams et al., "Roofline" (2009); FLOP counts: `flops`; traffic and
launches: `kernels`; efficiencies: `efficiency`; terms: `step_terms`; constants: `calibration.toml`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.catalog.operators import gemm_times
from autotune.cost import flops
from autotune.cost.batches import optimizer_steps, real_tokens_per_row
from autotune.cost.columns import Columns, Component, FloatArray, Outputs
from autotune.cost.constants import Spreads, constants, spreads
from autotune.cost.efficiency import distinct_devices
from autotune.cost.optimizer import optimizer_seconds
from autotune.cost.step_terms import step_terms

if TYPE_CHECKING:
    from autotune.domain.job import Job

READS = (
    "offer.device", "offer.count", "micro_batch_size", "precision", "compile",
    "activation_checkpointing", "attention", "optimizer", "sharding", "adapter_dtype", "packing",
    "length_grouping",
)  # fmt: skip


def price_compute(job: Job, columns: Columns) -> Outputs:
    """[s] micro-step, optimizer and their terms; tokens and FLOP of a step over all devices."""
    c = constants()
    outputs = step_terms(job, columns).seconds(c)
    outputs["optimizer_s"] = optimizer_seconds(job, columns, c)
    outputs["steps"] = optimizer_steps(job, columns)
    rows = float(job.global_batch_size)
    tokens = real_tokens_per_row(job, columns) * rows
    outputs["real_tokens_per_step"] = tokens
    outputs["useful_flop_per_step"] = (
        flops.useful_flop_per_row(job) * tokens / max(job.lengths.mean, 1e-9)
    )
    outputs["log_sd"] = _log_sd(job, columns, outputs)
    return outputs


COMPONENT = Component("compute", READS, price_compute)


def _log_sd(job: Job, columns: Columns, outputs: Outputs) -> FloatArray:
    """[rows] relative spread of the micro-step: variances of what is uncertain add.

    Issuing kernels varies with hosts and software by factors, so its share of the step counts.
    Source: derived: independent errors; sizes from groups left out of the fit.
    """
    s: Spreads = spreads()
    devices, index = distinct_devices(columns)
    measured = np.asarray([gemm_times(d.name) is not None for d in devices])[index]
    variance = np.where(measured, s.measured_device, s.other_device) ** 2
    issuing = outputs["launch_s"] / (
        outputs["launch_s"] + outputs["compute_s"] + outputs["bandwidth_s"]
    )
    variance = variance + (s.issuing * issuing) ** 2
    if job.method.is_lora and job.method.base in ("int8", "nf4"):
        variance = variance + s.quantised**2
    if job.model.is_moe:
        variance = variance + s.mixture**2
    if job.software.kernels != "eager":
        variance = variance + s.fused_kernels**2
    variance = variance + np.where(columns.equals("compile", "off"), 0.0, s.compiled) ** 2
    spread: FloatArray = np.sqrt(variance)
    return spread

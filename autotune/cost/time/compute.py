"""Seconds of a micro-step (forward and backward) and of the optimizer, on one device.

    gpu     = products / (peak x efficiency(shape)) + attention + traffic / bandwidth
    launch  = kernels x seconds to issue one + the Trainer's own work
    micro   = (gpu^p + launch^p)^(1/p), p between 1 (never overlap) and infinity (always)

Covers: full fine-tuning, LoRA on 16-bit, 32-bit, int8 and nf4 bases, activation checkpointing,
eager, sdpa and flash attention, padding, packing, torch.compile, fused kernel sets, fp8.
Does not cover: thermal throttling; other processes on the device.

Source: roofline terms: Williams et al., "Roofline" (2009); FLOP counts: `flops`; traffic and
launches: `kernels`; efficiencies: `efficiency`; terms: `step_terms`; constants: `calibration.toml`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import deepspeed
from autotune.cost.batches import optimizer_steps, real_tokens_per_row, waited_length
from autotune.cost.columns import Columns, Component, Outputs
from autotune.cost.constants import constants, offset_factor
from autotune.cost.fused_kernels import with_doubt
from autotune.cost.outputs import Later
from autotune.cost.spread.uncertainty import (
    compile_is_known,
    compile_variance,
    job_log_sd,
    lever_variance,
    log_sd,
    slow_variance,
    unseen_device,
)
from autotune.cost.time import evaluation, flops
from autotune.cost.time.optimizer import optimizer_terms
from autotune.cost.time.step_terms import step_terms
from autotune.domain.config import FLASH

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.cost.time.step_terms import StepTerms
    from autotune.domain.job import Job

READS = (
    "offer.device", "offer.count", "micro_batch_size", "precision", "compile", "compile_scope",
    "activation_checkpointing", "attention", "optimizer", "sharding", "adapter_dtype", "packing",
    "length_grouping", "kernels", "offload",
)  # fmt: skip

SPREADS = ("log_sd", "slow_variance", "knob_log_sd", "job_log_sd")


def price_compute(job: Job, columns: Columns) -> Outputs:
    """[s] micro-step, optimizer and their terms; tokens and FLOP of a step over all devices.

    Measured offsets of device, stack and kernels scale every term, never below the roofline.
    """
    c = constants()
    terms, slowest = _with_slowest(job, columns)
    outputs = terms.seconds(c)
    outputs["unmeasured_gain"] = _unmeasured_gain(outputs["micro_step_s"], slowest)
    factor = offset_factor(job, columns)
    for name in ("micro_step_s", "compute_s", "bandwidth_s", "launch_s"):
        outputs[name] = outputs[name] * factor
    outputs["micro_step_s"] = np.maximum(outputs["micro_step_s"], outputs["roofline_s"])
    if job.work.scored:
        outputs["micro_step_s"] = outputs["micro_step_s"] + _scored_s(job, columns) * factor
    outputs["optimizer_s"] = optimizer_terms(job, columns).seconds(c) * factor
    outputs["steps"] = optimizer_steps(job, columns)
    rows = float(job.global_batch_size * job.work.sequences)
    tokens = real_tokens_per_row(job, columns) * rows
    outputs["real_tokens_per_step"] = tokens
    outputs["useful_flop_per_step"] = (
        flops.useful_flop_per_row(job) * tokens / max(job.lengths.mean, 1e-9)
    )
    outputs["unseen_device"] = unseen_device(columns)
    return Later(outputs, SPREADS, lambda: _spreads(job, columns, terms))


def _spreads(job: Job, columns: Columns, terms: StepTerms) -> Outputs:
    """How far the step may be off: few of the candidates that are priced are asked."""
    unsettled = compile_variance(job, columns) + lever_variance(job, columns)
    own = (
        log_sd(job, columns, terms),
        slow_variance(job, columns, terms),  # on the side of slower, beside it
        np.sqrt(unsettled),  # no measured step settles it
        job_log_sd(job, columns),
    )
    return dict(zip(SPREADS, own, strict=True))


def _scored_s(job: Job, columns: Columns) -> FloatArray:
    """[s] of a micro-step's forwards without gradients: what a preference's reference says of it.

    Adapters that are switched off are counted as if they ran.
    """
    each = columns.number("micro_batch_size") * min(job.work.scored, job.work.sequences)
    forward = evaluation.forward_seconds(job, columns, each, waited_length(job, columns))
    return forward * (job.work.scored / min(job.work.scored, job.work.sequences))


def _with_slowest(
    job: Job, columns: Columns
) -> tuple[StepTerms, tuple[BoolArray, StepTerms] | None]:
    """The terms of every row; and of rows with a gain that nobody measured, which ones without it.

    Both at once: what they share takes as long for many rows as for few. The pessimistic end of
    torch.compile is that it removes nothing, while what it does to the attention kernel is certain;
    that of fp8 is that it multiplies no faster, that of flash attention 3 that it is the second,
    that of DeepSpeed on adapters that they are cast as without it.
    """
    unmeasured = columns.equals("precision", "fp8") | columns.equals("attention", FLASH[1])
    if job.method.is_lora:
        unmeasured |= deepspeed.casts(columns) & columns.equals("adapter_dtype", "fp32")
    unknown = ~compile_is_known(job, columns) | unmeasured
    if not unknown.any():
        return step_terms(job, columns), None
    every = Columns.stacked([columns, columns.where(unknown)])
    terms = step_terms(job, every, gains=np.arange(every.rows) < columns.rows)
    own, slowest = slice(columns.rows), slice(columns.rows, None)
    return terms.at(own), (unknown, terms.at(slowest))


def _unmeasured_gain(
    expected_s: FloatArray, slowest: tuple[BoolArray, StepTerms] | None
) -> FloatArray:
    """[rows] micro-step without the gain that nobody measured, over the expected; at least 1."""
    gain: FloatArray = np.ones(len(expected_s))
    if slowest is not None:
        unknown, terms = slowest
        plain_s = terms.seconds(constants())["micro_step_s"]
        gain[unknown] = np.maximum(plain_s / expected_s[unknown], 1.0)
    return gain


COMPONENT = Component("compute", READS, with_doubt(price_compute), of_job=("evidence", "today"))

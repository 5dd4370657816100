"""Seconds of one evaluation: the forward over its rows, and answers generated token by token.

Generation reads every weight for each token of a batch, so it is bound by bandwidth, or by the
processor that issues the kernels.

Covers: loss evaluation in padded batches; `model.generate` with a key-value cache.
Does not cover: serving engines (vLLM), early end of sequences, metrics computed on the host.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import dora
from autotune.cost.batches import evaluation_rows, expected_longest
from autotune.cost.columns import Columns, Component, FloatArray, Outputs
from autotune.cost.constants import constants
from autotune.cost.fused_kernels import under_each
from autotune.cost.memory.experts import quantised_elements
from autotune.cost.memory.states import sizes, weight_bytes
from autotune.cost.parameters import kept_keys
from autotune.cost.time import dequantisation, flops, kernels, launch, measured_rates
from autotune.cost.time.attention import mixer_bytes
from autotune.cost.time.dequantisation import instructions_per_s
from autotune.cost.time.efficiency import (
    Efficiency,
    curve_places,
    distinct_devices,
    peak_of,
)

if TYPE_CHECKING:
    from autotune.domain.job import Job

READS = (
    "offer.device", "offer.count", "precision", "micro_batch_size", "kernels", "sharding",
)  # fmt: skip
# `Trainer.evaluate` takes 1 to 2 ms beside its batches, and starts its loader's workers anew: 12 to
# 65 ms each, more where the process holds more memory (on a CPU, transformers 5.23). Here: four.
ONCE_S = 0.2
GENERATE_TOKEN_S = 2e-3  # sampling, stopping rules and cache bookkeeping of `generate`: assumption
LOG_SD = 0.35


def price_evaluation(job: Job, columns: Columns) -> Outputs:
    """[s] one evaluation over all devices."""
    once = np.zeros(columns.rows)
    log_sd = np.full(columns.rows, LOG_SD)
    plan = job.evaluation
    if plan is None or plan.rows <= 0:
        return {"once_s": once, "log_sd": log_sd}
    count = np.maximum(columns.number("offer.count"), 1.0)
    work = job.work
    rows = float(plan.rows * work.sequences)
    size = np.minimum(evaluation_rows(plan, job, columns), rows)
    batches = np.ceil(rows / (size * count))
    length = np.full(columns.rows, float(job.max_length))
    if job.padding == "longest":
        length = np.asarray([expected_longest(job.lengths, float(rows)) for rows in size])
    forward = forward_seconds(job, columns, size, length)
    forward = forward * (1.0 + work.scored / work.sequences)  # the reference scores them too
    once = ONCE_S + batches * forward
    if plan.generate_tokens > 0:
        token = _token_seconds(job, columns, size, length + plan.generate_tokens / 2.0)
        once = once + batches * (plan.generate_tokens * token)
    return {"once_s": once, "log_sd": log_sd}


COMPONENT = Component("evaluation", READS, under_each(price_evaluation), of_job=("evaluation",))


def forward_seconds(job: Job, columns: Columns, rows: FloatArray, length: FloatArray) -> FloatArray:
    """[s] forward of one batch with its loss; the larger of device and issuing in quadrature.

    rows, length: [rows] sequences of the batch, and tokens of each.
    """
    c = constants()
    devices, index = distinct_devices(columns)
    index = curve_places(columns, index)
    efficiency = Efficiency.of(devices)
    peak = peak_of(columns)
    tokens = rows * length
    work = flops.effective_flop(job.model, job.method, efficiency, index, tokens)
    attention = np.zeros(columns.rows)
    for layer in job.model.layers:
        heads = rows * layer.num_attention_heads
        share = efficiency.attention(index, length, heads, layer.head_dim)
        pairs = rows * length**2 / 2.0
        attention += (
            flops.attention_flop(layer, 1.0)
            * pairs
            / share
            / measured_rates.attention_gain(job, columns, share)
        )
    norms = dora.norm_flop(job.model, job.method) / flops.ADAPTER_EFFICIENCY
    gain = measured_rates.gain(job, columns)
    own = launch.on_processor(columns)
    products = ((work.forward + norms) / c.gemm_share / gain + attention / c.attention_share) / peak
    bandwidth = columns.device("memory_bandwidth_bytes_per_s")
    per_token = (
        kernels.elementwise_bytes(job.model, job.method).forward
        + kernels.adapter_bytes(job, fp32=True).forward
        + dequantisation.int8_bytes(job)
        + kernels.LOSS_BYTES[job.software.loss] / 2.0 * job.model.vocab_size
    )
    widened = dequantisation.wide(job, columns) * dequantisation.widened_bytes(job)
    per_batch = dora.norm_bytes(job, fp32=True) + widened
    mixed = mixer_bytes(job, length)[0]
    traffic = (tokens * (per_token + mixed) + per_batch) / (bandwidth * c.bandwidth_share)
    traffic = traffic + _dequantised_s(job, columns)
    issued_s = _issued(job, columns) + c.micro_step_overhead_s
    unchanging = np.full(columns.rows, job.one_length)
    new_s = launch.new_sizes_s(job, columns, unchanging, backward=False)
    p = np.where(own, 1.0, c.overlap_power) if own.any() else c.overlap_power
    found: FloatArray = ((products + traffic) ** p + (issued_s + new_s) ** p) ** (1.0 / p)
    return found


def _issued(job: Job, columns: Columns) -> FloatArray:
    """[s] to issue the kernels of one forward from Python."""
    own = kernels.launches(job, fp32_adapters=True, eager_attention=False)
    return own.forward * constants().launch_forward_s * launch.host_factors(columns)[0]


def _dequantised_s(job: Job, columns: Columns) -> FloatArray:
    """[s] of dequantising every frozen matrix once; LLM.int8 multiplies its codes instead."""
    c = constants()
    if job.method.base != "nf4":
        return np.zeros(columns.rows)
    moved = dequantisation.forward_bytes(job) / columns.device("memory_bandwidth_bytes_per_s")
    weights = dequantisation.dequantised_weights(job) + quantised_elements(job)
    issued = weights * dequantisation.unpacking(job)
    rate = np.maximum(columns.of_device(instructions_per_s), 1.0)
    return np.maximum(moved / c.bandwidth_share, issued / rate * c.dequantise_instructions)


def _token_seconds(job: Job, columns: Columns, rows: FloatArray, length: FloatArray) -> FloatArray:
    """[s] one generated token of a batch.

    Formula: hypot((weights + cache) / bandwidth, kernels x issue) + bookkeeping.
    Source: Pope et al., "Efficiently Scaling Transformer Inference" (2022), section 2.
    """
    c = constants()
    stored = weight_bytes(job, sizes(job.model))
    cache = 2.0 * 2.0 * rows * length * kept_keys(job.model)
    dequantised = dequantisation.forward_bytes(job) if job.method.base == "nf4" else 0.0
    traffic = stored + cache + dequantised
    bandwidth = columns.device("memory_bandwidth_bytes_per_s") * c.bandwidth_share
    return np.hypot(traffic / bandwidth, _issued(job, columns)) + GENERATE_TOKEN_S

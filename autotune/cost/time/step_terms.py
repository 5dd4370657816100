"""Physical terms of a micro-step: seconds at measured rates, before the fitted constants.

Covers and does not cover: see `compute`.
"""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import deepspeed, dora, whole_modules
from autotune.cost.batches import unchanging_lengths, waited_length
from autotune.cost.memory.states import other_half
from autotune.cost.time import dequantisation, flops, kernels, launch, measured_rates
from autotune.cost.time.attention import (
    MIXER_PRODUCTS,
    flash_share,
    flattened,
    kernel_work,
    masked_share,
    mixer_bytes,
    mixer_flop,
)
from autotune.cost.time.efficiency import (
    Efficiency,
    curve_places,
    distinct_devices,
    peak_of,
)
from autotune.domain.config import FLASH
from autotune.domain.device import FLASH_CAPABILITY
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns, FloatArray, Outputs
    from autotune.cost.constants import Constants
    from autotune.domain.device import Device
    from autotune.domain.job import Job

# [bytes] second-level cache by compute capability: data sheets (A100 40 MB, GA102 6, Ada 48 to 96,
# H100 50, B200 126, GB202 96). Kernels on tensors that fit in it run faster than memory.
CACHE_BYTES = {8.0: 40e6, 8.6: 6e6, 8.9: 72e6, 9.0: 50e6, 10.0: 126e6, 10.3: 126e6, 12.0: 96e6}
SMALL_CACHE_BYTES = 5e6
CACHE_GAIN = 3.0  # cache bandwidth over memory bandwidth: assumption
# Elementwise traffic against 16-bit activations: 4-byte values need no casts; autocast on fp32
# weights keeps the residual stream and the norms in fp32. Derived.
FP32_TRAFFIC, AUTOCAST_TRAFFIC = 1.6, 1.3
# The same where 4-bit linears answer in fp32: norms cast nothing (28 bytes for 32), all between
# products is twice as wide. Derived.
WIDE_TRAFFIC = 1.45
# Products in fp8, casts included, against bf16. torchtitan, Llama 3.1 8B in full on 8 H100, blocks
# compiled: 6,667 -> 8,532 tokens/s with one scale a tensor. With one scale a row it gained nothing
# (4,378 -> 3,709), as did no run that is not compiled.
FP8_PRODUCTS = 1.55
NO_FLASH = 0.6  # devices before Ampere run the memory-efficient kernel: assumption


@dataclass(frozen=True, slots=True, eq=False)
class StepTerms:
    """Physical terms of a micro-step before the fitted constants. Shapes: [rows]."""

    gemm_s: FloatArray  # at the measured efficiency
    attention_forward_s: FloatArray  # flash, at the measured efficiency
    attention_backward_s: FloatArray  # at the forward's efficiency, 2.5 x the FLOP
    traffic_s: FloatArray  # at the data sheet's bandwidth
    dequantise_s: FloatArray  # at the data sheet's bandwidth
    unpacked_s: FloatArray  # of one instruction for each weight that is dequantised
    launches_forward: FloatArray
    launches_backward: FloatArray
    fsdp_visits: FloatArray  # FSDP units gathered and freed
    hook_visits: FloatArray  # modules fetched and released by DeepSpeed's third stage
    host: FloatArray  # seconds of the host's work against the fitted host's
    synchronised: FloatArray  # 1 where every layer's forward waits for the device, else 0
    forward_share: FloatArray  # of the device's seconds, recomputation included
    queued: FloatArray  # 1 where a device runs what the processor issues, 0 on a processor itself
    new_sizes_s: FloatArray  # code generated for products of new sizes, on a processor
    flop: FloatArray  # executed, recomputation and padding included
    peak: FloatArray

    def at(self, rows: slice) -> StepTerms:
        """The terms of some rows."""
        return StepTerms(*(getattr(self, item.name)[rows] for item in fields(self)))

    def power(self, c: Constants) -> FloatArray | float:
        """Of the norm that adds issuing and running, for each row or for all: 1 on a processor."""
        queued = self.queued > 0
        return c.overlap_power if queued.all() else np.where(queued, c.overlap_power, 1.0)

    def seconds(self, c: Constants) -> Outputs:
        """[s] the micro-step and its terms under the constants."""
        attention = (
            self.attention_forward_s + self.attention_backward_s / c.attention_backward_share
        ) / c.attention_share
        compute_s = self.gemm_s / c.gemm_share + attention
        bandwidth_s = self.traffic_s / c.bandwidth_share + self.dequantised_s(c)
        forward_s = self.launches_forward * c.launch_forward_s
        backward_s = (
            self.launches_backward * c.launch_backward_s
            + self.host * self.visited_s(c)
            + self.new_sizes_s
        )
        busy_s = compute_s + bandwidth_s
        ahead_s, back_s = self.queues(busy_s, forward_s, backward_s, self.power(c))
        return {
            "micro_step_s": ahead_s + back_s,
            "compute_s": compute_s,
            "bandwidth_s": bandwidth_s,
            "launch_s": forward_s + backward_s,
            "roofline_s": self.flop / self.peak,
        }

    def visited_s(self, c: Constants) -> FloatArray:
        """[s] of the fitted host in a micro-step beside issuing kernels: shards and the Trainer."""
        shards = self.fsdp_visits * c.fsdp_unit_s + self.hook_visits * c.zero3_module_s
        total: FloatArray = shards + c.micro_step_overhead_s
        return total

    def dequantised_s(self, c: Constants) -> FloatArray:
        """[s] of dequantisation: the longer of moving its bytes and of its instructions."""
        return np.maximum(
            self.dequantise_s / c.bandwidth_share,
            self.unpacked_s * c.dequantise_instructions,
        )

    def queues(
        self, busy_s: FloatArray, forward_s: FloatArray, backward_s: FloatArray,
        p: FloatArray | float,
    ) -> tuple[FloatArray, FloatArray]:  # fmt: skip
        """[s] of the forward's queue and of the backward's; of one queue: all of it, and 0.

        busy_s: of the device; forward_s, backward_s: issuing. A processor that runs ahead hides
        what it issues behind all that the device still has to do: t = (A^p + H^p)^(1/p). One that
        waits in every layer's forward hides it behind that forward alone, so that the forward's
        times overlap with each other and the backward's with each other: never less than before.
        Source: derived (Minkowski's inequality); a wait as such takes microseconds.
        """
        waits = self.synchronised > 0
        share = np.where(waits, self.forward_share, 1.0)
        issued = np.where(waits, forward_s, forward_s + backward_s)
        rest_s, left_s = busy_s - share * busy_s, forward_s + backward_s - issued
        ahead = ((share * busy_s) ** p + issued**p) ** (1.0 / p)
        return ahead, (rest_s**p + left_s**p) ** (1.0 / p)


@dataclass(frozen=True, slots=True, eq=False)
class StepRows:
    """What the terms share. Shapes: [rows]."""

    micro: FloatArray
    length: FloatArray
    tokens: FloatArray  # padded, in one micro-batch
    recomputed: FloatArray  # 1 under activation checkpointing, else 0
    peak: FloatArray
    gain: FloatArray  # measured rate of matrix products over the modelled one
    bandwidth: FloatArray
    device: np.ndarray  # index into `devices`
    curves: np.ndarray  # place of its efficiencies
    devices: list[Device]


def _rows(job: Job, columns: Columns) -> StepRows:
    micro = columns.sequences(job)
    length = waited_length(job, columns)
    devices, index = distinct_devices(columns)
    bandwidth = np.asarray([d.memory_bandwidth_bytes_per_s for d in devices])[index]
    return StepRows(
        micro=micro,
        length=length,
        tokens=micro * length,
        recomputed=columns.equals("activation_checkpointing", "full").astype(np.float64),
        peak=peak_of(columns),
        gain=measured_rates.gain(job, columns),
        bandwidth=bandwidth,
        device=index,
        curves=curve_places(columns, index),
        devices=devices,
    )


def step_terms(job: Job, columns: Columns, *, gains: BoolArray | bool = True) -> StepTerms:
    """Every physical term of a micro-step, for each row.

    gains: [rows] False for what a step takes if torch.compile removes nothing, and neither fp8, nor
    flash attention 3, nor the 16-bit adapters of DeepSpeed's engine gain anything.
    """
    rows = _rows(job, columns)
    efficiency = Efficiency.of(rows.devices)
    gemm_s, gemm_flop = _products(job, rows, efficiency)
    if dequantisation.in_fp32(job):
        gemm_s = _products(job, _rows(job, columns.holding("precision", "fp32")), efficiency)[0]
    gemm_s = gemm_s / np.where(columns.equals("precision", "fp8") & gains, FP8_PRODUCTS, 1.0)
    forward_s, backward_s, attention_flop = _attention_terms(
        job, columns, rows, efficiency, gains=gains
    )
    fp32 = columns.equals("adapter_dtype", "fp32") & ~(deepspeed.casts(columns) & gains)
    passes, dequantise = _traffic(job, columns, rows, fp32, gains=gains)
    launch_forward, launch_backward = launch.issued_kernels(
        job, columns, rows.recomputed, fp32, gains=gains
    )
    return StepTerms(
        gemm_s=gemm_s,
        attention_forward_s=forward_s,
        attention_backward_s=backward_s,
        traffic_s=passes / rows.bandwidth,
        dequantise_s=dequantise / rows.bandwidth,
        unpacked_s=dequantisation.unpacked_s(job, rows.recomputed, rows.devices, rows.device),
        launches_forward=launch_forward,
        launches_backward=launch_backward,
        fsdp_visits=launch.fsdp_visits(job, columns, rows.recomputed),
        hook_visits=launch.hook_visits(job, columns, rows.recomputed),
        host=launch.host_factor(columns),
        synchronised=launch.synchronised(job, columns),
        forward_share=_forward_share(job, rows),
        queued=np.where(launch.on_processor(columns), 0.0, 1.0),
        new_sizes_s=launch.new_sizes_s(
            job, columns, unchanging_lengths(job, columns), backward=True
        ),
        flop=gemm_flop + attention_flop,
        peak=measured_rates.reached_peak(columns, rows.peak),
    )


def _forward_share(job: Job, rows: StepRows) -> FloatArray:
    """[rows] share of the device's seconds before the backward, or repeated in it.

    Source: derived: a backward takes a forward's work for the inputs, and once more for trained
    weights.
    """
    forward = 1.0 + rows.recomputed
    share: FloatArray = forward / (forward + (1.0 if job.method.is_lora else 2.0))
    return share


def _products(job: Job, rows: StepRows, efficiency: Efficiency) -> tuple[FloatArray, FloatArray]:
    """[s] at measured efficiencies and [FLOP] of all projections, the head and the adapters.

    Evaluated once per distinct (device, tokens).
    """
    key, back = np.unique(rows.curves * 2.0**32 + rows.tokens, return_inverse=True)
    device = (key // 2.0**32).astype(np.intp)
    work = flops.effective_flop(
        job.model,
        job.method,
        efficiency,
        device,
        key % 2.0**32,
        repeats_base=dora.repeats_base(job),
    )
    effective = (work.forward + work.backward)[back] + rows.recomputed * work.repeated[back]
    norms = dora.norm_flop(job.model, job.method) * (1.0 + rows.recomputed)
    effective = effective + norms / flops.ADAPTER_EFFICIENCY
    logits_again = kernels.logits_again(job.software)
    effective = effective + logits_again * work.head[back]
    flop = rows.tokens * (
        flops.useful_flop_per_token(job.model, job.method)
        + rows.recomputed * flops.recomputed_flop_per_token(job.model, job.method)
        + logits_again * 2.0 * flops.head_weights(job.model)
    )
    return effective / rows.peak / rows.gain, flop + norms


def _attention_terms(
    job: Job, columns: Columns, rows: StepRows, efficiency: Efficiency, *, gains: BoolArray | bool
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """[s] forward and [s] backward at the forward's rate, [FLOP] of both.

    Flash kernels skip the half of the scores that causality masks; with an explicit mask the
    memory-efficient kernel computes all of it, and so does eager attention, whose scores also
    travel (`step_terms`). gains: [rows] False for what it takes if flash attention 3 gains nothing.
    """
    packed = columns.equals("packing", "on")
    own = flops.mean_square_length(job.lengths) / max(job.lengths.mean, 1e-9)
    separate = packed & columns.equals("attention", *FLASH)
    length = np.where(separate, np.minimum(own, rows.length), rows.length)
    length = np.where(flattened(job, columns), rows.tokens, length)
    sequences = rows.tokens / np.maximum(length, 1.0)
    passes = 1.0 + rows.recomputed
    masked = np.where(
        columns.equals("attention", "sdpa"),
        masked_share(job, columns, rows.length),
        columns.equals("attention", "eager").astype(np.float64),
    )
    capability = np.asarray([d.compute_capability for d in rows.devices])[rows.device]
    old = (capability > 0) & (capability < FLASH_CAPABILITY)
    kernel = np.where(old, NO_FLASH, flash_share(job, columns, gains=gains))
    ahead, back, causal = (np.zeros(columns.rows) for _ in range(3))
    for layer in job.model.layers:
        own = flops.attention_flop(layer, 1.0) * sequences * length**2 / 2.0
        share = kernel * efficiency.attention(
            rows.curves, length, sequences * layer.num_attention_heads, layer.head_dim
        )
        share = share * measured_rates.attention_gain(job, columns, share)
        work, backward = kernel_work(job, columns, layer, masked)
        once = own * work / (rows.peak * share)
        ahead, back, causal = ahead + once, back + once * backward, causal + own
    mixed = rows.tokens * mixer_flop(job.model)
    once = mixed / (rows.peak * MIXER_PRODUCTS)
    ahead, back, causal = ahead + once, back + once * flops.FLASH_BACKWARD, causal + mixed
    return ahead * passes, back, causal * (passes + flops.EAGER_BACKWARD)


def _compiled(job: Job, graphs: BoolArray, left: FloatArray | float) -> FloatArray:
    """[rows] share of the eager traffic that torch.compile leaves. graphs: where it compiles."""
    if job.method.is_lora and job.method.is_quantised:
        left = 1.0 - kernels.BROKEN_GRAPH * (1.0 - left)
    return np.where(graphs, left, 1.0)


def _traffic(
    job: Job, columns: Columns, rows: StepRows, fp32: BoolArray, *, gains: BoolArray | bool
) -> tuple[FloatArray, FloatArray]:
    """[bytes] of elementwise kernels and [bytes] of dequantisation, in a micro-step.

    gains: [rows] False for what it takes if torch.compile removes nothing.
    """
    graphs = ~columns.equals("compile", "off") & gains
    model, again = job.model, rows.recomputed
    fused = kernels.kernel_set(job.software, model)
    wide_stream = dequantisation.wide(job, columns)
    upcast = job.software.kbit_upcast != "none" and not dequantisation.wide_linears(job)
    plain = kernels.elementwise_bytes(model, job.method, fp32_norms=upcast)
    own = kernels.elementwise_bytes(model, job.method, fp32_norms=upcast, fused=True)
    with_flash = columns.equals("attention", *FLASH) & kernels.fuses_with_flash(model)
    layer = np.where(with_flash, own.total(again), plain.total(again))
    one_kernel = kernels.compiled_elementwise_bytes(model).total(again)
    layer *= np.minimum(fused.elementwise, _compiled(job, graphs, one_kernel / layer))
    loss = kernels.LOSS_BYTES[job.software.loss] * model.vocab_size
    whole = graphs & columns.equals("compile_scope", "model")  # by block, the loss stays eager
    loss_bytes = loss * _compiled(job, whole, kernels.compiled_loss(job.software.loss))
    wide = kernels.adapter_bytes(job, fp32=True)
    narrow = kernels.adapter_bytes(job, fp32=False)
    adapters = np.where(fp32, wide.total(again), narrow.total(again))
    adapters *= np.minimum(fused.adapters, _compiled(job, graphs, kernels.COMPILED_ADAPTERS))
    int8 = dequantisation.int8_bytes(job) * (1.0 + again)
    casts = np.where(
        fp32,
        dequantisation.wide_cast_bytes(job, fp32_adapters=True),
        dequantisation.wide_cast_bytes(job, fp32_adapters=False),
    ) * (2.0 + again)
    layer = layer * _value_size(job, columns, wide_stream) + wide_stream * casts
    total = rows.tokens * ((layer + adapters + int8) * _uncached(job, rows) + loss_bytes)
    total += wide_stream * dequantisation.widened_bytes(job) * (1.0 + again)
    norms = [dora.norm_bytes(job, fp32=wide) for wide in (False, True)]
    total += np.where(fp32, norms[1], norms[0]) * (1.0 + again)
    total += whole_modules.traffic_bytes(job, columns)
    ahead, back = mixer_bytes(job, rows.length)
    total += rows.tokens * (ahead * (1.0 + again) + back)
    cast = kernels.cast_bytes(model, job.method)
    total += np.where(launch.half(columns), cast.total(again), 0.0)
    other = kernels.other_half_bytes(model, job.method).total(again)
    total += np.where(other_half(job, columns), other, 0.0)
    score = kernels.EAGER_SCORE_BYTES.total(again)
    fewer = kernels.COMPILED_SCORE_BYTES.total(again) + np.where(
        rows.length > kernels.HELD_SCORES, kernels.REREAD_SCORE_BYTES.total(again), 0.0
    )
    heads = sum(layer.num_attention_heads * layer.num_layers for layer in model.layers)
    pairs = rows.tokens * rows.length * heads
    eager = columns.equals("attention", "eager")
    total += np.where(eager, pairs * score * _compiled(job, graphs, fewer / score), 0.0)
    return total, dequantisation.micro_step_bytes(job, again)


def _value_size(job: Job, columns: Columns, wide: FloatArray) -> FloatArray:
    """[rows] elementwise traffic against that of 16-bit activations."""
    narrow = launch.half(columns) & ~launch.on_processor(columns)
    widened = other_half(job, columns) | (job.method.base == "32bit")
    autocast = np.where(widened, AUTOCAST_TRAFFIC, 1.0)
    return np.where(narrow, np.where(wide > 0, WIDE_TRAFFIC, autocast), FP32_TRAFFIC)


def _uncached(job: Job, rows: StepRows) -> FloatArray:
    """[rows] share of the time that traffic between kernels takes when the cache holds some of it.

    Formula: 1 - (1 - 1/gain) exp(-working set / cache), working set two tensors of the mean of the
    hidden and the ffn width in 16 bit. 1 on a processor.
    Source: derived.
    """
    caches = [CACHE_BYTES.get(d.compute_capability, SMALL_CACHE_BYTES) for d in rows.devices]
    width = (job.model.hidden_size + kernels.activated_width(job.model)) / 2.0
    working_set = 2.0 * 2.0 * rows.tokens * width
    held = np.exp(-working_set / np.asarray(caches)[rows.device])
    held = held * np.asarray([0.0 if d.is_cpu else 1.0 for d in rows.devices])[rows.device]
    uncached: FloatArray = 1.0 - (1.0 - 1.0 / CACHE_GAIN) * held
    return uncached

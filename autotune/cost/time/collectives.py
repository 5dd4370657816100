"""Seconds of communication between devices of one host that computing does not hide.

Measured NCCL times where the device has them; else latency and bandwidth of its link. Boards
without a switch share the host's bridges: four of them are slower than two.

Covers: DDP, FSDP (full shard), ZeRO-2, ZeRO-3 inside one host; what `offload` sends to the host,
and the processor's optimizer step.
Does not cover: several hosts; tensor and pipeline parallelism; compressed gradients.

Legend: N devices, W bytes of the stored weights, G bytes of the trained gradients.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from autotune.catalog.operators import collective_times
from autotune.cost import deepspeed, offloading
from autotune.cost.batches import padded_length
from autotune.cost.columns import Columns, Component, FloatArray, Outputs
from autotune.cost.constants import constants, offset_factor
from autotune.cost.memory.states import sizes, weight_bytes
from autotune.cost.parameters import trainable_parameters
from autotune.cost.time import flops
from autotune.domain.config import ZERO_STAGE

if TYPE_CHECKING:
    from autotune.cost.constants import Constants
    from autotune.domain.device import Device
    from autotune.domain.job import Job

READS = (
    "offer.device", "offer.count", "sharding", "micro_batch_size", "precision",
    "activation_checkpointing", "adapter_dtype", "packing", "length_grouping", "offload",
    "offer.host",
)  # fmt: skip
LATENCY_S = 15e-6
# Share of the link that a collective's bus bandwidth reaches on two devices and on more: A100 0.50
# and 0.68, H100 0.57 and 0.75 (switched); RTX PRO 6000 0.62 and 0.45, L40S 0.75 and 0.18 (PCIe).
SWITCHED_SHARE, PCIE_SHARE = (0.53, 0.70), (0.65, 0.30)
BUSY_EFFICIENCY = 0.5  # of the peak, for the computing time that hides communication
LOG_SD = 0.4
MEASURED_COUNTS = (2, 4, 8)


@dataclass(frozen=True, slots=True, eq=False)
class Communication:
    """Seconds of all communication and of the computing that may hide it. Shapes: [rows]."""

    micro_s: FloatArray  # of a micro-step
    step_s: FloatArray  # of an optimizer step
    after_s: FloatArray  # of an optimizer step, behind everything else
    busy_s: FloatArray  # computing in a micro-step, at `BUSY_EFFICIENCY`

    def exposed(self, c: Constants) -> tuple[FloatArray, FloatArray]:
        """[s] per micro-step and per optimizer step that computing does not hide.

        The step's reduction overlaps with the last backward only, two thirds of a micro-step.
        """
        hidden = c.hidden_share * self.busy_s
        return (
            np.maximum(self.micro_s - hidden, c.never_hidden * self.micro_s),
            np.maximum(self.step_s - hidden * 2.0 / 3.0, c.never_hidden * self.step_s)
            + self.after_s,
        )


def communication(job: Job, columns: Columns) -> Communication:
    """Communication between devices before the fitted constants; zero on one device.

    Formula: FSDP and ZeRO-3 gather W twice a micro-step; ZeRO-2 and ZeRO-3 reduce-scatter G every
    micro-step, FSDP once a step; DDP all-reduces G once a step. ZeRO-2 gathers what was trained,
    in the model's dtype, after the optimizer.
    Source: Rajbhandari et al., "ZeRO" (2020), section 7; Zhao et al., "PyTorch FSDP" (2023).
    """
    counts = columns.number("offer.count")
    several = (counts > 1) & ~columns.equals("sharding", "none")
    if not several.any():
        zero = np.zeros(columns.rows)
        return Communication(zero, zero.copy(), zero.copy(), zero.copy())
    weights = np.full(columns.rows, weight_bytes(job, sizes(job.model)))
    gradients = deepspeed.trained_bytes(job, columns) * trainable_parameters(job)
    # Mixed precision of FSDP and ZeRO moves 16-bit copies of fp32 weights and gradients.
    half = columns.equals("precision", "bf16", "fp16") & (job.method.base == "32bit")
    moved = np.where(half, 0.5, 1.0)
    gather = _collective(job, columns, "all_gather", weights * moved)
    narrowed = np.where(deepspeed.casts(columns), 1.0, moved)  # they are 16-bit already
    scatter = _collective(job, columns, "reduce_scatter", gradients * narrowed)
    reduce = _collective(job, columns, "all_reduce", gradients)
    full = columns.equals("sharding", "fsdp", "zero3")
    every = columns.equals("sharding", *ZERO_STAGE)
    micro = np.where(full, 2.0 * gather, 0.0) + np.where(every, scatter, 0.0)
    step = np.where(columns.equals("sharding", "ddp"), reduce, 0.0)
    step = step + np.where(columns.equals("sharding", "fsdp"), scatter, 0.0)
    after = np.where(
        several & columns.equals("sharding", "zero2"),
        _collective(job, columns, "all_gather", gradients),
        0.0,
    )
    return Communication(
        np.where(several, micro, 0.0),
        np.where(several, step, 0.0),
        after,
        _busy_seconds(job, columns),
    )


def price_collectives(job: Job, columns: Columns) -> Outputs:
    """[s] exposed per micro-step and per optimizer step; zero on one device."""
    per_micro, per_step = communication(job, columns).exposed(constants())
    factor = offset_factor(job, columns)
    away = ~columns.equals(offloading.KNOB, "none")
    if away.any():
        out, back = offloading.transfer_seconds(job, columns)
        per_micro = per_micro + out
        per_step = per_step + back + offloading.update_seconds(job, columns)
    return {
        "per_micro_s": per_micro * factor,
        "per_step_s": per_step * factor,
        "log_sd": np.where(away, offloading.TIME_SD, LOG_SD),
    }


COMPONENT = Component("collectives", READS, price_collectives)


def _busy_seconds(job: Job, columns: Columns) -> FloatArray:
    """[s] a lower estimate of computing in one micro-step."""
    again = columns.equals("activation_checkpointing", "full")
    per_token = flops.useful_flop_per_token(job.model, job.method) + np.where(
        again, flops.recomputed_flop_per_token(job.model, job.method), 0.0
    )
    tokens = columns.number("micro_batch_size") * padded_length(job, columns)
    peak = np.maximum(columns.peak_flop_per_s(), 1e9)
    return tokens * per_token / (peak * BUSY_EFFICIENCY)


def _collective(job: Job, columns: Columns, op: str, size: FloatArray) -> FloatArray:
    """[s] of one collective over all bytes, issued layer by layer."""
    layers = float(max(job.model.num_layers, 1))
    counts = columns.number("offer.count")
    seconds = np.zeros(columns.rows)
    groups: dict[tuple[int, float], tuple[Device, list[int]]] = {}
    for i, (device, count) in enumerate(zip(columns.devices(), counts, strict=True)):
        groups.setdefault((id(device), float(count)), (device, []))[1].append(i)
    for (_, count), (device, places) in groups.items():
        if count > 1:
            message = size[places] / layers
            seconds[places] = layers * collective_seconds(device, count, op, message)
    return seconds


def collective_seconds(
    device: Device, count: float, op: str, message_bytes: FloatArray
) -> FloatArray:
    """[s] of one collective over `message_bytes` (the whole buffer) on `count` devices.

    Formula: latency + traffic / bus bandwidth, traffic = bytes (N - 1) / N, twice that for an
    all-reduce (a ring). Measured: bytes interpolated in log-log, the last rate beyond.
    Source: NVIDIA nccl-tests, PERFORMANCE.md (bus bandwidth).
    """
    measured = _measured(device.name, op, count)
    steps = 2.0 if op == "all_reduce" else 1.0
    traffic = steps * message_bytes * (count - 1.0) / count
    if measured is None:
        share = (SWITCHED_SHARE if device.has_nvlink else PCIE_SHARE)[count > 2]
        return LATENCY_S * steps + traffic / (device.link_bytes_per_s * share)
    sizes_bytes, seconds = measured
    size = np.maximum(message_bytes, 1.0)
    inside = np.exp(np.interp(np.log(size), np.log(sizes_bytes), np.log(seconds)))
    beyond: FloatArray = inside * np.maximum(size / sizes_bytes[-1], 1.0)
    return beyond


@lru_cache(maxsize=256)
def _measured(name: str, op: str, count: float) -> tuple[FloatArray, FloatArray] | None:
    """Bytes and seconds measured for the count, or for the next larger measured one.

    Times are corrected by (N - 1) / N of both counts.
    """
    table = collective_times(name)
    if table is None:
        return None
    known = [n for n in MEASURED_COUNTS if table.select(op, n)[0].size]
    if not known:
        return None
    near = next((n for n in known if n >= count), known[-1])
    message, seconds = table.select(op, near)
    ratio = ((count - 1.0) / count) / ((near - 1.0) / near)
    return message.astype(np.float64), seconds * ratio

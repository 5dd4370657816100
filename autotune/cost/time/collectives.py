"""Seconds of communication between devices that computing does not hide.

Measured NCCL times where the device has them; else latency and bandwidth of its link. Boards
without a switch share the host's bridges: four of them are slower than two. Between machines:
latency and bandwidth of the network.

Covers: DDP, FSDP (full shard), ZeRO-2, ZeRO-3 inside one host and over several alike; what
`offload` sends to the host, and the processor's optimizer step.
Does not cover: hybrid sharding (HSDP, ZeRO++), SHARP; machines that share their network with
others; tensor and pipeline parallelism; compressed gradients.

Legend: N devices, W bytes of the stored weights, G bytes of the trained gradients.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from autotune.catalog.operators import collective_times
from autotune.cost import deepspeed, offloading, whole_modules
from autotune.cost.columns import BoolArray, Columns, Component, FloatArray, Outputs
from autotune.cost.constants import constants, offset_factor
from autotune.cost.fused_kernels import under_each
from autotune.cost.memory.states import sizes, weight_bytes
from autotune.cost.time.step_terms import step_terms
from autotune.domain.config import ZERO_STAGE
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.cost.constants import Constants
    from autotune.domain.device import Device, Network
    from autotune.domain.job import Job

READS = (
    "offer.device", "offer.count", "sharding", "micro_batch_size", "precision",
    "activation_checkpointing", "adapter_dtype", "packing", "length_grouping", "offload",
    "offer.host", "attention", "compile", "compile_scope", "kernels", "offer.network",
)  # fmt: skip
LATENCY_S = 15e-6
# Share of the link that a collective's bus bandwidth reaches on two devices and on more: A100 0.50
# and 0.68, H100 0.57 and 0.75 (switched); RTX PRO 6000 0.62 and 0.45, L40S 0.75 and 0.18 (PCIe).
SWITCHED_SHARE, PCIE_SHARE = (0.53, 0.70), (0.65, 0.30)
# [s] of a step of NCCL's rings and trees over NVLink. Source: NVIDIA/nccl src/graph/tuning.cc
# (hwLat, Simple protocol).
INSIDE_HOP_S = 4e-6
LAST_BACKWARD = 2.0 / 3.0  # of a micro-step, behind which a step's own reduction hides
# How the exchange between machines and computing add up, as the exponent of `exposed`. Inside one
# machine it is fitted (1.08: a collective's kernels take cores and memory from the products that
# they run beside). Over a network the wait is for a card, so that the longer of the two rules: the
# centre of the fitted one's prior, and no measured step of several machines is in it.
NETWORK_OVERLAP = 2.0
LOG_SD = 0.4
MEASURED_COUNTS = (2, 4, 8)
# Boards made for bridges, which a server may have or not: as many of them as one joins, and
# [bytes/s] to a peer over it, one direction. Nobody says which it is, so the link is taken half way
# between the bridge's and the host's, as factors. More of them go through the host.
# Source: NVIDIA, H100 NVL product brief (pairs, 600 GB/s both ways) and H200 NVL data sheet (two or
# four, 900 GB/s).
BRIDGES = {"h100-nvl": (2, 300e9), "h200-nvl": (4, 450e9)}


@dataclass(frozen=True, slots=True, eq=False)
class Communication:
    """Seconds of all communication, hidden or not. Shapes: [rows]."""

    micro_s: FloatArray  # of a micro-step
    step_s: FloatArray  # of an optimizer step
    after_s: FloatArray  # of an optimizer step, behind everything else
    between: BoolArray  # over a network

    def exposed(self, c: Constants, busy_s: FloatArray) -> tuple[FloatArray, FloatArray]:
        """[s] per micro-step and per optimizer step by which communication makes them longer.

        busy_s: a micro-step by itself, kernels and their issuing. Gathers run on a stream of their
        own, a layer ahead, so that the longer of the two rules: t = (A^q + C^q)^(1/q). A step's own
        reduction overlaps with the last backward only.
        Source: Zhao et al., "PyTorch FSDP" (2023), section 3.3 (overlap and prefetching).
        """
        q = np.where(self.between, NETWORK_OVERLAP, c.exchange_overlap)
        per_step = _longer_by(LAST_BACKWARD * busy_s, self.step_s, q)
        return _longer_by(busy_s, self.micro_s, q), per_step + self.after_s

    def times(self, factor: FloatArray) -> Communication:
        """All of it so many times as long."""
        own = (self.micro_s * factor, self.step_s * factor, self.after_s * factor)
        return Communication(*own, self.between)


def _longer_by(busy_s: FloatArray, exchange_s: FloatArray, q: FloatArray) -> FloatArray:
    both: FloatArray = (busy_s**q + exchange_s**q) ** (1.0 / q)
    return np.where(exchange_s > 0, np.maximum(both - busy_s, 0.0), 0.0)


def communication(job: Job, columns: Columns) -> Communication:
    """Communication between devices before the fitted constants; zero on one device.

    Formula: FSDP and ZeRO-3 gather W twice a micro-step, FSDP a third time where the checkpoint
    lies around its unit; ZeRO-3 reduce-scatters G every micro-step, FSDP once a step. ZeRO-2
    all-reduces G every micro-step and ZeRO-1 once a step: each device keeps its share of what is
    summed everywhere. DDP all-reduces G once a step; FSDP and DDP every micro-step where
    `sync_each_batch` says so. ZeRO-2 gathers what was trained, in the model's dtype, after the
    optimizer.
    Source: Rajbhandari et al., "ZeRO" (2020), section 7; Zhao et al., "PyTorch FSDP" (2023);
    huggingface/transformers issue 30404 and pytorch/pytorch issue 105635 (the third gather; ZeRO-3
    keeps what it needs again soon, `stage3_max_reuse_distance`); DeepSpeed runtime/zero/
    stage_1_and_2.py, `average_tensor`: `use_multi_rank_bucket_allreduce` is on unless stated.
    """
    counts = columns.number("offer.count")
    several = (counts > 1) & ~columns.equals("sharding", "none")
    if not several.any():
        zero = np.zeros(columns.rows)
        return Communication(zero, zero.copy(), zero.copy(), zero > 0)
    weights = np.full(columns.rows, weight_bytes(job, sizes(job.model)))
    weights = weights + whole_modules.travelling_bytes(job, columns)
    gradients = whole_modules.moved_bytes(job, columns)
    # Mixed precision of FSDP and ZeRO moves 16-bit copies of fp32 weights and gradients.
    half = columns.equals("precision", "bf16", "fp16") & (job.method.base == "32bit")
    moved = np.where(half, 0.5, 1.0)
    gather = _collective(job, columns, "all_gather", weights * moved)
    narrowed = np.where(deepspeed.casts(columns), 1.0, moved)  # they are 16-bit already
    scatter = _collective(job, columns, "reduce_scatter", gradients * narrowed)
    of_stage_two = scatter
    if not job.zero.scatters:
        of_stage_two = _collective(job, columns, "all_reduce", gradients * narrowed)
    scatter = np.where(columns.equals("sharding", "zero2"), of_stage_two, scatter)
    reduce = _collective(job, columns, "all_reduce", gradients)
    again = columns.equals("activation_checkpointing", "full") & job.software.gathers_to_recompute
    times = np.where(again & columns.equals("sharding", "fsdp"), 3.0, 2.0)
    full = columns.equals("sharding", "fsdp", "zero3")
    once = deepspeed.keeps_gradients(job, columns) | columns.equals("sharding", "fsdp")
    every = columns.equals("sharding", *ZERO_STAGE) & ~once
    micro = np.where(full, times * gather, 0.0) + np.where(every, scatter, 0.0)
    step = np.where(columns.equals("sharding", "ddp"), reduce, 0.0)
    step = step + np.where(once, scatter, 0.0)
    if job.software.syncs_each_batch:
        micro, step = micro + step, np.zeros(columns.rows)
    after = np.where(
        columns.shared_by("zero2"),
        _collective(job, columns, "all_gather", gradients),
        0.0,
    )
    return Communication(
        np.where(several, micro, 0.0),
        np.where(several, step, 0.0),
        after,
        columns.of_network(lambda own: float(own.nodes), 1.0) > 1,
    )


def price_collectives(job: Job, columns: Columns) -> Outputs:
    """[s] exposed per micro-step and per optimizer step; zero on one device."""
    links = communication(job, columns)
    busy_s = np.zeros(columns.rows)
    if (links.micro_s + links.step_s).any():
        busy_s = step_terms(job, columns).seconds(constants())["micro_step_s"]
    per_micro, per_step = links.exposed(constants(), busy_s)
    log_sd = _log_sd(job, columns, links, busy_s)
    factor = offset_factor(job, columns)
    per_micro, per_step = per_micro * factor, per_step * factor
    away = ~columns.equals(offloading.KNOB, "none")
    if away.any():
        out, back = offloading.transfer_seconds(job, columns)
        per_micro = per_micro + out
        per_step = per_step + back + offloading.update_seconds(job, columns)
    return {
        "per_micro_s": per_micro,
        "per_step_s": per_step,
        "log_sd": np.where(away, np.maximum(offloading.TIME_SD, log_sd), log_sd),
    }


def _log_sd(job: Job, columns: Columns, links: Communication, busy_s: FloatArray) -> FloatArray:
    """[rows] log standard deviation of what communication adds.

    Over a network it is that of the exposed seconds when all of it takes a standard deviation less
    and more: a gather that is just hidden comes out when the network is slower than thought.
    Source: derived: the secant over one standard deviation each way.
    """
    network = columns.of_network(lambda own: own.log_sd, 0.0)
    if not network.any():
        return np.full(columns.rows, LOG_SD)
    factor = np.exp(np.hypot(LOG_SD, network))
    parts = columns.accumulation(job)
    seconds = [
        parts * micro + step
        for by in (1.0 / factor, np.ones(columns.rows), factor)
        for micro, step in [links.times(by).exposed(constants(), busy_s)]
    ]
    secant = (seconds[2] - seconds[0]) / (2.0 * np.maximum(seconds[1], 1e-12))
    return np.where(network > 0, np.maximum(secant, LOG_SD), LOG_SD)


COMPONENT = Component("collectives", READS, under_each(price_collectives), of_job=())


def _collective(job: Job, columns: Columns, op: str, size: FloatArray) -> FloatArray:
    """[s] of one collective over all bytes, issued layer by layer."""
    layers = float(max(job.model.num_layers, 1))
    seconds = np.zeros(columns.rows)
    for device, count, network, rows in columns.machines():
        if count > 1:
            message = size[rows] / layers
            seconds[rows] = layers * (
                collective_seconds(device, count, op, message)
                if network is None
                else network_seconds(device, count, network, op, message)
            )
    return seconds


def network_seconds(
    device: Device, count: float, network: Network, op: str, message_bytes: FloatArray
) -> FloatArray:
    """[s] of one collective over `message_bytes` (the whole buffer) on all machines' devices.

    Formula: N devices, n of them on each of M machines, B the network's rate from one machine and
    r the share of it that is reached: the slower of what happens inside a machine and between
    them, as chunks of both overlap, and the latency of the steps. All-reduce, a tree of machines:
    2 S (M - 1) / (M B r), 2 ceil(log2 M) hops and 2 (n - 1) inside. Gather and scatter, a ring of
    all devices: S (N - 1) / (N B r), M - 1 hops and N - M inside. A machine sends no faster than
    its devices' buses carry.
    Source: NVIDIA/nccl src/graph/tuning.cc, its own estimate of trees and rings.
    """
    nodes, inside = float(network.nodes), count / network.nodes
    rate = min(network.bytes_per_s * network.share, inside * device.pcie_bytes_per_s)
    if op == "all_reduce":
        between = 2.0 * message_bytes * (nodes - 1.0) / (nodes * rate)
        latency = 2.0 * (math.ceil(math.log2(nodes)) * network.hop_s)
        latency += 2.0 * (inside - 1.0) * INSIDE_HOP_S
    else:
        between = message_bytes * (count - 1.0) / (count * rate)
        latency = (nodes - 1.0) * network.hop_s + (count - nodes) * INSIDE_HOP_S
    within = np.zeros_like(message_bytes)
    if inside > 1:
        whole = (count - 1.0) / count / ((inside - 1.0) / inside)
        longer = 1.0 if op == "all_reduce" else whole
        within = longer * collective_seconds(device, inside, op, message_bytes)
    return LATENCY_S + latency + np.maximum(between, within)


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
        joined, bridge = BRIDGES.get(device.name, (0, 0.0))
        bridged = count <= joined
        host = device.link_bytes_per_s
        link = math.sqrt(bridge * host) if bridged else host
        share = (SWITCHED_SHARE if device.has_nvlink or bridged else PCIE_SHARE)[count > 2]
        return LATENCY_S * steps + traffic / (link * share)
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

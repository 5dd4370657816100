"""What a step on a processor has that one on a GPU has not, and the other way round.

A processor runs a kernel while it issues it, so nothing overlaps, and nothing is waited for either.
Each cast of autocast is a kernel like any other. Products of 16 bits go through oneDNN, which
generates code for every new combination of sizes; batches padded to their longest row bring new
ones until the end, since its cache holds the products of some forty lengths.

Covers: casts that autocast adds on fp32 weights and adapters; products of new sizes.
Does not cover: torch.compile; several sockets; threads that wait for a core.

Source of the counts: a torch dispatch mode on transformers 5.23 and peft 0.21. Source of the times:
layers of 8 tokens, by depth, and products of new sizes, torch 2.13 on one core of an AMD EPYC with
avx512_bf16. Products of old sizes reach the rate of large ones from 64 x 64 on; elementwise kernels
are no quicker from the cache than memory is (exponentials, sums and conversions bound them), nor in
16 bits than in 32. oneDNN's documentation: "Primitive cache" (1024 entries by default).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.time.efficiency import distinct_devices
from autotune.cost.time.flops import products
from autotune.cost.time.kernels import ADAPTER_WEIGHT, Passes, adapter_launches

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.domain.job import Job
    from autotune.domain.model import Model

# 14 us a kernel of the forward and 10 of the backward against the fitted ones: no driver is called.
ISSUE = 0.4
NEW_SIZES_S = 0.9e-3  # code for one product of sizes that were not met before
PLAIN_ADAPTER = Passes(4.0, 6.0)  # kernels of an adapted projection without autocast
CASTS_OF_A_LAYER = 3.0  # of activations between fp32 and 16-bit kernels, forward


def on_processor(columns: Columns) -> BoolArray:
    """[rows] whether a processor is the device."""
    devices, index = distinct_devices(columns)
    return np.asarray([device.is_cpu for device in devices], np.bool_)[index]


def half(columns: Columns) -> BoolArray:
    """[rows] whether products are of 16 bits."""
    return columns.equals("precision", "bf16", "fp16", "fp8")


def further_kernels(job: Job, *, fp32_adapters: bool, autocast: bool) -> Passes:
    """Kernels of a micro-step that `kernels.launches` has not: casts, and adapters in full.

    Without autocast adapters have fewer than are counted there.
    """
    every = products(job.model, job.method)
    matrices, adapted = sum(p.active for p in every), sum(p.adapted for p in every)
    counted = adapter_launches(job.method, fp32=fp32_adapters)
    dropout = 1.0 if job.method.dropout > 0 else 0.0
    own = counted if autocast else Passes(*(n + dropout for n in PLAIN_ADAPTER))
    forward = adapted * (own.forward - ADAPTER_WEIGHT * counted.forward)
    backward = adapted * (own.backward - ADAPTER_WEIGHT * counted.backward)
    if autocast and job.method.base == "32bit":
        forward += matrices + CASTS_OF_A_LAYER * job.model.num_layers
        backward += matrices * (1.0 if job.method.is_lora else 2.0)
    return Passes(forward, backward)


def new_sizes_s(job: Job, columns: Columns, unchanging: BoolArray, *, backward: bool) -> FloatArray:
    """[s] code generated for the products of a micro-step; 0 where all batches have one shape."""
    sizes = distinct_products(job, backward=backward)
    new = on_processor(columns) & half(columns) & ~unchanging
    return np.where(new, NEW_SIZES_S * sizes, 0.0)


def distinct_products(job: Job, *, backward: bool) -> float:
    """Products of different sizes in a micro-step: layers repeat them.

    Forward: projections, adapters (by their inputs and by their outputs) and the head. Backward:
    as many for the inputs, and one for each trained matrix.
    """
    model: Model = job.model
    every = products(model, job.method)
    base = {(p.inputs, p.outputs) for p in every} | {(model.hidden_size, model.vocab_size)}
    adapters = {("in", p.inputs) for p in every if p.adapted}
    adapters |= {("out", p.outputs) for p in every if p.adapted}
    ahead = len(base) + len(adapters)
    trained = len(adapters) if job.method.is_lora else len(base)
    return float(2 * ahead + trained if backward else ahead)

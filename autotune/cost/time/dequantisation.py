"""What frozen weights of few bits cost before and after their products, beside the products.

Weights are turned into 16 bit for every pass. Covers nf4 and LLM.int8 of bitsandbytes, 4-bit GPTQ;
what a 4-bit linear does to weights and activations where its input is fp32.
Does not cover: kernels that multiply packed weights directly.

Source of the bytes: derived from the libraries' operations; where another, it stands beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import deepspeed
from autotune.cost.memory.experts import (
    ROUTED,
    experts_fused,
    keeps_unpacked,
    quantised_elements,
)
from autotune.cost.memory.states import PACKED_BYTES, fp32_norms, fp32_stream
from autotune.cost.time.flops import Product, products

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import Columns, FloatArray
    from autotune.domain.device import Device
    from autotune.domain.job import Job

# Instructions for a weight, from this release of bitsandbytes on, against the branches before it: a
# table in registers is 1.36 to 2.07 times as fast on P100, A100 and H100, 1.25 to 1.8 on a T4, and
# no faster for large matrices on Ampere and Ada boards that wait for memory anyway.
# Source: bitsandbytes-foundation/bitsandbytes pull request 1747.
LOOKED_UP_FROM, LOOKED_UP = (0, 48), 0.6

# What the processor does to unpack one 4-bit linear, forward and backward, in kernels. bitsandbytes
# calls its library outright, and from this release on through operators of torch; scales that are
# quantised too take two more kernels. Source: `MatMul4Bit` of 0.43.3, 0.45.5 and 0.49.2 in a chain
# of fifty, the library's functions replaced by nothing, beside plain products, on the processor
# where a kernel takes 14 and 10 us (`launch`): 20 and 14 us (quantised scales: 31 and 24), since 37
# and 31 (62 and 52). Unsloth calls the library itself.
OPERATORS_FROM = (0, 46)
OUTRIGHT = 2.0, 2.0
BY_OPERATORS = {False: (2.7, 3.1), True: (4.4, 5.2)}  # by whether scales are quantised


# auto-gptq without a compiled kernel that trains: shifted copies, masks, zeros and scales of all
# weights as tensors of their own, a kernel each. Derived from its operations (qlinear_cuda_old.py,
# forward): an int16 or wider value is written and read for each; a 72B took 2.75 s of a micro-step
# of 256 tokens on an A100 where 22 bytes a weight and pass make 2.74.
GPTQ_TORCH_BYTES = 22.0


# The backward of LLM.int8 before this release first undoes the layout that its product wants, an
# element at a time. h2oai/h2ogpt issue 128: 32 micro-batches of a 13B on an A100 took 52.3 s, in 16
# bit 21.8; pull request 86: 2.27 s and 0.6 for a 30B. With what the forward adds 55 to 100 bytes.
ROW_MAJOR_FROM, UNDONE_BYTES = (0, 45), 75.0


HALF_FP32 = (7.0, 7.5, 8.0)  # compute capabilities with 64 fp32 lanes a unit
# Boards that a slot alone feeds, and the clock they keep over the one their rates are of: a T4
# reaches 0.54 of its fp32 rate and 0.66 of its fp16 one, an L4 0.53 of tf32 and 0.59 of bf16
# (catalog/data/achievable.csv).
SLOT_W, SLOT_CLOCK = 75.0, 0.6


def unpacking(job: Job) -> float:
    """Instructions to dequantise a weight, against those of nf4 in bitsandbytes until 0.47.

    Evenly spaced codes (GPTQ, int8) are shifted, masked and scaled: memory is always slower.
    """
    if job.method.base != "nf4" or job.software.gptq != "none":
        return 0.0
    return LOOKED_UP if (job.software.bitsandbytes or (0,)) >= LOOKED_UP_FROM else 1.0


def unpacking_kernels(job: Job) -> tuple[float, float]:
    """Kernels that the processor's work on one packed linear counts as, forward and backward."""
    if not (job.method.is_lora and job.method.base == "nf4"):
        return 0.0, 0.0
    own = job.software.gptq != "none" or job.software.kernels == "unsloth"
    if own or (job.software.bitsandbytes or (0,)) < OPERATORS_FROM:
        return OUTRIGHT
    return BY_OPERATORS[job.method.double_quant]


def packed(job: Job) -> tuple[Product, ...]:
    """Projections that are layers of few bits: experts that are one parameter are none."""
    without = ROUTED if experts_fused(job) else frozenset[str]()
    return products(job.model, job.method, without=without)


def dequantised_weights(job: Job) -> float:
    """[elements] weights that one pass over all frozen projections dequantises."""
    if not job.method.is_lora or job.method.base not in PACKED_BYTES:
        return 0.0
    return sum(p.weights * p.matrices for p in packed(job))


# Bytes that unpacking a weight of quantised experts moves in int8: the codes are read, and two
# products of four bytes written, of which the first is read again. See `unpacked_bytes`.
_INT8_EXPERT = 13.0


def forward_bytes(job: Job) -> float:
    """[bytes] of unpacking all frozen weights once, experts that are one parameter too."""
    return dequantised_bytes(job) + _expert_bytes(job)


def micro_step_bytes(job: Job, again: FloatArray) -> FloatArray:
    """[rows, bytes] of unpacking frozen weights in a micro-step. again: [rows] of recomputation."""
    experts = _expert_bytes(job) * _expert_passes(job, again)
    return dequantised_bytes(job) * passes(job, again) + experts


def _expert_bytes(job: Job) -> float:
    plain = PACKED_BYTES.get(job.method.base, 0.0) + 2.0
    moved = _INT8_EXPERT if job.method.base == "int8" else plain
    return moved * quantised_elements(job)


def _expert_passes(job: Job, again: FloatArray) -> FloatArray:
    """[rows] how often a micro-step unpacks quantised experts: the backward finds them unpacked."""
    return np.where((again > 0.0) & keeps_unpacked(job), 0.0, 1.0 + again)


def dequantised_bytes(job: Job) -> float:
    """[bytes] one pass of turning all frozen projections into 16 bit: read codes, write values."""
    moved = PACKED_BYTES.get(job.method.base, 0.0) + 2.0
    if job.software.gptq == "torch":
        moved = GPTQ_TORCH_BYTES
    if job.method.base == "int8" and (job.software.bitsandbytes or ROW_MAJOR_FROM) < ROW_MAJOR_FROM:
        moved = UNDONE_BYTES
    return dequantised_weights(job) * moved


def int8_bytes(job: Job) -> float:
    """[bytes per token] LLM.int8 forward: row-wise quantisation, int32 product, outlier columns.

    Source: Dettmers et al., "LLM.int8()" (2022), section 3; bytes derived.
    """
    if not (job.method.is_lora and job.method.base == "int8"):
        return 0.0
    return sum(p.active * (9.0 * p.inputs + 12.0 * p.outputs) for p in packed(job))


# In these releases a 4-bit linear computes in the dtype of its first input where that is fp32 or
# bf16, whatever the compute dtype asked for; later ones do as they are asked. An fp32 input (norms
# left in fp32 by `prepare_model_for_kbit_training`; LayerNorm under autocast) makes the forward
# write the unpacked weights in fp32, and autocast read them back into 16 bit for the product; the
# backward's gradient is in 16 bit. Fused adapters unpack weights themselves. Without autocast, a
# compute dtype that nobody states is `in_fp32`. Does not cover: weights loaded in another 16-bit
# dtype than is computed in, which every pass casts (4 bytes).
# Read: 0.41.0 to 0.50.2 nn/modules.py, `Linear4bit.set_compute_type` (since 0.47 only where no
# dtype is given), and autograd/_functions.py, `MatMul4Bit`; issue 667: a Llama-2 7B lost 35 to
# 40 % of its speed from 0.40.2 to 0.41.0 alone. By a torch dispatch mode on 0.50.2, a prepared
# model's 4-bit linears are given bf16.
COMPUTES_AS_INPUT_FROM, COMPUTES_AS_INPUT_UNTIL = (0, 41), (0, 47)
TO_FP32_BYTES, FROM_FP32_BYTES = 6.0, 6.0  # read 2 and write 4; read 4 and write 2


def wide_linears(job: Job) -> bool:
    """Whether 4-bit linears are given fp32 and answer in fp32, where nothing else decides."""
    own = job.software.kernels == "unsloth" or job.software.fused_adapters
    nf4 = job.method.is_lora and job.method.base == "nf4" and job.software.gptq == "none"
    return nf4 and not own and (fp32_stream(job) or fp32_norms(job))


def in_fp32(job: Job) -> bool:
    """Whether 4-bit weights are multiplied in fp32, in the forward as in the backward.

    Nearly all products are theirs, so all are priced at that rate; without TF32, which torch leaves
    off. Source: bitsandbytes 0.50 nn/modules.py, `Linear4bit.forward`, which casts its input to the
    compute dtype; transformers 5.23 BitsAndBytesConfig, whose default is float32.
    """
    nf4 = job.method.is_lora and job.method.base == "nf4" and job.software.gptq == "none"
    return nf4 and job.software.fp32_products and job.software.kernels != "unsloth"


def wide(job: Job, columns: Columns) -> FloatArray:
    """[rows] 1 where 4-bit linears are given fp32 by a run in 16 bit, else 0.

    FSDP and DeepSpeed hand a module what it takes in 16 bit; a norm that autocast widens comes
    after that.
    """
    handed = columns.shared_by("fsdp", "zero3")
    whole = np.full(columns.rows, fp32_norms(job)) | ~handed
    narrow = columns.equals("precision", "bf16", "fp16", "fp8")
    given = whole & narrow & ~deepspeed.casts(columns)
    return given.astype(np.float64) * wide_linears(job)


def widened_bytes(job: Job) -> float:
    """[bytes] one forward of unpacked weights that are written as fp32 and read back."""
    if not widens_weights(job):
        return 0.0
    return dequantised_weights(job) * (TO_FP32_BYTES + FROM_FP32_BYTES)


def widens_weights(job: Job) -> bool:
    """Whether a 4-bit linear that is given fp32 unpacks its weights to fp32."""
    version = job.software.bitsandbytes or (0,)
    return COMPUTES_AS_INPUT_FROM <= version < COMPUTES_AS_INPUT_UNTIL


def wide_cast_bytes(job: Job, *, fp32_adapters: bool) -> float:
    """[bytes per token] inputs of 4-bit linears cast to 16 bit and outputs to fp32, one pass.

    Adapters in fp32 would have cast the input to fp32 themselves.
    """
    return sum(
        FROM_FP32_BYTES * p.inputs * (p.active - (p.adapted if fp32_adapters else 0.0))
        + TO_FP32_BYTES * p.outputs * p.active
        for p in packed(job)
    )


def unpacked_s(
    job: Job, recomputed: FloatArray, devices: Sequence[Device], device: NDArray[np.intp]
) -> FloatArray:
    """[rows, s] of one instruction for each weight that is dequantised in a micro-step.

    recomputed: [rows] 1 under activation checkpointing. device: [rows] place in `devices`.
    """
    weights = dequantised_weights(job) * passes(job, recomputed)
    weights = weights + quantised_elements(job) * _expert_passes(job, recomputed)
    rate = np.asarray([instructions_per_s(d) for d in devices])[device]
    found: FloatArray = weights * unpacking(job) / np.maximum(rate, 1.0)
    return found


def instructions_per_s(device: Device) -> float:
    """[1/s] instructions that all lanes of the device issue: four of 32 lanes a clock and unit.

    Formula: the fp32 rate counts two operations a lane; on units with 64 fp32 lanes (Volta, Turing,
    A100) the other half of the issue slots goes to integers. Small boards keep no such clock.
    Source: NVIDIA, CUDA C++ Programming Guide, arithmetic throughput by compute capability.
    """
    half = device.compute_capability in HALF_FP32
    clock = SLOT_CLOCK if 0 < device.tdp_w <= SLOT_W else 1.0
    return device.fp32_flop_per_s * (1.0 if half else 0.5) * clock


def passes(job: Job, again: FloatArray) -> FloatArray:
    """[rows] how often a micro-step dequantises every frozen matrix.

    nf4 does so in the forward, in the recomputed forward and in the backward; int8 multiplies
    codes in the forward and dequantises in the backward only.
    """
    return 2.0 + again if job.method.base == "nf4" else np.ones_like(again)

"""Bytes that do not depend on the batch: weights, adapters, gradients, optimizer states.

Covers: full fine-tuning and LoRA on 16-bit, 32-bit, int8 and nf4 storage; DDP, ZeRO-2, ZeRO-3
and FSDP. FSDP and DDP keep states in the dtype of what is trained; DeepSpeed keeps fp32 ones.
What `offload` moves to the host's memory is not on the device.
Does not cover: tensor and pipeline parallelism.

Legend: n elements; N devices; o output features of a linear.
"""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import deepspeed, parameters, whole_modules
from autotune.cost.memory.experts import (
    EXPERT,
    EXPERTS_FUSED_FROM,
    ROUTED,
    experts_fused,
    experts_quantised,
)
from autotune.cost.memory.modelling_code import (
    LITGPT,
    family_memory,
    fused_layernorm,
    is_litgpt,
    stored_masks,
)
from autotune.domain.config import OFFLOADED_STATES
from autotune.domain.model import XIELU
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.domain.job import Job
    from autotune.domain.model import Model

# Codes, 8-bit absmax per 64, fp32 scale per 256 of them.
NF4_DOUBLE_QUANT = 1 / 2 + 1 / 64 + 1 / 4096
NF4 = 1 / 2 + 1 / 16  # codes, fp32 absmax per 64
# [bytes] a weight that a kernel reads to unpack it: codes, and a scale in fp32 for every 64.
PACKED_BYTES = {"nf4": NF4, "int8": 1.0}
STATE_BYTES_8BIT = 1 + 4 / 256  # one 8-bit moment and its share of an fp32 scale per block of 256


@dataclass(frozen=True, slots=True)
class Sizes:
    """Element counts of a model that memory depends on."""

    layer: float  # mean over layers
    largest_layer: float
    linear: float  # matrices of all layers
    linear_rows: float  # output features of those
    fused: float  # those of routed experts and their routers, which may be one parameter a layer
    fused_rows: float
    experts: float  # of those the experts alone
    expert_rows: float
    largest_linear: float  # one matrix
    largest_plain: float  # one matrix outside the experts
    embedding: float  # input embeddings, with the head's weights when those are tied
    head: float  # a head of its own; 0 when tied
    outside: float  # what else lies outside the layers: an embedding for each of them
    norms: float  # over the hidden size
    total: float


@lru_cache(maxsize=64)
def sizes(model: Model) -> Sizes:
    """Element counts of a model. Source: derived: shapes of the decoder's modules."""
    linear = rows = largest = fused = fused_rows = experts = expert_rows = plain = 0.0
    for kind in model.layers:
        count, linears = kind.num_layers, kind.linears
        linear += count * sum(x.in_features * x.out_features * x.count for x in linears)
        rows += count * sum(x.out_features * x.count for x in linears)
        largest = max(largest, *(float(x.in_features * x.out_features) for x in linears))
        routed = [x for x in linears if x.part in ROUTED]
        fused += count * sum(x.in_features * x.out_features * x.count for x in routed)
        fused_rows += count * sum(x.out_features * x.count for x in routed)
        alone = [x for x in routed if x.part == EXPERT]
        experts += count * sum(x.in_features * x.out_features * x.count for x in alone)
        expert_rows += count * sum(x.out_features * x.count for x in alone)
        others = [float(x.in_features * x.out_features) for x in linears if x.part not in ROUTED]
        plain = max(plain, *others)
    for x in model.outside:
        size = float(x.in_features * x.out_features)
        linear, rows = linear + size, rows + x.out_features
        largest, plain = max(largest, size), max(plain, size)
    layers = {kind: parameters.layer_parameters(kind) for kind in model.layers}
    return Sizes(
        layer=sum(kind.num_layers * size for kind, size in layers.items()) / model.num_layers,
        largest_layer=float(max(layers.values())),
        linear=linear,
        linear_rows=rows,
        fused=fused,
        fused_rows=fused_rows,
        experts=experts,
        expert_rows=expert_rows,
        largest_plain=plain,
        largest_linear=largest,
        embedding=float(parameters.embedding_parameters(model)),
        head=float(parameters.head_parameters(model)),
        outside=float(parameters.outside_parameters(model)),
        norms=parameters.norm_parameters(model) * (model.norms_per_layer * model.num_layers + 1.0),
        total=float(parameters.parameter_count(model)),
    )


def beside_bytes(job: Job) -> float:
    """[bytes] of what a checkpoint holds beside its text model: loaded, and read by nothing.

    Its matrices are quantised with the others, and nearly all of it is matrices.
    """
    rates = {"32bit": 4.0, "nf4": NF4_DOUBLE_QUANT, "int8": 1.0}
    return rates.get(job.method.base, 2.0) * job.model.beside_params


def weight_bytes(job: Job, size: Sizes) -> float:
    """[bytes] of the stored base weights on one device, unsharded, with what lies beside them."""
    return _text_bytes(job, size) + beside_bytes(job)


def _text_bytes(job: Job, size: Sizes) -> float:
    """[bytes] of the weights of the text model.

    Source: QLoRA (Dettmers 2023) section 3: 4-bit codes in blocks of 64 with double quantisation in
    blocks of 256; LLM.int8 (Dettmers 2022) section 3: int8 codes and one fp32 scale a row.
    Embeddings, head, norms and biases stay 16-bit, unless the trainer casts them to fp32, and so
    do experts that are one parameter, unless a switch quantises it. litgpt's head is quantised too.
    """
    base = job.method.base
    if base == "32bit":
        return 4.0 * size.total
    if base == "16bit" or not quantised(job):
        return 2.0 * size.total
    fused, packed = experts_fused(job), experts_quantised(job)
    left = fused * size.fused - packed * size.experts
    linear = size.linear - left + quantised_head(job, size)
    rest = size.total - linear + stable_embedding(job)
    wide = {"none": 0.0, "norms": size.norms, "all": rest}[job.software.kbit_upcast]
    kept = 2.0 * rest + 2.0 * wide
    if base == "nf4":
        return (NF4_DOUBLE_QUANT if job.method.double_quant else NF4) * linear + kept
    rows = size.linear_rows - fused * size.fused_rows + packed * size.expert_rows
    return linear + 4.0 * rows + kept


def quantised(job: Job) -> bool:
    """Whether the base's matrices really are quantised."""
    own = family_memory(job.model.family).own_linear  # the same file of 5.23 skips subclasses
    theirs = job.software.transformers >= EXPERTS_FUSED_FROM and not job.software.own_model
    return job.method.is_quantised and not (own and theirs)


def of_bitsandbytes(job: Job) -> bool:
    """Whether the base's matrices are layers of bitsandbytes."""
    return quantised(job) and job.software.gptq == "none"


# bitsandbytes, whose 4-bit products kept what they read until then.
FORGETS_INPUTS_FROM = (0, 43, 2)


def keeps_inputs(job: Job) -> bool:
    """Whether quantised linears keep what they read; the products of GPTQ's packages do not.

    Source: bitsandbytes autograd/_functions.py: MatMul8bitLt always does, MatMul4Bit did until
    0.43.1 (bitsandbytes-foundation/bitsandbytes#1270).
    """
    version = job.software.bitsandbytes
    old = version is not None and version < FORGETS_INPUTS_FROM
    return quantised(job) and (job.method.base == "int8" or (old and job.software.gptq == "none"))


def stable_embedding(job: Job) -> float:
    """Elements that litgpt's quantised runs hold beside the model: an embedding and a gradient.

    The embedding is replaced by bitsandbytes', and the one before stays in a variable. The new one
    asks for a gradient, which nothing steps or clears. Source: litgpt finetune/lora.py since
    Lightning-AI/litgpt#1770 (October 2024); older releases pin bitsandbytes 0.42.
    """
    version = job.software.bitsandbytes
    if not is_litgpt(job) or version is None or version < FORGETS_INPUTS_FROM:
        return 0.0
    return 2.0 * job.model.vocab_size * job.model.hidden_size


def quantised_head(job: Job, size: Sizes) -> float:
    """Elements of an output head that is quantised with the other matrices.

    Source: lightning_fabric 2.1 plugins/precision/bitsandbytes.py: every nn.Linear, no exception.
    """
    return size.head * (is_litgpt(job) and quantised(job))


def unpacked_head_bytes(job: Job, size: Sizes, compute: FloatArray) -> FloatArray:
    """[bytes] of a quantised head as its product needs it: in fp16, and a copy as computed.

    Source: as above, `_quantize_weight` hands fp16 over; bitsandbytes 0.41 autograd/_functions.py,
    MatMul4Bit: `dequantize_4bit(B, state).to(A.dtype)`, forward and backward.
    """
    return (2.0 + compute) * quantised_head(job, size)


def dequantised_bytes(job: Job, size: Sizes) -> float:
    """[bytes] of the one weight that a quantised base unpacks for a matrix product."""
    if not quantised(job):
        return 0.0
    return 2.0 * (size.largest_plain if experts_fused(job) else size.largest_linear)


def fp32_stream(job: Job) -> bool:
    """Whether the residual stream of an unsharded 16-bit run is fp32.

    fp32 embeddings make it so. So do fp32 norms over a quantised base, whose linears answer in the
    dtype of their input, where the norm multiplies by its weight last; others cast back. So does
    xIELU under autocast before such a linear.
    """
    if job.method.base == "32bit":
        return True
    if quantised(job) and job.software.autocast and job.model.activation == XIELU:
        return True
    facts, kept = family_memory(job.model.family), job.software.kbit_upcast
    widens = job.model.norm == "rmsnorm" and job.model.norm_weight and not facts.fp32_norm
    return quantised(job) and (kept == "all" or (kept == "norms" and widens))


def other_half(job: Job, columns: Columns) -> BoolArray:
    """[rows] whether autocast computes in another 16 bits than the base is stored in.

    Each product then has a copy of its weight made, which the graph holds, and what it adds to the
    residual stream makes that fp32. Not where FSDP or DeepSpeed cast the weights.
    Source: torch aten/src/ATen/autocast_mode.cpp, cached_cast, which caches casts of fp32 alone;
    c10/core/ScalarType.cpp, promoteTypes: half with bfloat16 is float.
    """
    stored = job.software.base_dtype
    if not stored or job.method.base != "16bit" or not job.software.autocast:
        return np.zeros(columns.rows, bool)
    cast = columns.shared_by("fsdp", "zero3") | deepspeed.casts(columns)
    found: BoolArray = columns.equals("precision", "bf16" if stored == "fp16" else "fp16") & ~cast
    return found


def fp32_norms(job: Job) -> bool:
    """Whether autocast makes norms answer in fp32 and all that follows stay so.

    A norm right after the embedding makes the residual stream fp32; so does any over a quantised
    base. Source: torch's list of ops that autocast to fp32 has layer_norm; bitsandbytes 0.50
    nn/modules.py: a linear's output is cast to the dtype of its input.
    """
    wide = job.software.autocast and fused_layernorm(job.model)
    return wide and (quantised(job) or job.model.embedding_norm)


@dataclass(frozen=True, slots=True)
class Static:
    """[bytes] on one device. Shapes [rows]."""

    weights: FloatArray
    adapters: FloatArray
    gradients: FloatArray  # all of them, as they are after the backward
    buckets: FloatArray  # copies of gradients that the communication keeps all the time
    optimizer: FloatArray  # in torch's allocator, from the end of the first step on
    element: FloatArray  # bytes of an element of a trained parameter and of its gradient
    trainable: FloatArray  # [elements] of all devices
    weight_shards: FloatArray  # devices that share the weights
    gradient_shards: FloatArray
    stored: FloatArray  # of the weights, wherever they lie and however many share them
    saved_whole: FloatArray  # copied on the device for a save of sharded weights
    loaded: FloatArray  # a whole model that is there before it is sharded
    gradients_here: FloatArray  # 1 where reduced gradients stay on the device, 0 where they leave
    sums: FloatArray  # gradients of earlier micro-steps
    zero: deepspeed.Transient  # what DeepSpeed has besides; its share of `buckets` is in there


def _shards(columns: Columns, *words: str) -> FloatArray:
    count = columns.number("offer.count")
    return np.where(columns.equals("sharding", *words), np.maximum(count, 1.0), 1.0)


def _state_bytes(
    job: Job, columns: Columns, trained: FloatArray, trainable: FloatArray, embedding: float
) -> FloatArray:
    """[bytes] of AdamW's two moments inside torch's allocator, unsharded; with ZeRO's masters.

    Source: bitsandbytes 0.50 optim/optimizer.py: blocks of 256 (its floor of 4096 elements a tensor
    is left out); transformers 5.23 trainer.py keeps states of embeddings in fp32. Paged states live
    in unified memory, outside torch's allocator, and can be evicted: they count as none.
    """
    eight = 2.0 * STATE_BYTES_8BIT * (trainable - embedding) + 8.0 * embedding
    small: BoolArray = columns.equals("optimizer", "adamw_bnb_8bit")
    states = np.where(small, eight, 2.0 * trained)
    paged = columns.equals("optimizer", "paged_adamw_8bit") | job.software.no_moments
    states = np.where(paged, 0.0, states)
    masters = trainable * deepspeed.state_bytes(job, columns, 2.0 * STATE_BYTES_8BIT)
    return np.where(deepspeed.runs(columns), masters, states)


def static_bytes(job: Job, columns: Columns, size: Sizes) -> Static:
    """Weights, adapters, gradients and optimizer states of every row.

    Source: Rajbhandari 2020 (ZeRO) section 3 for what each stage shares.
    """
    method = job.method
    sharded = _shards(columns, "fsdp", "zero3")
    state_shards = _shards(columns, "fsdp", "zero3", "zero2")
    gradient_shards = np.where(deepspeed.keeps_gradients(job, columns), 1.0, state_shards)
    element = deepspeed.trained_bytes(job, columns)
    trained = whole_modules.trained_bytes(job, columns)
    if method.is_lora:
        count = parameters.adapter_parameters(job.model, method)
        count += parameters.saved_parameters(job.model, method)
        trainable = np.full(columns.rows, float(count))
        adapters = trained / sharded
    else:
        trainable = np.full(columns.rows, size.total)
        adapters = np.zeros(columns.rows)
    trains = float(job.steps > 0)  # an evaluation-only run has no gradients and no optimizer
    gradients = trains * trained / gradient_shards
    if job.software.steps_in_backward:  # a matrix's own gradient is the most there is at a time
        widest = max(size.largest_linear, size.embedding)
        gradients = np.minimum(gradients, trains * element * widest / gradient_shards)
    embedding = (
        float(parameters.saved_embedding(job.model, method)) if method.is_lora else size.embedding
    )
    zero = deepspeed.Transient.of(job, columns, element, trains * trainable)
    whole = np.full(columns.rows, weight_bytes(job, size))
    alone = ~columns.equals("sharding", "fsdp", "zero3")
    whole = whole - alone * whole_modules.kept_on_host(job)
    if method.base == "32bit":
        whole = np.where(deepspeed.casts(columns), 2.0 * size.total, whole)
    # An offloading ZeRO has the newest gradients on the device and their sums on the host: 13B in
    # full by ZeRO-2 on one H800 takes 64 GB, 26 of weights and as much of gradients.
    states = columns.equals("offload", *OFFLOADED_STATES)
    here = np.where(columns.equals("offload", "all"), 0.0, 1.0)
    zero = replace(zero, step=np.where(states, 0.0, zero.step))
    held = trains * _state_bytes(job, columns, trained, trainable, embedding) / state_shards
    second = 0.0 if method.is_lora or not job.work.reference else 1.0  # the reference's own copy
    masks = stored_masks(job.model)
    return Static(
        weights=(here * whole + second * weight_bytes(job, size)) / sharded + masks,
        adapters=here * adapters,
        gradients=here * gradients,
        buckets=trains * (np.where(columns.shared_by("ddp"), trained, 0.0) + zero.always),
        optimizer=np.where(states, 0.0, held),
        element=element,
        trainable=trainable,
        weight_shards=sharded,
        gradient_shards=gradient_shards,
        stored=whole,
        gradients_here=here,
        saved_whole=columns.shared_by("fsdp") * job.software.gathers_to_save * whole,
        loaded=columns.shared_by("zero3") * job.software.loads_whole * whole,
        sums=np.where(
            states & deepspeed.runs(columns),
            0.0,
            _sums(job, columns, trains * trained, here * gradients, trains * trainable),
        ),
        zero=zero,
    )


def update_bytes(job: Job, columns: Columns, static: Static, size: Sizes) -> FloatArray:
    """[bytes] of AdamW's temporaries, which are of what it updates at once; none of DeepSpeed's."""
    fsdp = columns.shared_by("fsdp")
    alone = float(max(size.largest_linear, size.embedding))
    unit = max(size.largest_layer, size.embedding + size.head)
    one = static.element * np.where(fsdp, unit, alone) / static.gradient_shards
    turns = (job.software.updates_in_turn(flat=flat) for flat in (True, False))
    in_turn = np.where(fsdp, *turns)
    updated = np.where(in_turn, np.minimum(one, static.gradients), static.gradients)
    runs = columns.equals("optimizer", "adamw_torch")
    return np.where(runs, job.software.update_copies * updated, 0.0)


def _sums(
    job: Job, columns: Columns, trained: FloatArray, gradients: FloatArray, trainable: FloatArray
) -> FloatArray:
    """[bytes] of the gradients of earlier micro-steps, where they stay on the device.

    FSDP reduces at the last micro-step only: until then a device holds the gradients of all
    weights, in the dtype that they travel in, also where its shards lie in the host's memory.
    torchtune and Composer (llm-foundry) reduce at each, and so do `sync_each_batch` and FSDP2 under
    accelerate before 1.11.
    Source: transformers 5.23 trainer.py, `accelerator.no_sync` around all micro-steps but the last
    (not under DeepSpeed); accelerate 1.15 no_sync, for both of FSDP's versions; litgpt 0.5.13
    finetune/full.py, `no_backward_sync`; torch 2.13 fsdp/_runtime_utils.py, _post_backward_hook.
    """
    software = job.software
    defers = not software.own_model or software.stack == LITGPT
    if not defers or software.steps_in_backward or software.syncs_each_batch:
        return gradients
    half = columns.equals("precision", "bf16", "fp16")
    return np.where(columns.shared_by("fsdp"), np.where(half, 2.0 * trainable, trained), gradients)

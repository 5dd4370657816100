"""Bytes that do not depend on the batch: weights, adapters, gradients, optimizer states.

Covers: full fine-tuning and LoRA on 16-bit, 32-bit, int8 and nf4 storage; DDP, ZeRO-2, ZeRO-3
and FSDP. ZeRO keeps the dtypes of the base: DeepSpeed needs its bf16 master weights and states on.
Does not cover: tensor and pipeline parallelism, offloading.

Legend: n elements; N devices; o output features of a linear.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.parameters import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
    lora_parameters,
    norm_parameters,
    parameter_count,
)

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.domain.job import Job
    from autotune.domain.model import Linear, Model

NF4_DOUBLE_QUANT = (
    1 / 2 + 1 / 64 + 1 / 4096
)  # codes, 8-bit absmax per 64, fp32 scale per 256 of them
STATE_BYTES_8BIT = 1 + 4 / 256  # one 8-bit moment and its share of an fp32 scale per block of 256


@dataclass(frozen=True, slots=True)
class Sizes:
    """Element counts of a model that memory depends on."""

    layer: float  # mean over layers
    largest_layer: float
    layer_linear: float  # matrices of one layer, mean over layers
    linear: float  # matrices of all layers: what a quantised base quantises
    linear_rows: float  # output features of those
    largest_linear: float  # one matrix
    embedding: float  # input embeddings, with the head's weights when those are tied
    head: float  # a head of its own; 0 when tied
    norms: float  # over the hidden size
    total: float

    @property
    def unquantised(self) -> float:
        """[elements] embeddings, head, norms and biases: quantised bases keep them in 16 bit."""
        return self.total - self.linear


def layer_linears(model: Model) -> tuple[tuple[float, tuple[Linear, ...]], ...]:
    """(number of layers, their matrices) for each kind of layer."""
    dense = float(model.num_dense_layers)
    kinds = ((model.num_layers - dense, model.linears), (dense, model.dense_linears))
    return tuple((count, linears) for count, linears in kinds if count > 0)


def sizes(model: Model) -> Sizes:
    """Element counts of a model. Source: derived: shapes of the decoder's modules."""
    linear = rows = largest = 0.0
    for count, linears in layer_linears(model):
        linear += count * sum(x.in_features * x.out_features * x.count for x in linears)
        rows += count * sum(x.out_features * x.count for x in linears)
        largest = max(largest, *(float(x.in_features * x.out_features) for x in linears))
    layers = [layer_parameters(model)]
    dense = layer_parameters(model, dense=True) if model.num_dense_layers else 0
    mixtures = model.num_layers - model.num_dense_layers
    return Sizes(
        layer=(mixtures * layers[0] + model.num_dense_layers * dense) / model.num_layers,
        largest_layer=float(max(layers[0], dense)),
        layer_linear=linear / model.num_layers,
        linear=linear,
        linear_rows=rows,
        largest_linear=largest,
        embedding=float(embedding_parameters(model)),
        head=float(head_parameters(model)),
        norms=norm_parameters(model) * (model.norms_per_layer * model.num_layers + 1.0),
        total=float(parameter_count(model)),
    )


def weight_bytes(job: Job, size: Sizes) -> float:
    """[bytes] of the stored base weights on one device, unsharded.

    Source: QLoRA (Dettmers 2023) section 3: 4-bit codes in blocks of 64 with double quantisation in
    blocks of 256; LLM.int8 (Dettmers 2022) section 3: int8 codes and one fp32 scale a row.
    Embeddings, head, norms and biases stay 16-bit, unless the trainer casts them to fp32.
    """
    base = job.method.base
    if base == "32bit":
        return 4.0 * size.total
    if base == "16bit":
        return 2.0 * size.total
    upcast = {"none": 0.0, "norms": size.norms, "all": size.unquantised}[job.software.kbit_upcast]
    rest = 2.0 * size.unquantised + 2.0 * upcast
    if base == "nf4":
        return NF4_DOUBLE_QUANT * size.linear + rest
    return size.linear + 4.0 * size.linear_rows + rest


def fp32_stream(job: Job) -> bool:
    """Whether the residual stream of an unsharded 16-bit run is fp32.

    fp32 embeddings make it so, and so do fp32 norms over a quantised base, because its linears
    answer in the dtype of their input.
    """
    quantised = job.method.base in {"nf4", "int8"}
    return job.method.base == "32bit" or (quantised and job.software.kbit_upcast != "none")


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


def _shards(columns: Columns, *words: str) -> FloatArray:
    count = columns.number("offer.count")
    return np.where(columns.equals("sharding", *words), np.maximum(count, 1.0), 1.0)


def _state_bytes(
    columns: Columns, element: FloatArray, trainable: FloatArray, embedding: float
) -> FloatArray:
    """[bytes] of AdamW's two moments inside torch's allocator, unsharded.

    Source: bitsandbytes 0.50 optim/optimizer.py: blocks of 256 (its floor of 4096 elements a tensor
    is left out); transformers 5.23 trainer.py keeps states of embeddings in fp32. Paged states live
    in unified memory, outside torch's allocator, and can be evicted: they count as none.
    """
    eight = 2.0 * STATE_BYTES_8BIT * (trainable - embedding) + 8.0 * embedding
    small: BoolArray = columns.equals("optimizer", "adamw_bnb_8bit")
    states = np.where(small, eight, 2.0 * element * trainable)
    return np.where(columns.equals("optimizer", "paged_adamw_8bit"), 0.0, states)


def static_bytes(job: Job, columns: Columns, size: Sizes) -> Static:
    """Weights, adapters, gradients and optimizer states of every row.

    Source: Rajbhandari 2020 (ZeRO) section 3 for what each stage shares.
    """
    method = job.method
    sharded = _shards(columns, "fsdp", "zero3")
    gradient_shards = _shards(columns, "fsdp", "zero3", "zero2")
    if method.is_lora:
        element = columns.choose("adapter_dtype", {"fp32": 4.0, "bf16": 2.0})
        count = lora_parameters(job.model, method.rank, method.targets)
        trainable = np.full(columns.rows, float(count))
        adapters = element * trainable / sharded
    else:
        element = np.full(columns.rows, 4.0 if method.base == "32bit" else 2.0)
        trainable = np.full(columns.rows, size.total)
        adapters = np.zeros(columns.rows)
    gradients = element * trainable / gradient_shards
    embedding = 0.0 if method.is_lora else size.embedding
    several = columns.number("offer.count") > 1
    ddp = several & columns.equals("sharding", "ddp")
    return Static(
        weights=weight_bytes(job, size) / sharded,
        adapters=adapters,
        gradients=gradients,
        buckets=np.where(ddp, element * trainable, 0.0),
        optimizer=_state_bytes(columns, element, trainable, embedding) / gradient_shards,
        element=element,
        trainable=trainable,
        weight_shards=sharded,
        gradient_shards=gradient_shards,
    )

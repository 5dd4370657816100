"""What the instants of a step are made of, for every row: batch, dtypes, states, saved tensors.

Does not cover: which of them are alive when; that is `peak`.

Legend: T tokens of a micro-batch, L layers, h hidden, V vocabulary, e bytes of the compute dtype,
s bytes of the residual stream.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import deepspeed, dora, offloading, whole_modules
from autotune.cost.batches import evaluation_rows, kept_rows, longest_length
from autotune.cost.memory import device as device_memory
from autotune.cost.memory.activations import (
    layer_activations,
    norm_kept,
    norm_output,
    read_bytes,
    reads_stream,
    unneeded_kept,
)
from autotune.cost.memory.attention_kernel import copies_heads, falls_to_math, splits_keys
from autotune.cost.memory.modelling_code import (
    NARROW_NORMS,
    Attention,
    Mode,
    as_run,
    compiles_layers,
    compiles_loss,
    fuses_adapters,
    is_litgpt,
    padded_update,
)
from autotune.cost.memory.states import (
    Sizes,
    Static,
    dequantised_bytes,
    experts_fused,
    fp32_norms,
    fp32_stream,
    keeps_inputs,
    merged_experts_bytes,
    quantised,
    sizes,
    static_bytes,
    unpacked_head_bytes,
    update_bytes,
)
from autotune.cost.memory.transients import layer_transients, norm_transient, scores_forward
from autotune.cost.memory.units import Outside, Unreduced, gathered_bytes
from autotune.cost.parameters import saved_parameters
from autotune.cost.time.attention import masked_share
from autotune.domain.config import FLASH
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.domain.job import Job

# Before, litgpt's script ran its longest batch first, with no batch before it. Source:
# Lightning-AI/litgpt at 8641822 (torch 2.1), `longest_seq_ix if iter_num == 1`, and at 0.4.
LONGEST_FIRST_UNTIL = (2, 2)  # torch
TRAINER = "hf"  # stack of transformers' Trainer
_KINDS: tuple[Attention, ...] = ("eager", "sdpa", "flash_attention_2", "math")
_COMPUTE_BYTES = {"fp32": 4.0, "tf32": 4.0, "fp16": 2.0, "bf16": 2.0, "fp8": 2.0}


@dataclass(frozen=True, slots=True)
class LayerBytes:
    """[bytes] of one layer for the whole micro-batch. Shapes [rows]."""

    kept: FloatArray
    mlp: FloatArray  # with the temporaries of the MLP's backward: all that is alive then
    norm: FloatArray
    attention: FloatArray
    forward: FloatArray  # the most in its forward under DoRA; else 0
    norms: FloatArray  # of that what depends on no batch
    repeated: FloatArray  # of that forward beside the gradient of its output, where it is repeated

    @property
    def backward(self) -> FloatArray:
        """[bytes] the most that is alive of one layer during its backward."""
        within = np.maximum(np.maximum(self.mlp, self.norm), self.attention)
        return np.maximum(within, self.repeated)


@dataclass(frozen=True, slots=True)
class Step:
    """What every instant is made of. Shapes [rows]; bytes on one device."""

    job: Job
    size: Sizes
    static: Static
    tokens: FloatArray  # T
    length: FloatArray
    evaluation_rows: FloatArray  # of one evaluation batch; 0 without evaluations
    gathered_rows: FloatArray  # of the batches of all devices at once
    kept_rows: FloatArray  # whose logits wait for the metrics; 0 where none do
    compute: FloatArray  # e
    stream: FloatArray  # s
    element: FloatArray  # bytes of an element of a gradient
    autocast: BoolArray  # a region in which losses of 16-bit logits run in fp32
    checkpointing: BoolArray
    reentrant: BoolArray  # a checkpoint that holds what it recomputed until its backward is done
    retains: BoolArray  # inputs and input gradients of checkpointed layers outlive their backward
    accumulates: BoolArray  # gradients of earlier micro-steps are alive during the forward
    layer: LayerBytes
    forward: FloatArray  # of one layer in the forward, where scores outlive it; else 0
    shared: FloatArray  # of a recomputed layer: its input, which a norm keeps as it is
    saved: FloatArray  # what all layers keep when the forward is done
    final_norm: FloatArray  # kept
    normed: FloatArray  # what the final norm hands to the head
    final_norm_backward: FloatArray  # temporaries
    gathered_root: FloatArray  # weights outside the layers, gathered from other devices
    gathered_layer: FloatArray  # weights of one layer, gathered from other devices
    unreduced: Unreduced  # gradients that FSDP has not reduced yet
    outside: Outside  # and those of the head and the embedding
    kept_logit: FloatArray  # bytes of a logit that the caller keeps where the loss copies
    cached_casts: FloatArray  # 16-bit copies of trained weights that autocast holds in the forward
    frozen_casts: FloatArray  # 16-bit copies of frozen fp32 weights that the graph holds
    head_cast: FloatArray
    foreach: FloatArray  # what the optimizer needs beside gradients and states while it runs
    eager: BoolArray
    room: FloatArray  # what the device has for the allocator
    compiled: BoolArray  # a loss that is compiled
    before: FloatArray  # of the micro-batch before that is alive until the forward has answered

    @property
    def hidden(self) -> FloatArray:
        """[bytes] of one residual stream: s h T."""
        return self.stream * self.job.model.hidden_size * self.tokens

    @classmethod
    def of(cls, job: Job, columns: Columns) -> Step:
        """Everything that the instants share."""
        model, size = job.model, sizes(job.model)
        static = static_bytes(job, columns, size)
        rows, length = columns.sequences(job), longest_length(job, columns)
        tokens = rows * length
        modes = _Modes.of(job, columns, length)
        compute = modes.each(lambda mode: mode.compute)
        stream = modes.each(lambda mode: mode.stream)
        checkpointing = columns.equals("activation_checkpointing", "full")
        layer = _layer(job, modes, tokens, length, checkpointing)
        inputs = stream * model.hidden_size * tokens
        outside = tokens * modes.each(lambda mode: _beside_checkpoints(job, mode))
        fp32_base = (job.method.base == "32bit") & (stream == 4.0)
        casts = modes.each(lambda mode: float(mode.autocast)).astype(bool) & fp32_base
        autocast = modes.each(lambda mode: float(mode.autocast)).astype(bool)
        adapter = static.element * job.method.is_lora
        fp32_adapters = autocast & (adapter > compute)
        trained = casts & (not job.method.is_lora)
        frozen = casts & job.method.is_lora
        head = float(model.vocab_size * model.hidden_size)
        own_head = whole_modules.cast_head(job, columns)
        adapted = static.trainable - saved_parameters(model, job.method)
        plan = job.evaluation
        scored = evaluation_rows(plan, job, columns) if plan else np.zeros(columns.rows)
        root, layer_weights = gathered_bytes(job, columns, static, size, compute)
        return cls(
            job=job,
            size=size,
            static=static,
            evaluation_rows=scored,
            gathered_rows=scored * columns.number("offer.count"),
            kept_rows=kept_rows(plan, job, columns) if plan else np.zeros(columns.rows),
            tokens=tokens,
            length=length,
            compute=compute,
            stream=stream,
            element=static.element,
            autocast=autocast,
            checkpointing=checkpointing,
            reentrant=checkpointing & job.software.recomputes_reentrantly,
            retains=checkpointing & _retains(job, columns),
            accumulates=columns.accumulation(job) > 1,
            layer=layer,
            forward=_scores_forward(job, modes, tokens, length),
            shared=np.where(
                checkpointing, inputs * modes.each(lambda mode: reads_stream(model, mode)), 0.0
            ),
            saved=np.where(
                checkpointing,
                model.num_layers * (offloading.kept_share(job, columns) * inputs + outside)
                - _narrow_embeddings(job, columns)
                * (inputs - compute * model.hidden_size * tokens),
                model.num_layers * layer.kept
                - tokens * modes.each(lambda mode: unneeded_kept(*as_run(job), mode))
                - modes.each(lambda mode: dora.first_weights(job, mode)),
            ),
            final_norm=tokens * modes.each(lambda mode: norm_kept(model, mode)),
            normed=tokens * model.hidden_size * modes.each(lambda mode: norm_output(model, mode)),
            final_norm_backward=tokens * modes.each(lambda mode: norm_transient(model, mode)),
            gathered_root=root,
            gathered_layer=layer_weights,
            unreduced=Unreduced.of(job, columns, size, compute),
            outside=Outside.of(job, columns, static, size, compute),
            kept_logit=np.where(static.weight_shards > 1, 4.0, compute),
            cached_casts=2.0 * (trained * size.linear + fp32_adapters * adapted),
            frozen_casts=2.0 * frozen * size.linear,
            head_cast=2.0 * np.maximum((casts | (autocast & widens_head(job))) * head, own_head),
            foreach=np.where(
                deepspeed.runs(columns),
                static.zero.step,
                update_bytes(job, columns, static, size),
            ),
            eager=modes.each(lambda mode: float(mode.attention in {"eager", "math"})).astype(bool),
            room=device_memory.capacity(columns) - device_memory.context(columns),
            compiled=compiles_loss(job, columns),
            before=_before(job, size, modes, tokens),
        )


@dataclass(frozen=True, slots=True)
class _Modes:
    """The distinct modes among the rows, and the mode of each row."""

    modes: list[Mode]
    of_row: NDArray[np.intp]

    def each(self, number: Callable[[Mode], float]) -> FloatArray:
        """[rows] a number of each row's mode."""
        return np.asarray([number(mode) for mode in self.modes], np.float64)[self.of_row]

    @classmethod
    def of(cls, job: Job, columns: Columns, length: FloatArray) -> _Modes:
        method = job.method
        compute = columns.choose("precision", _COMPUTE_BYTES)
        kinds: dict[str, float] = {kind: float(i) for i, kind in enumerate(_KINDS)}
        attention = columns.choose("attention", {**kinds, FLASH[1]: kinds[FLASH[0]]})
        adapter = deepspeed.trained_bytes(job, columns) * method.is_lora
        shared = (columns.number("offer.count") > 1) & columns.equals("sharding", "fsdp", "zero3")
        shared |= deepspeed.casts(columns)
        wide = (fp32_stream(job) & ~shared) | (fp32_norms(job) & ~deepspeed.casts(columns))
        wide |= whole_modules.widens_stream(job, columns)
        stream = np.where(wide, 4.0, compute)
        masked = masked_share(job, columns, length)
        attention = np.where(falls_to_math(job, columns, compute, masked), 3.0, attention)
        # Source: accelerate 1.15 accelerator.py: native_amp stays off under DeepSpeed.
        autocast = (compute < 4.0) & job.software.autocast & ~deepspeed.casts(columns)
        key = (
            compute
            + 0.5 * autocast
            + 10.0 * attention
            + 100.0 * adapter
            + 1000.0 * stream
            + 10000.0 * masked
            + 100000.0 * (compiled := compiles_layers(job, columns))
            + 200000.0 * (splits := splits_keys(job, columns, compute, masked))
        )
        _, first, of_row = np.unique(key, return_index=True, return_inverse=True)
        modes = [
            Mode(
                compute=float(compute[i]),
                stream=float(stream[i]),
                train_base=not method.is_lora,
                adapter=float(adapter[i]),
                autocast=bool(autocast[i]),
                attention=_KINDS[int(attention[i])],
                masked=float(masked[i]),
                quantised=quantised(job),
                keeps_inputs=keeps_inputs(job),
                fused_norms=(job.software.kernels != "eager" or bool(compiled[i]))
                and job.model.norm == "rmsnorm",
                fused_gate=job.software.kernels == "liger" or bool(compiled[i]),
                compiled=bool(compiled[i]),
                looped=job.model.is_moe and not experts_fused(job),
                repeats_base=dora.repeats_base(job),
                fused_adapters=fuses_adapters(job),
                expands_heads=copies_heads(job, _KINDS[int(attention[i])]),
                splits_keys=bool(splits[i]),
                narrow_norms=job.software.own_model and job.software.stack in NARROW_NORMS,
            )
            for i in first
        ]
        return cls(modes, of_row.reshape(-1))


def _before(job: Job, size: Sizes, modes: _Modes, tokens: FloatArray) -> FloatArray:
    """[bytes] that hang on the graph of the micro-batch before, while the head is unpacked.

    litgpt holds the logits of a micro-batch until those of the next are there, and with them its
    graph: saved tensors went in the backward, what bitsandbytes hung on the context did not.
    Source: litgpt 0.5.13 finetune/lora.py, `logits = model(...)` in a loop.
    """
    first = job.software.torch < LONGEST_FIRST_UNTIL
    if not (is_litgpt(job) and keeps_inputs(job)) or first:
        return np.zeros_like(tokens)
    hung = job.model.num_layers * tokens * modes.each(lambda mode: read_bytes(job.model, mode))
    return hung + unpacked_head_bytes(job, size, modes.each(lambda mode: mode.compute))


def widens_head(job: Job) -> bool:
    """Whether a quantised base has its head in fp32, so that autocast makes it anew in 16 bits.

    The backward of the hidden states reads that copy. Source: peft utils/other.py,
    prepare_model_for_kbit_training; torch autocast_mode.cpp, cached_cast, which keeps no copy of a
    weight that is not trained.
    """
    return job.method.is_quantised and job.software.kbit_upcast == "all"


def _narrow_embeddings(job: Job, columns: Columns) -> BoolArray:
    """Whether what the first layer reads is not fp32 yet, although the stream is from there on."""
    wide = job.method.base == "32bit" or job.software.kbit_upcast == "all"
    return ~(whole_modules.widens_stream(job, columns) | wide | job.model.embedding_norm)


def _beside_checkpoints(job: Job, mode: Mode) -> float:
    """[bytes/token] of a checkpointed layer that the checkpoint cannot drop.

    A reentrant checkpoint runs the forward without gradients, so nothing is kept.
    """
    if not mode.keeps_inputs or job.software.recomputes_reentrantly:
        return 0.0
    return read_bytes(job.model, mode)


def _retains(job: Job, columns: Columns) -> BoolArray:
    """Where a layer's input and its gradient stay until the whole backward is done.

    FSDP's hooks on a frozen layer sit inside a reentrant checkpoint and keep its detached input;
    transformers 5 checkpoints inside those hooks, and so does a loop of one's own, by torch's
    apply_activation_checkpointing on the sharded model. Source: a run of torch 2.13's FSDP on two
    CPU processes, live bytes counted at every layer: with adapters they grow by one residual
    stream a layer through the backward; with all weights trained, or without reentrance, they fall.
    """
    software = job.software
    outside = software.recomputes_reentrantly and software.stack == TRAINER
    if not (outside and job.method.is_lora):
        return np.zeros(columns.rows, np.bool_)
    return columns.equals("sharding", "fsdp") & (columns.number("offer.count") > 1)


def _layer(
    job: Job, modes: _Modes, tokens: FloatArray, length: FloatArray, repeats: BoolArray
) -> LayerBytes:
    model, method = as_run(job)
    kept = {mode: layer_activations(model, method, mode) for mode in modes.modes}
    extra = {mode: layer_transients(model, method, mode) for mode in modes.modes}
    whole = modes.each(lambda m: kept[m].per_token) + length * modes.each(lambda m: kept[m].per_key)
    whole = tokens * (whole + padded_update(job) * modes.each(lambda m: m.compute))
    rest = whole - tokens * modes.each(lambda m: kept[m].mlp)
    scores = modes.each(lambda m: extra[m].attention)
    scores = scores + length * modes.each(lambda m: extra[m].per_key)
    merged = merged_experts_bytes(job)
    mlp = merged + whole + tokens * modes.each(lambda m: extra[m].mlp)
    unpacked = dequantised_bytes(job, sizes(job.model))
    copies = modes.each(lambda m: dora.kept_weights(job, m))
    outside = modes.each(lambda m: dora.kept_weights(job, m, "attention"))
    more, mlp, rest = merged + copies, mlp + copies, rest + outside
    forward = _dora_forward(job, modes, tokens, whole + more, rest)
    gradient = modes.each(lambda m: m.stream) * model.hidden_size
    return LayerBytes(
        kept=whole + more,
        mlp=mlp + np.maximum(0.0, unpacked - tokens * modes.each(lambda m: extra[m].product)),
        norm=rest + tokens * modes.each(lambda m: extra[m].norm),
        attention=rest + tokens * scores,
        forward=forward,
        norms=modes.each(lambda m: max((x.fixed for x in dora.forwards(job, m)), default=0.0)),
        repeated=np.where(repeats & (forward > 0.0), forward + tokens * gradient, 0.0),
    )


def _dora_forward(
    job: Job, modes: _Modes, tokens: FloatArray, whole: FloatArray, rest: FloatArray
) -> FloatArray:
    """[bytes] of a layer at the fullest moment of its forward under DoRA; 0 without."""
    found = np.zeros_like(tokens)
    for moment in zip(*(dora.forwards(job, mode) for mode in modes.modes), strict=True):
        fixed, own = (
            np.asarray([getattr(each, name) for each in moment])[modes.of_row]
            for name in ("fixed", "per_token")
        )
        reached = rest if moment[0].in_attention else whole
        found = np.maximum(found, reached + fixed + tokens * own)
    return found


def _scores_forward(job: Job, modes: _Modes, tokens: FloatArray, length: FloatArray) -> FloatArray:
    found = {mode: scores_forward(job.model, mode) for mode in modes.modes}
    each, key = modes.each(lambda mode: found[mode][0]), modes.each(lambda mode: found[mode][1])
    return tokens * (each + length * key)

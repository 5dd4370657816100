"""What the instants of a step are made of, for every row: batch, dtypes, states, saved tensors.

Does not cover: which of them are alive when; that is `peak`.

Legend: T tokens of a micro-batch, L layers, h hidden, V vocabulary, e bytes of the compute dtype,
s bytes of the residual stream.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import deepspeed, dora, offloading, whole_modules
from autotune.cost.batches import evaluation_rows, kept_rows, longest_length
from autotune.cost.memory import device as device_memory
from autotune.cost.memory.activations import (
    inner_bytes,
    norm_kept,
    norm_output,
    one_input,
    per_layer_inputs,
    reads_stream,
    unneeded_kept,
)
from autotune.cost.memory.experts import retained_bytes
from autotune.cost.memory.instants import Instant
from autotune.cost.memory.layers import LayerBytes, Modes, forward_scores, layers_of, norm_transient
from autotune.cost.memory.mixers import mixer_forward
from autotune.cost.memory.modelling_code import (
    Mode,
    as_run,
    compiles_loss,
    family_memory,
    is_litgpt,
)
from autotune.cost.memory.states import (
    Sizes,
    Static,
    keeps_inputs,
    other_half,
    sizes,
    static_bytes,
    unpacked_head_bytes,
    update_bytes,
)
from autotune.cost.memory.units import Outside, Unreduced, gathered_bytes
from autotune.cost.parameters import saved_parameters
from autotune.domain.model import MIXING
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.domain.job import Job
    from autotune.domain.model import Model

# Before, litgpt's script ran its longest batch first, with no batch before it. Source:
# Lightning-AI/litgpt at 8641822 (torch 2.1), `longest_seq_ix if iter_num == 1`, and at 0.4.
LONGEST_FIRST_UNTIL = (2, 2)  # torch
TRAINER = "hf"  # stack of transformers' Trainer


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
    layers: tuple[LayerBytes, ...]  # of every kind
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
    frozen_casts: FloatArray  # the same of frozen weights, which the graph holds
    head_cast: FloatArray
    foreach: FloatArray  # what the optimizer needs beside gradients and states while it runs
    eager: BoolArray
    mixing: FloatArray  # [bytes/token] inside a mixer's forward without gradients; else 0
    room: FloatArray  # what the device has for the allocator
    compiled: BoolArray  # a loss that is compiled
    before: FloatArray  # of the micro-batch before that is alive until the forward has answered
    relaid: FloatArray  # copies of int8 weights that a save makes
    retained: FloatArray  # experts that checkpointed layers leave unpacked

    @property
    def kept_layer(self) -> FloatArray:
        """[bytes] that one layer keeps, the most of any kind."""
        found: FloatArray = np.maximum.reduce([layer.kept for layer in self.layers])
        return found

    @property
    def norms(self) -> FloatArray:
        """[bytes] of DoRA's norms in a forward, the most of any kind of layer."""
        found: FloatArray = np.maximum.reduce([layer.norms for layer in self.layers])
        return found

    @property
    def hidden(self) -> FloatArray:
        """[bytes] of one residual stream: s h T."""
        return self.stream * self.job.model.hidden_size * self.tokens

    @property
    def standing(self) -> FloatArray:
        """[bytes] gradients that are one buffer of ZeRO-3 from the start to the end of the run."""
        return np.where(self.static.zero.standing, self.static.gradients, 0.0)

    def resident(self, gradients: FloatArray) -> Instant:
        """States that stay, so many bytes of gradients, and gathered weights outside the layers."""
        zero = np.zeros_like(self.tokens)
        static = self.static
        return Instant(
            weights=static.weights,
            adapters=static.adapters,
            gradients=gradients + static.buckets,
            optimizer=static.optimizer,
            activations=zero,
            logits=zero,
            workspace=self.gathered_root + self.retained,
        )

    @classmethod
    def of(cls, job: Job, columns: Columns) -> Step:
        """Everything that the instants share."""
        model, size = job.model, sizes(job.model)
        lowest = replace(job, model=model.lowest)
        static = static_bytes(job, columns, size)
        rows, length = columns.sequences(job), longest_length(job, columns)
        tokens = rows * length
        modes = Modes.of(job, columns, length)
        compute = modes.each(lambda mode: mode.compute)
        stream = modes.each(lambda mode: mode.stream)
        checkpointing = columns.equals("activation_checkpointing", "full")
        layers = layers_of(job, modes, tokens, length, checkpointing)
        inputs = stream * model.hidden_size * tokens
        outside = tokens * modes.each(lambda mode: _beside_checkpoints(job, mode))
        fp32_base = (job.method.base == "32bit") & (stream == 4.0)
        autocast = modes.each(lambda mode: float(mode.autocast)).astype(bool)
        casts = autocast & (fp32_base | other_half(job, columns))
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
            layers=layers,
            forward=forward_scores(job, modes, tokens, length),
            shared=np.where(
                checkpointing, inputs * modes.each(lambda mode: reads_stream(model, mode)), 0.0
            ),
            saved=_per_layer_inputs(job, modes, tokens, checkpointing)
            + np.where(
                checkpointing,
                model.num_layers * (offloading.kept_share(job, columns) * inputs + outside)
                - _narrow_embeddings(job, columns)
                * (inputs - compute * model.hidden_size * tokens),
                sum(layer.layers * layer.kept for layer in layers)
                - tokens * modes.each(lambda mode: unneeded_kept(*as_run(lowest), mode))
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
            mixing=modes.each(
                lambda m: max(mixer_forward(one.mixer, m, scoring=True) for one in model.layers)
            ),
            room=device_memory.capacity(columns) - device_memory.context(columns),
            compiled=compiles_loss(job, columns),
            before=_before(job, size, modes, tokens),
            relaid=_relaid(job, columns, size),
            retained=np.where(checkpointing, retained_bytes(job), 0.0),
        )


def _per_layer_inputs(
    job: Job, modes: Modes, tokens: FloatArray, checkpointing: BoolArray
) -> FloatArray:
    """[bytes] of what the layers read of embeddings of their own."""
    if not job.model.per_layer_size:
        return np.zeros_like(tokens)
    asked = modes.each(lambda m: per_layer_inputs(job.model, job.method, m, asked=True))
    plain = modes.each(lambda m: per_layer_inputs(job.model, job.method, m, asked=False))
    return tokens * np.where(checkpointing, asked, plain)


def _before(job: Job, size: Sizes, modes: Modes, tokens: FloatArray) -> FloatArray:
    """[bytes] that hang on the graph of the micro-batch before, while the head is unpacked.

    litgpt holds the logits of a micro-batch until those of the next are there, and with them its
    graph: saved tensors went in the backward, what bitsandbytes hung on the context did not.
    Source: litgpt 0.5.13 finetune/lora.py, `logits = model(...)` in a loop.
    """
    first = job.software.torch < LONGEST_FIRST_UNTIL
    if not (is_litgpt(job) and keeps_inputs(job)) or first:
        return np.zeros_like(tokens)
    hung = job.model.num_layers * tokens * modes.each(lambda mode: _read_bytes(job.model, mode))
    return hung + unpacked_head_bytes(job, size, modes.each(lambda mode: mode.compute))


# bitsandbytes whose int8 weights, laid out for tensor cores, are laid out in rows to be saved.
# PEFT asks for the state of the whole model, to take the adapters from it. Each weight is cloned,
# and a third copy is what is handed over. Source: bitsandbytes 0.38.0 to 0.39.0 nn/modules.py,
# `Linear8bitLt._save_to_state_dict` (its commit f734076e ends it); peft 0.21
# utils/save_and_load.py, get_peft_model_state_dict.
RELAID_FROM, RELAID_UNTIL, RELAID_ON = (0, 38), (0, 39, 1), 7.5  # compute capability


def _relaid(job: Job, columns: Columns, size: Sizes) -> FloatArray:
    """[bytes] of the copies of int8 weights beside the weights while adapters are saved."""
    version = job.software.bitsandbytes
    saves = version is not None and RELAID_FROM <= version < RELAID_UNTIL
    laid_out = columns.device("compute_capability") >= RELAID_ON
    copied = laid_out & (job.method.base == "int8") & saves
    return np.where(copied, 2.0 * size.linear, 0.0)


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


def _read_bytes(model: Model, mode: Mode) -> float:
    """[bytes/token] that the quantised linears of one layer read, each tensor once; a mean.

    bitsandbytes hangs them on the autograd context, where activation checkpointing does not see
    them: a layer that is to be recomputed keeps them all the same.
    """
    token = 0.0
    for layer in model.layers:
        count, linears = layer.num_layers, layer.linears
        inner = [item for item in linears if item.part in {"mlp", "shared_expert"}]
        normed = norm_output(model, mode)
        for part in MIXING:
            own = [item for item in linears if item.part == part]
            if not own:
                continue
            token += count * mode.compute * own[-1].in_features
            if not family_memory(model.family).post_norm:  # else it reads what is checkpointed
                token += count * normed * own[0].in_features
        mixed = [item for item in linears if item.part == "per_layer"]
        token += count * sum(mode.compute * item.in_features for item in mixed)
        if layer.latent:
            token += count * normed * sum(layer.latent.normed)
        if inner:
            token += count * inner_bytes(model, mode) * inner[-1].in_features
            token += 0.0 if one_input(model) else count * normed * inner[0].in_features
    return token / model.num_layers


def _beside_checkpoints(job: Job, mode: Mode) -> float:
    """[bytes/token] of a checkpointed layer that the checkpoint cannot drop.

    A reentrant checkpoint runs the forward without gradients, so nothing is kept.
    """
    if not mode.keeps_inputs or job.software.recomputes_reentrantly:
        return 0.0
    return _read_bytes(job.model, mode)


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
    return columns.shared_by("fsdp")

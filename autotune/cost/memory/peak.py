"""Peak composition: the instants at which memory can peak, and what is alive then, by part.

Covers: head forward and backward, final norm, first and last layer of the backward, end of the
backward, optimizer step, evaluation, generation, saving; with and without checkpointing.
Does not cover: order of operations inside a kernel; loading otherwise than by LLaMA-Factory.

Source: derived, and checked against storage-counting traces of whole steps (tests/cost).
Legend: T tokens, L layers, h hidden, V vocabulary, e bytes of the compute dtype.
"""

from __future__ import annotations

from dataclasses import replace
from functools import reduce
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.memory import logits as head_memory
from autotune.cost.memory.experts import merged_experts_bytes
from autotune.cost.memory.instants import Instant, larger
from autotune.cost.memory.states import dequantised_bytes, unpacked_head_bytes
from autotune.cost.memory.units import waits
from autotune.cost.parameters import kept_keys, trains_head
from autotune.domain.software import EVALUATES_WITHOUT_CACHE_FROM, LOSS_COPIES_FROM

if TYPE_CHECKING:
    from autotune.cost.columns import FloatArray
    from autotune.cost.memory.layers import LayerBytes
    from autotune.cost.memory.step import Step

BETWEEN_BATCHES = ("optimizer", "saving", "loading")  # they need nothing of what a batch makes


def instants(step: Step) -> dict[str, Instant]:
    """Every instant at which memory can peak, by name."""
    found = {"evaluation": _evaluation(step), "saving": _saving(step)}
    if np.any(step.static.loaded > 0.0):
        found["loading"] = Instant(step.static.loaded, *(np.zeros_like(step.tokens),) * 6)
    if np.any(step.kept_rows > 0.0):
        found["metrics"] = _metrics(step)
    if step.job.steps > 0:
        if np.any(step.forward > 0.0):
            found["layer forward"] = _layer_forward(step)
        if step.job.method.is_dora:
            found["adapted forward"] = _top_forward(step)
        elif any(np.any(layer.forward > 0.0) for layer in step.layers):
            found["mixer forward"] = _top_forward(step)
        found["head forward"] = _head_forward(step)
        if step.job.work.reference:
            found["reference"] = _reference(step)
        found["head backward"] = _head_backward(step)
        found["final norm"] = _final_norm(step)
        found["first layer"] = _first_layer(step)
        found["last layer"] = reduce(larger, (_lowest(step, layer) for layer in step.layers))
        found["end of backward"] = _end(step)
        found["optimizer"] = replace(step.resident(step.static.gradients), workspace=step.foreach)
        if trains_head(step.job.method):
            found["head gradient"] = _head_gradient(step)
    return found


def _saving(step: Step) -> Instant:
    """A whole state dict of sharded weights is gathered unit by unit and copied to the host.

    An old Trainer keeps all of them on the device (`Software.gathers_to_save`).
    Source: torch.distributed.fsdp FullStateDictConfig(offload_to_cpu, rank0_only), which accelerate
    sets; a layer is one unit.
    """
    resident = step.resident(step.standing)
    gathered = np.maximum(step.gathered_layer, step.static.saved_whole)
    return replace(resident, workspace=resident.workspace + gathered + step.relaid)


def _held(step: Step) -> FloatArray:
    """[bytes] gradients alive during the forward: those of earlier micro-steps."""
    sums = np.maximum(step.static.sums, step.standing)
    return np.where(step.accumulates, sums, step.standing)


def _so_far(step: Step, made: FloatArray) -> FloatArray:
    """[bytes] gradients alive in a backward that has made so many.

    ZeRO-2 takes a partition for all of them at its first reduction, beside the accumulated one.
    """
    whole = _held(step) + step.static.gradients
    return np.where(step.static.zero.renewed, whole, np.maximum(_held(step), made))


def _graph_casts(step: Step) -> FloatArray:
    """[bytes] of 16-bit weight copies that the graph holds until the backward passes them."""
    return np.where(step.checkpointing, 0.0, step.cached_casts + step.frozen_casts)


def _layer_casts(step: Step) -> FloatArray:
    return (step.cached_casts + step.frozen_casts) / step.job.model.num_layers


def _output(step: Step) -> FloatArray:
    """[bytes] of the hidden states as the head multiplies them."""
    return step.compute * step.job.model.hidden_size * step.tokens


def _given_output(step: Step) -> FloatArray:
    """[bytes] of what the final norm gave, and of the copy in the compute dtype that stays."""
    cast = _kept_output(step) * (step.normed > _output(step))
    return step.normed + cast


def _layer_forward(step: Step) -> Instant:
    """A checkpointed layer's forward, with the scores of the layer before still in hand."""
    resident = step.resident(_held(step))
    return replace(
        resident,
        activations=np.where(step.checkpointing, step.saved + step.forward, 0.0),
        workspace=resident.workspace + step.gathered_layer + _layer_casts(step),
    )


def _top_forward(step: Step) -> Instant:
    """The forward of the layer nearest the head; the backward counts a repeated one."""
    resident = step.resident(_held(step))
    most = [
        np.where(step.checkpointing, step.saved, step.saved - layer.above)
        + np.where(step.checkpointing, 0.0, layer.forward + step.hidden)
        for layer in step.layers
    ]
    return replace(
        resident,
        activations=np.maximum.reduce(most),
        workspace=resident.workspace + step.gathered_layer + _graph_casts(step),
    )


def _head_forward(step: Step) -> Instant:
    resident = step.resident(_held(step))
    casts = step.cached_casts + step.head_cast + _graph_casts(step)
    casts = casts - np.where(step.checkpointing, 0.0, step.cached_casts)
    found = replace(
        resident,
        activations=step.saved + step.final_norm + _given_output(step) + step.before,
        logits=head_memory.forward_bytes(
            step.job, step.tokens, step.compute, step.autocast, step.compiled
        ),
        workspace=resident.workspace + casts,
    )
    normalised, before = head_memory.normalised_head(step.job, step.compute, step.autocast)
    made = normalised + np.maximum(before - found.logits, 0.0)
    found = replace(found, workspace=found.workspace + made)
    chunk = head_memory.sized_chunk_bytes(
        step.job, step.tokens, step.compute, step.room - found.total
    )
    return replace(found, logits=found.logits + chunk)


def _reference(step: Step) -> Instant:
    """The reference scores the batch while the policy's graph waits for its backward.

    Source: trl 1.16 trainer/dpo_trainer.py, _compute_loss: the policy's forward comes first.
    """
    policy = _head_forward(step)
    inside, logits = _scored(step, step.tokens)
    return replace(
        policy,
        activations=policy.activations + inside,
        logits=policy.logits + logits,
        workspace=policy.workspace + step.gathered_layer + dequantised_bytes(step.job, step.size),
    )


def _kept_output(step: Step) -> FloatArray:
    """[bytes] of the hidden states that the head keeps: a frozen one keeps nothing."""
    return _output(step) if trains_head(step.job.method) else 0.0 * step.tokens


def _head_backward(step: Step) -> Instant:
    resident = step.resident(_held(step))
    return replace(
        resident,
        activations=step.saved + step.final_norm + _kept_output(step),
        logits=head_memory.backward_bytes(
            step.job, step.tokens, step.compute, step.kept_logit, step.autocast, step.compiled
        ),
        workspace=resident.workspace
        + _graph_casts(step)
        + step.head_cast
        + head_memory.normalised_head(step.job, step.compute, step.autocast)[0]
        + unpacked_head_bytes(step.job, step.size, step.compute)
        + step.static.zero.backward,
    )


def _share(step: Step, elements: float) -> FloatArray:
    """[bytes] of the gradients of so many elements on this device, when the base is trained."""
    if step.job.method.is_lora:
        return np.zeros_like(step.tokens)
    return elements * step.element / step.static.gradient_shards * step.static.gradients_here


def _heads_share(step: Step) -> FloatArray:
    """[bytes] of the head's gradient that has been reduced, while the layers' backward runs."""
    return np.where(waits(step.unreduced), 0.0, step.outside.head)


def _head_gradient(step: Step) -> Instant:
    """The head's weight gradient: new beside what is held; under autocast a 16-bit one first.

    The fp32 gradient comes when the 16-bit weight and the gradient of the logits are gone: the
    larger of the two moments.
    """
    resident = step.resident(_held(step))
    logits = head_memory.gradient_bytes(step.job, step.tokens, step.compute)
    made = np.where(waits(step.unreduced), step.unreduced.head, step.outside.made_head)
    casts, zero = 2.0 * step.head_cast, step.static.zero
    cast = step.head_cast > 0.0
    later = cast & (made > step.head_cast + logits)
    logits = np.where(later, 0.0, logits)
    casts = np.where(later, step.head_cast, casts)
    made = np.where(cast & ~later, 0.0, made)
    return replace(
        resident,
        activations=step.saved + step.final_norm + _output(step),
        logits=logits,
        workspace=resident.workspace + made + casts + _graph_casts(step) + zero.backward,
    )


def _final_norm(step: Step) -> Instant:
    resident = step.resident(_so_far(step, _heads_share(step)))
    return replace(
        resident,
        activations=step.saved + step.final_norm + step.final_norm_backward,
        workspace=resident.workspace
        + step.unreduced.head
        + _graph_casts(step)
        + step.static.zero.backward,
    )


def _recomputed(step: Step) -> FloatArray:
    """[bytes] of the recomputed output that a reentrant checkpoint holds beside its gradient.

    Source: torch.utils.checkpoint, CheckpointFunction.backward: `outputs` is a local variable;
    without reentrance the recomputation stops before it.
    """
    return np.where(step.reentrant, step.hidden, 0.0)


def _within(step: Step, layer: LayerBytes) -> FloatArray:
    """[bytes] the most of one layer's backward: its tensors, or its gradients as FSDP reduces them.

    When all of its gradients are made, what its forward kept is gone.
    """
    tensors = layer.backward - step.shared + _recomputed(step)
    return np.maximum(tensors, 2.0 * step.unreduced.layer + step.hidden)


def _first_layer(step: Step) -> Instant:
    """The layer of its kind nearest the head: everything below it is still kept.

    FSDP has that layer gathered and the next one on its way; at the layer nearest the embedding,
    only that one. Source: a layer less in the head, and in the last layer, makes 18 of
    fms-acceleration's runs on two and four GPUs exact to 3 MB.
    """
    resident = step.resident(_so_far(step, _heads_share(step)))
    most = [
        step.saved - np.where(step.checkpointing, 0.0, layer.above) + _within(step, layer)
        for layer in step.layers
    ]
    casts = np.where(step.checkpointing, _layer_casts(step), _graph_casts(step))
    return replace(
        resident,
        activations=np.maximum.reduce(most),
        workspace=resident.workspace
        + step.unreduced.head
        + 2.0 * step.gathered_layer
        + casts
        + step.static.zero.backward,
    )


def _lowest(step: Step, layer: LayerBytes) -> Instant:
    """The layer of its kind nearest the embedding: the gradients of all above it exist."""
    later = step.static.gradients - (layer.lower + 1.0) * _share(step, step.size.layer)
    rest = np.where(waits(step.unreduced), step.outside.both, 0.0)
    own = 0.0 if step.outside.tied else step.outside.embedding
    later = later - np.where(waits(step.unreduced), rest, own) - _share(step, step.size.outside)
    resident = step.resident(_so_far(step, later))
    new = np.where(step.accumulates, _share(step, step.size.largest_linear), 0.0)
    # the newest of the gradients that stay is the one that `layer.backward` counts
    others = step.saved + (step.job.model.num_layers - 2.0) * step.hidden
    below = np.where(step.checkpointing, layer.lower * step.hidden, layer.below)
    return replace(
        resident,
        activations=_within(step, layer) + np.where(step.retains, others, step.hidden + below),
        workspace=resident.workspace
        + step.unreduced.head
        + step.gathered_layer
        + _layer_casts(step)
        + new
        + step.static.zero.backward,
    )


def _end(step: Step) -> Instant:
    """Embedding gradients: a tied head adds two of them up; accumulation adds one more.

    FSDP has those of the root whole, and once more to reduce them.
    """
    rest = np.where(waits(step.unreduced), step.outside.both, 0.0)
    resident = step.resident(_so_far(step, step.static.gradients - rest))
    resident = replace(resident, workspace=resident.workspace + step.static.zero.backward)
    if not np.any(step.outside.both > 0.0):
        return resident
    tied = step.outside.tied
    added = ((2.0 if tied else 0.0) + step.accumulates) * step.outside.made_embedding
    added = np.maximum(added, step.accumulates * _share(step, step.size.outside))
    added = added + step.outside.reducing
    reduced = (3.0 if tied else 2.0) * step.unreduced.root
    return replace(
        resident,
        activations=step.hidden,
        workspace=resident.workspace + np.where(waits(step.unreduced), reduced, added),
    )


def _evaluation(step: Step) -> Instant:
    """An evaluation batch: scoring it, or the last token that is generated, whichever is larger."""
    scored, plan = _scoring(step), step.job.evaluation
    if plan is None or plan.generate_tokens == 0:
        return scored
    return larger(scored, _generation(step, plan.generate_tokens))


def _scoring(step: Step) -> Instant:
    """Scoring: the logits, or one layer's forward if that is larger; old releases fill a cache."""
    resident = step.resident(step.standing)
    if step.job.evaluation is None:
        return resident
    caches = step.job.software.transformers < EVALUATES_WITHOUT_CACHE_FROM
    inside, logits = _scored(step, step.evaluation_rows * step.length)
    return replace(
        resident,
        activations=_cache(step, step.length) * caches + inside,
        logits=logits,
        workspace=resident.workspace + step.gathered_layer + dequantised_bytes(step.job, step.size),
    )


def _metrics(step: Step) -> Instant:
    """The kept logits as the last batch joins them: what there was, the batch, and both in one.

    Accelerate hands them on in fp32 under autocast, as older classes make them.
    Source: transformers 5.23 trainer_pt_utils.py, EvalLoopContainer.add, torch_pad_and_concatenate;
    accelerate 1.15 accelerator.py, prepare_model: convert_outputs_to_fp32.
    """
    joined = np.where(step.kept_rows > step.gathered_rows, 2.0, 1.0)
    wide = step.autocast | (step.job.software.transformers < LOSS_COPIES_FROM)
    each = np.where(wide, 4.0, step.compute) * step.length * step.job.model.vocab_size
    return replace(step.resident(step.standing), logits=joined * step.kept_rows * each)


def _scored(step: Step, tokens: FloatArray) -> tuple[FloatArray, FloatArray]:
    """[bytes] activations and logits of a forward without gradients over so many tokens."""
    model, e = step.job.model, step.compute
    scores = np.where(step.eager, 6.0 * tokens * step.length * model.num_attention_heads, 0.0)
    inside = e * tokens * (4.0 * model.hidden_size + 3.0 * model.intermediate_size) + scores
    inside = np.maximum(inside, tokens * step.mixing) + merged_experts_bytes(step.job) + step.norms
    logits = head_memory.evaluation_bytes(step.job, tokens, e, step.autocast)
    hidden = e * tokens * model.hidden_size
    deeper = inside > logits + hidden
    return np.where(deeper, inside, hidden), np.where(deeper, 0.0, logits)


def _generation(step: Step, new_tokens: int) -> Instant:
    """The last generated token: keys and values of everything before it."""
    resident = step.resident(step.standing)
    return replace(
        resident,
        activations=_cache(step, step.length + new_tokens),
        workspace=resident.workspace + step.gathered_layer + dequantised_bytes(step.job, step.size),
    )


def _cache(step: Step, length: FloatArray) -> FloatArray:
    """[bytes] keys and values of every layer for the rows of an evaluation batch."""
    each = 2.0 * kept_keys(step.job.model) * step.compute
    return each * step.evaluation_rows * length

"""The instants of a run at which memory can peak, each with what is alive then.

Covers: head forward and backward, final norm, first and last layer of the backward, end of the
backward, optimizer step, evaluation, generation, saving; with and without checkpointing.
Does not cover: order of operations inside a kernel; loading.

Source: derived, and checked against storage-counting traces of whole steps (tests/cost).
Legend: T tokens, L layers, h hidden, V vocabulary, e bytes of the compute dtype.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import head_memory
from autotune.cost.static_memory import dequantised_bytes

if TYPE_CHECKING:
    from autotune.cost.columns import FloatArray
    from autotune.cost.step_memory import Step

PARTS = (
    "weights", "adapters", "gradients", "optimizer", "activations", "logits", "workspace",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Instant:
    """[bytes] alive at one instant. Shapes [rows]."""

    weights: FloatArray
    adapters: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    activations: FloatArray
    logits: FloatArray
    workspace: FloatArray

    @property
    def total(self) -> FloatArray:
        """[bytes] sum of the parts."""
        total: FloatArray = np.sum([getattr(self, name) for name in PARTS], axis=0)
        return total


def instants(step: Step) -> dict[str, Instant]:
    """Every instant at which memory can peak, by name."""
    found = {"evaluation": _evaluation(step), "saving": _resident(step, 0.0 * step.tokens)}
    if step.job.steps > 0:
        found["head forward"] = _head_forward(step)
        found["head backward"] = _head_backward(step)
        found["final norm"] = _final_norm(step)
        found["first layer"] = _first_layer(step)
        found["last layer"] = _last_layer(step)
        found["end of backward"] = _end(step)
        found["optimizer"] = replace(_resident(step, step.static.gradients), workspace=step.foreach)
        if not step.job.method.is_lora:
            found["head gradient"] = _head_gradient(step)
    return found


def _resident(step: Step, gradients: FloatArray) -> Instant:
    """States that stay, so many bytes of gradients, and the gathered weights of one layer."""
    zero = np.zeros_like(step.tokens)
    static = step.static
    return Instant(
        weights=static.weights,
        adapters=static.adapters,
        gradients=gradients + static.buckets,
        optimizer=static.optimizer,
        activations=zero,
        logits=zero,
        workspace=step.gathered_root + step.gathered_layer,
    )


def _held(step: Step) -> FloatArray:
    """[bytes] gradients alive during the forward: those of earlier micro-steps."""
    return np.where(step.accumulates, step.static.gradients, 0.0)


def _graph_casts(step: Step) -> FloatArray:
    """[bytes] of 16-bit weight copies that the graph holds until the backward passes them."""
    return np.where(step.checkpointing, 0.0, step.cached_casts + step.frozen_casts)


def _layer_casts(step: Step) -> FloatArray:
    return (step.cached_casts + step.frozen_casts) / step.job.model.num_layers


def _output(step: Step) -> FloatArray:
    """[bytes] of the hidden states that the head reads."""
    return step.compute * step.job.model.hidden_size * step.tokens


def _head_forward(step: Step) -> Instant:
    resident = _resident(step, _held(step))
    casts = step.cached_casts + step.head_cast + _graph_casts(step)
    casts = casts - np.where(step.checkpointing, 0.0, step.cached_casts)
    return replace(
        resident,
        activations=step.saved + step.final_norm + _output(step),
        logits=head_memory.forward_bytes(step.job, step.tokens, step.compute),
        workspace=resident.workspace + casts,
    )


def _head_backward(step: Step) -> Instant:
    resident = _resident(step, _held(step))
    return replace(
        resident,
        activations=step.saved + step.final_norm + _output(step),
        logits=head_memory.backward_bytes(step.job, step.tokens, step.compute, step.kept_logit),
        workspace=resident.workspace + _graph_casts(step) + step.head_cast,
    )


def _share(step: Step, elements: float) -> FloatArray:
    """[bytes] of the gradients of so many elements on this device, when the base is trained."""
    if step.job.method.is_lora:
        return np.zeros_like(step.tokens)
    return elements * step.element / step.static.gradient_shards


def _head_gradient(step: Step) -> Instant:
    """The head's weight gradient: new beside what is held; under autocast a 16-bit one first."""
    model = step.job.model
    new = float(model.vocab_size * model.hidden_size)
    resident = _resident(step, _held(step))
    return replace(
        resident,
        activations=step.saved + step.final_norm + _output(step),
        logits=head_memory.gradient_bytes(step.job, step.tokens, step.compute),
        workspace=resident.workspace
        + new * step.element
        + _graph_casts(step)
        + 2.0 * step.head_cast,
    )


def _final_norm(step: Step) -> Instant:
    head = step.size.head or step.size.embedding
    resident = _resident(step, np.maximum(_held(step), _share(step, head)))
    return replace(
        resident,
        activations=step.saved + step.final_norm + step.final_norm_backward,
        workspace=resident.workspace + _graph_casts(step),
    )


def _first_layer(step: Step) -> Instant:
    """The layer nearest the head: everything below it is still kept."""
    head = step.size.head or step.size.embedding
    resident = _resident(step, np.maximum(_held(step), _share(step, head)))
    below = step.saved - np.where(step.checkpointing, 0.0, step.layer.kept)
    casts = np.where(step.checkpointing, _layer_casts(step), _graph_casts(step))
    return replace(
        resident,
        activations=below + step.layer.backward,
        workspace=resident.workspace + step.gathered_layer + casts,
    )


def _last_layer(step: Step) -> Instant:
    """The layer nearest the embedding: the gradients of all others exist."""
    later = step.static.gradients - _share(step, step.size.layer + step.size.embedding)
    later = np.where(step.job.model.tied_head, later + _share(step, step.size.embedding), later)
    resident = _resident(step, np.maximum(_held(step), later))
    new = np.where(step.accumulates, _share(step, step.size.largest_linear), 0.0)
    others = step.saved + (step.job.model.num_layers - 1.0) * step.hidden
    return replace(
        resident,
        activations=step.layer.backward + np.where(step.retains, others, step.hidden),
        workspace=resident.workspace + step.gathered_layer + _layer_casts(step) + new,
    )


def _end(step: Step) -> Instant:
    """Embedding gradients: a tied head adds two of them up; accumulation adds one more."""
    resident = _resident(step, step.static.gradients)
    if step.job.method.is_lora:
        return resident
    more = (2.0 if step.job.model.tied_head else 0.0) + step.accumulates
    whole = step.size.embedding * step.element
    return replace(
        resident,
        activations=step.hidden,
        workspace=resident.workspace + more * whole,
    )


def _evaluation(step: Step) -> Instant:
    """Scoring or generating: logits and a key-value cache; or one layer's forward, if larger."""
    resident = _resident(step, np.zeros_like(step.tokens))
    plan = step.job.evaluation
    if plan is None:
        return resident
    model, e = step.job.model, step.compute
    rows = step.evaluation_rows
    tokens = rows * step.length
    token_cache = 2.0 * model.kv_size * model.num_layers * e * rows
    cache = token_cache * (step.length + plan.generate_tokens)
    scores = np.where(step.eager, 6.0 * tokens * step.length * model.num_attention_heads, 0.0)
    inside = e * tokens * (4.0 * model.hidden_size + 3.0 * model.intermediate_size) + scores
    logits = head_memory.evaluation_bytes(step.job, tokens, e)
    hidden = e * tokens * model.hidden_size
    deeper = inside > logits + hidden
    return replace(
        resident,
        activations=cache + np.where(deeper, inside, hidden),
        logits=np.where(deeper, 0.0, logits),
        workspace=resident.workspace + dequantised_bytes(step.job, step.size),
    )

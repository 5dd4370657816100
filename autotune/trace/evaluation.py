"""What happens between training steps: scoring a batch, generating from it, saving the model."""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from autotune.trace.losses import loss_of

if TYPE_CHECKING:
    from autotune.trace.request import StepRequest
    from autotune.trace.tracker import Tracker


def evaluate(model: Any, request: StepRequest, tracker: Tracker) -> None:
    """The loss of one evaluation batch; older trainers fill a key-value cache beside it."""
    tracker.at("evaluation", "")
    ids = _batch(request)
    mask = torch.ones_like(ids) if request.padded and request.evaluation_rows > 1 else None
    loss_of(model, ids, mask, request.loss, use_cache=request.evaluation_cache)


def generate(model: Any, request: StepRequest, tracker: Tracker) -> None:
    """Reading the prompt, and the last generated token: the cache is longest then.

    The tokens in between are appended to the cache at once: each of them needs less than the last.
    Source: transformers 5.23 generation/utils.py, `_sample` over a DynamicCache.
    """
    tracker.at("generation", "")
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    asked = inspect.signature(inner.forward).parameters
    last_only = {"logits_to_keep": 1} if "logits_to_keep" in asked else {}
    ids = _batch(request)
    cache = model(input_ids=ids, use_cache=True, **last_only).past_key_values
    if request.generate_tokens > 1:
        _lengthen(cache, request.generate_tokens - 1)
    model(input_ids=ids[:, :1], past_key_values=cache, use_cache=True, **last_only)


def _lengthen(cache: Any, tokens: int) -> None:
    for layer in cache.layers:
        if getattr(layer, "keys", None) is None:
            continue
        rows, heads, _, width = layer.keys.shape
        layer.update(
            layer.keys.new_empty((rows, heads, tokens, width)),
            layer.values.new_empty((rows, heads, tokens, layer.values.shape[-1])),
        )


def save(model: Any, tracker: Tracker) -> None:
    """What is written: references to the tensors, made contiguous where they are not.

    Source: transformers 5.23 `save_pretrained` and peft 0.21 `save_pretrained`; the optimizer's
    state dict holds references too, and the copies to the host are made there.
    """
    tracker.at("save", "state_dict")
    if hasattr(model, "get_base_model"):
        from peft import get_peft_model_state_dict

        state = get_peft_model_state_dict(model)
    else:
        state = model.state_dict()
    for name in list(state):
        state[name] = state[name].contiguous()
    tracker.note()


def _batch(request: StepRequest) -> torch.Tensor:
    return torch.zeros(request.evaluation_rows, request.seq_len, dtype=torch.long, device="meta")

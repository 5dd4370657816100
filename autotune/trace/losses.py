"""The losses that a trainer may compute, by what they materialise.

`upcast` is the installed class's own; `upcast_copy` that of transformers 4.46 to 4.49; `chunked`
that of trl, which never has all logits.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch.nn import functional

from autotune.domain.software import TILE_TOKENS, TILE_VOCABULARY

if TYPE_CHECKING:
    from collections.abc import Iterator


def loss_of(
    model: Any, ids: torch.Tensor, mask: Any, kind: str, *, use_cache: bool = False
) -> torch.Tensor:
    """The loss of a batch. What the trainer keeps beside it hangs on the tensor."""
    if kind == "chunked":
        hidden, head = _hidden_and_head(model, ids, mask, use_cache=use_cache)
        rows = hidden.reshape(-1, hidden.shape[-1])
        weight = head.weight
        logprobs: torch.Tensor = _Tiled.apply(rows, weight)
        return -logprobs.mean()
    if kind == "upcast_copy":
        hidden, head = _hidden_and_head(model, ids, mask, use_cache=use_cache)
        logits = head(hidden)
        upcast = logits.float()  # a local of the old loss: alive until the loss is known
        shifted = upcast[..., :-1, :].contiguous()
        loss = functional.cross_entropy(
            shifted.view(-1, shifted.shape[-1]), ids[..., 1:].reshape(-1)
        )
        loss.kept = (hidden, logits)
        return loss
    answer = model(input_ids=ids, attention_mask=mask, labels=ids, use_cache=use_cache)
    found: torch.Tensor = answer.loss
    return found


def _hidden_and_head(model: Any, ids: torch.Tensor, mask: Any, *, use_cache: bool) -> Any:
    inner = model.get_base_model() if hasattr(model, "get_base_model") else model
    hidden = inner.base_model(input_ids=ids, attention_mask=mask, use_cache=use_cache)[0]
    return hidden, inner.get_output_embeddings()


class _Tiled(torch.autograd.Function):
    """Log-probabilities of the labels, a tile of logits at a time; what its kernels allocate.

    On CUDA each tile is one matrix product into the same buffer, folded in place by a kernel.
    Source: trl 1.16 kernels/chunked_logprob.py, ChunkedLogProbFunction.
    """

    @staticmethod
    def forward(ctx: Any, hidden: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        rows = hidden.shape[0]
        statistics = [hidden.new_empty(rows, dtype=torch.float32) for _ in range(7)]
        for _ in _tiles(hidden, weight):
            pass
        ctx.save_for_backward(hidden, weight, statistics[0])
        return statistics[1]

    @staticmethod
    def backward(ctx: Any, _grad: torch.Tensor) -> Any:
        hidden, weight, _ = ctx.saved_tensors
        wanted = ctx.needs_input_grad
        of_hidden = torch.zeros_like(hidden, dtype=torch.float32) if wanted[0] else None
        of_weight = torch.zeros_like(weight, dtype=torch.float32) if wanted[1] else None
        for _ in _tiles(hidden, weight):
            pass
        return (
            None if of_hidden is None else of_hidden.to(hidden.dtype),
            None if of_weight is None else of_weight.to(weight.dtype),
        )


def _tiles(hidden: torch.Tensor, weight: torch.Tensor) -> Iterator[torch.Tensor]:
    """One buffer of logits, and the copy of each part of the head that has another dtype."""
    rows, vocabulary = hidden.shape[0], weight.shape[0]
    tile = hidden.new_empty((min(rows, TILE_TOKENS), min(TILE_VOCABULARY, vocabulary)))
    for start in range(0, vocabulary, TILE_VOCABULARY):
        part = weight[start : start + TILE_VOCABULARY].to(hidden.dtype)
        yield part
        del part
    del tile

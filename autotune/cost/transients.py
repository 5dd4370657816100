"""Bytes per token that one layer's backward holds for a moment, beside what the forward kept.

Covers: the MLP, the norms and the attention of one decoder layer, for the modes of `activations`.
Does not cover: workspace inside a kernel, except flash attention's accumulators.

Source: fitted to a storage-counting trace of LlamaForCausalLM (transformers 5.23, peft 0.21), where
each width was varied alone: every coefficient came out linear, and whole up to the h of the MLP.
Flash attention's fp32 query gradient and expanded key gradients: derived from flash-attention 2's
backward (Dao 2023, algorithm 2), not seen by the trace.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.cost.activations import PYTHON_GELU

if TYPE_CHECKING:
    from autotune.cost.activations import Mode
    from autotune.domain.job import Method
    from autotune.domain.model import Model


@dataclass(frozen=True, slots=True)
class Transients:
    """[bytes/token] extra while the backward runs through a part; `per_key` a key more."""

    mlp: float
    norm: float
    attention: float
    per_key: float


def layer_transients(model: Model, method: Method, mode: Mode) -> Transients:
    """Extra bytes of each part of one layer's backward."""
    heads = model.num_attention_heads
    scores = 0.0
    if mode.attention == "eager":
        scores = heads * (6.0 if mode.compute < 4.0 else 8.0)
    elif mode.attention == "math":
        scores = heads * 8.0
    elif mode.biased:
        scores = mode.compute
    return Transients(
        mlp=_mlp(model, method, mode),
        norm=20.0 * model.hidden_size,
        attention=_attention(model, mode),
        per_key=scores,
    )


def norm_transient(model: Model, mode: Mode) -> float:
    """[bytes/token] of the final norm's backward."""
    return (18.0 if mode.train_base and mode.stream < 4.0 else 16.0) * model.hidden_size


def _width(model: Model) -> float:
    """Elements of the MLP's inner width that one token passes, over all its experts."""
    inner = [item for item in model.linears if item.part in {"mlp", "expert", "shared_expert"}]
    names = {item.part: item for item in inner}  # the last of each part: its output projection
    return sum(item.in_features * min(item.active, item.count) for item in names.values())


def _mlp(model: Model, method: Method, mode: Mode) -> float:
    f, h, e = _width(model), float(model.hidden_size), mode.compute
    if model.activation == PYTHON_GELU and mode.autocast:
        return 10.0 * f + 10.0 * h  # fp32 gradients of an expression that autocast widened
    if mode.train_base or not mode.adapter:
        return e * (2.0 * f + h) + (4.0 * h if mode.stream > e else 0.0)
    extra = mode.adapter * f if method.dropout > 0 else 0.0
    if method.base == "int8":
        extra += 4.0 * f  # the int32 product of quantised inputs
    if mode.adapter == e:
        return 2.0 * e * f + e * h + extra
    if mode.autocast:
        return 6.0 * f + 10.0 * h + extra
    return 4.0 * f + 12.0 * h + extra


def _attention(model: Model, mode: Mode) -> float:
    q, k, e = float(model.query_size), float(model.kv_size), mode.compute
    if mode.attention in {"eager", "math"}:
        return 2.0 * e * k
    casts = 3.0 * (q + k) if mode.stream > e else 0.0
    accumulators = 4.0 * q + (2.0 * e * q if k < q else 0.0)
    return 2.0 * e * (q + k) + casts + accumulators

"""Bytes per token that one layer's backward holds for a moment, beside what the forward kept.

Covers: the MLP, the norms and the attention of one decoder layer, for the modes of `activations`.
Does not cover: workspace inside a kernel, except flash attention's accumulators.

Source: fitted to a storage-counting trace of LlamaForCausalLM (transformers 5.23, peft 0.21), where
each width was varied alone: every coefficient came out linear, and whole up to the h of the MLP.
Flash attention's fp32 query gradient and expanded key gradients: derived from flash-attention 2's
backward (Dao 2023, algorithm 2), not seen by the trace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.cost import dora
from autotune.cost.memory.activations import PYTHON_GELU, inner_bytes
from autotune.cost.memory.attention_kernel import split_bytes
from autotune.cost.memory.modelling_code import family_memory
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.cost.memory.modelling_code import Mode
    from autotune.domain.job import Method
    from autotune.domain.model import Model


@dataclass(frozen=True, slots=True)
class Transients:
    """[bytes/token] extra while the backward runs through a part; `per_key` a key more.

    product: how far below `mlp` it is while a matrix of the MLP is multiplied, which is when a
    quantised base has that matrix unpacked.
    """

    mlp: float
    product: float
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
    if mode.splits_keys:
        scores += split_bytes(float(model.query_size))
    return Transients(
        mlp=max(_mlp(model, method, mode), dora.backward(model, method, mode)),
        product=_below_peak(model, method, mode),
        norm=20.0 * model.hidden_size,
        attention=_attention(model, mode),
        per_key=scores,
    )


def scores_forward(model: Model, mode: Mode) -> tuple[float, float]:
    """[bytes/token, bytes/token and key] of an eager forward that still holds earlier scores.

    Products, their masked and widened copies, and softmax twice: this layer's and the last one's.
    Nothing where the family hands no scores up. Checked with traces of Falcon and MPT.
    """
    facts = family_memory(model.family)
    each = facts.forward_scores[0 if mode.autocast or mode.compute == 4.0 else 1]
    if mode.attention != "eager" or not each:
        return 0.0, 0.0
    inputs = mode.compute * (2.0 * model.query_size + 3.0 * model.kv_size)
    return mode.stream * model.hidden_size + inputs, each * model.num_attention_heads


def norm_transient(model: Model, mode: Mode) -> float:
    """[bytes/token] of the final norm's backward."""
    return (18.0 if mode.train_base and mode.stream < 4.0 else 16.0) * model.hidden_size


def _width(model: Model, mode: Mode) -> float:
    """Elements of the MLP's inner width that one token passes, over all experts that run at once.

    Experts in a loop run one at a time, each on its share of the tokens.
    """
    inner = [item for item in model.linears if item.part in {"mlp", "expert", "shared_expert"}]
    names = {item.part: item for item in inner}  # the last of each part: its output projection
    width = 0.0
    for item in names.values():
        alone = mode.looped and item.part == "expert"
        width += item.in_features * min(item.active, item.count) / (item.count if alone else 1)
    return width


def _mlp(model: Model, method: Method, mode: Mode) -> float:
    f, h, e = _width(model, mode), float(model.hidden_size), mode.compute
    if mode.fused_adapters:  # the gradient of the product; all else overwrites what was kept
        return e * (f + h)
    if model.activation == PYTHON_GELU and mode.autocast:
        return 10.0 * f + 10.0 * h  # fp32 gradients of an expression that autocast widened
    wide = 4.0 * h if mode.stream > e else 0.0
    if mode.looped and model.is_moe:
        wide += 2.0 * e * h  # an expert's gradient of all tokens, and their sum so far
    if mode.train_base:
        return e * (2.0 * f + h) + wide
    inner = inner_bytes(model, mode)
    follows = bool(wide) and inner == mode.stream  # gradients are in the stream's dtype throughout
    if not _adapted(model, method):
        return inner * _factors(model) * f + (0.0 if follows else e * h) + wide
    if follows and mode.autocast and mode.adapter > e:  # the narrow copy of its input is gone
        own = (inner * _factors(model) - e) * f + wide
    else:
        own = _mlp_beside_adapters(mode, f, h)
    return own + (mode.adapter * f if method.dropout > 0 else 0.0)


def _mlp_beside_adapters(mode: Mode, f: float, h: float) -> float:
    if mode.adapter == mode.compute:
        return 2.0 * mode.compute * f + mode.compute * h
    return 6.0 * f + 10.0 * h if mode.autocast else 4.0 * f + 12.0 * h


def _adapted(model: Model, method: Method) -> bool:
    """Whether a matrix of the MLP carries an adapter."""
    inner = {item.name for item in model.linears if item.part not in {"attention", "router"}}
    return bool(inner & set(method.targets))


def _factors(model: Model) -> float:
    """Gradients as wide as the MLP at once: of its product and, if gated, of both factors."""
    return 3.0 if model.mlp == "gated" else 2.0


def _below_peak(model: Model, method: Method, mode: Mode) -> float:
    f, e = _width(model, mode), mode.compute
    if mode.fused_adapters:
        return 0.0
    if not _adapted(model, method):
        return (inner_bytes(model, mode) * _factors(model) - e) * f
    return (5.0 if method.dropout > 0 else 2.0) * f if mode.autocast and mode.adapter > e else 0.0


def _attention(model: Model, mode: Mode) -> float:
    q, k, e = float(model.query_size), float(model.kv_size), mode.compute
    if mode.attention in {"eager", "math"}:
        return 2.0 * e * k
    casts = 3.0 * (q + k) if mode.stream > e else 0.0
    accumulators = 4.0 * q + (2.0 * e * q if k < q else 0.0)
    return 2.0 * e * (q + k) + casts + accumulators

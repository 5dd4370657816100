"""Activation memory: what one decoder layer keeps of its forward pass for its backward, a token.

Covers: any decoder of `Model`: RMSNorm and LayerNorm, gated and plain MLP, fused projections, GQA,
q/k norms, experts; full fine-tuning and LoRA; autocast or not; eager, sdpa and flash attention.
Liger's RMSNorm and gated MLP; Unsloth's adapters without dropout. Does not cover: other kernels
that fuse several of these operations (RoPE in place).

Rule: a frozen matrix keeps nothing of its input; a product of two tensors keeps both when both need
gradients; a sum keeps nothing; a view keeps the storage that it looks into.
Source: derived from the installed modelling code (transformers 5.23, peft 0.21), operation by
operation, and checked with a storage-counting trace of the real classes (tests/cost).

Legend: h hidden, f MLP width, q all query heads, k all key heads, H query heads, S keys; e bytes of
the compute dtype, s bytes of the residual stream, a bytes of an adapter.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.cost import dora
from autotune.cost.memory.attention_kernel import runs_efficient, scores_kept
from autotune.cost.memory.mixers import mixer_kept
from autotune.cost.memory.modelling_code import Mode, family_memory, fused_layernorm
from autotune.domain.model import MIXING, XIELU, Mamba2
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.domain.job import Method
    from autotune.domain.model import Linear, Model

PYTHON_GELU = "gelu_new"  # written as Python in transformers.activations

# Bytes that the activation function keeps of each element of its width, beside its output:
# (without autocast, in units of e; under autocast in bytes), and whether its output stays anyway.
# Source: derived: torch.nn.functional.gelu and silu keep their input, relu its output; what
# transformers.activations writes as Python keeps every factor, and autocast runs pow in fp32.
_KEPT_BY_ACTIVATION = {
    "relu": (0.0, 0.0, True),
    "relu2": (1.0, 2.0, False),
    PYTHON_GELU: (4.0, 14.0, False),
    "gelu_fast": (7.0, 14.0, False),
    "quick_gelu": (2.0, 4.0, False),
}
_KEPT_BY_OTHERS = (1.0, 2.0, False)


@dataclass(frozen=True, slots=True)
class Kept:
    """Bytes a token keeps: `per_token`, and `per_key` more for every key it attends to.

    mlp: the share of `per_token` that the MLP's backward frees before the attention's starts.
    """

    per_token: float
    per_key: float
    mlp: float = 0.0

    def mixed(self, other: Kept, share: float) -> Kept:
        """The mean of a share of layers like this and the rest like the other."""
        pairs = ((getattr(self, name), getattr(other, name)) for name in self.__slots__)
        return Kept(*(share * own + (1.0 - share) * rest for own, rest in pairs))


@dataclass(frozen=True, slots=True)
class _Group:
    """Linears that read the same tensor. `kept`: something else keeps that tensor already."""

    linears: tuple[Linear, ...]
    element: float  # bytes of the tensor they read
    kept: bool
    tokens: float = 1.0  # copies of a token that pass (experts)


def layer_activations(model: Model, method: Method, mode: Mode) -> Kept:
    """Activation memory of one layer of a model whose layers are alike."""
    if mode.biased and mode.masked < 1.0:
        with_mask, without = (
            layer_activations(model, method, replace(mode, masked=share)) for share in (1.0, 0.0)
        )
        return with_mask.mixed(without, mode.masked)
    attention = _attention(model, method, mode)
    own = _mlp(model, method, mode) + _per_layer(model, method, mode)
    token = _norms(model, mode) + _mixing(model, method, mode) + attention.per_token + own
    if family_memory(model.family).dropout:
        token += 2.0 * model.hidden_size
    return Kept(token, attention.per_key, own)


def _per_layer(model: Model, method: Method, mode: Mode) -> float:
    """[bytes/token] of what mixes a layer's own embedding into the stream.

    Beside what its norm keeps: the gate's answer, its activation, and what its matrices read.
    """
    own = tuple(item for item in model.linears if item.part == "per_layer")
    if not own:
        return 0.0
    gate, projection = own
    token = _group(method, mode, _Group((gate,), mode.stream, kept=False))
    token += _group(method, mode, _Group((projection,), mode.compute, kept=False))
    units, cast, _ = _KEPT_BY_ACTIVATION.get(model.activation, _KEPT_BY_OTHERS)
    activated = cast if mode.autocast else units * mode.compute
    return token + model.per_layer_size * (activated + mode.compute)


def per_layer_inputs(model: Model, method: Method, mode: Mode, *, asked: bool) -> float:
    """[bytes/token] of the embeddings of all layers, which are made before the first.

    asked: whether what the layers read asks for a gradient, as activation checkpointing wants it:
    then the norm of their projected part keeps its fp32 input, and the projection its own.
    """
    width = float(model.per_layer_size * model.num_layers)
    token = mode.compute * width
    if not width:
        return 0.0
    adapted = any(item.name in method.targets for item in model.outside)
    if mode.train_base or adapted or asked:
        rows = float(model.num_layers)
        token += (4.0 + _scaled(model, mode, mode.compute)) * width + 8.0 * rows
        token += _group(method, mode, _Group(model.outside, mode.stream, kept=False))
    return token


def unneeded_kept(model: Model, method: Method, mode: Mode) -> float:
    """[bytes/token] that the layer next to the embedding does not keep, with adapters only.

    What it reads needs no gradient, so its first norm keeps nothing, and in a parallel block
    neither does the MLP without adapters. Activation checkpointing asks for that gradient.
    """
    if not method.is_lora or family_memory(model.family).post_norm:
        return 0.0
    if not model.parallel_block:
        return norm_kept(model, mode)
    own = tuple(item for item in model.linears if item.part not in MIXING)
    if any(item.name in method.targets for item in own):
        return 0.0
    return model.norms_per_layer * norm_kept(model, mode) + _mlp(model, method, mode)


def norm_kept(model: Model, mode: Mode) -> float:
    """[bytes/token] of one norm over the hidden size.

    RMSNorm computes in fp32: its fp32 input and reciprocal root stay, and the normalised value when
    the weight is trained. LayerNorm keeps its input, mean and reciprocal deviation; under autocast
    it reads an fp32 copy.
    """
    h = model.hidden_size
    if mode.compiled:
        return mode.stream * h + (8.0 if model.norm == "layernorm" else 4.0)
    if family_memory(model.family).plain_layernorm:
        return (12.0 if mode.train_base else 8.0) * h + 4.0
    if model.norm == "layernorm":
        wide = mode.autocast and not mode.narrow_norms
        return (4.0 if wide else mode.stream) * h + 8.0
    if mode.fused_norms:  # rescales from its input; the reciprocal root stays
        return mode.stream * h + 4.0
    return 4.0 * h + 4.0 + _scaled(model, mode, mode.stream) * h


def _scaled(model: Model, mode: Mode, element: float) -> float:
    """[bytes] of an element of the normalised value that a trained RMSNorm weight multiplies."""
    if not (mode.train_base and model.norm_weight):
        return 0.0
    return 4.0 if family_memory(model.family).fp32_norm else element


def norm_output(model: Model, mode: Mode) -> float:
    """[bytes] of an element that a norm hands to the linears."""
    wide = fused_layernorm(model) and mode.autocast and not mode.narrow_norms
    return 4.0 if wide else mode.stream


def inner_bytes(model: Model, mode: Mode) -> float:
    """[bytes] of an element between the matrices of the MLP."""
    return norm_output(model, mode) if mode.quantised else mode.compute


def reads_stream(model: Model, mode: Mode) -> bool:
    """Whether a norm keeps the residual stream itself, and not a copy of it in fp32."""
    if fused_layernorm(model) and (mode.narrow_norms or not mode.autocast):
        return True
    if model.norm == "rmsnorm" and mode.fused_norms:
        return True
    return mode.compiled or mode.stream == 4.0


def _norms(model: Model, mode: Mode) -> float:
    token = model.norms_per_layer * norm_kept(model, mode)
    if model.parallel_block and reads_stream(model, mode):  # all of them the same tensor
        token -= (model.norms_per_layer - 1.0) * mode.stream * model.hidden_size
    own_keys = 0 if model.borrows_keys else 1
    if model.qk_norm != "none":
        width = model.query_size + model.kv_size * own_keys
        heads = model.num_attention_heads + model.num_kv_heads * own_keys
        token += 4.0 * (heads if model.qk_norm == "per_head" else 2)
        each = 4.0 + _scaled(model, mode, mode.compute)
        token += (mode.compute if mode.compiled else each) * width
    if family_memory(model.family).value_norm and own_keys:
        token += (mode.compute if mode.compiled else 4.0) * model.kv_size + 4.0 * model.num_kv_heads
    for width in model.latent.normed if model.latent else ():  # over what a matrix gave
        each = mode.compute if mode.compiled else 4.0 + _scaled(model, mode, mode.compute)
        token += 4.0 + each * width
    return token


def _mixing(model: Model, method: Method, mode: Mode) -> float:
    """[bytes/token] of a mixer and what its projections read. Mamba's kernel has the last one."""
    if model.mixer is None:
        return 0.0
    own = tuple(item for item in model.linears if item.part == "mixer")
    token = _group(method, mode, _Group(own[:-1], norm_output(model, mode), kept=False))
    token += mixer_kept(model.mixer, mode)
    if mode.fused_mixer and isinstance(model.mixer, Mamba2):
        return token
    return token + _group(method, mode, _Group(own[-1:], mode.compute, kept=False))


def _attention(model: Model, method: Method, mode: Mode) -> Kept:
    own = tuple(item for item in model.linears if item.part == "attention")
    if not own:
        return Kept(0.0, 0.0)
    inputs, output = own[:-1], own[-1:]
    if one_input(model):
        inputs += tuple(item for item in model.linears if item.part == "mlp")[:-1]
    wide = tuple(item for item in inputs if item.in_features == model.hidden_size)
    narrow = tuple(item for item in inputs if item not in wide)  # latent attention's second ones
    normed = norm_output(model, mode)
    token = _group(method, mode, _Group(wide, normed, kept=False))
    token += sum(_group(method, mode, _Group((item,), normed, kept=False)) for item in narrow)
    fused = len(own) == 2 and not model.borrows_keys
    core = _latent_core(model, mode) if model.latent else _core(model, mode, fused=fused)
    copied = family_memory(model.family).concatenated_rope and not runs_efficient(model, mode)
    token += core.per_token
    kept = mode.attention in {"sdpa", "flash_attention_2"} and not copied
    if model.gated_attention:  # the gate's sigmoid, and the kernel's output or a copy of it
        token += mode.compute * model.query_size * (1.0 if kept else 2.0)
        kept = False
    token += _group(method, mode, _Group(output, mode.compute, kept=kept))
    return Kept(token, core.per_key)


def one_input(model: Model) -> bool:
    """Whether the MLP reads the same normalised tensor as the attention."""
    return model.parallel_block and model.norms_per_layer == 1


def _core(model: Model, mode: Mode, *, fused: bool) -> Kept:
    """Queries, keys, values, output and statistics that the attention kernel keeps.

    A view keeps the fused projection alive: values always, queries and keys unless RoPE copies.
    """
    q, k, heads, e = model.query_size, model.kv_size, model.num_attention_heads, mode.compute
    if mode.attention == "math":
        return Kept(12.0 * q, 4.0 * heads)  # fp32 queries, expanded keys and values, softmax
    own = 0 if model.borrows_keys else k  # the layer that they are borrowed from keeps them
    copies = mode.attention == "eager" or mode.biased or mode.expands_heads
    if k != q and copies and (model.num_kv_heads > 1 or mode.attention == "eager"):
        kept = float(3 * q)
    elif (fused and model.position != "rope") or (mode.quantised and norm_output(model, mode) > e):
        kept = float(q + 2 * own)  # one tensor, or copies in the compute dtype of wider ones
    else:
        view = fused and mode.attention != "eager"
        kept = float(q + own + (q + 2 * k if view else own))
    if mode.attention == "eager":
        wide = family_memory(model.family).fp32_queries and not mode.autocast
        return Kept(e * kept + wide * (4.0 - e) * (q + k), heads * scores_kept(model, mode))
    return Kept(e * (kept + q) + 4.0 * heads, e if mode.biased else 0.0)


def _latent_core(model: Model, mode: Mode) -> Kept:
    """The same of latent attention: queries and keys are joined anew, values are views.

    A fused kernel keeps all that the values' matrix gave; eager products copy the values out of it,
    and so does flash attention where it pads them.
    Source: derived from transformers 5.23 DeepseekV2Attention and integrations/flash_attention.py.
    """
    q, v, heads, e = model.query_size, model.output_size, model.num_attention_heads, mode.compute
    if mode.attention == "eager":
        return Kept(e * (2.0 * q + v), heads * scores_kept(model, mode))
    made = sum(item.out_features for item in model.linears if item.name == "kv_b_proj")
    if mode.attention == "flash_attention_2" and v != q:  # padded to the width of the keys
        return Kept(e * 4.0 * q + 4.0 * heads, 0.0)
    return Kept(e * (2.0 * q + made + v) + 4.0 * heads, e if mode.biased else 0.0)


def _mlp(model: Model, method: Method, mode: Mode) -> float:
    token = 0.0
    for part in ("mlp", "shared_expert"):
        own = tuple(item for item in model.linears if item.part == part)
        token += _mlp_block(model, method, mode, own) if own else 0.0
    routed = (item for item in model.linears if item.part == "expert" and item.active < item.count)
    experts = tuple(routed)
    return token + (_experts(model, method, mode, experts) if experts else 0.0)


def _mlp_block(model: Model, method: Method, mode: Mode, own: tuple[Linear, ...]) -> float:
    inputs, output = own[:-1], own[-1:]
    if one_input(model) and own[0].part == "mlp":
        inputs = ()
    token = _group(method, mode, _Group(inputs, norm_output(model, mode), kept=False))
    holds_output = _KEPT_BY_ACTIVATION.get(model.activation, _KEPT_BY_OTHERS)[2]
    width, inner = float(output[0].in_features), inner_bytes(model, mode)
    if mode.fused_adapters:  # its two factors; their product is made again
        return token + 2.0 * inner * width
    if not (mode.fused_gate and model.mlp == "gated"):
        token += width * _activated(model, mode, inner)
    if model.mlp == "gated":
        token += 2.0 * inner * width
    elif holds_output:
        token += inner * width
    kept = holds_output and model.mlp == "plain"
    return token + _group(method, mode, _Group(output, inner, kept=kept))


def _activated(model: Model, mode: Mode, inner: float) -> float:
    """[bytes/element] that the activation keeps beside its output. inner: of what it reads.

    Without its own CUDA kernels xIELU is Python: x, alpha x, expm1(x), which of both sides holds.
    """
    units, cast, _ = _KEPT_BY_ACTIVATION.get(model.activation, _KEPT_BY_OTHERS)
    if model.activation == XIELU and not mode.compiled:
        wide = 4.0 if mode.autocast else max(inner, mode.stream)  # times softplus of a weight
        grown = 4.0 if mode.autocast else inner  # expm1
        return inner + wide + grown * (2.0 if mode.train_base else 1.0) + 1.0
    if mode.compiled and units > 1.0:  # from its input, whatever it is written in
        units, cast = _KEPT_BY_OTHERS[:2]
    return cast if mode.autocast and inner == mode.compute else units * inner


def _experts(model: Model, method: Method, mode: Mode, own: tuple[Linear, ...]) -> float:
    """Routed experts: each token is copied to its experts, and their outputs are weighted.

    The weighting keeps every expert's output, because the routing weights need gradients.
    """
    output = own[-1]
    if not mode.looped:  # one parameter, never quantised; trained, or the sum with adapters is
        adapted = any(item.adaptable and item.name in method.targets for item in own)
        mode = replace(mode, keeps_inputs=False, train_base=mode.train_base or adapted)
    copies = output.active
    h, e = float(model.hidden_size), mode.compute
    token = 8.0 * model.num_experts + 32.0 * copies  # probabilities, and the chosen ones' indices
    token += e * h if mode.train_base and not method.is_lora else 0.0
    facts = family_memory(model.family)
    if facts.own_router:  # its norm, what that hands over to be scaled, and what the router reads
        token += 4.0 * h + 4.0 + (mode.stream * h if mode.train_base else 0.0)
        read = tuple(item for item in model.linears if item.part == "router")
        token += _group(method, mode, _Group(read, mode.stream, kept=False))
    products = facts.expert_products if model.mlp == "gated" else 1.0
    token += copies * e * output.in_features * products
    token += copies * e * h
    inputs = _Group(own[:-1], e, kept=False, tokens=copies)
    token += _group(method, mode, inputs)
    return token + _group(method, mode, _Group((output,), e, kept=False, tokens=copies))


def _group(method: Method, mode: Mode, group: _Group) -> float:
    """[bytes/token] kept of the tensor that linears read, and of the adapters beside them."""
    if not group.linears:
        return 0.0
    width = float(group.linears[0].in_features)
    token, shared, copied = 0.0, False, False
    for item in group.linears:
        if mode.train_base:
            own = group.element != mode.compute  # autocast copies the input of each linear
            shared |= not own
            token += mode.compute * width if own and not copied else 0.0
            copied = own and mode.compiled
            continue
        shared |= mode.keeps_inputs
        if mode.fused_adapters:
            shared = True
        elif mode.adapter and item.adaptable and item.name in method.targets:
            copy, whole = _adapted(method, mode, group, width)
            token += copy
            if method.is_dora:
                token += dora.kept(mode, item, group.element if mode.quantised else mode.compute)
            shared |= whole
    if shared and not group.kept:
        token += group.element * width
    return group.tokens * token


def _adapted(method: Method, mode: Mode, group: _Group, width: float) -> tuple[float, bool]:
    """[bytes/token] one adapted linear keeps, and whether it keeps the shared input as it is.

    PEFT casts the input to the adapter's dtype; autocast casts it back to the compute dtype; either
    way the linear has a copy of its own. Beside a layer of bitsandbytes it leaves that to autocast.
    Dropout keeps a byte an element beside its output.
    Source: peft 0.21 tuners/lora/layer.py and bnb.py, requires_conversion; runs/recorded/h100-sxm.
    """
    element = mode.compute if mode.autocast else mode.adapter
    token = element * method.rank  # output of A, input of B
    if method.dropout > 0:
        return token + (element + 1.0) * width, False
    if group.element == element and (mode.reads_as_is or mode.adapter == element):
        return token, True
    return token + element * width, False

"""A Hugging Face `config.json`, read as plain JSON, becomes the generic decoder description.

No class of the model is imported and no code of the model runs. What the description cannot hold
(state-space layers, layers of different shapes, encoders) is refused with the
reason, because a number for the wrong architecture is worse than none.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.catalog.files import read_regular
from autotune.catalog.models.config_values import (
    Sizes,
    as_flag,
    as_size,
    read_sizes,
)
from autotune.catalog.models.experts import (
    DENSE,
    EXPERTS,
    dense_layer_mlp,
    expert_linears,
    read_experts,
)
from autotune.catalog.models.gemma import GEMMA_4, gemma_fields
from autotune.catalog.models.mixers import (
    FULL,
    LINEAR,
    hybrid,
    latent_linears,
    layer_types,
    mixer_linears,
    parts_of,
    read_latent,
    read_mixer,
    stated_layers,
)
from autotune.catalog.models.towers import beside_params, text_part
from autotune.catalog.models.undescribed import HOW_TO_DESCRIBE, family_of, refuse_undescribed
from autotune.domain.errors import InputError
from autotune.domain.model import Linear, Model
from autotune.domain.units import MB
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from autotune.catalog.models.family import Family
    from autotune.domain.model import Layer, Position, QkNorm

MAX_CONFIG_BYTES = 10 * MB
_BESIDE = "; its text model is trained, the part that sees is loaded with it"
_UNCOUNTED = "; its text_config: the vision part is not counted"


def read_config_file(path: Path) -> dict[str, Any]:
    """The JSON object of a config file. Raises InputError for anything else."""
    try:
        size = path.stat().st_size
        if size > MAX_CONFIG_BYTES:
            msg = f"{path} has {size:,} bytes; a config.json stays under {MAX_CONFIG_BYTES:,}"
            raise InputError(msg, HOW_TO_DESCRIBE)
        data = read_regular(path, MAX_CONFIG_BYTES)
    except (OSError, ValueError) as error:
        msg = f"cannot read {path}: {getattr(error, 'strerror', None) or error}"
        raise InputError(msg, HOW_TO_DESCRIBE) from None
    return parse_config(data, str(path))


def parse_config(data: bytes, where: str) -> dict[str, Any]:
    """The JSON object in `data`. Raises InputError for anything else."""
    try:
        value = json.loads(data.decode("utf-8"))
    except UnicodeDecodeError:
        msg = f"{where} is not UTF-8 text"
        raise InputError(msg, HOW_TO_DESCRIBE) from None
    except (ValueError, RecursionError) as error:
        reason = "it is empty" if not data.strip() else str(error)
        msg = f"{where} is not JSON: {reason}"
        raise InputError(msg, HOW_TO_DESCRIBE) from None
    if not isinstance(value, dict):
        msg = f"{where} holds a JSON {type(value).__name__}; a config.json is an object"
        raise InputError(msg, HOW_TO_DESCRIBE)
    return value


def model_from_config(config: Mapping[str, Any], name: str, source: str) -> Model:
    """The decoder that a config.json describes.

    A vision-language wrapper is read by its `text_config`, and `source` says so. Raises InputError
    for what is no decoder, is not covered or lacks the sizes.
    """
    text = text_part(config)
    family_name, family, source = family_of(text, name, source)
    refuse_undescribed(text, name, family_name)
    text = stated_layers(text, name) if family_name == "nemotron_h" else text
    text = {**family.defaults, **text} if family_name == "minicpm3" else text
    sizes = read_sizes(text, family, family_name, name)
    beside = beside_params(config, sizes.hidden) if text is not config else 0
    if text is not config:
        source += _BESIDE if beside else _UNCOUNTED
    experts = read_experts(text, family_name, sizes, name)
    layout = _layout(text, family, family_name, sizes)
    gated = family.mlp_kind == "gated"
    latent = read_latent(text, sizes, family_name, name)
    attention = latent_linears(text, sizes, latent) if latent else _attention(text, family, sizes)
    mlp_bias = as_flag(text, family.mlp_bias)
    dense = _dense_mlp(family, sizes, gated=gated, bias=mlp_bias)
    linears = attention + (
        expert_linears(experts, sizes, family_name, bias=mlp_bias) if experts else dense
    )
    num_dense = experts.num_dense_layers if experts else 0
    mixer = read_mixer(text, family_name, sizes, name)
    kinds: tuple[Layer, ...] = ()
    types = layer_types(text, family_name, sizes.layers, name) if mixer else ()
    if mixer is not None and family_name != "falcon_h1":  # its class states them itself
        text = {**text, "layer_types": list(types)}
    if mixer is not None and set(types) != {FULL}:
        own = {FULL: attention, LINEAR: mixer_linears(mixer, text, sizes.hidden, family_name)}
        own |= {DENSE: dense, EXPERTS: linears[len(attention) :], "": ()}
        parts = parts_of(types, family_name, experts)
        kinds = hybrid(parts, mixer, sizes, own, experts, layout.qk_norm)
        linears, num_dense = (), 0
    model = Model(
        name=name,
        family=family_name,
        architecture=_architecture(text, family),
        num_layers=sizes.layers,
        hidden_size=sizes.hidden,
        num_attention_heads=sizes.heads,
        num_kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        intermediate_size=experts.intermediate if experts else sizes.intermediate,
        vocab_size=sizes.vocab,
        max_position_embeddings=sizes.positions,
        tied_head=_tied(config, text, family),
        source=source,
        norm=family.norm,
        norms_per_layer=layout.norms,
        mlp=family.mlp_kind,
        activation=_activation(text, family),
        position=layout.position,
        qkv_bias=as_flag(text, family.qkv_bias),
        attention_out_bias=as_flag(text, family.out_bias),
        mlp_bias=mlp_bias,
        head_bias=family.head_bias,
        norm_bias=as_flag(text, family.norm_bias),
        norm_weight=family.norm_weight,
        embedding_norm=family.embedding_norm,
        parallel_block=layout.parallel,
        qk_norm=layout.qk_norm,
        linears=linears,
        kinds=kinds,
        gated_attention=family.gated_attention,
        dense_linears=attention + dense_layer_mlp(sizes, family_name) if num_dense else (),
        num_dense_layers=num_dense,
        num_experts=experts.count if experts else 0,
        experts_per_token=experts.per_token if experts else 0,
        router_bias=family_name == "gpt_oss",
        attention_softcap=family.softcaps and text.get("attn_logit_softcapping") is not None,
        final_softcap=family.softcaps and text.get("final_logit_softcapping") is not None,
        sliding_window=_window(text, family_name, name),
        extra_params_per_layer={"gpt_oss": sizes.heads, "apertus": 2}.get(family_name, 0),
        extra_params=2 * sizes.hidden if family_name == "opt" else 0,  # two unused positions
        hf_config=_plain_json(text, family_name),
        remote_code=family.remote,
        latent=latent,
        beside_params=beside,
        stored_as=stored_as(config) or stored_as(text),
    )
    if family_name in GEMMA_4:
        changed = gemma_fields({**text, "model_type": family_name}, sizes, name)
        return replace(model, **changed)
    return model


def _plain_json(text: Mapping[str, Any], family: str) -> str:
    """The shape alone: how a checkpoint stores its weights is no part of it."""
    shape = {key: value for key, value in text.items() if key != "quantization_config"}
    return json.dumps({**shape, "model_type": family}, sort_keys=True)


def stored_as(config: Mapping[str, Any]) -> str:
    """How a checkpoint's weights are quantised: nf4, int8, or the method's name; empty: plain.

    Source: transformers 5.23 quantizers/auto.py and utils/quantization_config.py: without
    quant_method, load_in_4bit or load_in_8bit mean bitsandbytes, whose 4 bits are fp4 unless nf4
    is named.
    """
    found = config.get("quantization_config")
    if not isinstance(found, dict):
        return ""
    four, eight = (found.get(key) is True for key in ("load_in_4bit", "load_in_8bit"))
    method = str(found.get("quant_method") or ("bitsandbytes" if four or eight else "unnamed"))
    if method.casefold() != "bitsandbytes":
        return method.casefold()[:40]
    if four:
        return "nf4" if found.get("bnb_4bit_quant_type") == "nf4" else "fp4"
    return "int8" if eight else "bitsandbytes"


@dataclass(frozen=True, slots=True)
class _Layout:
    norms: int
    parallel: bool
    position: Position
    qk_norm: QkNorm


def _layout(text: Mapping[str, Any], family: Family, kind: str, sizes: Sizes) -> _Layout:
    norms, parallel = family.norms_per_layer, as_flag(text, family.parallel)
    position = family.position
    qk_norm = family.qk_norm
    if family.qk_norm_if and not as_flag(text, f"{family.qk_norm_if}=False"):
        qk_norm = "none"
    if kind == "falcon":
        new = as_flag(text, "new_decoder_architecture=False")
        parallel = as_flag(text, "parallel_attn=True")
        norms = _falcon_norms(text, new=new) if parallel else 2
        position = "alibi" if as_flag(text, "alibi=False") else "rope"
    elif kind == "stablelm" and parallel:
        norms = 1
    elif kind == "mpt":
        attn = text.get("attn_config")
        alibi = attn.get("alibi", True) if isinstance(attn, dict) else True
        position = "alibi" if alibi else "learned"
    elif kind == "granitemoehybrid" and text.get("position_embedding_type") == "rope":
        position = "rope"
    elif kind == "baichuan":
        hidden_of_13b = 5120  # its 13B has no rotary positions
        position = "alibi" if sizes.hidden == hidden_of_13b else "rope"
    return _Layout(norms, parallel, position, qk_norm)


def _falcon_norms(text: Mapping[str, Any], *, new: bool) -> int:
    """Norms before the parallel attention and MLP: one for both, or one each in the newer design.

    Source: transformers 5.23 FalconDecoderLayer.
    """
    stated = text.get("num_ln_in_parallel_attn")
    if stated is None:
        return 2 if new else 1
    return 2 if stated == 2 else 1  # noqa: PLR2004 - the class tests for exactly two


def _attention(text: Mapping[str, Any], family: Family, sizes: Sizes) -> tuple[Linear, ...]:
    h, q, kv = sizes.hidden, sizes.query, sizes.kv
    bias, out_bias = as_flag(text, family.qkv_bias), as_flag(text, family.out_bias)
    wide = 2 * q if family.gated_attention else q
    widths = (wide, kv, kv) if len(family.qkv) > 1 else (q + 2 * kv,)
    inputs = tuple(
        Linear(module, h, width, bias) for module, width in zip(family.qkv, widths, strict=True)
    )
    return (*inputs, Linear(family.attention_out, q, h, out_bias))


def _dense_mlp(family: Family, sizes: Sizes, *, gated: bool, bias: bool) -> tuple[Linear, ...]:
    """The MLP of a dense layer. Two modules of a gated MLP: the first is gate and up, fused."""
    h, f = sizes.hidden, sizes.intermediate
    *ins, out = family.mlp
    width = 2 * f if gated and len(ins) == 1 else f
    modules = [Linear(module, h, width, bias, "mlp") for module in ins]
    return (*modules, Linear(out, f, h, bias, "mlp"))


def _architecture(text: Mapping[str, Any], family: Family) -> str:
    listed = text.get("architectures")
    if isinstance(listed, list) and listed and isinstance(listed[0], str):
        return listed[0]
    return family.architecture


def _tied(config: Mapping[str, Any], text: Mapping[str, Any], family: Family) -> bool:
    """Whether head and embedding share weights; LFM2's own word for it, then a wrapper's, wins."""
    said = (text.get("tie_embedding"), *(x.get("tie_word_embeddings") for x in (config, text)))
    return next((stated for stated in said if isinstance(stated, bool)), family.tied)


def _activation(text: Mapping[str, Any], family: Family) -> str:
    for key in (
        "hidden_act",
        "hidden_activation",
        "activation_function",
        "activation",
        "mlp_hidden_act",
    ):
        if isinstance(text.get(key), str):
            return str(text[key])
    return family.activation


def _window(text: Mapping[str, Any], kind: str, name: str) -> int | None:
    """[tokens] how far attention looks back in sliding layers; None where every layer sees all."""
    key = "attention_chunk_size" if kind == "llama4_text" else "sliding_window"
    if text.get("use_sliding_window") is False or text.get(key) is None:
        return None
    return as_size(text, (key,), name)

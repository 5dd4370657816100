"""What mixes tokens otherwise than by keys of all heads: latent attention, nets, convolutions.

Source: modelling code of transformers 5.23 (deepseek_v2, qwen3_next, qwen3_5, lfm2).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.catalog.models.config_values import LATENT, as_flag, as_size
from autotune.domain.errors import InputError
from autotune.domain.model import DeltaNet, Latent, Layer, Linear, ShortConv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.catalog.models.config_values import Sizes
    from autotune.domain.model import QkNorm


def read_latent(config: Mapping[str, Any], kind: str, name: str) -> Latent | None:
    """How narrow latent attention is, or None where a family has another one."""
    if kind not in LATENT:
        return None
    kv_rank, turned, value = (
        as_size(config, (key,), name) for key in ("kv_lora_rank", "qk_rope_head_dim", "v_head_dim")
    )
    q_rank = as_size(config, ("q_lora_rank",), name) if config.get("q_lora_rank") else 0
    return Latent(kv_rank, turned, value, q_rank)


def latent_linears(text: Mapping[str, Any], sizes: Sizes, latent: Latent) -> tuple[Linear, ...]:
    """Source: transformers 5.23 DeepseekV2Attention; its biases are of what reads the stream."""
    h, bias = sizes.hidden, as_flag(text, "attention_bias=False")
    narrow, unrotated = latent.q_lora_rank, sizes.head_dim - latent.qk_rope_head_dim
    queries = (
        (Linear("q_a_proj", h, narrow, bias), Linear("q_b_proj", narrow, sizes.query))
        if narrow
        else (Linear("q_proj", h, sizes.query),)
    )
    widened = sizes.heads * (unrotated + latent.v_head_dim)
    return (
        *queries,
        Linear("kv_a_proj_with_mqa", h, latent.kv_lora_rank + latent.qk_rope_head_dim, bias),
        Linear("kv_b_proj", latent.kv_lora_rank, widened),
        Linear("o_proj", sizes.heads * latent.v_head_dim, h, bias),
    )


FULL, LINEAR, CONV = "full_attention", "linear_attention", "conv"
DELTA_NETS = {
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "qwen3_next",
}  # families with gated delta nets between their attention layers
MIXING = {**dict.fromkeys(DELTA_NETS, LINEAR), "lfm2": CONV}  # a family's word for the others
_DELTA_NET = {
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip


def read_mixer(
    config: Mapping[str, Any], kind: str, sizes: Sizes, name: str
) -> DeltaNet | ShortConv | None:
    """What mixes tokens between a family's attention layers; None: nothing. Raises InputError."""
    if kind == "lfm2":
        kernel = as_size({"conv_L_cache": 3, **config}, ("conv_L_cache",), name)
        return ShortConv(sizes.hidden, kernel, as_flag(config, "conv_bias=False"))
    return _read_delta_net(config, name) if kind in DELTA_NETS else None


def _read_delta_net(config: Mapping[str, Any], name: str) -> DeltaNet:
    """The sizes of gated delta nets."""
    config = {**_DELTA_NET, **{k: v for k, v in config.items() if v is not None}}
    heads = [as_size(config, (f"linear_num_{of}_heads",), name) for of in ("key", "value")]
    dims = [as_size(config, (f"linear_{of}_head_dim",), name) for of in ("key", "value")]
    if heads[1] % heads[0]:
        msg = f"{name}: {heads[1]} value heads of its delta nets do not share {heads[0]} key heads"
        raise InputError(msg, "check linear_num_key_heads and linear_num_value_heads")
    kernel = as_size(config, ("linear_conv_kernel_dim",), name)
    return DeltaNet(heads[0], heads[1], dims[0], dims[1], kernel)


def layer_types(config: Mapping[str, Any], kind: str, layers: int, name: str) -> tuple[str, ...]:
    """What mixes tokens in each layer: attention, or a family's other word for it.

    Where the config lists none, every `full_attention_interval`th is attention, or for LFM2 those
    in `full_attn_idxs`, by default all. Source: transformers 5.23 configuration_qwen3_5.py and
    configuration_lfm2.py.
    """
    listed, other = config.get("layer_types"), MIXING[kind]
    if listed is None and other == CONV:
        places = config.get("full_attn_idxs")
        full = places if isinstance(places, list) else range(layers)
        return tuple(FULL if i in full else CONV for i in range(layers))
    if listed is None:
        key = "full_attention_interval"
        every = as_size(config, (key,), name) if key in config else 4
        return tuple(LINEAR if (i + 1) % every else FULL for i in range(layers))
    if not isinstance(listed, list) or len(listed) != layers or set(listed) - {FULL, other}:
        msg = f"layer_types of {name} must name {FULL} or {other} for each of {layers} layers"
        raise InputError(msg, "check the config.json")
    return tuple(listed)


def mixer_linears(net: DeltaNet | ShortConv, hidden: int, kind: str) -> tuple[Linear, ...]:
    """The projections of a gated delta net or convolution.

    Source: transformers 5.23 modeling_qwen3_5.py; modeling_qwen3_next.py, which has them fused;
    modeling_lfm2.py.
    """
    if isinstance(net, ShortConv):
        ins = Linear("in_proj", hidden, 3 * hidden, net.bias)
        return ins, Linear("out_proj", hidden, hidden, net.bias)
    out = Linear("out_proj", net.values, hidden)
    if kind == "qwen3_next":
        return (
            Linear("in_proj_qkvz", hidden, 2 * net.keys + 2 * net.values),
            Linear("in_proj_ba", hidden, 2 * net.value_heads),
            out,
        )
    return (
        Linear("in_proj_qkv", hidden, 2 * net.keys + net.values),
        Linear("in_proj_z", hidden, net.values),
        Linear("in_proj_b", hidden, net.value_heads),
        Linear("in_proj_a", hidden, net.value_heads),
        out,
    )


def hybrid(
    types: Sequence[str],
    mixer: DeltaNet | ShortConv,
    sizes: Sizes,
    linears: tuple[tuple[Linear, ...], ...],
    qk_norm: QkNorm,
) -> tuple[Layer, ...]:
    """Kinds of layers where not all are attention. linears: of it, of the others, what follows."""
    attention, mixing, mlp = linears
    places = {kind: tuple(i for i, own in enumerate(types) if own == kind) for kind in types}
    full = partial(
        Layer,
        linears=attention + mlp,
        num_attention_heads=sizes.heads,
        num_kv_heads=sizes.kv_heads,
        head_dim=sizes.head_dim,
        qk_norm=qk_norm,
    )
    other = partial(
        Layer,
        linears=mixing + mlp,
        num_attention_heads=0,
        num_kv_heads=0,
        head_dim=sizes.head_dim,
        extra_params_per_layer=mixer.parameters,
        mixer=mixer,
    )
    return tuple((full if kind == FULL else other)(places=own) for kind, own in places.items())

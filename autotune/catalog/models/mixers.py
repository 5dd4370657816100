"""What mixes tokens otherwise than by keys and values of every head: latent attention, delta nets.

Source: modelling code of transformers 5.23 (deepseek_v2, qwen3_next, qwen3_5).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.catalog.models.config_values import LATENT, as_flag, as_size
from autotune.domain.errors import InputError
from autotune.domain.model import DeltaNet, Latent, Linear

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.catalog.models.config_values import Sizes


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


FULL, LINEAR = "full_attention", "linear_attention"
DELTA_NETS = {
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "qwen3_next",
}  # families with gated delta nets between their attention layers
_DELTA_NET = {
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip


def read_delta_net(config: Mapping[str, Any], kind: str, name: str) -> DeltaNet | None:
    """The sizes of a family's gated delta nets; None where it has none. Raises InputError."""
    if kind not in DELTA_NETS:
        return None
    config = {**_DELTA_NET, **{k: v for k, v in config.items() if v is not None}}
    heads = [as_size(config, (f"linear_num_{of}_heads",), name) for of in ("key", "value")]
    dims = [as_size(config, (f"linear_{of}_head_dim",), name) for of in ("key", "value")]
    if heads[1] % heads[0]:
        msg = f"{name}: {heads[1]} value heads of its delta nets do not share {heads[0]} key heads"
        raise InputError(msg, "check linear_num_key_heads and linear_num_value_heads")
    kernel = as_size(config, ("linear_conv_kernel_dim",), name)
    return DeltaNet(heads[0], heads[1], dims[0], dims[1], kernel)


def layer_types(config: Mapping[str, Any], layers: int, name: str) -> tuple[str, ...]:
    """What mixes tokens in each layer of a model with delta nets.

    Every `full_attention_interval`th is attention where the config lists none.
    Source: transformers 5.23 configuration_qwen3_5.py.
    """
    listed = config.get("layer_types")
    if listed is None:
        key = "full_attention_interval"
        every = as_size(config, (key,), name) if key in config else 4
        return tuple(LINEAR if (i + 1) % every else FULL for i in range(layers))
    if not isinstance(listed, list) or len(listed) != layers or set(listed) - {FULL, LINEAR}:
        msg = f"layer_types of {name} must name {FULL} or {LINEAR} for each of {layers} layers"
        raise InputError(msg, "check the config.json")
    return tuple(listed)


def delta_linears(net: DeltaNet, hidden: int, kind: str) -> tuple[Linear, ...]:
    """The projections of a gated delta net.

    Source: transformers 5.23 modeling_qwen3_5.py; modeling_qwen3_next.py, which has them fused.
    """
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

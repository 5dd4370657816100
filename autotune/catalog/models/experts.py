"""Mixtures of experts: how many, how wide, which layers are dense, and what PEFT can wrap.

In transformers 5 the experts of a layer are two fused parameters, not modules. PEFT's "all-linear"
adapts them in Mixtral and Qwen3-MoE and leaves them alone in other families.
Source: modelling code of transformers 5.23, peft 0.21.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from autotune.catalog.models.config_values import Sizes, as_size
from autotune.domain.errors import InputError
from autotune.domain.model import Linear

if TYPE_CHECKING:
    from collections.abc import Mapping

# Names of an expert's projections for PEFT, in the families whose fused experts it adapts.
CONVERTED_NAMES = {
    "mixtral": ("w1", "w3", "w2"),
    "qwen3_moe": ("gate_proj", "up_proj", "down_proj"),
}
COUNT = ("num_local_experts", "num_experts", "n_routed_experts")
PER_TOKEN = ("num_experts_per_tok", "experts_per_token")
MIXTURES = {
    "mixtral", "qwen2_moe", "qwen3_moe", "gpt_oss", "granitemoe", "granitemoeshared", "llama4_text",
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture in one layer; `shared` is the width of the expert every token passes."""

    count: int
    per_token: int
    intermediate: int
    shared: int
    num_dense_layers: int


def read_experts(config: Mapping[str, Any], kind: str, sizes: Sizes, name: str) -> Experts | None:
    """The mixture of a config, or None for a dense family. Raises InputError."""
    if kind not in MIXTURES:
        return None
    count, per_token = as_size(config, COUNT, name), as_size(config, PER_TOKEN, name)
    if per_token > count:
        msg = f"{name}: {per_token} experts per token, but it has only {count}"
        raise InputError(msg, "check the config.json")
    intermediate, shared = sizes.intermediate, 0
    if kind in {"qwen2_moe", "qwen3_moe"}:
        intermediate = as_size(config, ("moe_intermediate_size",), name)
    if kind == "qwen2_moe":
        shared = as_size(config, ("shared_expert_intermediate_size",), name)
    elif kind == "granitemoeshared":
        key = "shared_intermediate_size"
        shared = as_size(config, (key,), name) if config.get(key) else 0
    elif kind == "llama4_text":
        shared = sizes.intermediate
    return Experts(count, per_token, intermediate, shared, _dense_layers(config, kind, sizes, name))


def _dense_layers(config: Mapping[str, Any], kind: str, sizes: Sizes, name: str) -> int:
    if kind == "llama4_text":
        step = config.get("interleave_moe_layer_step", 1)
        if step != 1 or config.get("moe_layers"):
            msg = f"{name} (llama4) mixes dense layers and experts, which is not described yet"
            raise InputError(msg, "choose a decoder with uniform layers")
        return 0
    if kind not in {"qwen2_moe", "qwen3_moe"}:
        return 0
    step = as_size(config, ("decoder_sparse_step",), name) if "decoder_sparse_step" in config else 1
    listed = config.get("mlp_only_layers") or []
    if not isinstance(listed, list):
        msg = f"mlp_only_layers of {name} must be a list of layer numbers"
        raise InputError(msg, "check the config.json")
    return sum(1 for layer in range(sizes.layers) if layer in listed or (layer + 1) % step != 0)


def expert_linears(experts: Experts, sizes: Sizes, kind: str, *, bias: bool) -> tuple[Linear, ...]:
    """The matrices of one mixture layer: router, routed experts and the shared one.

    Routers are listed where PEFT's "all-linear" adapts them; others are parameters of the layer.
    """
    h, s = sizes.hidden, experts.shared
    routed = _routed(experts, sizes, kind, bias=bias)
    if not s:
        return routed
    if kind == "granitemoeshared":
        return (
            *routed,
            Linear("input_linear", h, 2 * s, part="shared_expert"),
            Linear("output_linear", s, h, part="shared_expert"),
        )
    # Llama 4's router is an nn.Linear; Qwen2's shared expert has a gate of its own.
    gate = (
        Linear("shared_expert_gate", h, 1, part="router")
        if kind == "qwen2_moe"
        else Linear("router", h, experts.count, part="router")
    )
    return (
        *routed,
        Linear("gate_proj", h, s, part="shared_expert"),
        Linear("up_proj", h, s, part="shared_expert"),
        Linear("down_proj", s, h, part="shared_expert"),
        gate,
    )


def _routed(experts: Experts, sizes: Sizes, kind: str, *, bias: bool) -> tuple[Linear, ...]:
    """The routed experts: under the names that PEFT takes, where it adapts them.

    PEFT keeps the names of transformers 4 for Mixtral and Qwen3-MoE: it wraps the fused gate and up
    projections once, at twice the rank, so that each of the two costs rank x (in + 2 x width).
    Source: peft 0.21 `transformers_weight_conversion`, checked on the meta device.
    """
    h, f, count, active = sizes.hidden, experts.intermediate, experts.count, experts.per_token
    if kind not in CONVERTED_NAMES:
        return (
            Linear("gate_up_proj", h, 2 * f, bias, "expert", count, active, adaptable=False),
            Linear("down_proj", f, h, bias, "expert", count, active, adaptable=False),
        )
    gate, up, down = CONVERTED_NAMES[kind]
    return (
        Linear("gate", h, count, part="router"),
        Linear(gate, h, f, bias, "expert", count, active, adapter_out=2 * f),
        Linear(up, h, f, bias, "expert", count, active, adapter_out=2 * f),
        Linear(down, f, h, bias, "expert", count, active),
    )

"""What a decoder family's class is made of: the noun, and what several classes have in common.

A flag is True, False or the config key that holds it ("key=default", "!" negates it).
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Any

from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.domain.model import Mlp, Norm, Position, QkNorm

Flag = bool | str

SPLIT = ("q_proj", "k_proj", "v_proj")
GATED = ("gate_proj", "up_proj", "down_proj")
FUSED_GATED = ("gate_up_proj", "down_proj")


@dataclass(frozen=True, slots=True)
class Family:
    """One transformers model_type (or several that share a class layout)."""

    architecture: str
    qkv: tuple[str, ...] = SPLIT  # three modules, or one fused
    attention_out: str = "o_proj"
    mlp: tuple[str, ...] = GATED  # gate, up, down | fused gate-up, down | up, down
    mlp_kind: Mlp = "gated"
    qkv_bias: Flag = False
    out_bias: Flag = False
    mlp_bias: Flag = False
    norm: Norm = "rmsnorm"
    norms_per_layer: int = 2
    norm_bias: Flag = False
    norm_weight: bool = True
    embedding_norm: bool = False
    qk_norm: QkNorm = "none"
    qk_norm_if: str | None = None  # config key that turns the q/k norms on
    position: Position = "rope"
    tied: bool = False  # the class's default where the config does not say
    head_bias: bool = False
    parallel: Flag = False
    remote: bool = False
    activation: str = "silu"  # default where the config does not say
    softcaps: bool = False
    gated_attention: bool = False
    defaults: dict[str, Any] = field(default_factory=dict)  # sizes the class fills in


LAYERNORM: dict[str, Any] = {"norm": "layernorm", "norm_bias": True}
PLAIN: dict[str, Any] = {"mlp_kind": "plain", "activation": "gelu"}
SQUARED: dict[str, Any] = {
    "mlp": ("up_proj", "down_proj"),
    "mlp_kind": "plain",
    "mlp_bias": "mlp_bias=False",
    "activation": "relu2",
}
NEOX: dict[str, Any] = {
    "qkv": ("query_key_value",),
    "attention_out": "dense",
    "mlp": ("dense_h_to_4h", "dense_4h_to_h"),
}
ATTENTION_BIAS: dict[str, Any] = {
    "qkv_bias": "attention_bias=False",
    "out_bias": "attention_bias=False",
}
NORMED_HEADS: dict[str, Any] = {**ATTENTION_BIAS, "qk_norm": "per_head"}

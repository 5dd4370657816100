"""A mixture of experts: how many, how wide, which layers are dense, and what PEFT can wrap.

In transformers 5 the experts of a layer are two fused parameters, not modules. PEFT's "all-linear"
adapts them in some families (CONVERTED_NAMES) and leaves them alone in others.
Source: modelling code of transformers 5.23, peft 0.21.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from autotune.catalog.models.config_values import LATENT, as_count, as_size
from autotune.catalog.models.family import (
    ATTENTION_BIAS,
    FUSED_GATED,
    NORMED_HEADS,
    SQUARED,
    Family,
)
from autotune.domain.errors import InputError
from autotune.domain.model import Linear
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.catalog.models.config_values import Sizes

DENSE, EXPERTS = "dense", "experts"  # what follows the mixing of tokens in a layer
# Names of an expert's projections for PEFT, in the families whose fused experts it adapts.
_GATED = ("gate_proj", "up_proj", "down_proj")
CONVERTED_NAMES = {
    **dict.fromkeys(("mixtral", "minimax_m2"), ("w1", "w3", "w2")),
    **dict.fromkeys(
        (
            "qwen3_moe",
            "qwen3_next",
            "glm4_moe",
            "ernie4_5_moe",
            "olmoe",
            "hunyuan_v1_moe",
            "dots1",
            *LATENT,
        ),
        _GATED,
    ),
}
ROUTERS = {"hunyuan_v1_moe": "wg"}  # the module that PEFT adapts, where it is not "gate"
COUNT = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "moe_k", "moe_topk")


@dataclass(frozen=True, slots=True)
class MixtureKeys:
    """Which keys of a family's config arrange its experts; "" where the family has no such thing.

    width: of a routed expert. shared: of the expert that every token passes, `optional` where it
    may be left out. num_shared: how many experts of the routed ones' width that one is wide.
    num_dense: layers before the first that routes. router_bias: each router holds one.
    """

    width: str = ""
    shared: str = ""
    optional: bool = False
    num_shared: str = ""
    num_dense: str = ""
    router_bias: bool = False


_NEMOTRON_SIZES = {
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 21504, "vocab_size": 131072,
}  # fmt: skip
MIXTURE_FAMILIES = {
    "mixtral": Family("MixtralForCausalLM", mlp=FUSED_GATED),
    "qwen2_moe": Family("Qwen2MoeForCausalLM", mlp=FUSED_GATED, qkv_bias="qkv_bias=True"),
    "qwen3_moe": Family("Qwen3MoeForCausalLM", mlp=FUSED_GATED, **NORMED_HEADS),
    "gpt_oss": Family(
        "GptOssForCausalLM",
        mlp=FUSED_GATED,
        qkv_bias="attention_bias=True",
        out_bias="attention_bias=True",
        mlp_bias=True,
    ),
    "hunyuan_v1_moe": Family("HunYuanMoEV1ForCausalLM", mlp=FUSED_GATED, **NORMED_HEADS),
    "granitemoe": Family("GraniteMoeForCausalLM", mlp=FUSED_GATED, **ATTENTION_BIAS),
    "granitemoeshared": Family("GraniteMoeSharedForCausalLM", mlp=FUSED_GATED, **ATTENTION_BIAS),
    "granitemoehybrid": Family(
        "GraniteMoeHybridForCausalLM",
        mlp=("input_linear", "output_linear"),
        **ATTENTION_BIAS,
        position="none",
    ),
    "nemotron_h": Family(
        "NemotronHForCausalLM",
        **SQUARED,
        norms_per_layer=1,
        position="none",
        defaults=_NEMOTRON_SIZES,
    ),
    "falcon_h1": Family("FalconH1ForCausalLM", **ATTENTION_BIAS, mlp_bias="mlp_bias=False"),
    "olmoe": Family("OlmoeForCausalLM", mlp=FUSED_GATED, **ATTENTION_BIAS, qk_norm="full"),
    "glm4_moe": Family(
        "Glm4MoeForCausalLM",
        mlp=FUSED_GATED,
        qkv_bias="attention_bias=False",
        qk_norm="per_head",
        qk_norm_if="use_qk_norm",
    ),
    "deepseek_v2": Family("DeepseekV2ForCausalLM", mlp=FUSED_GATED),
    "deepseek_v3": Family("DeepseekV3ForCausalLM", mlp=FUSED_GATED),
    "glm4_moe_lite": Family("Glm4MoeLiteForCausalLM", mlp=FUSED_GATED),
    "ernie4_5_moe": Family(
        "Ernie4_5_MoeForCausalLM",
        mlp=FUSED_GATED,
        qkv_bias="use_bias=False",
        out_bias="use_bias=False",
        tied=True,
    ),
    "minimax_m2": Family("MiniMaxM2ForCausalLM", mlp=FUSED_GATED, qk_norm="full"),
    "dots1": Family("Dots1ForCausalLM", mlp=FUSED_GATED, **NORMED_HEADS),
    "llama4_text": Family("Llama4ForCausalLM", mlp=FUSED_GATED, **ATTENTION_BIAS),
}

_WIDTH = "moe_intermediate_size"
MIXTURES = {
    "mixtral": MixtureKeys(),
    "minimax_m2": MixtureKeys(),
    "olmoe": MixtureKeys(),
    "gpt_oss": MixtureKeys(),
    "granitemoe": MixtureKeys(),
    "granitemoeshared": MixtureKeys(shared="shared_intermediate_size", optional=True),
    "granitemoehybrid": MixtureKeys(shared="shared_intermediate_size"),
    "llama4_text": MixtureKeys(shared="intermediate_size"),
    "qwen2_moe": MixtureKeys(width=_WIDTH, shared="shared_expert_intermediate_size"),
    "qwen3_moe": MixtureKeys(width=_WIDTH),
    **dict.fromkeys(
        ("qwen3_5_moe_text", "qwen3_next"),
        MixtureKeys(width=_WIDTH, shared="shared_expert_intermediate_size"),
    ),
    "glm4_moe": MixtureKeys(
        width=_WIDTH, num_shared="n_shared_experts", num_dense="first_k_dense_replace"
    ),
    **dict.fromkeys(
        ("deepseek_v2", "deepseek_v3", "dots1"),
        MixtureKeys(width=_WIDTH, num_shared="n_shared_experts", num_dense="first_k_dense_replace"),
    ),
    "glm4_moe_lite": MixtureKeys(width=_WIDTH, num_shared="n_shared_experts"),
    "lfm2_moe": MixtureKeys(width=_WIDTH, num_dense="num_dense_layers"),
    "hunyuan_v1_moe": MixtureKeys(shared="intermediate_size"),
    "nemotron_h": MixtureKeys(width=_WIDTH, shared="moe_shared_expert_intermediate_size"),
    "ernie4_5_moe": MixtureKeys(
        width=_WIDTH, num_shared="moe_num_shared_experts", router_bias=True
    ),
}


@dataclass(frozen=True, slots=True)
class Experts:
    """The mixture in one layer; `shared` is the width of the expert every token passes."""

    count: int
    per_token: int
    intermediate: int
    shared: int
    num_dense_layers: int
    router_bias: bool = False


def read_experts(config: Mapping[str, Any], kind: str, sizes: Sizes, name: str) -> Experts | None:
    """The mixture of a config, or None for a dense family. Raises InputError."""
    keys = MIXTURES.get(kind)
    if keys is None or (kind == "granitemoehybrid" and config.get("num_local_experts") == 0):
        return None
    if kind == "nemotron_h" and "moe" not in config["layer_types"]:
        return None
    config = {**config, **_alike(config)}
    count, per_token = as_size(config, COUNT, name), as_size(config, PER_TOKEN, name)
    if per_token > count:
        msg = f"{name}: {per_token} experts per token, but it has only {count}"
        raise InputError(msg, "check the config.json")
    if keys.num_shared and any(config.get(key) for key in ("use_bias", "mlp_bias")):
        msg = f"{name} ({kind}) has biases in the MLPs of a mixture, which is not described"
        raise InputError(msg, "choose a model of this family without them")
    width = as_size(config, (keys.width,), name) if keys.width else sizes.intermediate
    shared = 0
    if keys.num_shared:
        shared = width * as_count(config, keys.num_shared, name)
    elif keys.shared and not (keys.optional and not config.get(keys.shared)):
        shared = as_size(config, (keys.shared,), name)
    dense = _dense_layers(config, kind, sizes, name)
    if dense and kind == "qwen3_next":
        msg = f"{name} (Qwen3-Next) has layers without experts, which is not described"
        raise InputError(msg, "choose a model that `autotune models` lists")
    if dense >= sizes.layers:
        msg = f"{name} ({kind}) has experts in none of its {sizes.layers} layers"
        raise InputError(msg, "check the config.json")
    return Experts(count, per_token, width, shared, dense, keys.router_bias)


def _alike(config: Mapping[str, Any]) -> dict[str, Any]:
    """What a config lists for each layer (Hunyuan), where the layers are alike; else it stays."""
    listed = ((key, config.get(key)) for key in (*COUNT, *PER_TOKEN))
    return {
        key: found[0]
        for key, found in listed
        if isinstance(found, list) and found and all(each == found[0] for each in found)
    }


def _dense_layers(config: Mapping[str, Any], kind: str, sizes: Sizes, name: str) -> int:
    if MIXTURES[kind].num_dense:
        return as_count(config, MIXTURES[kind].num_dense, name)
    if kind == "glm4_moe_lite":  # its class does not read first_k_dense_replace
        types = config.get("mlp_layer_types")
        return types[: sizes.layers].count("dense") if isinstance(types, list) and types else 1
    if kind == "ernie4_5_moe":
        return sizes.layers - _routing_layers(config, sizes, name)
    if kind == "llama4_text":
        step = config.get("interleave_moe_layer_step", 1)
        if step != 1 or config.get("moe_layers"):
            msg = f"{name} (llama4) mixes dense layers and experts, which is not described yet"
            raise InputError(msg, "choose a model that `autotune models` lists")
        return 0
    if kind not in {"qwen2_moe", "qwen3_moe", "qwen3_next"}:
        return 0
    step = as_size(config, ("decoder_sparse_step",), name) if "decoder_sparse_step" in config else 1
    listed = config.get("mlp_only_layers") or []
    if not isinstance(listed, list):
        msg = f"mlp_only_layers of {name} must be a list of layer numbers"
        raise InputError(msg, "check the config.json")
    return sum(1 for layer in range(sizes.layers) if layer in listed or (layer + 1) % step != 0)


def _routing_layers(config: Mapping[str, Any], sizes: Sizes, name: str) -> int:
    """Layers with experts, by the first, the last and every which one has them."""
    first = as_count(config, "moe_layer_start_index", name)
    last = config.get("moe_layer_end_index", -1)
    step = as_size(config, ("moe_layer_interval",), name) if "moe_layer_interval" in config else 1
    if last is None or last == -1:
        last = sizes.layers - 1
    elif isinstance(last, bool) or not isinstance(last, int):
        msg = f"moe_layer_end_index of {name} must be the number of a layer"
        raise InputError(msg, "check the config.json")
    return sum(1 for i in range(sizes.layers) if (i + 1) % step == 0 and first <= i <= last)


def expert_linears(experts: Experts, sizes: Sizes, kind: str, *, bias: bool) -> tuple[Linear, ...]:
    """The matrices of one mixture layer: router, routed experts and the shared one.

    Routers are listed where PEFT's "all-linear" adapts them; others are parameters of the layer.
    """
    h, s = sizes.hidden, experts.shared
    routed = _routed(experts, sizes, kind, bias=bias)
    if not s:
        return routed
    if kind in {"granitemoeshared", "granitemoehybrid"}:
        return (
            *routed,
            Linear("input_linear", h, 2 * s, part="shared_expert"),
            Linear("output_linear", s, h, part="shared_expert"),
        )
    if kind == "nemotron_h":
        shared = Linear("up_proj", h, s, bias, "shared_expert")
        return (*routed, shared, Linear("down_proj", s, h, bias, "shared_expert"))
    own = _gated_mlp(h, s, "shared_expert", adaptable=kind not in CONVERTED_NAMES)
    # Llama 4's router is an nn.Linear; Qwen2's shared expert has a gate of its own.
    if kind in {"qwen2_moe", "qwen3_5_moe_text", "qwen3_next"}:
        return (*routed, *own, Linear("shared_expert_gate", h, 1, part="router"))
    if kind == "llama4_text":
        return (*routed, *own, Linear("router", h, experts.count, part="router"))
    return (*routed, *own)


def dense_layer_mlp(sizes: Sizes, kind: str) -> tuple[Linear, ...]:
    """The MLP of a mixture's layer without experts."""
    adaptable = kind not in CONVERTED_NAMES
    return _gated_mlp(sizes.hidden, sizes.intermediate, "mlp", adaptable=adaptable)


def _gated_mlp(
    hidden: int, width: int, part: Literal["mlp", "shared_expert"], *, adaptable: bool
) -> tuple[Linear, ...]:
    """The dense MLP of a mixture: of a layer without experts, or the expert of every token.

    adaptable: not where PEFT takes these names for the experts' fused parameters, and leaves the
    modules of the same names alone. Source: peft 0.21 `_convert_peft_config_moe`.
    """
    gate, up, down = _GATED
    return (
        Linear(gate, hidden, width, part=part, adaptable=adaptable),
        Linear(up, hidden, width, part=part, adaptable=adaptable),
        Linear(down, width, hidden, part=part, adaptable=adaptable),
    )


def _routed(experts: Experts, sizes: Sizes, kind: str, *, bias: bool) -> tuple[Linear, ...]:
    """The routed experts: under the names that PEFT takes, where it adapts them.

    PEFT keeps the names of transformers 4 for these families: it wraps the fused gate and up
    projections once, at twice the rank, so that each of the two costs rank x (in + 2 x width).
    Source: peft 0.21 `transformers_weight_conversion`, checked on the meta device.
    """
    h, f, count, active = sizes.hidden, experts.intermediate, experts.count, experts.per_token
    if kind == "nemotron_h":  # no gate, and its class gives them no bias
        return tuple(
            Linear(name, *of, part="expert", count=count, active=active, adaptable=False)
            for name, of in (("up_proj", (h, f)), ("down_proj", (f, h)))
        )
    if kind not in CONVERTED_NAMES:
        return (
            Linear("gate_up_proj", h, 2 * f, bias, "expert", count, active, adaptable=False),
            Linear("down_proj", f, h, bias, "expert", count, active, adaptable=False),
        )
    gate, up, down = CONVERTED_NAMES[kind]
    return (
        Linear(ROUTERS.get(kind, "gate"), h, count, experts.router_bias, "router"),
        Linear(gate, h, f, bias, "expert", count, active, adapter_out=2 * f),
        Linear(up, h, f, bias, "expert", count, active, adapter_out=2 * f),
        Linear(down, f, h, bias, "expert", count, active),
    )

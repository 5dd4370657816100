"""Reading a config.json: numbers and switches, which key holds them, what is nonsense; experts.

Of a mixture of experts: how many, how wide, which layers are dense, and what PEFT can wrap. In
transformers 5 the experts of a layer are two fused parameters, not modules. PEFT's "all-linear"
adapts them in some families (CONVERTED_NAMES) and leaves them alone in others.
Source: modelling code of transformers 5.23, peft 0.21.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

from autotune.domain.errors import InputError
from autotune.domain.model import Linear
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.catalog.models.families import Family, Flag

# Names of one size in configs of different families, the common one first.
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads")
INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
VOCAB = ("padded_vocab_size", "vocab_size")
POSITIONS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
)  # fmt: skip
HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim")

# Families with multi-head latent attention (DeepSeek-V2).
LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite")

# Largest value that a decoder could plausibly have; more is a typo or an attack.
LIMITS = {
    **dict.fromkeys(LAYERS, 10_000),
    **dict.fromkeys(HIDDEN, 1_000_000),
    **dict.fromkeys(HEADS, 100_000),
    **dict.fromkeys(VOCAB, 100_000_000),
    **dict.fromkeys(POSITIONS, 10**10),
}
DEFAULT_LIMIT = 10_000_000
ASSUMED_POSITIONS = 2048  # where the config does not say and nothing is stored per position


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a dense layer and of the ends of the model, in elements."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int
    positions: int

    @property
    def query(self) -> int:
        """[elements] width of all query heads."""
        return self.heads * self.head_dim

    @property
    def kv(self) -> int:
        """[elements] width of all key (or value) heads."""
        return self.kv_heads * self.head_dim


def as_flag(config: Mapping[str, Any], flag: Flag) -> bool:
    """A family's flag: itself, or what the config says under "key=default"; "!" negates."""
    if isinstance(flag, bool):
        return flag
    key, _, default = flag.lstrip("!").partition("=")
    value = config.get(key)
    stated = value if isinstance(value, bool) else default == "True"
    return not stated if flag.startswith("!") else stated


def as_size(config: Mapping[str, Any], keys: Sequence[str], name: str) -> int:
    """The first of the keys that the config has, as a positive whole number within reason."""
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        limit = LIMITS.get(key, DEFAULT_LIMIT)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= limit:
            shown = repr(value)[:60]
            msg = f"{key} {shown} of {name} must be a whole number from 1 to {limit:,}"
            raise InputError(msg, "check the config.json")
        return value
    msg = f"the config of {name} has no {' or '.join(keys)}"
    raise InputError(msg, "a decoder's config.json states its sizes; pass a complete one")


def read_sizes(config: Mapping[str, Any], family: Family, kind: str, name: str) -> Sizes:
    """Sizes of a decoder, with what the family's class fills in. Raises InputError."""
    filled = {**family.defaults, **{k: v for k, v in config.items() if v is not None}}
    layers = as_size(filled, LAYERS, name)
    hidden, heads = as_size(filled, HIDDEN, name), as_size(filled, HEADS, name)
    kv_heads = _kv_heads(filled, kind, heads, name)
    if heads % kv_heads:
        msg = f"{name}: {heads} attention heads do not share {kv_heads} key-value heads evenly"
        raise InputError(msg, "check num_attention_heads and num_key_value_heads")
    if kind in LATENT:
        head_dim = sum(as_size(filled, (f"qk_{part}_head_dim",), name) for part in ("nope", "rope"))
    elif any(filled.get(key) is not None for key in HEAD_DIM):
        head_dim = as_size(filled, HEAD_DIM, name)
    elif hidden % heads:
        msg = f"{name}: hidden size {hidden} is not a multiple of its {heads} attention heads"
        raise InputError(msg, "check hidden_size and num_attention_heads, or state head_dim")
    else:
        head_dim = hidden // heads
    return Sizes(
        layers=layers,
        hidden=hidden,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        intermediate=_intermediate(filled, kind, hidden, name),
        vocab=as_size(filled, VOCAB, name),
        positions=_positions(filled, family, name),
    )


def _kv_heads(config: Mapping[str, Any], kind: str, heads: int, name: str) -> int:
    if kind in LATENT:
        return heads
    if kind == "gpt_bigcode":
        return 1 if as_flag(config, "multi_query=True") else heads
    if kind == "falcon":
        if as_flag(config, "new_decoder_architecture=False"):
            key = "num_kv_heads"
            return as_size(config, (key,), name) if key in config else heads
        return 1 if as_flag(config, "multi_query=True") else heads
    if kind == "chatglm" and as_flag(config, "multi_query_attention=False"):
        return as_size(config, ("multi_query_group_num",), name)
    key = "num_key_value_heads"
    return as_size(config, (key,), name) if config.get(key) is not None else heads


def _intermediate(config: Mapping[str, Any], kind: str, hidden: int, name: str) -> int:
    if kind == "mpt":
        ratio = config.get("expansion_ratio", 4)
        valid = isinstance(ratio, int) and not isinstance(ratio, bool) and 0 < ratio <= hidden
        if not valid:
            msg = f"expansion_ratio {ratio!r} of {name} must be a positive whole number"
            raise InputError(msg, "check the config.json")
        return int(ratio) * hidden
    four_times = kind in {"gpt2", "gpt_bigcode", "bloom", "falcon"}
    if four_times and all(config.get(key) is None for key in INTERMEDIATE):
        return 4 * hidden
    if kind == "bloom":
        return 4 * hidden  # its class ignores the key
    if kind == "lfm2":
        return _adjusted(config, name)
    if kind == "granitemoehybrid" and config.get("num_local_experts") == 0:
        return as_size(config, ("shared_intermediate_size",), name)
    size = as_size(config, INTERMEDIATE, name)
    return size // 2 if kind == "qwen" else size  # Qwen-1 counts w1 and w2 together


def _adjusted(config: Mapping[str, Any], name: str) -> int:
    """LFM2's width of the MLP: two thirds of what is stated, in whole blocks.

    Source: transformers 5.23 modeling_lfm2.py, Lfm2MLP.
    """
    size = as_size(config, ("block_ff_dim", "intermediate_size"), name)
    if not as_flag(config, "block_auto_adjust_ff_dim=True"):
        return size
    times, most = config.get("block_ffn_dim_multiplier"), 100
    times = 1.0 if times is None else times
    if isinstance(times, bool) or not isinstance(times, (int, float)) or not 0 < times <= most:
        msg = f"block_ffn_dim_multiplier {str(times)[:40]} of {name} must be a number up to 100"
        raise InputError(msg, "check the config.json")
    block = as_size({"block_multiple_of": 256, **config}, ("block_multiple_of",), name)
    return block * ((int(times * int(2 * size / 3)) + block - 1) // block)


def _positions(config: Mapping[str, Any], family: Family, name: str) -> int:
    if family.position == "learned" or any(config.get(key) is not None for key in POSITIONS):
        return as_size(config, POSITIONS, name)
    return ASSUMED_POSITIONS


# Names of an expert's projections for PEFT, in the families whose fused experts it adapts.
_GATED = ("gate_proj", "up_proj", "down_proj")
CONVERTED_NAMES = {
    "mixtral": ("w1", "w3", "w2"),
    **dict.fromkeys(
        ("qwen3_moe", "qwen3_next", "glm4_moe", "ernie4_5_moe", "olmoe", *LATENT), _GATED
    ),
}
COUNT = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
PER_TOKEN = ("num_experts_per_tok", "experts_per_token", "moe_k")


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


_WIDTH = "moe_intermediate_size"
MIXTURES = {
    "mixtral": MixtureKeys(),
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
        ("deepseek_v2", "deepseek_v3"),
        MixtureKeys(width=_WIDTH, num_shared="n_shared_experts", num_dense="first_k_dense_replace"),
    ),
    "glm4_moe_lite": MixtureKeys(width=_WIDTH, num_shared="n_shared_experts"),
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


def as_count(config: Mapping[str, Any], key: str, name: str) -> int:
    """A whole number that may be 0. Raises InputError where the config has none."""
    if config.get(key) == 0 and not isinstance(config[key], bool):
        return 0
    return as_size(config, (key,), name)


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
    if kind not in CONVERTED_NAMES:
        return (
            Linear("gate_up_proj", h, 2 * f, bias, "expert", count, active, adaptable=False),
            Linear("down_proj", f, h, bias, "expert", count, active, adaptable=False),
        )
    gate, up, down = CONVERTED_NAMES[kind]
    return (
        Linear("gate", h, count, experts.router_bias, "router"),
        Linear(gate, h, f, bias, "expert", count, active, adapter_out=2 * f),
        Linear(up, h, f, bias, "expert", count, active, adapter_out=2 * f),
        Linear(down, f, h, bias, "expert", count, active),
    )

"""Reading a config.json: numbers and switches, which key holds them, what is nonsense; experts.

Of a mixture of experts: how many, how wide, which layers are dense, and what PEFT can wrap. In
transformers 5 the experts of a layer are two fused parameters, not modules. PEFT's "all-linear"
adapts them in Mixtral and Qwen3-MoE and leaves them alone in other families.
Source: modelling code of transformers 5.23, peft 0.21.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

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
    if any(filled.get(key) is not None for key in HEAD_DIM):
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
    size = as_size(config, INTERMEDIATE, name)
    return size // 2 if kind == "qwen" else size  # Qwen-1 counts w1 and w2 together


def _positions(config: Mapping[str, Any], family: Family, name: str) -> int:
    if family.position == "learned" or any(config.get(key) is not None for key in POSITIONS):
        return as_size(config, POSITIONS, name)
    return ASSUMED_POSITIONS


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

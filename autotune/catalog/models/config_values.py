"""Reading a config.json: numbers and switches, which key holds them, what is nonsense.

Source: modelling code of transformers 5.23.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.domain.units import is_number
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.catalog.models.family import Family, Flag

# Names of one size in configs of different families, the common one first.
LAYERS = ("num_hidden_layers", "n_layer", "num_layers", "n_layers")
HIDDEN = ("hidden_size", "n_embd", "d_model")
HEADS = ("num_attention_heads", "n_head", "n_heads", "num_heads")
INTERMEDIATE = ("intermediate_size", "n_inner", "ffn_dim", "ffn_hidden_size")
VOCAB = ("padded_vocab_size", "vocab_size")
POSITIONS = (
    "max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "model_max_length",
)  # fmt: skip
HEAD_DIM = ("head_dim", "kv_channels", "attention_head_dim")

# Families with multi-head latent attention (DeepSeek-V2).
LATENT = ("deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3")

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


def as_count(config: Mapping[str, Any], key: str, name: str) -> int:
    """A whole number that may be 0. Raises InputError where the config has none."""
    if config.get(key) == 0 and not isinstance(config[key], bool):
        return 0
    return as_size(config, (key,), name)


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
    four_times = kind in {"gpt2", "gpt_bigcode", "gptj", "gpt_neo", "bloom", "falcon"}
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
    if not is_number(times) or not 0 < times <= most:
        msg = f"block_ffn_dim_multiplier {str(times)[:40]} of {name} must be a number up to 100"
        raise InputError(msg, "check the config.json")
    block = as_size({"block_multiple_of": 256, **config}, ("block_multiple_of",), name)
    return block * ((int(times * int(2 * size / 3)) + block - 1) // block)


def _positions(config: Mapping[str, Any], family: Family, name: str) -> int:
    if family.position == "learned" or any(config.get(key) is not None for key in POSITIONS):
        return as_size(config, POSITIONS, name)
    return ASSUMED_POSITIONS

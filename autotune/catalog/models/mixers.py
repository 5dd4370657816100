"""What mixes tokens otherwise than by keys of all heads: latent attention, nets, states.

Source: modelling code of transformers 5.23 (deepseek_v2, qwen3_next, qwen3_5, lfm2,
granitemoehybrid, falcon_h1, nemotron_h).
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from autotune.catalog.models.config_values import LATENT, as_flag, as_size
from autotune.catalog.models.experts import DENSE, EXPERTS
from autotune.domain.errors import InputError
from autotune.domain.model import DeltaNet, Latent, Layer, Linear, Mamba2, ShortConv

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.catalog.models.config_values import Sizes
    from autotune.catalog.models.experts import Experts
    from autotune.domain.model import Mixer, QkNorm


def read_latent(config: Mapping[str, Any], sizes: Sizes, kind: str, name: str) -> Latent | None:
    """How narrow latent attention is, or None where a family has another one."""
    if kind not in LATENT:
        return None
    if kind == "minicpm3" and config.get("v_head_dim") is None:
        config = {**config, "v_head_dim": sizes.hidden // sizes.heads}
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


FULL, LINEAR, CONV, BOTH = "full_attention", "linear_attention", "conv", "hybrid"
_LISTS = ("layer_types", "layers_block_type")
_NOW_CALLED = {"attention": FULL, "mamba": LINEAR}  # in configs of before transformers 5
DELTA_NETS = {
    "qwen3_5_text",
    "qwen3_5_moe_text",
    "qwen3_next",
}  # families with gated delta nets between their attention layers
MAMBA = {"granitemoehybrid": LINEAR, "falcon_h1": BOTH, "nemotron_h": LINEAR}
# A family's word for the layers that do not attend, or not alone.
CONVOLUTIONS = ("lfm2", "lfm2_moe")
MIXING = {**dict.fromkeys(DELTA_NETS, LINEAR), **dict.fromkeys(CONVOLUTIONS, CONV), **MAMBA}
# Nemotron-H's layers do one thing each: they mix tokens, or are an MLP or experts alone.
_ALONE = {"mlp": DENSE, "moe": EXPERTS}
_LETTERS = {"M": LINEAR, "*": FULL, "-": "mlp", "E": "moe"}
_DELTA_NET = {
    "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_key_head_dim": 128,
    "linear_value_head_dim": 128, "linear_conv_kernel_dim": 4,
}  # fmt: skip


_MAMBA = {
    "mamba_n_heads": 128, "mamba_d_state": 256, "mamba_n_groups": 1, "mamba_d_conv": 4,
    "mamba_chunk_size": 256, "mamba_expand": 2,
}  # fmt: skip
_NEMOTRON = {
    "mamba_num_heads": 128, "mamba_head_dim": 64, "ssm_state_size": 128, "n_groups": 8,
    "conv_kernel": 4, "chunk_size": 128,
}  # fmt: skip


def read_mixer(config: Mapping[str, Any], kind: str, sizes: Sizes, name: str) -> Mixer | None:
    """What mixes tokens between a family's attention layers; None: nothing. Raises InputError."""
    if kind in CONVOLUTIONS:
        kernel = as_size({"conv_L_cache": 3, **config}, ("conv_L_cache",), name)
        return ShortConv(sizes.hidden, kernel, as_flag(config, "conv_bias=False"))
    if kind == "nemotron_h":
        return _read_nemotron(config, name)
    if kind in MAMBA:
        return _read_mamba(config, kind, sizes, name)
    return _read_delta_net(config, name) if kind in DELTA_NETS else None


def _read_mamba(config: Mapping[str, Any], kind: str, sizes: Sizes, name: str) -> Mamba2:
    """The sizes of Mamba-2 mixers. Falcon-H1 states their width, and leaves their norm out."""
    filled = {**_MAMBA, **{k: v for k, v in config.items() if v is not None}}
    heads, state, groups, kernel, chunk, expand = (as_size(filled, (key,), name) for key in _MAMBA)
    width, own = expand * sizes.hidden, kind == "falcon_h1"
    if own and config.get("mamba_d_ssm", 1024) is not None:
        width = as_size({"mamba_d_ssm": 1024, **config}, ("mamba_d_ssm",), name)
    if width % heads or heads % groups:
        msg = f"{name}: {heads} Mamba heads in {groups} groups do not share a width of {width:,}"
        raise InputError(
            msg, "check mamba_n_heads, mamba_n_groups and the width in the config.json"
        )
    bias = as_flag(config, "mamba_conv_bias=True")
    normed = as_flag(config, "mamba_rms_norm=False") if own else True
    return Mamba2(heads, width // heads, state, groups, kernel, chunk, bias, normed)


def _read_nemotron(config: Mapping[str, Any], name: str) -> Mamba2:
    """The same of Nemotron-H, whose heads state their width.

    Source: transformers 5.23 configuration_nemotron_h.py, with the keys of before it was there.
    """
    filled = {**_NEMOTRON, **{k: v for k, v in config.items() if v is not None}}
    heads, dim, state, groups, kernel, chunk = (as_size(filled, (k,), name) for k in _NEMOTRON)
    if heads % groups:
        msg = f"{name}: {heads} Mamba heads do not share {groups} groups evenly"
        raise InputError(msg, "check mamba_num_heads and n_groups in the config.json")
    return Mamba2(heads, dim, state, groups, kernel, chunk, as_flag(config, "use_conv_bias=True"))


def stated_layers(config: Mapping[str, Any], name: str) -> dict[str, Any]:
    """A Nemotron-H config with its layers as a list, and their number by it.

    Source: transformers 5.23 configuration_nemotron_h.py, which reads the pattern of letters where
    a config has one, and ignores num_hidden_layers.
    """
    pattern = config.get("hybrid_override_pattern")
    listed = config.get("layer_types") or config.get("layers_block_type")
    if pattern is not None:
        known = isinstance(pattern, str) and not set(pattern) - set(_LETTERS)
        listed = [_LETTERS[letter] for letter in pattern] if known else None
    if not isinstance(listed, list) or not listed:
        letters = ", ".join(_LETTERS)
        msg = f"hybrid_override_pattern of {name} must be a text of {letters}, one for each layer"
        raise InputError(msg, "check the config.json, or list layers_block_type")
    plain = {k: v for k, v in config.items() if k not in {"hybrid_override_pattern", *_LISTS}}
    layers = [_NOW_CALLED.get(str(each), str(each)) for each in listed]
    return {**plain, "layer_types": layers, "num_hidden_layers": len(layers)}


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
    listed, other = config.get("layer_types") or config.get("layers_block_type"), MIXING[kind]
    if kind == "falcon_h1" or (listed is None and kind in MAMBA):
        return (other,) * layers
    if isinstance(listed, list):
        listed = [_NOW_CALLED.get(str(each), each) for each in listed]
    if listed is None and other == CONV:
        places = config.get("full_attn_idxs")
        full = places if isinstance(places, list) else range(layers)
        return tuple(FULL if i in full else CONV for i in range(layers))
    if listed is None:
        key = "full_attention_interval"
        every = as_size(config, (key,), name) if key in config else 4
        return tuple(LINEAR if (i + 1) % every else FULL for i in range(layers))
    known = {FULL, other, *(_ALONE if kind == "nemotron_h" else ())}
    if not isinstance(listed, list) or len(listed) != layers or set(listed) - known:
        words = " or ".join(sorted(known))
        msg = f"layer_types of {name} must name {words} for each of {layers} layers"
        raise InputError(msg, "check the config.json")
    return tuple(listed)


def mixer_linears(
    net: Mixer, config: Mapping[str, Any], hidden: int, kind: str
) -> tuple[Linear, ...]:
    """The projections of what mixes tokens.

    Source: transformers 5.23 modeling_qwen3_5.py; modeling_qwen3_next.py, which has them fused;
    modeling_lfm2.py, modeling_granitemoehybrid.py, modeling_falcon_h1.py and
    modeling_nemotron_h.py. PEFT 0.21 refuses
    out_proj beside Mamba layers by the type of the model (tuners_utils.py,
    _check_lora_target_modules_mamba), Granite's not.
    """
    project = partial(Linear, part="mixer")
    if isinstance(net, ShortConv):
        ins = project("in_proj", hidden, 3 * hidden, net.bias)
        return ins, project("out_proj", hidden, hidden, net.bias)
    if isinstance(net, Mamba2):
        key = "use_bias" if kind == "nemotron_h" else "mamba_proj_bias"
        bias = as_flag(config, f"{key}=False")
        last = as_flag(config, "projectors_bias=False") if kind == "falcon_h1" else bias
        made = net.width + net.convolved + net.heads
        out = project("out_proj", net.width, hidden, last, adaptable=kind == "granitemoehybrid")
        return project("in_proj", hidden, made, bias), out
    out = project("out_proj", net.values, hidden)
    if kind == "qwen3_next":
        return (
            project("in_proj_qkvz", hidden, 2 * net.keys + 2 * net.values),
            project("in_proj_ba", hidden, 2 * net.value_heads),
            out,
        )
    return (
        project("in_proj_qkv", hidden, 2 * net.keys + net.values),
        project("in_proj_z", hidden, net.values),
        project("in_proj_b", hidden, net.value_heads),
        project("in_proj_a", hidden, net.value_heads),
        out,
    )


def parts_of(types: Sequence[str], kind: str, experts: Experts | None) -> list[tuple[str, str]]:
    """(what mixes tokens, what follows) in each layer; "" where a layer has no such part."""
    if kind == "nemotron_h":
        return [("", _ALONE[each]) if each in _ALONE else (each, "") for each in types]
    dense = experts.num_dense_layers if experts else len(types)
    return [(each, DENSE if i < dense else EXPERTS) for i, each in enumerate(types)]


def hybrid(
    types: Sequence[tuple[str, str]],
    mixer: Mixer,
    sizes: Sizes,
    linears: Mapping[str, tuple[Linear, ...]],
    experts: Experts | None,
    qk_norm: QkNorm,
) -> tuple[Layer, ...]:
    """Kinds of layers where not all are attention.

    types: (what mixes tokens, what follows) of each layer. linears: of each of these words.
    """
    places = {kind: tuple(i for i, own in enumerate(types) if own == kind) for kind in types}
    found = []
    for (mixing, after), own in places.items():
        attends, mixes = mixing in {FULL, BOTH}, mixing not in {FULL, ""}
        routes = experts is not None and after == EXPERTS
        layer = Layer(
            places=own,
            linears=linears[FULL] * attends + linears[LINEAR] * mixes + linears[after],
            num_attention_heads=sizes.heads * attends,
            num_kv_heads=sizes.kv_heads * attends,
            head_dim=sizes.head_dim,
            qk_norm=qk_norm if attends else "none",
            extra_params_per_layer=mixer.parameters * mixes,
            num_experts=experts.count if experts and routes else 0,
            experts_per_token=experts.per_token if experts and routes else 0,
            mixer=mixer if mixes else None,
        )
        found.append(layer)
    return tuple(found)

"""Exact parameter counts of a decoder and of its LoRA adapters.

Every count equals that of the model's class in transformers (checked on the meta device for every
catalogue model whose class ships with transformers).

Source: derived from the modules of each class; LoRA: Hu et al. 2021, section 4.1 (rank x (in + out)
per adapted matrix, no biases).
"""

from __future__ import annotations

from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.domain.errors import InputError, unknown
from autotune.domain.model import MIXING

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.domain.job import Job, Method
    from autotune.domain.model import Linear, Model

ALL_LINEAR = "all-linear"
ATTENTION = "attention"
# The token embedding and the output head by the type of the model, where they are not embed_tokens
# and lm_head. Source: get_input_embeddings and get_output_embeddings of the classes of transformers
# 5.23 (GPT-NeoX's head was embed_out before); of ChatGLM, Qwen and Baichuan their own code.
EMBEDDING_OF = {
    "bloom": "word_embeddings", "falcon": "word_embeddings", "chatglm": "word_embeddings",
    "gpt2": "wte", "gpt_bigcode": "wte", "mpt": "wte", "qwen": "wte", "gptj": "wte",
    "gpt_neo": "wte", "gpt_neox": "embed_in", "nemotron_h": "embeddings", "exaone": "wte",
    "internlm2": "tok_embeddings",
}  # fmt: skip
HEADS_OF = {
    "gpt_neox": ("lm_head", "embed_out"), "chatglm": ("output_layer",), "internlm2": ("output",),
}  # fmt: skip
EMBEDDINGS = frozenset({"embed_tokens", *EMBEDDING_OF.values()})
HEADS = frozenset({"lm_head", *(name for names in HEADS_OF.values() for name in names)})
# One module in some model code, three in other: phi-2's own had Wqkv, transformers has q, k and v.
FUSED_QKV = ("qkv_proj", "query_key_value", "c_attn", "Wqkv", "W_pack", "qkv")
SPLIT_QKV = ("q_proj", "k_proj", "v_proj")


def _count(linears: Iterable[Linear]) -> int:
    return sum(
        linear.count
        * (linear.in_features * linear.out_features + linear.bias * linear.out_features)
        for linear in linears
    )


def norm_parameters(model: Model) -> int:
    """[elements] of one norm over the hidden size: its weight and bias, as the family has them."""
    return model.hidden_size * (model.norm_weight + model.norm_bias)


def _layer_norms(model: Model) -> int:
    qk = 0
    if model.norm_weight and model.qk_norm == "per_head":
        qk = (1 if model.borrows_keys else 2) * model.head_dim
    elif model.norm_weight and model.qk_norm == "full":
        qk = model.query_size + model.kv_size
    if model.latent:
        qk += sum(model.latent.normed)
    return model.norms_per_layer * norm_parameters(model) + qk


def layer_linear_parameters(model: Model) -> int:
    """[elements] of one layer's matrices with their biases, router and all experts included."""
    listed = any(x.part == "router" and x.out_features == model.num_experts for x in model.linears)
    router = 0 if listed else model.num_experts * (model.hidden_size + model.router_bias)
    return _count(model.linears) + router


def layer_parameters(model: Model) -> int:
    """[elements] of one layer of a model whose layers are alike (`Model.layers`)."""
    linears = layer_linear_parameters(model)
    return linears + _layer_norms(model) + model.extra_params_per_layer


def embedding_parameters(model: Model) -> int:
    """[elements] of the token embedding, and of the position embedding where one is learned."""
    learned = model.max_position_embeddings if model.position == "learned" else 0
    return (model.vocab_size + learned) * model.hidden_size


def per_layer_parameters(model: Model) -> int:
    """[elements] of the embedding that has a part for every layer; 0 where there is none."""
    return model.per_layer_vocab_size * model.per_layer_size * model.num_layers


def outside_parameters(model: Model) -> int:
    """[elements] outside the layers beside embedding, head and norms over the hidden size."""
    return per_layer_parameters(model) + model.per_layer_size + _count(model.outside)


def kept_keys(model: Model) -> int:
    """[elements] that a token adds to the cache of keys of all layers, and to that of values."""
    own = (layer for layer in model.layers if not layer.borrows_keys)
    return sum(_kept_keys(layer) * layer.num_layers for layer in own)


def _kept_keys(model: Model) -> int:
    """Of one layer; one narrow tensor stands for both under latent attention: half of it each.

    Source: transformers 5.23 DeepseekV2Attention, which fills the cache before it widens.
    """
    if model.latent:
        return (model.latent.kv_lora_rank + model.latent.qk_rope_head_dim) // 2
    return model.kv_size


def head_parameters(model: Model) -> int:
    """[elements] of the output head; 0 where it shares the embedding's weights."""
    matrix = 0 if model.tied_head else model.vocab_size * model.hidden_size
    return matrix + model.head_bias * model.vocab_size


def parameter_count(model: Model) -> int:
    """[elements] of the whole model, shared weights counted once."""
    layers = sum(layer.num_layers * layer_parameters(layer) for layer in model.layers)
    norms = norm_parameters(model) * (model.final_norm + model.embedding_norm)
    ends = embedding_parameters(model) + head_parameters(model) + outside_parameters(model)
    return ends + layers + norms + model.extra_params


def resolve_targets(model: Model, targets: str | Sequence[str]) -> tuple[str, ...]:
    """Module names that carry adapters, in the layer's order.

    targets: "all-linear" (never the output head), "attention", or names of modules. Raises
    InputError for a name that the model does not have or that PEFT cannot wrap.

    Source: peft 0.21 `_maybe_include_all_linear_layers` (nn.Linear and Conv1D modules, the output
    embedding left out) and `transformers_weight_conversion` (fused experts of some families).
    """
    linears = model.matrices
    can = tuple(dict.fromkeys(linear.name for linear in linears if linear.adaptable))
    wanted = (targets,) if isinstance(targets, str) else tuple(targets)
    if not wanted:
        msg = f"LoRA targets of {model.name} are empty; at least one module must carry an adapter"
        raise InputError(msg, f'use "{ALL_LINEAR}", "{ATTENTION}" or names of: {", ".join(can)}')
    chosen: set[str] = set()
    for name in wanted:
        chosen.update(_one_target(model, name, linears, can))
    return tuple(name for name in can if name in chosen)


def _one_target(
    model: Model, name: str, linears: Sequence[Linear], can: Sequence[str]
) -> tuple[str, ...]:
    if name == ALL_LINEAR:
        return tuple(can)
    if name == ATTENTION:
        own = (one for one in linears if one.part in MIXING)
        return tuple(one.name for one in own if one.adaptable)
    if name in can:
        return (name,)
    if name in FUSED_QKV and set(SPLIT_QKV) <= set(can):
        return SPLIT_QKV
    parts = {linear.part for linear in linears if linear.name == name}
    if parts:
        why = "is a fused parameter of all experts; LoRA cannot wrap it"
        if "mixer" in parts:  # tuners_utils.py, _check_lora_target_modules_mamba
            why = "is a matrix whose weight Mamba's kernel reads; PEFT refuses to wrap it"
        msg = f"{name} of {model.name} {why}"
        raise InputError(msg, f"choose among: {', '.join(can)}")
    hint = f'{model.name} has: {", ".join(can)}; or "{ALL_LINEAR}" or "{ATTENTION}"'
    raise unknown(kind="LoRA target", value=name, known=[*can, ALL_LINEAR, ATTENTION], hint=hint)


def _adapter(linears: Iterable[Linear], rank: int, names: frozenset[str]) -> int:
    return sum(
        rank * (linear.in_features + (linear.adapter_out or linear.out_features)) * linear.count
        for linear in linears
        if linear.adaptable and linear.name in names
    )


def lora_parameters(model: Model, rank: int, targets: str | Sequence[str]) -> int:
    """[elements] of all adapters: rank x (in + out) per adapted matrix.

    targets: module names, or what `resolve_targets` accepts.
    """
    names = frozenset(resolve_targets(model, targets))
    layers = sum(x.num_layers * _adapter(x.linears, rank, names) for x in model.layers)
    return layers + _adapter(model.outside, rank, names)


def magnitudes(model: Model, method: Method) -> int:
    """[elements] of DoRA's magnitudes: one for each output of every adapted matrix.

    Source: Liu et al., "DoRA" (2024), section 3; peft 0.21 tuners/lora/dora.py, update_layer.
    """
    if not method.is_dora:
        return 0
    return sum(
        count * linear.count * linear.out_features
        for count, linear in model.all_linears
        if linear.adaptable and linear.name in method.targets
    )


@lru_cache(maxsize=256)
def adapter_parameters(model: Model, method: Method) -> int:
    """[elements] that a LoRA method trains: the adapters, and under DoRA their magnitudes."""
    adapters = lora_parameters(model, method.rank, method.targets)
    return adapters + magnitudes(model, method)


def saveable(model: Model) -> tuple[str, ...]:
    """The modules of a model that are priced where they train whole: its embedding and its head."""
    return EMBEDDING_OF.get(model.family, "embed_tokens"), *HEADS_OF.get(model.family, ("lm_head",))


def resolve_saved(model: Model, names: Sequence[str]) -> tuple[str, ...]:
    """Modules that train whole beside the adapters, by the model's own names, in its order.

    Raises InputError for a name that is neither the embedding nor the head.
    """
    can = saveable(model)
    found = set()
    for name in names:
        last = name.rpartition(".")[2]
        if last not in can:
            raise _not_saved(model, name, can)
        found.add(last)
    if len(found & HEADS) > 1:
        msg = f"{' and '.join(sorted(found & HEADS))} are two names of one head of {model.name}"
        raise InputError(msg, "keep the one that your transformers has")
    return tuple(name for name in can if name in found)


def _not_saved(model: Model, name: str, can: Sequence[str]) -> InputError:
    whole = f"{model.name} has {can[0]} (the embedding) and {' or '.join(can[1:])} (the head)"
    last = name.rpartition(".")[2]
    if "norm" in last or last.startswith("ln_"):
        msg = f"method.modules_to_save {name!r}: a norm is too small to matter, and is not counted"
        return InputError(msg, f"leave it out of the job, and in the file that trains; {whole}")
    if any(last == one.name for one in model.matrices):
        msg = f"method.modules_to_save {name!r}: a layer's matrix that trains whole is not priced"
        return InputError(msg, f"adapt it instead (method.targets); {whole}")
    return unknown(kind="module to save", value=name, known=can, hint=whole)


def saved_embedding(model: Model, method: Method) -> int:
    """[elements] of the embedding's copy that trains whole; positions are another module."""
    return model.vocab_size * model.hidden_size * bool(EMBEDDINGS & {*method.modules_to_save})


def saved_head(model: Model, method: Method) -> int:
    """[elements] of the head's copy that trains whole, its own one also where the head is tied.

    Source: peft 0.21 utils/other.py, ModulesToSaveWrapper.update, a deepcopy of the module: of tied
    weights the copies are apart (tests/cost).
    """
    each = model.vocab_size * (model.hidden_size + model.head_bias)
    return each * bool(HEADS & {*method.modules_to_save})


def trains_head(method: Method) -> bool:
    """Whether the head has a weight gradient."""
    return not method.is_lora or bool(HEADS & {*method.modules_to_save})


def saved_parameters(model: Model, method: Method) -> int:
    """[elements] that train whole beside the adapters."""
    return saved_embedding(model, method) + saved_head(model, method)


def trainable_parameters(job: Job) -> float:
    """[elements] what the optimizer updates: all weights, or adapters and what trains whole."""
    if job.method.is_lora:
        saved = saved_parameters(job.model, job.method)
        return float(adapter_parameters(job.model, job.method) + saved)
    return float(parameter_count(job.model))

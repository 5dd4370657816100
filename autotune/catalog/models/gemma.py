"""Gemma 4: which of its layers are of which shape, by the keys of its config.json.

Layers with a sliding window and layers that see all differ in the width of a head and, where keys
are the values too, in the number of key heads; such a layer has no projection of values. In the
sizes for small devices every layer has an embedding of its own, and the last layers read the keys
and values of the last layer of their kind before them; their MLP may be twice as wide. One size has
experts beside the MLP of every layer, with norms of their own.

Source: transformers 5.23 models/gemma4 and models/gemma4_unified, configuration (what is filled in)
and modelling code.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.catalog.models.config_values import as_size
from autotune.catalog.models.experts import Experts
from autotune.domain.errors import InputError
from autotune.domain.model import Layer, Linear
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.catalog.models.config_values import Sizes

GEMMA_4 = frozenset({"gemma4_text", "gemma4_unified_text"})
SLIDING, FULL = "sliding_attention", "full_attention"
_PATTERN = 6  # the last of so many layers sees all, where the config does not list them
_FILLED_IN = {"global_head_dim": 512, "sliding_window": 512}
_FILLED_IN_PER_LAYER = {"hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144}


def gemma_fields(config: Mapping[str, Any], sizes: Sizes, name: str) -> dict[str, Any]:
    """Fields of the `Model` of a Gemma 4. Raises InputError for what is not described."""
    _refuse(config, name)
    filled: dict[str, Any] = dict(_FILLED_IN)
    if config.get("model_type") != "gemma4_unified_text":
        filled |= _FILLED_IN_PER_LAYER
    filled |= {key: value for key, value in config.items() if value is not None}
    as_size(filled, ("sliding_window",), name)
    types = _layer_types(filled, sizes, name)
    first = sizes.layers - _borrowing(filled, types, sizes, name)
    places: dict[tuple[str, bool], list[int]] = {}
    for place, kind in enumerate(types):
        places.setdefault((kind, place >= first), []).append(place)
    own = filled.get("hidden_size_per_layer_input") or 0
    fields: dict[str, Any] = {"linears": ()}
    experts = _experts(filled, name)
    if experts:
        fields |= {"num_experts": experts.count, "experts_per_token": experts.per_token}
        fields["norms_per_layer"] = 7
    if own:
        own = as_size(filled, ("hidden_size_per_layer_input",), name)
        fields |= {
            "norms_per_layer": 5,
            "per_layer_size": own,
            "per_layer_vocab_size": as_size(filled, ("vocab_size_per_layer_input",), name),
            "outside": (
                Linear(
                    "per_layer_model_projection", sizes.hidden, own * sizes.layers, part="per_layer"
                ),
            ),
        }
    heads = {
        SLIDING: (sizes.head_dim, sizes.kv_heads),
        FULL: _full_heads(filled, types, sizes, name),
    }
    kinds = (
        _layer(filled, sizes, heads[kind], _Shape(kind, tuple(where), borrows, own, experts))
        for (kind, borrows), where in places.items()
    )
    return {**fields, "kinds": tuple(kinds)}


def _refuse(config: Mapping[str, Any], name: str) -> None:
    """Raise InputError for what the class can do and this description cannot."""
    found = [
        what
        for what, has in (
            ("experts beside embeddings of its layers", _routes(config) and _has_own(config)),
            ("attention to later tokens", config.get("use_bidirectional_attention") == "all"),
        )
        if has
    ]
    if found:
        msg = f"{name} (Gemma 4) has {found[0]}, which this version cannot describe"
        raise InputError(msg, "its memory and time would be wrong; choose a published size")


def _layer_types(config: Mapping[str, Any], sizes: Sizes, name: str) -> list[str]:
    listed = config.get("layer_types")
    if listed is None:
        listed = [FULL if (i + 1) % _PATTERN == 0 else SLIDING for i in range(sizes.layers)]
    if not isinstance(listed, list) or len(listed) != sizes.layers:
        msg = f"layer_types of {name} must be a list with a kind for each of {sizes.layers} layers"
        raise InputError(msg, "check the config.json")
    return [*listed[:-1], FULL]  # the class sees to the last one


def _borrowing(config: Mapping[str, Any], types: list[str], sizes: Sizes, name: str) -> int:
    """Layers at the end that read the keys and values of earlier ones."""
    if not config.get("num_kv_shared_layers"):
        return 0
    last = as_size(config, ("num_kv_shared_layers",), name)
    if last >= sizes.layers or set(types[-last:]) - set(types[:-last]):
        msg = f"the last {last} layers of {name} have none before them to share keys and values of"
        raise InputError(msg, "check num_kv_shared_layers and layer_types")
    return last


def _full_heads(
    config: Mapping[str, Any], types: list[str], sizes: Sizes, name: str
) -> tuple[int, int]:
    """Width of a head and number of key heads of the layers that see all.

    As published, or as transformers since 5.23 writes them, by the place of a layer.
    """
    listed = config.get("per_layer_config")
    if listed is None:
        keys_are_values = config.get("attention_k_eq_v") is True
        stated = {
            "head_dim": config["global_head_dim"],
            "num_key_value_heads": config.get("num_global_key_value_heads")
            if keys_are_values
            else None,
        }
    else:
        stated = _alike(listed, types, name)
    found = []
    for key, usual in (("head_dim", sizes.head_dim), ("num_key_value_heads", sizes.kv_heads)):
        found.append(usual if stated.get(key) is None else as_size(stated, (key,), name))
    head_dim, kv_heads = found
    if sizes.heads % kv_heads:
        msg = f"{name}: {sizes.heads} attention heads do not share {kv_heads} key heads evenly"
        raise InputError(msg, "check num_attention_heads and num_global_key_value_heads")
    return head_dim, kv_heads


def _alike(listed: object, types: list[str], name: str) -> dict[str, Any]:
    """What a list by layers says of those that see all, where it says the same of each."""
    places = {str(place) for place, kind in enumerate(types) if kind == FULL}
    # transformers writes places of one width: "05" beside "11"
    if isinstance(listed, dict) and {str(key).lstrip("0") or "0" for key in listed} == places:
        first, *others = listed.values()
        known = {"head_dim", "num_key_value_heads"}
        if isinstance(first, dict) and set(first) <= known and all(own == first for own in others):
            return first
    msg = (
        f"{name} (Gemma 4) lists other sizes for single layers, which this version cannot describe"
    )
    raise InputError(msg, "its memory and time would be wrong; choose a published size")


@dataclass(frozen=True, slots=True)
class _Shape:
    """What a kind of layer is, beside its heads."""

    kind: str
    places: tuple[int, ...]
    borrows: bool
    own: int
    experts: Experts | None


def _layer(config: Mapping[str, Any], sizes: Sizes, heads: tuple[int, int], shape: _Shape) -> Layer:
    (head_dim, kv_heads), kind, borrows = heads, shape.kind, shape.borrows
    keys_are_values = kind == FULL and config.get("attention_k_eq_v") is True
    h, q, kv = sizes.hidden, sizes.heads * head_dim, kv_heads * head_dim
    wide = borrows and config.get("use_double_wide_mlp") is True
    bias = config.get("attention_bias") is True
    keys = () if borrows else ("k_proj",) if keys_are_values else ("k_proj", "v_proj")
    experts = shape.experts
    return Layer(
        places=shape.places,
        linears=(
            Linear("q_proj", h, q, bias),
            *(Linear(module, h, kv, bias) for module in keys),
            Linear("o_proj", q, h, bias),
            *_mlp(h, sizes.intermediate * (2 if wide else 1)),
            *(_routed(h, experts) if experts else ()),
            *(_per_layer(h, shape.own) if shape.own else ()),
        ),
        num_attention_heads=sizes.heads,
        num_kv_heads=kv_heads,
        head_dim=head_dim,
        qk_norm="per_head",
        sliding_window=config["sliding_window"] if kind == SLIDING else None,
        num_experts=experts.count if experts else 0,
        experts_per_token=experts.per_token if experts else 0,
        # scales of what its router reads, and of the chosen experts
        extra_params_per_layer=h + experts.count if experts else 0,
        borrows_keys=borrows,
    )


def _routes(config: Mapping[str, Any]) -> bool:
    return config.get("enable_moe_block") is True


def _has_own(config: Mapping[str, Any]) -> bool:
    unstated = config.get("model_type") != "gemma4_unified_text"
    return bool(config.get("hidden_size_per_layer_input", unstated))


def _experts(config: Mapping[str, Any], name: str) -> Experts | None:
    """The experts that lie beside the MLP of every layer."""
    if not _routes(config):
        return None
    count, each = (as_size(config, (key,), name) for key in ("num_experts", "top_k_experts"))
    if each > count:
        msg = f"{name}: {each} experts per token, but it has only {count}"
        raise InputError(msg, "check the config.json")
    width = as_size(config, ("moe_intermediate_size",), name)
    return Experts(count, each, width, shared=0, num_dense_layers=0)


def _routed(hidden: int, experts: Experts) -> tuple[Linear, ...]:
    count, active, width = experts.count, experts.per_token, experts.intermediate
    return (
        Linear("proj", hidden, count, part="router"),
        Linear(
            "gate_up_proj", hidden, 2 * width, part="expert", count=count, active=active,
            adaptable=False,
        ),
        Linear(
            "down_proj", width, hidden, part="expert", count=count, active=active, adaptable=False
        ),
    )  # fmt: skip


def _mlp(hidden: int, width: int) -> tuple[Linear, ...]:
    ins = (Linear(module, hidden, width, part="mlp") for module in ("gate_proj", "up_proj"))
    return (*ins, Linear("down_proj", width, hidden, part="mlp"))


def _per_layer(hidden: int, own: int) -> tuple[Linear, ...]:
    return (
        Linear("per_layer_input_gate", hidden, own, part="per_layer"),
        Linear("per_layer_projection", own, hidden, part="per_layer"),
    )

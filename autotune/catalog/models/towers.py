"""Parts of a checkpoint that see or hear beside its text model: how many parameters they have.

Text passes none of them, and the class of the checkpoint loads them all the same. Counted for the
wrappers below, by the sizes in their `vision_config`; of others nothing is known here.

Source: modelling code of transformers 5.23 (siglip and gemma3, pixtral and mistral3, qwen2_vl,
qwen2_5_vl, qwen3_vl, gemma4). Compared with the classes in tests/catalog/models/test_towers.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

# Sizes of Gemma 4's parts by default in their classes: what sees, and parameters of what hears.
_SEES = (("hidden_size", 768), ("intermediate_size", 3072), ("num_hidden_layers", 16))
_SEES_BY = (("num_attention_heads", 12), ("head_dim", 64))
_HEARS, _MOST = 304_824_608, 100_000
_COLOURS = 3


def text_part(config: Mapping[str, Any]) -> Mapping[str, Any]:
    """The part of a wrapper that is its text model; the config itself where it wraps nothing.

    Qwen2-VL and 2.5-VL were published with the sizes of the text model beside `vision_config`.
    """
    inner = config.get("text_config") or config.get("llm_config")
    if isinstance(inner, dict):
        return inner
    kind = config.get("model_type")
    if kind in ("qwen2_vl", "qwen2_5_vl") and isinstance(config.get("vision_config"), dict):
        return {**config, "model_type": f"{kind}_text"}
    return config


def beside_params(config: Mapping[str, Any], hidden: int) -> int:
    """[elements] of the parts of a checkpoint that see and hear, by its whole config.json.

    hidden: width of its text model. 0 for a text model alone, for a wrapper that is not known here,
    and for one of which `AutoModelForCausalLM` loads the text model alone (Qwen3.5, Llama 4).
    """
    count = _WRAPPERS.get(str(config.get("model_type")))
    return count(config, hidden) if count else 0


def _number(config: Mapping[str, Any], key: str, usual: int) -> int:
    value = config.get(key)
    known = isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MOST
    return value if known and value is not None else usual


def _sees(config: Mapping[str, Any]) -> Mapping[str, Any]:
    found = config.get("vision_config")
    return found if isinstance(found, dict) else {}


def _matrix(rows: int, columns: int) -> int:
    """[elements] of a matrix with a bias."""
    return rows * columns + columns


def _gemma_3(config: Mapping[str, Any], hidden: int) -> int:
    sees = _sees(config)
    h, f = _number(sees, "hidden_size", 768), _number(sees, "intermediate_size", 3072)
    patch, image = _number(sees, "patch_size", 16), _number(sees, "image_size", 224)
    layers = _number(sees, "num_hidden_layers", 12)
    norm, mlp = 2 * h, _matrix(h, f) + _matrix(f, h)
    each = 4 * _matrix(h, h) + mlp + 2 * norm
    ends = _matrix(_COLOURS * patch**2, h) + (image // patch) ** 2 * h + norm
    pooled = h + 4 * _matrix(h, h) + norm + mlp  # attention over all patches
    head = pooled if sees.get("vision_use_head", True) else 0
    projector = h * hidden + h
    return layers * each + ends + head + projector


def _mistral_3(config: Mapping[str, Any], hidden: int) -> int:
    sees = _sees(config)
    h, f = _number(sees, "hidden_size", 1024), _number(sees, "intermediate_size", 4096)
    patch, layers = _number(sees, "patch_size", 14), _number(sees, "num_hidden_layers", 24)
    merged = _number(config, "spatial_merge_size", 2) ** 2
    bias = 2 * hidden if config.get("multimodal_projector_bias") is True else 0
    each = 4 * h * h + 3 * h * f + 2 * h
    projector = h + merged * h * h + h * hidden + hidden * hidden + bias
    return layers * each + _COLOURS * patch**2 * h + h + projector


def _qwen_2(config: Mapping[str, Any], hidden: int) -> int:
    sees = _sees(config)
    h, layers = _number(sees, "embed_dim", 1280), _number(sees, "depth", 32)
    f = _number(sees, "mlp_ratio", 4) * h
    each = 4 * _matrix(h, h) + _matrix(h, f) + _matrix(f, h) + 4 * h
    out = _number(sees, "hidden_size", hidden)
    return layers * each + _patches(sees, h, 14) + 2 * h + _merger(sees, h, out)


def _qwen_2_5(config: Mapping[str, Any], hidden: int) -> int:
    sees = _sees(config)
    h, f = _number(sees, "hidden_size", 3584), _number(sees, "intermediate_size", 3420)
    each = 4 * _matrix(h, h) + 2 * _matrix(h, f) + _matrix(f, h) + 2 * h
    layers, out = _number(sees, "depth", 32), _number(sees, "out_hidden_size", hidden)
    return layers * each + _patches(sees, h, 14) + h + _merger(sees, h, out)


def _qwen_3(config: Mapping[str, Any], hidden: int) -> int:
    sees = _sees(config)
    h, f = _number(sees, "hidden_size", 1152), _number(sees, "intermediate_size", 4304)
    each = 4 * _matrix(h, h) + _matrix(h, f) + _matrix(f, h) + 4 * h
    layers, out = _number(sees, "depth", 27), _number(sees, "out_hidden_size", hidden)
    ends = _patches(sees, h, 16) + h + _number(sees, "num_position_embeddings", 2304) * h
    listed = sees.get("deepstack_visual_indexes", (8, 16, 24))
    deep = len(listed) if isinstance(listed, (list, tuple)) else 0
    wide = 2 * _number(sees, "spatial_merge_size", 2) ** 2 * h  # a norm of the merged patches
    merger = _merger(sees, h, out)
    return layers * each + ends + 2 * h + merger + deep * (wide + merger)


def _patches(sees: Mapping[str, Any], width: int, usual: int) -> int:
    frames, patch = _number(sees, "temporal_patch_size", 2), _number(sees, "patch_size", usual)
    return _COLOURS * frames * patch**2 * width


def _merger(sees: Mapping[str, Any], width: int, out: int) -> int:
    merged = _number(sees, "spatial_merge_size", 2) ** 2 * width
    return _matrix(merged, merged) + _matrix(merged, out)


def _gemma_4(config: Mapping[str, Any], _: int) -> int:
    """Of Gemma 4.

    Of what sees: matrices of its layers, of its patches and its table of positions, 0.1 % less than
    the class has; of what hears what the class has by default, scaled with its layers and width.
    """
    found = 0.0
    sees, hears = config.get("vision_config"), config.get("audio_config")
    if isinstance(sees, dict):
        width, inner, layers = (_number(sees, *one) for one in _SEES)
        heads, head_dim = (_number(sees, *one) for one in _SEES_BY)
        each = 4 * width * heads * head_dim + 3 * width * inner
        table = 2 * _number(sees, "position_embedding_size", 10240)
        found += layers * each + width * (table + 3 * _number(sees, "patch_size", 16) ** 2)
    if isinstance(hears, dict):
        layers, width = _number(hears, "num_hidden_layers", 12), _number(hears, "hidden_size", 1024)
        found += _HEARS * layers / 12.0 * (width / 1024.0) ** 2
    return round(found)


_WRAPPERS: dict[str, Callable[[Mapping[str, Any], int], int]] = {
    "gemma3": _gemma_3,
    "gemma4": _gemma_4,
    "mistral3": _mistral_3,
    "qwen2_vl": _qwen_2,
    "qwen2_5_vl": _qwen_2_5,
    "qwen3_vl": _qwen_3,
}

"""A checkpoint that sees as well: its parameters and its adapters equal those of its own class."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.catalog.models.hf_config import model_from_config
from autotune.catalog.models.models import find_model, load_models
from autotune.catalog.tables import DATA
from autotune.cost.parameters import lora_parameters, parameter_count, resolve_targets
from autotune.trainers.hf.adapter import spared_keys

pytestmark = pytest.mark.slow

_SIGLIP = {  # of google/gemma-3-4b-it, config.json
    "model_type": "siglip_vision_model", "hidden_size": 1152, "intermediate_size": 4304,
    "num_attention_heads": 16, "num_hidden_layers": 27, "patch_size": 14, "image_size": 896,
    "vision_use_head": False,
}  # fmt: skip
_SMALL: dict[str, Any] = {
    "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 128,
}  # fmt: skip
_QWEN = {"rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]}, "tie_word_embeddings": True}
_PIXTRAL = {
    "hidden_size": 32, "num_attention_heads": 2, "head_dim": 16, "intermediate_size": 48,
    "num_hidden_layers": 3, "patch_size": 14, "image_size": 56,
}  # fmt: skip
_SIZES = {"depth": 2, "num_heads": 2, "patch_size": 14, "spatial_merge_size": 2}
WRAPPERS: dict[str, dict[str, Any]] = {
    "gemma3": {
        "text_config": {**_SMALL, "head_dim": 16},
        "vision_config": {**_SIGLIP, "num_hidden_layers": 2, "hidden_size": 32, "image_size": 56},
    },
    "gemma3 with a head": {
        "text_config": {**_SMALL, "head_dim": 16},
        "vision_config": {**_SIGLIP, "num_hidden_layers": 1, "vision_use_head": True},
    },
    "mistral3": {
        "text_config": {**_SMALL, "model_type": "mistral", "head_dim": 16},
        "vision_config": {**_PIXTRAL, "model_type": "pixtral"},
    },
    "mistral3 with biases": {
        "text_config": {**_SMALL, "model_type": "ministral3", "head_dim": 16},
        "vision_config": {**_PIXTRAL, "model_type": "pixtral"},
        "multimodal_projector_bias": True,
    },
    "qwen2_vl": {
        "text_config": {**_SMALL, **_QWEN},
        "vision_config": {**_SIZES, "embed_dim": 32, "hidden_size": 64, "mlp_ratio": 3},
    },
    "qwen2_5_vl": {
        "text_config": {**_SMALL, **_QWEN},
        "vision_config": {
            **_SIZES, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64,
        },
    },
    "qwen3_vl": {
        "text_config": {**_SMALL, "head_dim": 16},
        "vision_config": {
            **_SIZES, "hidden_size": 32, "intermediate_size": 48, "out_hidden_size": 64,
            "deepstack_visual_indexes": [0, 1], "num_position_embeddings": 16,
        },
    },
}  # fmt: skip
OF_THE_CATALOGUE = [name for name, model in load_models().items() if model.beside_params]
ENTRIES = {
    entry["name"]: entry for entry in json.loads((DATA / "models.json").read_text())["models"]
}


def _built(kind: str, values: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """A wrapper's class on the meta device, and its config as it is saved."""
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    config = transformers.CONFIG_MAPPING[kind.partition(" ")[0]](**values)
    with torch.device("meta"):
        real = transformers.AutoModelForImageTextToText.from_config(config)
    return real, json.loads(config.to_json_string(use_diff=False))


def _count(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("kind", WRAPPERS)
def test_parameters_with_what_sees_equal_the_class(kind: str) -> None:
    real, config = _built(kind, WRAPPERS[kind])
    model = model_from_config(config, kind, "test")
    assert model.beside_params > 0
    assert parameter_count(model) + model.beside_params == _count(real)
    assert "not counted" not in model.source


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.parametrize("kind", WRAPPERS)
@pytest.mark.parametrize("named", [False, True])
def test_adapters_are_those_that_peft_adds_to_the_text_alone(kind: str, *, named: bool) -> None:
    peft = pytest.importorskip("peft")
    real, config = _built(kind, WRAPPERS[kind])
    model = model_from_config(config, kind, "test")
    targets = list(resolve_targets(model, "all-linear")) if named else "all-linear"
    lora = peft.LoraConfig(r=8, target_modules=targets, **spared_keys(model))
    wrapped = peft.get_peft_model(real, lora, low_cpu_mem_usage=True)
    trained = {n: p.numel() for n, p in wrapped.named_parameters() if p.requires_grad}
    assert sum(trained.values()) == lora_parameters(model, 8, "all-linear")
    assert all("language_model" in name for name in trained)


_OF_GEMMA_4 = {name for name in OF_THE_CATALOGUE if "gemma-4-" in name}  # test_real_classes.py


@pytest.mark.parametrize("name", sorted({*OF_THE_CATALOGUE} - _OF_GEMMA_4))
def test_what_the_catalogue_says_of_a_checkpoint_equals_its_class(name: str) -> None:
    text = {"sliding_window": None, **ENTRIES[name]["config"]}
    gemma = text["model_type"] == "gemma3_text"
    values: dict[str, Any] = {"vision_config": _SIGLIP} if gemma else {}
    real, config = _built(
        "gemma3" if gemma else "mistral3",
        {**values, "text_config": text, "tie_word_embeddings": text["tie_word_embeddings"]},
    )
    model = load_models()[name]
    assert parameter_count(model) + model.beside_params == _count(real)
    described = model_from_config(config, name, "test")
    assert described.beside_params == model.beside_params
    assert described.fingerprint == model.fingerprint


def test_a_config_with_the_sizes_of_its_text_model_at_the_top_is_read() -> None:
    whole = WRAPPERS["qwen2_5_vl"]
    flat = {
        "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"],
        **whole["text_config"], "vision_config": whole["vision_config"],
    }  # fmt: skip
    found = model_from_config(flat, "m", "test")
    text = {**whole["text_config"], "model_type": "qwen2_5_vl_text"}
    nested = {**whole, "model_type": "qwen2_5_vl", "text_config": text}
    inner = model_from_config(nested, "m", "test")
    assert found.family == "qwen2"
    assert (found.linears, found.beside_params) == (inner.linears, inner.beside_params)


@pytest.mark.parametrize("vision", [None, [], {"hidden_size": -1}, {"depth": "deep"}])
def test_nonsense_about_what_sees_is_taken_for_the_usual_sizes(vision: object) -> None:
    text = {**_SMALL, "model_type": "qwen3_vl_text", "head_dim": 16}
    config = {"model_type": "qwen3_vl", "text_config": text, "vision_config": vision}
    usual = {**config, "vision_config": {}}
    counted = [model_from_config(one, "m", "test").beside_params for one in (config, usual)]
    assert counted[0] == counted[1] > 0


@pytest.mark.parametrize(
    ("name", "sees"),
    [
        ("google/gemma-3-1b-it", False),
        ("google/gemma-3-4b-it", True),
        ("unsloth/gemma-3-12b-it-bnb-4bit", True),
        ("mistralai/Mistral-Small-24B-Instruct-2501", False),
        ("mistralai/Mistral-Small-3.2-24B-Instruct-2506", True),
        ("mistralai/Devstral-Small-2507", False),
        ("mistralai/Ministral-3-8B-Base-2512", True),
    ],
)
def test_names_say_whether_a_checkpoint_sees(name: str, *, sees: bool) -> None:
    assert bool(find_model(name).beside_params) is sees

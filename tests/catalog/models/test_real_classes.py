"""The description of every catalogue model equals the class that transformers builds."""

from __future__ import annotations

import json
from typing import Any

import pytest

from autotune.catalog.models.families import FAMILIES
from autotune.catalog.models.models import load_models
from autotune.catalog.tables import DATA
from autotune.cost.parameters import (
    embedding_parameters,
    head_parameters,
    layer_parameters,
    lora_parameters,
    norm_parameters,
    parameter_count,
    resolve_targets,
    saveable,
)

pytestmark = pytest.mark.slow

ENTRIES = {
    entry["name"]: entry for entry in json.loads((DATA / "models.json").read_text())["models"]
}


def _buildable(name: str) -> bool:
    config = ENTRIES[name]["config"]
    if FAMILIES[config["model_type"]].remote:
        return False  # the class is not in transformers
    learned_mpt = config["model_type"] == "mpt" and not config["attn_config"]["alibi"]
    return not learned_mpt  # llm-foundry's own class; transformers' has ALiBi only


BUILDABLE = [name for name in ENTRIES if _buildable(name)]
# One of each family, the smallest, for the adapters.
SMALLEST = {
    ENTRIES[name]["config"]["model_type"]: name
    for name in sorted(BUILDABLE, key=lambda n: -parameter_count(load_models()[n]))
}


# PEFT refuses "all-linear", which has out_proj: what is written names the others.
NOT_BY_WORD = {"falcon_h1", "nemotron_h"}


def _build(name: str, **changes: Any) -> Any:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    values = {**ENTRIES[name]["config"], **changes}
    kind = values.pop("model_type")
    config = transformers.CONFIG_MAPPING[kind](**values)
    with torch.device("meta"):
        if kind == "llama4_text":
            return transformers.Llama4ForCausalLM(config)
        return transformers.AutoModelForCausalLM.from_config(config)


def _count(model: Any) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("name", BUILDABLE)
def test_parameter_count_equals_the_real_class(name: str) -> None:
    assert parameter_count(load_models()[name]) == _count(_build(name))


@pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing` is deprecated:FutureWarning")
@pytest.mark.filterwarnings("ignore:The following (rank|alpha)_pattern keys:RuntimeWarning")
@pytest.mark.filterwarnings("ignore:fan_in_fan_out is set to False:UserWarning")  # GPT-2's Conv1D
@pytest.mark.parametrize("family", sorted(SMALLEST))
def test_all_linear_adapters_equal_those_that_peft_adds(family: str) -> None:
    peft = pytest.importorskip("peft")
    name = SMALLEST[family]
    model = load_models()[name]
    expected = lora_parameters(model, 8, "all-linear")
    named = list(resolve_targets(model, "all-linear"))
    for targets in (named,) if family in NOT_BY_WORD else ("all-linear", named):
        config = peft.LoraConfig(r=8, target_modules=targets, task_type="CAUSAL_LM")
        wrapped = peft.get_peft_model(_build(name), config, low_cpu_mem_usage=True)
        trainable = sum(p.numel() for p in wrapped.parameters() if p.requires_grad)
        assert trainable == expected, targets


@pytest.mark.parametrize("family", sorted(SMALLEST))
def test_embedding_and_head_are_called_as_in_the_real_class(family: str) -> None:
    built, own = _build(SMALLEST[family]), saveable(load_models()[SMALLEST[family]])
    names = {id(module): name.rpartition(".")[2] for name, module in built.named_modules()}
    real = [names[id(each())] for each in (built.get_input_embeddings, built.get_output_embeddings)]
    assert own[:2] == tuple(real)


def test_every_native_family_of_the_catalogue_is_compared() -> None:
    assert len(SMALLEST) >= 20
    native = {e["config"]["model_type"] for e in ENTRIES.values()} - {"mpt"}
    assert {kind for kind in native if not FAMILIES[kind].remote} <= set(SMALLEST)


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("Qwen/Qwen3-0.6B", {"attention_bias": True}),
        ("meta-llama/Llama-3.2-1B", {"attention_bias": True, "mlp_bias": True}),
        ("meta-llama/Llama-3.2-1B", {"tie_word_embeddings": False}),
        ("tiiuae/falcon-7b", {"bias": True, "parallel_attn": False}),
        ("tiiuae/falcon-7b", {"multi_query": False, "tie_word_embeddings": False}),
        ("tiiuae/falcon-40b", {"num_hidden_layers": 2, "num_ln_in_parallel_attn": 1}),
        ("tiiuae/falcon-7b", {"num_hidden_layers": 2, "num_ln_in_parallel_attn": 2}),
        ("stabilityai/stablelm-2-1_6b", {"qk_layernorm": True, "use_parallel_residual": True}),
        ("CohereForAI/c4ai-command-r-v01", {"use_qk_norm": True, "num_hidden_layers": 2}),
        ("EleutherAI/pythia-70m", {"attention_bias": False, "use_parallel_residual": False}),
        ("bigcode/starcoder2-3b", {"use_bias": False}),
        ("EleutherAI/gpt-j-6b", {"n_inner": 1024, "tie_word_embeddings": True}),
        ("internlm/internlm3-8b-instruct", {"qkv_bias": True, "bias": True}),
        ("EleutherAI/gpt-neo-125m", {"intermediate_size": 1024, "tie_word_embeddings": False}),
        ("bigcode/gpt_bigcode-santacoder", {"multi_query": False}),
        ("Qwen/Qwen1.5-MoE-A2.7B", {"mlp_only_layers": [0, 3]}),
        ("Qwen/Qwen1.5-MoE-A2.7B", {"decoder_sparse_step": 2}),
        ("Qwen/Qwen3-30B-A3B", {"mlp_only_layers": [1], "num_hidden_layers": 4}),
        ("google/gemma-3-1b-pt", {"attention_bias": True}),
        ("ibm-granite/granite-4.0-h-1b", {"mamba_conv_bias": False, "mamba_proj_bias": True}),
        ("tiiuae/Falcon-H1-3B-Instruct", {"mamba_rms_norm": False, "projectors_bias": True}),
        ("tiiuae/Falcon-H1-3B-Instruct", {"mamba_d_ssm": None, "mamba_d_head": "auto"}),
        ("nvidia/Nemotron-H-4B-Base-8K", {"use_bias": True, "mlp_bias": True}),
        ("nvidia/Nemotron-H-4B-Base-8K", {"use_conv_bias": False, "n_groups": 2}),
        ("LiquidAI/LFM2-8B-A1B", {"num_dense_layers": 0, "conv_bias": True}),
        ("openbmb/MiniCPM3-4B", {"q_lora_rank": None, "attention_bias": True, "mlp_bias": True}),
        ("openbmb/MiniCPM3-4B", {"v_head_dim": 32, "tie_word_embeddings": False}),
        ("tencent/Hunyuan-A13B-Instruct", {"num_hidden_layers": 2, "attention_bias": True}),
        ("LiquidAI/LFM2-8B-A1B", {"num_dense_layers": 5, "tie_embedding": False}),
        ("LiquidAI/LFM2-350M", {"conv_bias": True, "conv_L_cache": 4}),
        ("LiquidAI/LFM2-350M", {"layer_types": None, "full_attn_idxs": [1, 3]}),
        ("LiquidAI/LFM2-350M", {"layer_types": None, "tie_embedding": False}),
        ("LiquidAI/LFM2-350M", {"block_ff_dim": 3000, "block_ffn_dim_multiplier": 1.3}),
        ("LiquidAI/LFM2-350M", {"block_auto_adjust_ff_dim": False}),
        ("zai-org/GLM-4.5-Air", {"num_hidden_layers": 4, "first_k_dense_replace": 0}),
        ("zai-org/GLM-4.5-Air", {"num_hidden_layers": 4, "first_k_dense_replace": 2}),
        ("zai-org/GLM-4.5-Air", {"num_hidden_layers": 2, "use_qk_norm": True}),
        ("baidu/ERNIE-4.5-21B-A3B-PT", {"moe_layer_interval": 3, "moe_layer_end_index": 20}),
        ("baidu/ERNIE-4.5-21B-A3B-PT", {"num_hidden_layers": 3, "moe_num_shared_experts": 0}),
    ],
)
def test_switches_of_the_config_change_the_count_as_in_the_class(
    name: str, changes: dict[str, Any]
) -> None:
    from autotune.catalog.models.hf_config import model_from_config

    described = model_from_config({**ENTRIES[name]["config"], **changes}, name, "test")
    assert parameter_count(described) == _count(_build(name, **changes))


@pytest.mark.parametrize(
    ("kind", "values"),
    [
        ("cohere2", {"num_hidden_layers": 2}),
        ("granitemoeshared", {"num_hidden_layers": 2, "shared_intermediate_size": 256}),
        ("olmo", {"num_hidden_layers": 2}),
        ("exaone4", {"num_hidden_layers": 4}),
        ("arcee", {"num_hidden_layers": 2}),
        (
            "dots1",
            {
                "num_hidden_layers": 3,
                "n_routed_experts": 8,
                "num_experts_per_tok": 2,
                "n_shared_experts": 2,
                "first_k_dense_replace": 1,
            },
        ),
        (
            "dots1",
            {
                "num_hidden_layers": 2,
                "n_routed_experts": 8,
                "num_experts_per_tok": 2,
                "n_shared_experts": 1,
                "attention_bias": True,
            },
        ),
        ("ministral", {"num_hidden_layers": 2, "head_dim": 128}),
        ("hunyuan_v1_dense", {"num_hidden_layers": 2, "head_dim": 128}),
    ],
)
def test_families_without_a_catalogue_model_equal_their_class(
    kind: str, values: dict[str, Any]
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from autotune.catalog.models.hf_config import model_from_config

    config = transformers.CONFIG_MAPPING[kind](**values)
    with torch.device("meta"):
        real = transformers.AutoModelForCausalLM.from_config(config)
    described = model_from_config(json.loads(config.to_json_string(use_diff=False)), kind, "test")
    assert parameter_count(described) == _count(real)


def test_the_parts_of_a_model_are_those_of_its_modules() -> None:
    real = _build("meta-llama/Llama-3.2-1B", tie_word_embeddings=False)
    from autotune.catalog.models.hf_config import model_from_config

    config = {**ENTRIES["meta-llama/Llama-3.2-1B"]["config"], "tie_word_embeddings": False}
    model = model_from_config(config, "m", "test")
    assert embedding_parameters(model) == _count(real.model.embed_tokens)
    assert head_parameters(model) == _count(real.lm_head)
    assert layer_parameters(model) == _count(real.model.layers[0])
    assert norm_parameters(model) == _count(real.model.norm)


_SMALL = {"hidden_size": 768, "intermediate_size": 3072, "num_hidden_layers": 16}


def _heads(count: int) -> dict[str, int]:
    return {"num_attention_heads": count, "num_key_value_heads": count}


_LARGE = {"hidden_size": 1152, "intermediate_size": 4304, "num_hidden_layers": 27}


@pytest.mark.parametrize(
    ("name", "sees", "hears"),
    [
        ("google/gemma-4-31B", {**_LARGE, **_heads(16), "head_dim": 72}, False),
        ("google/gemma-4-26B-A4B", {**_LARGE, **_heads(16), "head_dim": 72}, False),
        ("google/gemma-4-E2B", {**_SMALL, **_heads(12), "head_dim": 64}, True),
        ("google/gemma-4-E4B", {**_SMALL, **_heads(12), "head_dim": 64}, True),
    ],
)
def test_parts_that_see_and_hear_are_counted_as_in_their_classes(
    name: str, sees: dict[str, Any], hears: bool
) -> None:
    torch = pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    from autotune.catalog.models.hf_config import model_from_config

    parts = [transformers.CONFIG_MAPPING["gemma4_vision"](**sees)]
    parts += [transformers.CONFIG_MAPPING["gemma4_audio"]()] if hears else []
    with torch.device("meta"):
        real = sum(_count(transformers.AutoModel.from_config(part)) for part in parts)
    assert load_models()[name].beside_params == real
    wrapper = {
        "model_type": "gemma4", "text_config": ENTRIES[name]["config"], "vision_config": sees,
        "audio_config": {} if hears else None,
    }  # fmt: skip
    described = model_from_config(wrapper, name, "test")
    assert described.beside_params == pytest.approx(real, rel=0.002)
    assert parameter_count(described) == parameter_count(load_models()[name])

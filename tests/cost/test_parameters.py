from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.catalog.models.models import find_model, load_models
from autotune.cost.parameters import (
    embedding_parameters,
    head_parameters,
    layer_linear_parameters,
    layer_parameters,
    lora_parameters,
    norm_parameters,
    outside_parameters,
    parameter_count,
    resolve_saved,
    resolve_targets,
    saveable,
)
from autotune.domain.errors import InputError

LLAMA_8B = find_model("Llama-3.1-8B")
MODELS = st.sampled_from(sorted(load_models()))


def test_a_llama_layer_by_hand() -> None:
    h, f, kv = 4096, 14336, 1024
    linears = 2 * h * h + 2 * h * kv + 3 * h * f
    assert layer_linear_parameters(LLAMA_8B) == linears
    assert norm_parameters(LLAMA_8B) == h
    assert layer_parameters(LLAMA_8B) == linears + 2 * h
    assert embedding_parameters(LLAMA_8B) == head_parameters(LLAMA_8B) == 128256 * h
    assert parameter_count(LLAMA_8B) == 32 * (linears + 2 * h) + 2 * 128256 * h + h


def test_a_tied_head_has_no_parameters() -> None:
    assert head_parameters(find_model("Qwen2-0.5B")) == 0


def test_learned_positions_count_as_embedding() -> None:
    gpt2 = find_model("gpt2")
    assert embedding_parameters(gpt2) == (50257 + 1024) * 768


def test_a_mixture_counts_all_experts_and_its_router() -> None:
    model = find_model("mixtral-8x7b")
    h, f = 4096, 14336
    attention = 2 * h * h + 2 * h * 1024
    assert layer_linear_parameters(model) == attention + 8 * 3 * h * f + 8 * h


def test_adapters_of_known_jobs() -> None:
    # Qwen2-0.5B, rank 4, all linears: about 2.2 million.
    assert lora_parameters(find_model("Qwen2-0.5B"), 4, "all-linear") == 2_199_552
    # Llama-2-7B, rank 8 on q and v is the 4,194,304 that every tutorial prints.
    assert lora_parameters(find_model("Llama-2-7b-hf"), 8, ["q_proj", "v_proj"]) == 4_194_304
    assert lora_parameters(LLAMA_8B, 64, "all-linear") == 167_772_160


@pytest.mark.parametrize(
    ("name", "attention", "count"),
    [
        ("Llama-3.1-8B", ("q_proj", "k_proj", "v_proj", "o_proj"), 7),
        ("Phi-3-mini", ("qkv_proj", "o_proj"), 4),
        ("falcon-7b", ("query_key_value", "dense"), 4),
        ("mixtral-8x7b", ("q_proj", "k_proj", "v_proj", "o_proj"), 8),
        ("gpt-oss-20b", ("q_proj", "k_proj", "v_proj", "o_proj"), 4),
        ("baichuan-inc/Baichuan2-7B-Chat", ("W_pack", "o_proj"), 5),
        ("mosaicml/mpt-7b", ("Wqkv", "out_proj"), 4),
        ("phi-2", ("q_proj", "k_proj", "v_proj", "dense"), 6),
    ],
)
def test_targets_are_the_module_names_of_the_real_class(
    name: str, attention: tuple[str, ...], count: int
) -> None:
    model = find_model(name)
    assert resolve_targets(model, "attention") == attention
    assert len([each for each in model.linears if each.adaptable]) == count
    assert set(attention) < set(resolve_targets(model, "all-linear")) or count == len(attention)


def test_a_fused_name_of_older_model_code_is_its_three_parts() -> None:
    """phi-2's own code had Wqkv, and every recipe of its time names it."""
    phi = find_model("phi-2")
    assert resolve_targets(phi, ["Wqkv", "fc1", "fc2"]) == (
        "q_proj",
        "k_proj",
        "v_proj",
        "fc1",
        "fc2",
    )
    assert resolve_targets(find_model("mosaicml/mpt-7b"), ["Wqkv"]) == ("Wqkv",)


def test_experts_that_peft_adapts_carry_most_of_the_adapter() -> None:
    mixtral = find_model("mixtral-8x7b")
    attention = lora_parameters(mixtral, 8, "attention")
    assert attention == 6_815_744
    h, f = 4096, 14336
    each = 16 * (h + 2 * f) + 8 * (f + h)  # fused gate and up at twice the rank, then down
    experts = 32 * (8 * each + 8 * (h + 8))  # and the router
    assert lora_parameters(mixtral, 8, "all-linear") == attention + experts == 179_832_832


def test_a_name_that_two_modules_share_adapts_both() -> None:
    gpt2 = find_model("gpt2")
    assert resolve_targets(gpt2, "all-linear") == ("c_attn", "c_proj", "c_fc")
    both = 12 * 8 * ((768 + 768) + (4 * 768 + 768))
    assert lora_parameters(gpt2, 8, ["c_proj"]) == both


def test_unknown_targets_and_fused_experts_are_input_errors() -> None:
    with pytest.raises(InputError, match=r'unknown LoRA target "q_prj".*q_proj') as caught:
        resolve_targets(LLAMA_8B, ["q_prj"])
    assert "all-linear" in (caught.value.hint or "")
    with pytest.raises(InputError, match="fused parameter of all experts"):
        resolve_targets(find_model("gpt-oss-20b"), ["gate_up_proj"])
    with pytest.raises(InputError, match="empty"):
        resolve_targets(LLAMA_8B, [])


@given(MODELS, st.integers(1, 512))
def test_adapters_grow_linearly_with_rank_and_all_linear_holds_attention(
    name: str, rank: int
) -> None:
    model = load_models()[name]
    everything = lora_parameters(model, rank, "all-linear")
    assert everything == rank * lora_parameters(model, 1, "all-linear")
    assert lora_parameters(model, rank, "attention") <= everything
    names = resolve_targets(model, "all-linear")
    assert sum(lora_parameters(model, rank, [one]) for one in names) == everything


@given(MODELS)
def test_the_parts_add_up_to_the_model(name: str) -> None:
    model = load_models()[name]
    layers = sum(layer.num_layers * layer_parameters(layer) for layer in model.layers)
    ends = embedding_parameters(model) + head_parameters(model) + model.extra_params
    rest = parameter_count(model) - layers - ends - outside_parameters(model)
    assert rest == norm_parameters(model) * (model.final_norm + model.embedding_norm)


@pytest.mark.parametrize(
    ("name", "own"),
    [
        ("gpt2", ("wte", "lm_head")),
        ("falcon-7b", ("word_embeddings", "lm_head")),
        ("Llama-3.1-8B", ("embed_tokens", "lm_head")),
    ],
)
def test_modules_that_train_whole_are_named_as_the_model_names_them(
    name: str, own: tuple[str, ...]
) -> None:
    model = find_model(name)
    assert saveable(model) == own
    assert resolve_saved(model, [f"model.{part}" for part in reversed(own)] * 2) == own


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("input_layernorm", "too small to matter"),
        ("q_proj", "adapt it instead"),
        ("wte", "embed_tokens .the embedding. and lm_head .the head."),
        ("all", "unknown module to save"),
    ],
)
def test_what_is_no_embedding_and_no_head_is_refused_with_what_is(name: str, said: str) -> None:
    with pytest.raises(InputError) as refused:
        resolve_saved(LLAMA_8B, ["lm_head", name])
    assert re.search(said, f"{refused.value.message} {refused.value.hint}")

"""The formula of peak memory against the storage-counting trace of the installed classes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from builders import BLAS_A100, memory_columns, needs, priced_job

from autotune.catalog.models.hf_config import model_from_config
from autotune.cost.memory.component import COMPONENT
from autotune.cost.parameters import resolve_targets
from autotune.domain.job import Method
from autotune.trace.client import Traced, Tracer
from autotune.trace.request import StepRequest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
needs("torch", "peft")

SIZES = {
    "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8,
    "num_key_value_heads": 2, "num_hidden_layers": 6, "vocab_size": 8192, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "head_dim": 64, "tie_word_embeddings": False,
    "attention_dropout": 0.0, "residual_dropout": 0.0,
}  # fmt: skip
CLASSES = {"llama": "LlamaForCausalLM"}
LATER_CLASSES = {
    "ernie4_5": "Ernie4_5ForCausalLM", "glm": "GlmForCausalLM", "glm4": "Glm4ForCausalLM",
    "hunyuan_v1_dense": "HunYuanDenseV1ForCausalLM", "ministral3": "Ministral3ForCausalLM",
    "olmo3": "Olmo3ForCausalLM", "seed_oss": "SeedOssForCausalLM",
}  # fmt: skip
MODES: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "full-fp32": {"kind": "full", "base": "32bit", "precision": "fp32"},
    "lora": {"kind": "lora"},
    "lora-bf16": {"kind": "lora", "adapter_dtype": "bf16"},
    "lora-dropout": {"kind": "lora", "dropout": 0.05},
    "dora": {"kind": "lora", "variant": "dora"},
    "dora-bf16": {"kind": "lora", "variant": "dora", "adapter_dtype": "bf16"},
    "dora-dropout": {"kind": "lora", "variant": "dora", "dropout": 0.05},
    "dora-4bit": {"kind": "lora", "variant": "dora", "base": "nf4"},
}
ROWS, LENGTH, FEW = 4, 512, 64


def config_of(family: str) -> dict[str, Any]:
    return {"model_type": family, "architectures": [{**CLASSES, **LATER_CLASSES}[family]], **SIZES}


def formula(family: str, mode: dict[str, Any], attention: str, checkpointing: str) -> float:
    model = model_from_config(config_of(family), family, "a test")
    method = Method("full", mode.get("base", "16bit"))
    if mode["kind"] == "lora":
        targets = resolve_targets(model, "all-linear")
        base, dropout = mode.get("base", "16bit"), mode.get("dropout", 0.0)
        method = Method("lora", base, 16, 16.0, dropout, targets, mode.get("variant", "none"))
    job = priced_job(model, method, LENGTH, global_batch_size=ROWS)
    columns = memory_columns(
        micro_batch_size=ROWS, precision=mode.get("precision", "bf16"), attention=attention,
        activation_checkpointing=checkpointing, adapter_dtype=mode.get("adapter_dtype", "fp32"),
    )  # fmt: skip
    found = COMPONENT.price(job, columns)
    return float(found["allocated"][0]) - BLAS_A100  # workspaces, which the trace does not see


def traced(
    tracer: Tracer, family: str, mode: dict[str, Any], attention: str, checkpointing: str
) -> float:
    config = config_of(family)
    model = model_from_config(config, family, "a test")
    lora = mode["kind"] == "lora"
    request = StepRequest(
        model=json.loads(json.dumps(config)), num_layers=model.num_layers,
        micro_batch_size=ROWS, seq_len=LENGTH, precision=mode.get("precision", "bf16"),
        base=mode.get("base", "16bit"), attention=attention,
        activation_checkpointing=checkpointing, optimizer="adamw_torch_fused",
        rank=16 if lora else 0, targets=resolve_targets(model, "all-linear") if lora else (),
        dropout=mode.get("dropout", 0.0), adapter_dtype=mode.get("adapter_dtype", "fp32"),
        autocast=mode.get("precision", "bf16") != "fp32", dora=mode.get("variant") == "dora",
    )  # fmt: skip
    found = tracer.trace(request, full=True)
    assert isinstance(found, Traced), found
    return found.peak_bytes


CASES = [
    (family, mode, attention, checkpointing)
    for family in CLASSES
    for mode in MODES
    for attention in ("sdpa", "eager")
    for checkpointing in ("none", "full")
    if attention == "eager" or mode != "full-fp32"  # the trace takes another fp32 kernel
]


@pytest.mark.parametrize(("family", "mode", "attention", "checkpointing"), CASES)
def test_formula_agrees_with_the_trace(
    tracer: Tracer, family: str, mode: str, attention: str, checkpointing: str
) -> None:
    expected = traced(tracer, family, MODES[mode], attention, checkpointing)
    assert formula(family, MODES[mode], attention, checkpointing) == pytest.approx(
        expected, rel=0.03
    )


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("mode", ["full", "lora", "lora-bf16"])
@pytest.mark.parametrize("family", LATER_CLASSES)
def test_families_that_resemble_llama_keep_what_their_classes_keep(
    tracer: Tracer, family: str, mode: str, checkpointing: str
) -> None:
    expected = traced(tracer, family, MODES[mode], "sdpa", checkpointing)
    assert formula(family, MODES[mode], "sdpa", checkpointing) == pytest.approx(expected, rel=0.005)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize("tied", [False, True])
def test_the_head_s_fp32_gradient_comes_when_the_one_of_its_16_bit_copy_is_made(
    tracer: Tracer, tied: bool, checkpointing: str
) -> None:
    """Few tokens, two micro-steps, and a vocabulary that makes the head most of the model."""
    config = {**config_of("llama"), "vocab_size": 65536, "tie_word_embeddings": tied}
    model = model_from_config(config, "llama", "a test")
    job = priced_job(model, Method("full", "32bit"), FEW, global_batch_size=4)
    columns = memory_columns(
        micro_batch_size=2, precision="bf16", attention="eager",
        activation_checkpointing=checkpointing, adapter_dtype="fp32",
    )  # fmt: skip
    request = StepRequest(
        model=json.loads(json.dumps(config)), num_layers=model.num_layers, micro_batch_size=2,
        seq_len=FEW, precision="bf16", base="32bit", attention="eager", rank=0, targets=(),
        activation_checkpointing=checkpointing, optimizer="adamw_torch_fused", accumulates=True,
    )  # fmt: skip
    found = tracer.trace(request, full=True)
    assert isinstance(found, Traced), found
    priced = float(COMPONENT.price(job, columns)["allocated"][0]) - BLAS_A100
    assert priced == pytest.approx(found.peak_bytes, rel=0.005)


@pytest.mark.parametrize("checkpointing", ["none", "full"])
def test_weights_in_the_other_16_bits_are_copied_for_the_backward(
    tracer: Tracer, checkpointing: str
) -> None:
    """fp16 weights under bf16 autocast: a copy of each matrix, and an fp32 residual stream."""
    config = config_of("llama")
    model = model_from_config(config, "llama", "a test")
    job = priced_job(model, Method("lora", "16bit", rank=8, targets=("q_proj", "v_proj")), FEW)
    other = replace(job, software=replace(job.software, base_dtype="fp16"))
    columns = memory_columns(
        micro_batch_size=2, precision="bf16", attention="sdpa",
        activation_checkpointing=checkpointing, adapter_dtype="fp32",
    )  # fmt: skip
    request = StepRequest(
        model=json.loads(json.dumps(config)), num_layers=model.num_layers, micro_batch_size=2,
        seq_len=FEW, precision="bf16", base="16bit", attention="sdpa", rank=8,
        targets=("q_proj", "v_proj"), activation_checkpointing=checkpointing,
        optimizer="adamw_torch_fused", base_dtype="fp16",
    )  # fmt: skip
    found = tracer.trace(request, full=True)
    assert isinstance(found, Traced), found
    priced = float(COMPONENT.price(other, columns)["allocated"][0]) - BLAS_A100
    assert priced == pytest.approx(found.peak_bytes, rel=0.02)
    same = float(COMPONENT.price(job, columns)["allocated"][0]) - BLAS_A100
    assert same < 0.95 * priced

"""Modules that train whole beside adapters: PEFT's own counts and dtypes, and a trace's peaks."""

from __future__ import annotations

import json
import warnings
from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from builders import BLAS_A100, device, memory_columns, needs, offer, priced_job

from autotune.catalog.models.hf_config import model_from_config
from autotune.cost import whole_modules
from autotune.cost.memory.component import COMPONENT
from autotune.cost.parameters import (
    adapter_parameters,
    resolve_targets,
    saved_embedding,
    saved_head,
    saved_parameters,
)
from autotune.cost.time import checkpoint, compute, flops
from autotune.domain.job import Method
from autotune.trace.client import Traced, Tracer
from autotune.trace.request import StepRequest

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore::UserWarning"),
]
needs("torch", "peft")

# A vocabulary so large that the copies are most of what is held.
CONFIG: dict[str, Any] = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"],
    "hidden_size": 512, "intermediate_size": 1408, "num_attention_heads": 8,
    "num_key_value_heads": 2, "num_hidden_layers": 4, "vocab_size": 65536, "pad_token_id": 0,
    "bos_token_id": 1, "eos_token_id": 2, "head_dim": 64, "tie_word_embeddings": False,
}  # fmt: skip
BOTH = ("embed_tokens", "lm_head")
ROWS, LENGTH = 2, 64


def method_for(modules: tuple[str, ...], base: str, *, tied: bool) -> tuple[Any, Method]:
    config = {**CONFIG, "tie_word_embeddings": tied}
    model = model_from_config(config, "llama", "a test")
    targets = resolve_targets(model, "all-linear")
    method = Method("lora", base, 8, 16.0, 0.0, targets, modules_to_save=modules)
    return model, method


def formula(model: Any, method: Method, case: dict[str, Any]) -> float:
    job = priced_job(model, method, LENGTH, global_batch_size=ROWS * case["steps"])
    job = replace(job, software=replace(job.software, saves_as_loaded=case["loaded"]))
    columns = memory_columns(
        micro_batch_size=ROWS, precision="bf16", attention="eager",
        activation_checkpointing=case["checkpointing"], adapter_dtype="fp32",
    )  # fmt: skip
    return float(COMPONENT.price(job, columns)["allocated"][0]) - BLAS_A100


def traced(tracer: Tracer, model: Any, method: Method, case: dict[str, Any]) -> float:
    config = {**CONFIG, "tie_word_embeddings": model.tied_head}
    request = StepRequest(
        model=json.loads(json.dumps(config)), num_layers=model.num_layers,
        micro_batch_size=ROWS, seq_len=LENGTH, precision="bf16", base=method.base,
        attention="eager", activation_checkpointing=case["checkpointing"],
        optimizer="adamw_torch_fused", rank=8, targets=method.targets,
        modules_to_save=method.modules_to_save,
        saved_dtype="bf16" if case["loaded"] else "fp32", accumulates=case["steps"] > 1,
    )  # fmt: skip
    found = tracer.trace(request, full=True)
    assert isinstance(found, Traced), found
    return found.peak_bytes


@pytest.mark.parametrize(("steps", "checkpointing"), [(1, "none"), (2, "full")])
@pytest.mark.parametrize("loaded", [True, False])
@pytest.mark.parametrize("modules", [BOTH, BOTH[:1], BOTH[1:]])
@pytest.mark.parametrize(("base", "tied"), [("16bit", False), ("16bit", True), ("nf4", False)])
def test_formula_agrees_with_the_trace(
    tracer: Tracer, base: str, tied: bool, modules: tuple[str, ...], loaded: bool, steps: int,
    checkpointing: str,
) -> None:  # fmt: skip
    model, method = method_for(modules, base, tied=tied)
    case = {"loaded": loaded, "steps": steps, "checkpointing": checkpointing}
    expected = traced(tracer, model, method, case)
    assert formula(model, method, case) == pytest.approx(expected, rel=0.03)


def peft_model(model: Any, method: Method, *, tied: bool) -> Any:
    """Random weights on the CPU, wrapped by PEFT as a file that names the modules has it."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, LlamaConfig

    sizes = {k: v for k, v in CONFIG.items() if k not in {"model_type", "architectures"}}
    own = LlamaConfig(**{**sizes, "tie_word_embeddings": tied, "vocab_size": model.vocab_size})
    plain = AutoModelForCausalLM.from_config(own, dtype=torch.bfloat16)
    lora = LoraConfig(
        r=8, lora_alpha=16, target_modules=list(method.targets), task_type="CAUSAL_LM",
        modules_to_save=list(method.modules_to_save) or None,
    )  # fmt: skip
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return get_peft_model(plain, lora)


def small(modules: tuple[str, ...], *, tied: bool) -> tuple[Any, Method]:
    model, method = method_for(modules, "16bit", tied=tied)
    return replace(model, vocab_size=1000), method


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("modules", [BOTH, BOTH[:1], BOTH[1:], ()])
def test_peft_trains_as_many_in_the_dtype_they_are_loaded_in(
    modules: tuple[str, ...], tied: bool, tmp_path: Path
) -> None:
    import torch

    model, method = small(modules, tied=tied)
    wrapped = peft_model(model, method, tied=tied)
    trained: Counter[Any] = Counter()
    for parameter in wrapped.parameters():
        trained[parameter.dtype] += parameter.numel() * parameter.requires_grad
    saved = saved_parameters(model, method)
    assert trained[torch.float32] == adapter_parameters(model, method)
    assert trained[torch.bfloat16] == saved
    assert (saved_embedding(model, method), saved_head(model, method)) == tuple(
        1000 * 512 * (name in modules) for name in BOTH
    )
    job = priced_job(model, method, LENGTH)
    job = replace(job, software=replace(job.software, saves_as_loaded=True))
    columns = memory_columns(precision="bf16", adapter_dtype="fp32")
    total = float(whole_modules.trained_bytes(job, columns)[0])
    assert total == 4 * trained[torch.float32] + 2 * trained[torch.bfloat16]
    wrapped.save_pretrained(tmp_path)  # beside the tensors a header of a hundred bytes each
    written = (tmp_path / "adapter_model.safetensors").stat().st_size
    assert written == pytest.approx(total, rel=0.03)


@pytest.mark.parametrize("modules", [BOTH, BOTH[:1], ()])
def test_a_head_that_trains_has_a_weight_gradient_of_its_own(modules: tuple[str, ...]) -> None:
    import torch
    from torch.utils.flop_counter import FlopCounterMode

    model, method = small(modules, tied=False)
    wrapped = peft_model(model, method, tied=False)
    ids = torch.randint(0, 1000, (1, LENGTH))
    with FlopCounterMode(display=False) as counter, torch.autocast("cpu", torch.bfloat16):
        wrapped(input_ids=ids, labels=ids).loss.backward()
    products = ("mm", "addmm")
    found = sum(
        count
        for op, count in counter.get_flop_counts()["Global"].items()
        if str(op).rpartition(".")[2] in products
    )
    counted = LENGTH * flops.useful_flop_per_token(model, method)
    assert found == pytest.approx(counted, rel=0.02)


def price(component: Any, job: Any, count: int = 1, **knobs: Any) -> dict[str, float]:
    own = memory_columns(
        **{"offer__count": count, "offer__host": offer("a100").host, **knobs},
    )  # fmt: skip
    return {name: float(own[0]) for name, own in component.price(job, own).items()}


@pytest.mark.parametrize("sharding", ["fsdp", "zero3"])
def test_shards_hold_a_share_of_the_copies(sharding: str) -> None:
    model, method = method_for(BOTH, "16bit", tied=False)
    job = priced_job(model, method, LENGTH, global_batch_size=8)
    plain = replace(job, method=replace(method, modules_to_save=()))
    copies = saved_parameters(model, method)

    def held(own: Any, count: int) -> float:
        shards = sharding if count > 1 else "none"
        found = price(COMPONENT, own, count, sharding=shards, precision="bf16",
                      micro_batch_size=1, adapter_dtype="fp32")  # fmt: skip
        return found["adapters"] + found["optimizer"]

    alone, shared = (held(job, n) - held(plain, n) for n in (1, 4))
    assert alone == 12 * copies  # a copy and two moments in fp32
    assert shared == {"fsdp": 12, "zero3": 14}[sharding] * copies / 4  # masters of 16-bit copies


def test_what_trains_whole_makes_a_step_and_a_save_longer() -> None:
    model, method = method_for(BOTH, "16bit", tied=False)
    job = priced_job(model, method, LENGTH, global_batch_size=8)
    plain = replace(job, method=replace(method, modules_to_save=()))
    knobs = {"precision": "bf16", "micro_batch_size": 1, "adapter_dtype": "fp32"}
    ours, theirs = (price(compute.COMPONENT, one, **knobs) for one in (job, plain))
    bandwidth = device("a100").memory_bandwidth_bytes_per_s
    copies = saved_parameters(model, method)
    least = 4 * 10 * copies / bandwidth  # fp32: read p, g twice, m, v, and write g, p, m, v
    assert ours["optimizer_s"] - theirs["optimizer_s"] > least
    assert ours["micro_step_s"] > theirs["micro_step_s"]
    ours, theirs = (price(checkpoint.COMPONENT, one, **knobs) for one in (job, plain))
    assert ours["bytes"] - theirs["bytes"] == 12 * copies
    assert ours["final_bytes"] - theirs["final_bytes"] == 4 * copies


def test_unsloth_leaves_the_frozen_modules_on_the_host() -> None:
    model, method = method_for(BOTH, "16bit", tied=False)
    job = priced_job(model, method, LENGTH, global_batch_size=8)
    own = replace(job, software=replace(job.software, kernels="unsloth", saves_as_loaded=True))
    knobs = {"precision": "bf16", "micro_batch_size": 1, "adapter_dtype": "fp32"}
    weights = [price(COMPONENT, one, **knobs)["weights"] for one in (job, own)]
    assert weights[0] - weights[1] == 2 * saved_parameters(model, method)


def test_fp16_trains_fp32_copies() -> None:
    model, method = method_for(BOTH, "16bit", tied=False)
    job = priced_job(model, method, LENGTH)
    job = replace(job, software=replace(job.software, saves_as_loaded=True))
    for precision, width in (("fp16", 4.0), ("bf16", 2.0)):
        columns = memory_columns(precision=precision, adapter_dtype="fp32")
        assert float(whole_modules.element_bytes(job, columns)[0]) == width

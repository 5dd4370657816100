"""Memory of the Gemma 4 family against the trace of its classes: layers of several shapes."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from builders import BLAS_A100, less_deep, memory_columns, needs, priced_job

from autotune.catalog.models.models import find_model
from autotune.cost.memory.component import COMPONENT
from autotune.cost.parameters import resolve_targets
from autotune.domain.job import Method
from autotune.trace.client import Traced, Tracer
from autotune.trace.request import StepRequest

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.model import Model

pytestmark = pytest.mark.slow
needs("torch", "peft")

NAMES = [
    "google/gemma-4-31B", "google/gemma-4-12B", "google/gemma-4-26B-A4B", "google/gemma-4-E2B",
    "google/gemma-4-E4B",
]  # fmt: skip
METHODS: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "lora": {"base": "16bit"},
    "lora-dropout": {"base": "16bit", "dropout": 0.05},
    "nf4": {"base": "nf4"},
}
OF_EVERY_METHOD = {
    "google/gemma-4-31B",
    "google/gemma-4-26B-A4B",
    "google/gemma-4-E4B",
}  # the others are of their kinds
CASES = [(n, words) for n in NAMES for words in METHODS if n in OF_EVERY_METHOD or words == "lora"]
# One method and attention sees each model at its own depth; the others its first layers, which are
# of all its kinds: one period, or two where the second shares the keys of the first.
AT_ITS_DEPTH = ("lora", "sdpa")
PERIOD = 6
SHARE_KEYS = {"google/gemma-4-E2B", "google/gemma-4-E4B"}
ROWS, SHORT, LONG = 2, 512, 2048  # LONG: beyond the window, so that its layers get a mask


def text_of(name: str) -> Model:
    """The text model, which is what is traced."""
    return replace(find_model(name), beside_params=0)


def method_of(model: Model, words: dict[str, Any]) -> Method:
    if words.get("kind") == "full":
        return Method("full", "16bit")
    targets = resolve_targets(model, "all-linear")
    return Method("lora", words["base"], 16, 16.0, words.get("dropout", 0.0), targets)


def formula(model: Model, method: Method, how: dict[str, str], length: int) -> float:
    job = priced_job(model, method, length, global_batch_size=ROWS)
    columns = memory_columns(micro_batch_size=ROWS, adapter_dtype="fp32", **how)
    return float(COMPONENT.price(job, columns)["allocated"][0]) - BLAS_A100


def request(model: Model, method: Method, how: dict[str, str], length: int) -> StepRequest:
    return StepRequest(
        model=json.loads(model.hf_config), num_layers=model.num_layers, micro_batch_size=ROWS,
        seq_len=length, precision="bf16", base=method.base, optimizer="adamw_torch_fused",
        rank=method.rank if method.is_lora else 0, targets=method.targets, dropout=method.dropout,
        attention=how["attention"], activation_checkpointing=how["activation_checkpointing"],
    )  # fmt: skip


@pytest.mark.parametrize("checkpointing", ["none", "full"])
@pytest.mark.parametrize(
    ("attention", "length"), [("sdpa", SHORT), ("sdpa", LONG), ("eager", LONG)]
)
@pytest.mark.parametrize(("name", "words"), CASES)
def test_formula_is_within_two_percent_of_the_trace(
    tracer: Tracer, name: str, words: str, attention: str, length: int, checkpointing: str,
    tmp_path: Path,
) -> None:  # fmt: skip
    model = text_of(name)
    if (words, attention) != AT_ITS_DEPTH:
        shared = PERIOD if name in SHARE_KEYS else 0
        model = less_deep(model, tmp_path, PERIOD + shared, num_kv_shared_layers=shared)
    method = method_of(model, METHODS[words])
    how = {"attention": attention, "activation_checkpointing": checkpointing}
    traced = tracer.trace(request(model, method, how, length))
    assert isinstance(traced, Traced), traced
    assert formula(model, method, how, length) == pytest.approx(traced.peak_bytes, rel=0.02)


@pytest.mark.parametrize("name", NAMES[:3])  # the others are traced at full depth
def test_two_periods_of_layers_stand_for_all_of_them(tracer: Tracer, name: str) -> None:
    model = text_of(name)
    how = {"attention": "sdpa", "activation_checkpointing": "none"}
    asked = request(model, method_of(model, METHODS["lora"]), how, SHORT)
    few, all_of_them = tracer.trace(asked), tracer.trace(asked, full=True)
    assert isinstance(few, Traced), few
    assert isinstance(all_of_them, Traced), all_of_them
    assert few.depths == (6, 12)
    assert few.peak_bytes == pytest.approx(all_of_them.peak_bytes, rel=1e-6)


def test_keys_of_one_head_are_no_copies_for_the_query_heads_that_share_them(
    tracer: Tracer,
) -> None:
    """Beyond the window of Gemma 3 1B, whose sdpa then has a mask."""
    model, how = text_of("google/gemma-3-1b-pt"), {"attention": "sdpa"}
    how["activation_checkpointing"] = "none"
    method = method_of(model, METHODS["lora"])
    assert model.num_kv_heads == 1
    traced = tracer.trace(request(model, method, how, LONG))
    assert isinstance(traced, Traced), traced
    assert formula(model, method, how, LONG) == pytest.approx(traced.peak_bytes, rel=0.005)

"""The formula of peak memory against the trace, for every family of the catalogue at full size."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import pytest

from autotune.catalog.devices import find_device
from autotune.catalog.models import load_models
from autotune.catalog.software import find_software
from autotune.cost.columns import Columns
from autotune.cost.memory import COMPONENT
from autotune.cost.parameters import resolve_targets
from autotune.domain.job import Job, Lengths, Limits, Method
from autotune.trace.client import Traced, Tracer
from autotune.trace.request import StepRequest

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.domain.model import Model

pytestmark = pytest.mark.slow
pytest.importorskip("torch")
pytest.importorskip("peft")

BLAS_A100 = 2 * 8.125 * 2**20  # the trace does not see library workspaces
MODES: dict[str, dict[str, Any]] = {
    "full": {"kind": "full"},
    "full-fp32-weights": {"kind": "full", "base": "32bit"},
    "lora": {"kind": "lora", "targets": "all-linear"},
    "nf4": {"kind": "lora", "targets": "attention", "base": "nf4", "dropout": 0.05},
    "int8": {"kind": "lora", "targets": "all-linear", "base": "int8"},
}
SETTINGS = (("sdpa", "none", 4, 1024), ("sdpa", "full", 8, 1024),
            ("eager", "full", 4, 1024), ("eager", "none", 2, 512))  # fmt: skip
SKIPPED = {
    "baichuan": "code outside transformers",
    "chatglm": "code outside transformers",
    "qwen": "code outside transformers",
    "mimo": "code outside transformers",
    "llama4_text": "layers of two kinds and chunked attention are not described",
}
EAGER_ONLY = {"gemma2", "gpt_oss", "bloom", "mpt"}  # transformers 5 has no sdpa for them
FP32_EXPERTS = {"mixtral", "qwen2_moe", "qwen3_moe", "granitemoe", "gpt_oss"}  # not on meta
TOLERANCE = 0.03
# Families where formula and trace are further apart, by how much; what makes the gap is not known.
WIDER = {
    "falcon": 0.06, "gpt_neox": 0.055, "gpt_oss": 0.08, "nanochat": 0.08, "olmo2": 0.06,
    "qwen3_moe": 0.035,
}  # fmt: skip


@cache
def smallest() -> dict[str, Model]:
    found: dict[str, Model] = {}
    for model in load_models().values():
        size = model.hidden_size * model.num_layers
        best = found.get(model.family)
        if model.hf_config != "{}" and (best is None or size < best.hidden_size * best.num_layers):
            found[model.family] = model
    return found


def cases() -> Iterator[Any]:
    for i, family in enumerate(sorted(smallest())):
        if family in SKIPPED:
            continue
        for j, mode in enumerate(MODES):
            attention, checkpointing, rows, length = SETTINGS[(i + j) % len(SETTINGS)]
            if family in EAGER_ONLY:
                attention = "eager"
            if mode == "full-fp32-weights" and family in FP32_EXPERTS:
                continue
            yield pytest.param(
                family, mode, (attention, checkpointing, rows, length), id=f"{family}-{mode}"
            )


def method_of(model: Model, mode: dict[str, Any]) -> Method:
    if mode["kind"] == "full":
        return Method("full", mode.get("base", "16bit"))
    targets = resolve_targets(model, mode["targets"])
    base, dropout = mode.get("base", "16bit"), mode.get("dropout", 0.0)
    return Method("lora", base, 16, 16.0, dropout, targets)


def formula(model: Model, method: Method, setting: tuple[str, str, int, int]) -> float:
    attention, checkpointing, rows, length = setting
    lengths = Lengths((float(length), float(length)), float(length), length, known=True)
    job = Job(
        name="traced", model=model, method=method, rows=100, max_length=length, lengths=lengths,
        padding="longest", pretokenized=True, storage="local", epochs=1.0, steps=25,
        global_batch_size=rows, evaluation=None, limits=Limits(0.0, 1800.0),
        software=replace(find_software(None), loss="upcast"), offers=(),
    )  # fmt: skip
    row = {
        "offer.device": find_device("a100-sxm4-80gb"), "offer.count": 1, "sharding": "none",
        "micro_batch_size": rows, "precision": "bf16", "activation_checkpointing": checkpointing,
        "attention": attention, "optimizer": "adamw_torch_fused", "adapter_dtype": "fp32",
        "packing": "off", "compile": "off",
    }  # fmt: skip
    found = COMPONENT.price(job, Columns({name: [value] for name, value in row.items()}, 1))
    return float(found["allocated"][0]) - BLAS_A100


@pytest.fixture(scope="module")
def tracer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tracer]:
    with Tracer(cache=tmp_path_factory.mktemp("traces")) as found:
        yield found


@pytest.mark.parametrize(("family", "mode", "setting"), list(cases()))
def test_formula_agrees_with_the_trace_of_every_family(
    tracer: Tracer, family: str, mode: str, setting: tuple[str, str, int, int]
) -> None:
    model = smallest()[family]
    method = method_of(model, MODES[mode])
    attention, checkpointing, rows, length = setting
    traced = tracer.trace(
        StepRequest(
            model=json.loads(model.hf_config), num_layers=model.num_layers,
            micro_batch_size=rows, seq_len=length, precision="bf16", base=method.base,
            attention=attention, activation_checkpointing=checkpointing,
            optimizer="adamw_torch_fused", rank=method.rank, targets=method.targets,
            dropout=method.dropout,
        )
    )  # fmt: skip
    assert isinstance(traced, Traced), traced
    allowed = WIDER.get(family, TOLERANCE)
    assert formula(model, method, setting) == pytest.approx(traced.peak_bytes, rel=allowed)

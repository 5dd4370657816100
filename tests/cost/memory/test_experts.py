"""Experts that are one parameter: their bytes in few bits, and what a pass of them leaves."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from builders import lora, memory_columns, priced_job

from autotune.catalog.models.models import find_model
from autotune.catalog.software import find_software
from autotune.cost.memory.component import COMPONENT
from autotune.cost.memory.experts import experts_fused, experts_looped, retained_bytes
from autotune.cost.memory.states import sizes, weight_bytes

if TYPE_CHECKING:
    from autotune.domain.job import Job
    from autotune.domain.model import Model

OLMOE = find_model("allenai/OLMoE-1B-7B-0924")
SCOUT = find_model("meta-llama/Llama-4-Scout-17B-16E")
QUANTISED: dict[str, Any] = {"quantised_experts": True}
KEEPS: dict[str, Any] = {**QUANTISED, "bitsandbytes": (0, 49, 1), "reentrant": False}
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
GIB = 2.0**30


def job_of(model: Model = OLMOE, base: Any = "nf4", **software: Any) -> Job:
    method = replace(lora(model, rank=8), base=base, double_quant=True, targets=ATTENTION)
    profile = replace(find_software(None), loss="upcast", **software)
    return priced_job(model, method, 2048, global_batch_size=4, software=profile)


def held(job: Job) -> float:
    return weight_bytes(job, sizes(job.model)) / GIB


def allocated(job: Job, checkpointing: str = "full") -> float:
    """[GiB] of a row of 2,048 tokens under sdpa."""
    rows = memory_columns(
        activation_checkpointing=checkpointing, attention="sdpa", micro_batch_size=1
    )
    return float(COMPONENT.price(job, rows)["allocated"][0]) / GIB


@pytest.mark.parametrize(("base", "low", "high"), [("nf4", 0.50, 0.54), ("int8", 0.99, 1.02)])
def test_a_switch_stores_the_experts_in_few_bits(base: Any, low: float, high: float) -> None:
    plain, small = held(job_of(base=base)), held(job_of(base=base, **QUANTISED))
    experts = sizes(OLMOE).experts / GIB
    saved = (plain - small) / experts
    assert 2.0 - high < saved < 2.0 - low


def test_a_base_in_16_bit_and_a_dense_model_know_no_such_switch() -> None:
    for job in (job_of(base="16bit"), job_of(find_model("Qwen/Qwen2.5-7B"))):
        switched = replace(job, software=replace(job.software, **QUANTISED))
        assert held(switched) == held(job)
        assert allocated(switched) == allocated(job)


def test_without_checkpointing_every_layer_keeps_its_experts_unpacked() -> None:
    once, all_layers = (allocated(job_of(**QUANTISED), how) for how in ("full", "none"))
    assert all_layers - once > 2.0 * sizes(OLMOE).experts / GIB * 0.9


def test_an_old_cache_leaves_the_experts_of_every_layer_behind() -> None:
    """pjordanandrsn/experts4bit-qlora, ab-telemetry/axolotl-ab: 16.96 GiB allocated, RTX 3090."""
    assert 0.93 < allocated(job_of(**KEEPS)) / 16.96 < 1.03
    for mended in ({"bitsandbytes": (0, 50, 0)}, {"reentrant": None}):
        job = job_of(**{**KEEPS, **mended})
        assert retained_bytes(job) == 0.0
        assert allocated(job) < 6.0


def test_experts_that_were_one_parameter_at_once_stay_in_16_bit_in_older_releases() -> None:
    before: dict[str, Any] = {"transformers": (4, 51, 3)}
    assert not experts_fused(job_of(**before))
    assert experts_fused(job_of(SCOUT, **before))
    assert held(job_of(SCOUT, **before)) > 180.0


@pytest.mark.parametrize("transformers", [(4, 51, 3), (5, 20, 1)])
def test_llama_4_with_linear_experts_is_quantised_whole(transformers: tuple[int, ...]) -> None:
    job = job_of(SCOUT, linear_experts=True, transformers=transformers)
    assert not experts_fused(job)
    assert experts_looped(job)
    assert 50.0 < held(job) < 60.0
    assert experts_fused(job_of(linear_experts=True))  # a class of axolotl's, for Llama 4 alone

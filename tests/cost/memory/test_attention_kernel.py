"""What the kernel that sdpa runs holds: copied heads, and the workspace of torch 2.1 to 2.3."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from builders import lora, memory_columns, priced_job

from autotune.catalog.devices import find_device
from autotune.catalog.models.models import find_model
from autotune.catalog.software import find_software
from autotune.cost.memory.attention_kernel import split_bytes, splits_keys
from autotune.cost.memory.step import Step

if TYPE_CHECKING:
    from autotune.domain.job import Job

LLAMA, GROUPED = (
    find_model(name) for name in ("meta-llama/Llama-2-7b-hf", "meta-llama/Llama-3.1-8B")
)
NARROW = find_model("EleutherAI/pythia-410m")  # heads of 64
OLD: dict[str, Any] = {"transformers": (4, 40), "torch": (2, 1)}


def job_of(model: Any, **software: Any) -> Job:
    return priced_job(model, lora(model), 4096, software=replace(find_software(None), **software))


def split(job: Job, device: str, masked: float, **knobs: Any) -> bool:
    own = {"offer__device": find_device(device), "attention": "sdpa", "precision": "bf16", **knobs}
    compute = np.full(1, 2.0 if own["precision"] != "tf32" else 4.0)
    return bool(splits_keys(job, memory_columns(**own), compute, np.full(1, masked))[0])


def test_the_workspace_is_what_an_out_of_memory_message_asked_for() -> None:
    # llama-recipes, Llama 2 7B, two rows of 4096 on an RTX 3090: "Tried to allocate 16.13 GiB"
    rows, length = 2, 4096
    keys = split_bytes(float(LLAMA.query_size)) * rows * length**2
    queries = 4.0 * LLAMA.query_size * rows * length
    assert round((keys + queries) / 2**30, 2) == pytest.approx(16.13, abs=0.01)


@pytest.mark.parametrize(
    ("device", "masked", "software", "expected"),
    [
        ("rtx-3090", 0.0, {}, True),  # flash attention 1 trains no wide heads there
        ("rtx-3090", 0.0, {"torch": (2, 2)}, False),  # the second does
        ("rtx-3090", 1.0, {"torch": (2, 3)}, True),  # but takes no mask
        ("rtx-3090", 1.0, {"torch": (2, 4)}, False),
        ("rtx-3090", 1.0, {"torch": (2, 0)}, False),
        ("t4", 0.0, {"torch": (2, 3)}, True),
        ("t4", 0.0, {"torch": (2, 3), "kernels": "unsloth"}, False),  # xformers' own build
        ("a100-sxm4-80gb", 1.0, {}, False),  # its shared memory holds a block of 128
    ],
)
def test_keys_are_split_where_shared_memory_is_small(
    device: str, masked: float, software: dict[str, Any], *, expected: bool
) -> None:
    assert split(job_of(LLAMA, **{**OLD, **software}), device, masked) is expected


def test_narrow_heads_and_wide_numbers_split_nothing() -> None:
    assert not split(job_of(NARROW, **OLD), "t4", 1.0)
    assert not split(job_of(LLAMA, **OLD), "t4", 1.0, precision="tf32")


def test_grouped_heads_are_copied_before_transformers_asked_sdpa_for_them() -> None:
    own = memory_columns(attention="sdpa", activation_checkpointing="none", micro_batch_size=2)
    new, old = (
        float(Step.of(job_of(GROUPED, **software), own).layers[0].kept[0])
        for software in ({}, {"transformers": (4, 53), "torch": (2, 7)})
    )
    copies = 2.0 * 2 * (GROUPED.query_size - GROUPED.kv_size) * 2 * 4096
    assert old - new == pytest.approx(copies, rel=0.01)


@pytest.mark.parametrize(("stack", "held"), [("hf", True), ("fsdp_qlora", False)])
def test_only_the_trainer_recomputes_around_fsdp_s_units(stack: str, *, held: bool) -> None:
    job = job_of(LLAMA, transformers=(4, 40), torch=(2, 2), stack=stack)
    own = memory_columns(
        offer__count=2, sharding="fsdp", activation_checkpointing="full", attention="sdpa"
    )
    assert bool(Step.of(job, own).retains[0]) is held

"""Mamba layers: what their kernels change of time, memory and method."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import memory_columns, priced_job

from autotune.app.job.method import check_adapters
from autotune.catalog.models.models import find_model
from autotune.catalog.software import find_software, unkernelled
from autotune.cost.memory.component import COMPONENT
from autotune.cost.parameters import resolve_targets
from autotune.cost.time import attention
from autotune.cost.time.kernels import layer_launches
from autotune.domain.errors import InputError
from autotune.domain.job import Method
from autotune.space.requirements import packing_keeps_rows_apart

NAME, KERNELS = "ibm-granite/granite-4.0-h-micro", (2, 3, 2)
LORA = Method("lora", "16bit", 16, 16.0, 0.0, ("in_proj",))


def job_of(version: tuple[int, ...] | None, method: Method = LORA, name: str = NAME) -> Any:
    software = replace(find_software(None), mamba_ssm=version)
    return priced_job(find_model(name), method, 1024, software=software)


def test_bytes_and_kernels_are_those_that_were_counted() -> None:
    """Of transformers 5.23, at the sizes of the 3B: a layer's forward and backward by torch."""
    lengths = np.asarray([1024.0])
    width, read, pairs, convolved, states = 4096, 64 * 128, 64 * 256, 4096 + 256, 4096 * 128 / 256
    ahead, back = attention.mixer_bytes(job_of(None), lengths)
    assert ahead[0] == 36 * (152 * width + 18 * convolved + 80 * read + 48 * pairs + 17 * states)
    assert back[0] > 1.5 * ahead[0]
    fused = attention.mixer_bytes(job_of(KERNELS), lengths)
    assert fused[0][0] < ahead[0] / 10
    issued = attention.mixer_kernels(job_of(None), lengths)
    assert [each[0] / 36 for each in issued] == [80.0, 124.0]


def test_kernels_leave_a_layer_a_tenth_to_keep() -> None:
    columns = memory_columns(micro_batch_size=1, adapter_dtype="fp32",
                             activation_checkpointing="none")  # fmt: skip
    plain, fused = (
        float(COMPONENT.price(job_of(each), columns)["allocated"][0]) for each in (None, KERNELS)
    )
    pairs = 36 * 8.0 * 64 * 256 * 1024  # of a chunk, in all layers
    assert plain - fused > pairs


def test_kernels_and_packed_weights_do_not_go_together() -> None:
    packed = replace(LORA, base="nf4")
    with pytest.raises(InputError, match="read out_proj as it is stored"):
        check_adapters(job_of(KERNELS, packed))
    check_adapters(job_of(None, packed))
    check_adapters(job_of(KERNELS))
    model, software = find_model(NAME), find_software(None)
    assert "--set software.mamba_ssm=2.3.2" in unkernelled(model, LORA, software)[0].why
    assert "fail" in unkernelled(model, packed, software)[0].why
    assert job_of(None, packed).mixer_kernels == ""


def test_a_state_is_carried_from_row_to_row_so_that_none_are_packed() -> None:
    for version in (None, KERNELS):
        assert not packing_keeps_rows_apart(job_of(version), None, "on", "flash_attention_2")  # type: ignore[arg-type]


def test_peft_wraps_out_proj_of_granite_alone() -> None:
    targets = {name: resolve_targets(find_model(name), "all-linear")
               for name in (NAME, "tiiuae/Falcon-H1-3B-Instruct")}  # fmt: skip
    assert {"in_proj", "out_proj"} <= set(targets[NAME])
    assert "out_proj" not in targets["tiiuae/Falcon-H1-3B-Instruct"]
    assert "in_proj" in targets["tiiuae/Falcon-H1-3B-Instruct"]
    with pytest.raises(InputError, match=r"out_proj of .* PEFT refuses to wrap it"):
        resolve_targets(find_model("nvidia/Nemotron-H-4B-Base-8K"), ["out_proj"])


def test_a_layer_of_one_block_adds_to_the_stream_once() -> None:
    model = find_model("nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16")
    assert {layer.blocks for layer in model.layers} == {1}
    assert {layer.blocks for layer in find_model(NAME).layers} == {2}
    mixed, attending, routed = (
        next(x for x in model.layers if any(one.part == part for one in x.linears))
        for part in ("mixer", "attention", "expert")
    )
    assert (mixed.num_attention_heads, mixed.num_experts) == (0, 0)
    assert (attending.mixer, attending.num_experts) == (None, 0)
    assert (routed.mixer, routed.num_attention_heads, routed.num_experts) == (None, 0, 128)
    both = LORA, Method("full", "16bit")
    for method in both:
        once = layer_launches(mixed, method, eager_attention=False)
        within = sum(x.active for x in mixed.linears)
        assert once.forward == 6 + within + 2.5, "a norm, its matrices, and half of a layer's sums"

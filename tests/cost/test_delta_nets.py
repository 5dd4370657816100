"""Time of gated delta nets, against a published pair of steps, and of short convolutions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from builders import priced_job

from autotune.catalog.models.models import find_model
from autotune.catalog.software import find_software
from autotune.cost.time import attention, kernels
from autotune.cost.time.compute import COMPONENT
from autotune.domain.job import Method
from autotune.space.requirements import packing_keeps_rows_apart

NAME, KERNELS = "Qwen/Qwen3.5-9B", (0, 5, 2)


def job_of(version: tuple[int, ...] | None, length: int = 1024) -> Any:
    software = replace(find_software(None), flash_linear_attention=version)
    return priced_job(find_model(NAME), Method("full"), length, software=software)


def test_a_longer_row_costs_more_a_token_without_the_kernels_alone() -> None:
    lengths = np.asarray([1024.0, 8192.0])
    _, sliced = attention.mixer_bytes(job_of(None), lengths)
    _, fused = attention.mixer_bytes(job_of(KERNELS), lengths)
    assert sliced[1] > 2.0 * sliced[0]
    assert fused[1] == fused[0] < sliced[0]


def test_kernels_grow_with_the_chunks_of_a_row() -> None:
    """Counted on transformers 5.23: 214 and 519 a layer at 1,024 tokens, 142 and 311 at 512."""
    layers = 24
    for length, ahead, back in ((1024, 214, 519), (512, 142, 311)):
        forward, backward = attention.mixer_kernels(job_of(None), np.asarray([length * 1.0]))
        assert forward[0] / layers == pytest.approx(ahead, rel=0.03)
        assert backward[0] / layers == pytest.approx(back, rel=0.03)


def test_a_delta_net_has_neither_scores_nor_a_rotation() -> None:
    model = find_model(NAME)
    linear = next(layer for layer in model.layers if layer.mixer)
    full = next(layer for layer in model.layers if not layer.mixer)
    assert linear.query_size == linear.kv_size == 0
    launched = [
        kernels.layer_launches(each, Method("full"), eager_attention=False).forward
        for each in (linear, full)
    ]
    assert launched[0] < launched[1]


def test_a_published_pair_of_steps_comes_out(lab: Any) -> None:
    """1.22 s a step without the kernels and 0.70 s with them: Qwen3.5-9B in full, FSDP2, 8 B200.

    Source: huggingface/transformers issue 48718 and pull request 48692: 64 rows of 1,024 tokens,
    bf16 over fp32 shards, no checkpointing.
    """
    found = {}
    for version in (None, KERNELS):
        software = replace(find_software(None), flash_linear_attention=version)
        job = lab.job(NAME, Method("full", "32bit"), 1024, software=software, global_batch_size=64)
        config = lab.config(8, sharding="fsdp", activation_checkpointing="none", attention="sdpa")
        out = lab.price(COMPONENT, job, lab.offer("b200", 8), config)
        found[version] = out["micro_step_s"] + out["optimizer_s"]
    assert found[None] == pytest.approx(1.22, rel=0.3)
    assert found[KERNELS] == pytest.approx(0.70, rel=0.3)


def test_rows_are_not_joined_without_the_kernels_that_keep_them_apart() -> None:
    locked = replace(job_of(None), lock={"packing": "on"})
    assert not packing_keeps_rows_apart(locked, None, "on", "flash_attention_2")  # type: ignore[arg-type]
    assert packing_keeps_rows_apart(job_of(KERNELS), None, "on", "flash_attention_2")  # type: ignore[arg-type]


def test_a_short_convolution_moves_its_channels_and_no_packing_is_offered_over_it() -> None:
    model = find_model("LiquidAI/LFM2-1.2B")
    job = priced_job(model, Method("full"), 1024)
    lengths = np.asarray([512.0, 2048.0])
    layers, width = 10, 2048
    forward, backward = attention.mixer_bytes(job, lengths)
    assert forward.tolist() == [20.0 * layers * width] * 2
    assert backward.tolist() == [58.0 * layers * width] * 2
    issued = attention.mixer_kernels(job, lengths)
    assert [each.tolist() for each in issued] == [[40.0, 40.0], [80.0, 80.0]]
    assert not model.kernel_package
    assert model.is_unmeasured
    assert not packing_keeps_rows_apart(job, None, "on", "flash_attention_2")  # type: ignore[arg-type]
    assert packing_keeps_rows_apart(job, None, "off", "sdpa")  # type: ignore[arg-type]

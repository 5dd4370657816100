"""Flash attention 3: its public pair, its pessimistic end, and the memory of the second."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.catalog.devices import find_device
from autotune.cost.memory import component as memory
from autotune.cost.time import compute

PAIR = 32.4 / 35.5  # s a step
H20 = replace(find_device("h100-sxm"), bf16_flop_per_s=148e12, memory_bandwidth_bytes_per_s=4e12)


def step_of(lab: Any, attention: str, **knobs: Any) -> dict[str, float]:
    job = lab.job("Qwen/Qwen2.5-7B", lab.full(), 16_384, global_batch_size=16)
    config = lab.config(
        1, 4, attention=attention, sharding="zero3", activation_checkpointing="full",
        packing="on", **{"kernels": "liger", **knobs},
    )  # fmt: skip
    found: dict[str, float] = lab.price(compute.COMPONENT, job, lab.offer(H20, 4), config)
    return found


def test_the_expected_gain_is_that_of_the_published_pair_on_four_h20(lab: Any) -> None:
    """ms-swift, examples/train/flash_attention_3: 7B in full, ZeRO-3, rows packed to 16,384."""
    second, third = (step_of(lab, f"flash_attention_{n}") for n in (2, 3))
    assert third["micro_step_s"] / second["micro_step_s"] == pytest.approx(PAIR, abs=0.025)


def test_the_pessimistic_end_of_the_third_is_the_second(lab: Any) -> None:
    second, third = (step_of(lab, f"flash_attention_{n}", kernels="none") for n in (2, 3))
    slowest = second["micro_step_s"] * second["unmeasured_gain"]
    assert third["micro_step_s"] * third["unmeasured_gain"] == pytest.approx(slowest, rel=1e-6)
    assert third["log_sd"] > second["log_sd"]


def test_both_flash_kernels_keep_the_same(lab: Any) -> None:
    job = lab.job("Qwen/Qwen2.5-7B", lab.lora(), 4096)
    second, third = (
        lab.price(memory.COMPONENT, job, lab.offer("h100-sxm"), lab.config(2, attention=name))
        for name in ("flash_attention_2", "flash_attention_3")
    )
    assert third["total"] == second["total"]

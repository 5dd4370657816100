from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.catalog.devices import find_device
from autotune.catalog.operators import collective_times
from autotune.cost.time import collectives
from autotune.cost.time.collectives import collective_seconds
from autotune.domain.software import ZeroSettings

LLAMA = "meta-llama/Llama-2-7b-hf"
COMPONENT = collectives.COMPONENT
GIB = np.array([2.0**30])


def price(lab: Any, device: str, count: int, sharding: str, method: Any, **knobs: Any) -> Any:
    job = lab.job(LLAMA, method, 1024, global_batch_size=64)
    config = lab.config(1, sharding=sharding, **knobs)
    return lab.price(COMPONENT, job, lab.offer(device, count), config)


@pytest.mark.parametrize("sharding", ["none", "ddp", "fsdp", "zero3"])
def test_one_device_has_nobody_to_talk_to(lab: Any, sharding: str) -> None:
    out = price(lab, "a100", 1, sharding, lab.full())
    assert out["per_micro_s"] == 0
    assert out["per_step_s"] == 0


def test_boards_without_a_switch_are_a_hundred_times_slower(lab: Any) -> None:
    slow = price(lab, "l40s", 8, "fsdp", lab.full())["per_micro_s"]
    fast = price(lab, "a100", 8, "fsdp", lab.full())["per_micro_s"]
    assert slow > 50 * fast


def test_measured_times_come_back() -> None:
    table = collective_times("h100-sxm")
    assert table is not None
    for op in ("all_gather", "reduce_scatter", "all_reduce"):
        message, seconds = table.select(op, 8)
        found = collective_seconds(find_device("h100-sxm"), 8, op, message.astype(float))
        assert found == pytest.approx(seconds, rel=1e-9)


def test_six_devices_lie_between_four_and_eight() -> None:
    device = find_device("a100")
    four, six, eight = (
        float(collective_seconds(device, n, "all_reduce", GIB)[0]) for n in (4, 6, 8)
    )
    assert four <= six <= eight


@pytest.mark.parametrize("op", ["all_gather", "all_reduce"])
@pytest.mark.parametrize("name", ["rtx-4090", "a100-sxm4-40gb", "l40s", "h100-sxm"])
def test_more_bytes_take_longer(name: str, op: str) -> None:
    message = np.geomspace(1e3, 1e11, 60)
    seconds = collective_seconds(find_device(name), 4, op, message)
    assert (np.diff(seconds) >= 0).all()
    beyond = collective_seconds(find_device(name), 4, op, np.array([1e12]))
    assert beyond[0] == pytest.approx(10 * seconds[-1], rel=0.05)


def test_a_faster_link_never_takes_longer() -> None:
    device = find_device("rtx-4090")
    better = replace(device, link_bytes_per_s=2 * device.link_bytes_per_s)
    seconds = [float(collective_seconds(d, 4, "all_reduce", GIB)[0]) for d in (device, better)]
    assert seconds[1] < seconds[0]


def test_ddp_of_adapters_costs_next_to_nothing(lab: Any) -> None:
    lora = price(lab, "a100", 8, "ddp", lab.lora(16))
    full = price(lab, "a100", 8, "ddp", lab.full())
    assert lora["per_micro_s"] == full["per_micro_s"] == 0
    assert lora["per_step_s"] < full["per_step_s"] / 25


def test_gathering_a_quantised_base_moves_its_codes(lab: Any) -> None:
    wide, codes = (
        price(lab, "l40s", 4, "fsdp", lab.lora(base=base))["per_micro_s"]
        for base in ("16bit", "nf4")
    )
    assert 0.2 < codes / wide < 0.4


def test_who_sends_gradients_every_micro_step(lab: Any) -> None:
    ddp, zero2, zero3, fsdp = (
        price(lab, "l40s", 4, s, lab.full()) for s in ("ddp", "zero2", "zero3", "fsdp")
    )
    assert ddp["per_micro_s"] == 0 < ddp["per_step_s"]
    assert zero2["per_step_s"] > 0  # what was updated goes to every device
    assert 0 < zero2["per_micro_s"] < zero3["per_micro_s"]
    assert zero3["per_step_s"] == 0
    assert fsdp["per_step_s"] > 0
    assert fsdp["per_micro_s"] > 0


def test_stage_two_sums_gradients_everywhere_and_fsdp_sends_shares(lab: Any) -> None:
    """DeepSpeed's `use_multi_rank_bucket_allreduce`: twice the bytes of a reduce-scatter."""
    job = lab.job(LLAMA, lab.full(), 1024, global_batch_size=64)
    shares = replace(job, zero=ZeroSettings(scatters=True))
    config, offer = lab.config(1, sharding="zero2"), lab.offer("rtx-4090", 4)
    whole, part = (lab.price(COMPONENT, own, offer, config)["per_micro_s"] for own in (job, shares))
    assert 1.7 < whole / part < 2.3


def test_zero_one_reduces_once_a_step(lab: Any) -> None:
    job = lab.job(LLAMA, lab.full(), 1024, global_batch_size=64)
    one = replace(job, zero=ZeroSettings(whole_gradients=True))
    config, offer = lab.config(1, sharding="zero2"), lab.offer("l40s", 4)
    two, first = lab.price(COMPONENT, job, offer, config), lab.price(COMPONENT, one, offer, config)
    assert first["per_micro_s"] == 0 < two["per_micro_s"]
    assert first["per_step_s"] > two["per_step_s"]


def test_a_long_micro_step_hides_part_of_the_gathers(lab: Any) -> None:
    job = lab.job(LLAMA, lab.full(), 1024, global_batch_size=64)
    short, long = (
        lab.price(COMPONENT, job, lab.offer("rtx-4090", 2), lab.config(m, sharding="fsdp"))
        for m in (1, 16)
    )
    assert long["per_micro_s"] < short["per_micro_s"]
    assert long["per_micro_s"] > 0

"""Collectives between machines, and the bills of jobs that run on several."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune.catalog.devices import find_device
from autotune.catalog.networks import find_network
from autotune.cost.bill import duration_log_sd
from autotune.cost.constants import constants
from autotune.cost.time.collectives import (
    COMPONENT,
    Communication,
    collective_seconds,
    network_seconds,
)
from autotune.domain.config import Config
from autotune.domain.errors import InputError
from autotune.pricing import Pricing

if TYPE_CHECKING:
    from autotune.domain.device import Network, Offer

LLAMA = "meta-llama/Llama-2-7b-hf"
GIB = 2.0**30
H100 = find_device("h100-sxm")


def network(name: str, nodes: int = 2, device: str = "h100-sxm", each: int = 8) -> Network:
    return find_network(name, nodes, find_device(device), each)[0]


def over(lab: Any, name: str, nodes: int, each: int = 8, device: str = "h100-sxm") -> Offer:
    alone: Offer = lab.offer(device, each)
    joined = network(name, nodes, device, each)
    return replace(alone, count=nodes * each, network=joined)


def seconds(name: str, op: str, size: float, nodes: int = 2, device: str = "h100-sxm") -> float:
    joined = network(name, nodes, device)
    own = find_device(device)
    return float(network_seconds(own, nodes * 8.0, joined, op, np.array([size]))[0])


# Source: awslabs/awsome-distributed-training, micro-benchmarks/nccl-tests: all_reduce_perf on two
# p5 (16 MiB, 128 MiB, 1 GiB, 16 GiB) and two p4de (2 GiB at 78.33 GB/s of bus bandwidth).
@pytest.mark.parametrize(
    ("device", "rate", "size", "measured_s"),
    [
        ("h100-sxm", "efa-3200g", GIB / 64, 298.1e-6), ("h100-sxm", "efa-3200g", GIB / 8, 870.3e-6),
        ("h100-sxm", "efa-3200g", GIB, 4607.6e-6), ("h100-sxm", "efa-3200g", 16 * GIB, 66132e-6),
        ("a100-sxm4-80gb", "efa-400g", 2 * GIB, 2 * GIB * 1.875 / 78.33e9),
    ],
)  # fmt: skip
def test_published_all_reduces_over_efa_lie_within_the_interval(
    device: str, rate: str, size: float, measured_s: float
) -> None:
    found = seconds(rate, "all_reduce", size, device=device)
    sd = network(rate, device=device).log_sd
    assert abs(math.log(found / measured_s)) < 1.2816 * sd


@pytest.mark.parametrize("op", ["all_reduce", "all_gather", "reduce_scatter"])
def test_no_network_makes_a_collective_sooner_than_inside_one_machine(op: str) -> None:
    size = np.array([GIB / 1024, GIB / 16, GIB])
    inside = collective_seconds(H100, 8, op, size)
    for name in ("infiniband-xdr", "efa", "ethernet-10g"):
        between = network_seconds(H100, 16, network(name), op, size)
        assert (between > 0.9 * inside).all()


@pytest.mark.parametrize("op", ["all_reduce", "all_gather"])
def test_a_slower_network_and_more_machines_take_longer(op: str) -> None:
    names = ("ethernet-10g", "ethernet-25g", "ethernet-100g", "efa-400g", "8x infiniband-ndr")
    by_network = [seconds(name, op, GIB) for name in names]
    assert by_network == sorted(by_network, reverse=True)
    by_nodes = [seconds("efa-400g", op, GIB, nodes) for nodes in (2, 4, 16, 128)]
    assert by_nodes == sorted(by_nodes)


def test_a_machine_sends_no_faster_than_the_buses_of_its_devices() -> None:
    many = network("8x infiniband-xdr", each=1)
    one = float(network_seconds(H100, 2.0, many, "all_reduce", np.array([GIB]))[0])
    assert one > GIB / H100.pcie_bytes_per_s


def test_a_name_says_ports_and_rate_and_what_is_left_is_assumed() -> None:
    ports, assumed = find_network("8x infiniband-ndr", 2, H100, 8)
    assert ports.bytes_per_s == pytest.approx(400e9)
    assert not assumed
    usual, assumed = find_network("infiniband", 2, H100, 8)
    assert usual.bytes_per_s == ports.bytes_per_s
    assert assumed == "8 ports in each machine"
    assert usual.log_sd > ports.log_sd
    slow, assumed = find_network("25 GbE", 2, find_device("l40s"), 4)
    assert slow.bytes_per_s == pytest.approx(25e9 / 8)
    assert assumed == "1 port in each machine"
    older, _ = find_network("InfiniBand", 2, find_device("a100-sxm4-80gb"), 8)
    assert older.bytes_per_s == pytest.approx(200e9)


@pytest.mark.parametrize("text", ["tokenring", "", "0g ethernet", "9999999g ethernet", "\x00"])
def test_an_unknown_network_is_an_error_that_names_the_known_ones(text: str) -> None:
    with pytest.raises(InputError) as error:
        find_network(text, 2, H100, 8)
    assert "infiniband-ndr" in error.value.hint


def _bill(lab: Any, offer: Offer, sharding: str, micro: int = 2, **software: Any) -> Any:
    job = lab.job(LLAMA, lab.full(), 2048, global_batch_size=128)
    job = replace(job, software=replace(job.software, **software))
    accumulation = 128 // (micro * offer.count)
    config = Config(
        micro_batch_size=micro, gradient_accumulation_steps=accumulation, precision="bf16",
        checkpoint_every_steps=100, sharding=sharding, activation_checkpointing="full",
    )  # fmt: skip
    return Pricing(job).of([(offer, config)])


def test_shards_lie_over_the_devices_of_all_machines(lab: Any) -> None:
    alone = _bill(lab, lab.offer("h100-sxm", 8), "fsdp").estimate(0).memory_bytes
    both = _bill(lab, over(lab, "efa", 2), "fsdp").estimate(0).memory_bytes
    assert both.optimizer == pytest.approx(alone.optimizer / 2, rel=0.02)
    whole = _bill(lab, over(lab, "efa", 2), "ddp").estimate(0).memory_bytes
    assert whole.optimizer > 7 * alone.optimizer


def test_the_interval_is_wider_over_a_network_that_may_not_be_hidden(lab: Any) -> None:
    alone = _bill(lab, lab.offer("h100-sxm", 8), "fsdp")
    fast = _bill(lab, over(lab, "infiniband-ndr", 2), "fsdp")
    slow = _bill(lab, over(lab, "ethernet-100g", 2), "fsdp")
    widths = [float(duration_log_sd(bill, np.array([0]))[0]) for bill in (alone, fast, slow)]
    assert widths[0] <= widths[1] * 1.02
    assert widths[2] > 1.5 * widths[0]
    assert float(slow.step_s[0]) > 3 * float(fast.step_s[0])


def test_loaders_and_host_memory_are_those_of_one_machine(lab: Any) -> None:
    one, two = lab.offer("h100-sxm", 8), over(lab, "efa", 2)
    workers = [_bill(lab, offer, "fsdp").at("data", "ram_bytes", 0) for offer in (one, two)]
    assert workers[0] == workers[1]


def test_one_machine_costs_what_it_did(lab: Any) -> None:
    assert lab.price(
        COMPONENT, lab.job(LLAMA, lab.full(), 1024, global_batch_size=64),
        lab.offer("h100-sxm", 8), lab.config(1, sharding="fsdp"),
    )["log_sd"] == pytest.approx(0.4)  # fmt: skip


@pytest.mark.parametrize("sharding", ["ddp", "fsdp"])
def test_gradients_that_are_reduced_after_every_micro_step_travel_more(
    lab: Any, sharding: str
) -> None:
    """Eight micro-steps: FSDP then keeps its shard of the gradients; DDP has whole ones anyway."""
    offer = lab.offer("h100-sxm", 8)
    late, early = (
        _bill(lab, offer, sharding, syncs_each_batch=each).estimate(0) for each in (False, True)
    )
    assert early.step_time_s > late.step_time_s
    both = early.memory_bytes.total, late.memory_bytes.total
    if sharding == "fsdp":
        assert early.memory_bytes.gradients < late.memory_bytes.gradients / 2
        assert both[0] < both[1]
    else:
        assert both[0] == both[1]


def test_an_exchange_between_machines_hides_behind_computing_better_than_one_inside() -> None:
    plain = constants()
    times = np.array([0.8])
    inside = Communication(times, np.zeros(1), np.zeros(1), np.array([False]))
    between = replace(inside, between=np.array([True]))
    busy = np.array([1.0])
    assert between.exposed(plain, busy)[0] < 0.5 * inside.exposed(plain, busy)[0]
    assert between.times(np.array([2.0])).between.all()
    # What computing cannot hide stays.
    long = between.times(np.array([100.0])).exposed(plain, busy)[0]
    assert long == pytest.approx(79.0, rel=0.01)


def test_a_reduction_once_a_step_can_be_what_bounds_it(lab: Any) -> None:
    slow, fast = (over(lab, name, 2) for name in ("ethernet-10g", "8x infiniband-ndr"))
    assert _bill(lab, slow, "ddp").estimate(0).bound_by == "communication"
    assert _bill(lab, fast, "ddp").estimate(0).bound_by != "communication"

"""What lies in the host's memory: bytes that leave the device, seconds that they take."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from autotune.catalog.software import find_software
from autotune.cost.columns import Component, tabulate
from autotune.cost.memory import component as memory
from autotune.cost.model import CostModel
from autotune.cost.offloading import MOST_CORES, PCIE_SHARE, UPDATED_PER_CORE_S, kept_share
from autotune.domain.candidates import Candidates

LLAMA = "meta-llama/Llama-3.1-8B"
A100 = "a100-sxm4-80gb"


def bill_of(job: Any, *pairs: Any) -> Any:
    return CostModel(job).price(Candidates.of(list(pairs)))


@pytest.mark.parametrize(
    ("model", "device", "precision", "step_s", "driver_gb"),
    [
        ("meta-llama/Llama-2-13b-hf", "h100-sxm", "fp16", 9.105, 63.74),
        ("meta-llama/Llama-2-7b-hf", "a100-sxm4-80gb", "bf16", 7.008, None),
    ],
)
def test_full_fine_tuning_by_zero2_and_offload_agrees_with_two_published_runs_on_one_card(
    lab: Any, model: str, device: str, precision: str, step_s: float, driver_gb: float | None
) -> None:
    """alpaca rows, micro-batch 2, accumulation 4, one H800 or A800."""
    job = lab.job(model, lab.full(), 300, global_batch_size=8)
    config = lab.config(
        2, 4, sharding="zero2", offload="optimizer", activation_checkpointing="full",
        precision=precision, attention="eager",
    )  # fmt: skip
    bill = bill_of(job, (lab.offer(device, 1, cores=100), config))
    assert float(bill.step_s[0]) == pytest.approx(step_s, rel=0.25)
    if driver_gb is not None:
        assert bill.at("memory", "driver", 0) / 1e9 == pytest.approx(driver_gb, rel=0.12)


def test_offloaded_optimizer_states_leave_the_device_and_fill_the_host(lab: Any) -> None:
    job, offer = lab.job(LLAMA, lab.full(), 2048), lab.offer("a100-sxm4-80gb", 4)
    here, away = (
        lab.price(memory.COMPONENT, job, offer, lab.config(1, 2, sharding="zero2", offload=value))
        for value in ("none", "optimizer")
    )
    parameters = 8.03e9
    assert here["optimizer"] == pytest.approx(12.0 * parameters / 4, rel=0.01)
    assert away["optimizer"] == 0.0
    assert away["host_bytes"] == pytest.approx(1.5 * 16.0 * parameters, rel=0.01)
    assert here["host_bytes"] == 0.0
    assert away["log_sd"] > here["log_sd"]


def test_offloaded_shards_leave_what_is_gathered_and_the_activations(lab: Any) -> None:
    job, offer = lab.job(LLAMA, lab.full(), 2048), lab.offer("a100-sxm4-80gb", 4)
    config = lab.config(2, 1, sharding="fsdp", activation_checkpointing="full")
    here, away = (
        lab.price(memory.COMPONENT, job, offer, config.with_knobs(offload=value))
        for value in ("none", "all")
    )
    assert away["weights"] == away["gradients"] == away["optimizer"] == 0.0
    root = 2.0 * 2 * job.model.vocab_size * job.model.hidden_size
    assert away["workspace"] >= root  # gathered, in 16 bit
    assert away["activations"] + away["logits"] > 0.0
    assert away["total"] < 0.6 * here["total"]


def test_fsdp_keeps_the_sums_of_gradients_on_the_device_also_where_it_offloads(lab: Any) -> None:
    """Of all weights: FSDP reduces, and so moves, nothing before the last micro-step."""
    job, offer = lab.job(LLAMA, lab.full(), 2048), lab.offer("a100-sxm4-80gb", 4)
    knobs = {"sharding": "fsdp", "activation_checkpointing": "full", "offload": "all"}
    one, two = (
        lab.price(memory.COMPONENT, job, offer, lab.config(rows, 2 // rows, **knobs))
        for rows in (2, 1)
    )
    assert one["gradients"] == 0.0
    assert two["gradients"] == pytest.approx(2.0 * 8.03e9, rel=0.01)


def test_offloaded_activations_leave_five_inputs_of_layers(lab: Any) -> None:
    """At the first layer of the backward, of the 32 inputs that checkpoints keep."""
    job, offer = lab.job(LLAMA, lab.lora(), 32_768), lab.offer("h100-sxm")
    config = lab.config(1, 1, activation_checkpointing="full", kernels="liger")
    here, away = (
        lab.price(memory.COMPONENT, job, offer, config.with_knobs(offload=value))
        for value in ("none", "activations")
    )
    each = 2.0 * 4096 * 32_768
    assert here["total"] > away["total"]
    assert here["activations"] - away["activations"] == pytest.approx(27 * each, rel=0.01)
    assert away["host_bytes"] == pytest.approx(2.0 * 32 * each)


def test_a_step_waits_for_the_bus_and_for_the_processor(lab: Any) -> None:
    job = lab.job(LLAMA, lab.full(), 2048, global_batch_size=8)
    config = lab.config(1, 8, sharding="zero2", offload="optimizer")
    fast, slow = (
        bill_of(job, (lab.offer("h100-sxm", 1, cores=cores), config)) for cores in (48, 16)
    )
    parameters, device = 8.03e9, lab.offer("h100-sxm").device
    out_s = 2.0 * parameters / (PCIE_SHARE * device.pcie_bytes_per_s)
    assert fast.at("collectives", "per_micro_s", 0) == pytest.approx(out_s, rel=0.01)
    update_s = parameters / (UPDATED_PER_CORE_S * MOST_CORES)
    assert fast.at("collectives", "per_step_s", 0) == pytest.approx(out_s + update_s, rel=0.01)
    assert slow.at("collectives", "per_step_s", 0) == pytest.approx(out_s + 3 * update_s, rel=0.01)


def test_a_stated_host_memory_that_is_too_small_forbids_and_an_assumed_one_does_not(
    lab: Any,
) -> None:
    job = lab.job(LLAMA, lab.full(), 2048, global_batch_size=8)
    config = lab.config(
        1, 8, sharding="zero2", offload="optimizer", activation_checkpointing="full"
    )
    assumed = lab.offer("h100-sxm", 1)
    assert "ram_bytes" in assumed.host.assumed
    rest = tuple(name for name in assumed.host.assumed if name != "ram_bytes")
    stated = replace(assumed, host=replace(assumed.host, ram_bytes=128 * 2**30, assumed=rest))
    enough = replace(stated, host=replace(stated.host, ram_bytes=256 * 2**30))
    bill = bill_of(job, (assumed, config), (stated, config), (enough, config))
    assert list(bill.feasible) == [True, False, True]
    assert bill.ram_short_bytes[1] > 0


def test_what_the_host_lacks_is_named_as_its_memory(lab: Any) -> None:
    from autotune.app.whatif.shortfall import shortfall_of
    from autotune.report.sections.memory import shortfall_lead

    job = lab.job(LLAMA, lab.full(), 2048, global_batch_size=8)
    config = lab.config(
        1, 8, sharding="zero2", offload="optimizer", activation_checkpointing="full"
    )
    offer = lab.offer("h100-sxm", 1)
    host = replace(offer.host, ram_bytes=128 * 2**30, assumed=())
    found = shortfall_of(bill_of(job, (replace(offer, host=host), config)), 0)
    assert found.resource == "ram"
    said = shortfall_lead(found, nearest=False)
    assert "of host memory" in said


def test_without_offloading_a_bill_does_not_know_the_host(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(), 2048)
    config = lab.config(2, 4, sharding="ddp")
    few, many = (lab.offer("a100-sxm4-80gb", 2, cores=cores) for cores in (8, 64))
    bill = bill_of(job, (few, config), (many, config))
    assert bill.at("collectives", "per_step_s", 0) == bill.at("collectives", "per_step_s", 1)
    assert bill.at("memory", "host_bytes", 0) == 0.0


@pytest.mark.parametrize(
    ("length", "as_of", "plain", "stays"),
    [
        (16384, "2025-09", False, 2.0),  # the last layer's, and a buffer
        (16384, "2025-09", True, 32.0),  # use_gradient_checkpointing=True
        (16384, "2024-03", False, 32.0),  # before Unsloth had it
        (128, "2025-09", False, 32.0),  # inputs of 1 MiB, which are left where they are
    ],
)
def test_unsloth_keeps_inputs_of_layers_in_the_host_s_memory(
    lab: Any, length: int, as_of: str, plain: bool, stays: float
) -> None:
    job = lab.job(LLAMA, lab.lora(base="nf4"), length)
    software = replace(find_software({"kernels": "unsloth"}), as_of=as_of, keeps_inputs=plain)
    own = replace(job, software=software)
    pair = (lab.offer(A100, 1), lab.config(1, 1, activation_checkpointing="full"))
    shares: list[float] = []

    def hold(job: Any, columns: Any) -> dict[str, Any]:
        shares.append(float(kept_share(job, columns)[0]))
        return {}

    tabulate(Component("share", memory.COMPONENT.reads, hold), own, Candidates.of([pair]))
    assert shares[0] * job.model.num_layers == pytest.approx(stays)


@pytest.mark.parametrize(("device", "length"), [("rtx-4090", 78475), (A100, 342733)])
def test_the_longest_rows_that_unsloth_says_fit_do(lab: Any, device: str, length: int) -> None:
    """8B in 4 bits, rank 32, one row: unsloth.ai/docs/basics/unsloth-benchmarks."""
    job = lab.job(LLAMA, lab.lora(rank=32, base="nf4"), length)
    job = replace(job, software=find_software({"kernels": "unsloth"}))
    config = lab.config(1, 1, activation_checkpointing="full")
    found = lab.price(memory.COMPONENT, job, lab.offer(device, 1), config)
    assert 0.8 * found["usable"] < found["total"] < found["usable"]

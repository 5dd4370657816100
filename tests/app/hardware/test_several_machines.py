"""Jobs on several machines: written, priced, answered and found again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.app.hardware.machines import as_devices, replace_hardware
from autotune.app.job.load import resolve_spec
from autotune.app.probing.plan import remote_for
from autotune.domain.errors import InputError, NoLocalDevice
from autotune.domain.typed.machine import machine_label, split_machine

if TYPE_CHECKING:
    from autotune.domain.job import Job


def job(*hardware: str | dict[str, Any]) -> Job:
    return resolve_spec({
        "model": "meta-llama/Llama-2-7b-hf", "method": {"kind": "full"},
        "data": {"rows": 1000, "max_length": 1024},
        "train": {"epochs": 1, "global_batch_size": 64}, "hardware": list(hardware),
    }, Path())  # fmt: skip


@pytest.mark.parametrize(
    ("text", "nodes", "count"),
    [
        ("2x8xh100", 2, 16), ("2x 8x h100-sxm", 2, 16), ("4 x 1 x rtx-4090", 4, 4),
        ("8xh100", 1, 8), ("1x4090", 1, 1),
    ],
)  # fmt: skip
def test_machines_times_devices_are_read_as_they_are_written(
    text: str, nodes: int, count: int
) -> None:
    said = split_machine(f"{text} over efa, spot@3USD/gpu-h")
    assert (said.nodes, said.count, said.network, said.spot) == (nodes, count, "efa", True)


@given(
    st.integers(2, 64), st.integers(1, 16),
    st.sampled_from(["efa", "infiniband-ndr", "8x roce-200g", "25 GbE"]), st.booleans(),
)  # fmt: skip
def test_what_is_printed_of_several_machines_can_be_typed(
    nodes: int, each: int, network: str, spot: bool
) -> None:
    label = machine_label(
        "h100-sxm", nodes * each, spot=spot, instance=None, nodes=nodes, network=network
    )
    said = split_machine(label)
    assert (said.name, said.nodes, said.count) == ("h100-sxm", nodes, nodes * each)
    assert (said.network, said.spot) == (network, spot)


def test_two_machines_cost_twice_one_and_share_the_global_batch() -> None:
    one, two = job("8xh100-sxm").offers[0], job("2x8xh100-sxm over infiniband-ndr").offers[0]
    assert two.usd_per_hour == pytest.approx(2 * one.usd_per_hour)
    assert (two.count, two.per_node, two.nodes) == (16, 8, 2)
    assert two.host == one.host
    assert two.label == "2x 8x h100-sxm over infiniband-ndr"


def test_a_spot_offer_of_four_machines_is_taken_back_four_times_as_often() -> None:
    one, four = job("8xh100-sxm, spot@9USD/h").offers, job(
        "4x8xh100-sxm over efa, spot@9USD/h").offers  # fmt: skip
    rate = four[0].interruptions_per_hour
    assert rate == pytest.approx(4 * one[0].interruptions_per_hour)


def test_an_instance_is_taken_as_often_as_nodes_says() -> None:
    stated = {"instance": "aws p4d.24xlarge", "nodes": 2, "network": "efa-400g"}
    (offer,) = job(as_devices(stated)).offers
    assert (offer.count, offer.nodes, offer.instance) == (16, 2, "aws p4d.24xlarge")


def test_two_of_an_instance_over_a_network_are_two_machines() -> None:
    values: dict[str, Any] = {}
    replace_hardware(values, ["2x p4d.24xlarge over efa-400g"], 64)
    (entry,) = values["hardware"]
    assert (entry["count"], entry["nodes"]) == (16, 2)
    assert entry["instance"] == "aws p4d.24xlarge"


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"gpu": "h100-sxm", "count": 16, "nodes": 2}, "the network between them is not stated"),
        ({"gpu": "h100-sxm", "count": 15, "nodes": 2, "network": "efa"}, "count is of all"),
        ({"gpu": "h100-sxm", "count": 8, "network": "efa"}, "nodes is 1"),
        ({"gpu": "2x8xh100", "nodes": 3, "network": "efa"}, "nodes is 3"),
        ({"gpu": "h100-sxm", "count": 16, "nodes": 2, "network": "carrier"}, "unknown network"),
        ({"gpu": "2x8xh100 over efa", "network": "roce"}, "network is 'roce'"),
    ],
)
def test_what_is_wrong_with_several_machines_is_said(entry: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        job(entry)


def test_the_answer_names_the_machines_and_keeps_the_global_batch(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from autotune.cli.application import run

    argv = [
        "tune", "--model", "meta-llama/Llama-3.1-8B", "--method", "full", "--rows", "10000",
        "--max-length", "2048", "--epochs", "1", "--global-batch", "64", "--dry-run", "--quiet",
        "--gpu", "2x8xh100-sxm over efa-3200g", "--fidelity", "formula", "--format", "json",
    ]  # fmt: skip
    assert run(argv) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert (best["device_count"], best["nodes"], best["network"]) == (16, 2, "efa-3200g")
    split = best["config"]["micro_batch_size"] * best["config"]["gradient_accumulation_steps"]
    assert split * 16 == 64


def test_workers_probe_one_machine_of_a_job_that_has_one() -> None:
    both = job("2x8xh100-sxm over efa", "8xh100-sxm")
    local, offer = remote_for(both, None)
    assert (offer.count, offer.network) == (8, None)
    assert local.elsewhere, "its driver is the workers' to know"
    with pytest.raises(NoLocalDevice, match="a worker probes one machine") as error:
        remote_for(job("2x8xh100-sxm over efa"), None)
    assert "--probe-on h100-sxm" in error.value.hint
    _, lent = remote_for(job("2x8xh100-sxm over efa"), "h100-sxm")
    assert (lent.count, lent.network) == (1, None)

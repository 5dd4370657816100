"""A machine as people and tools write it; whatever is printed can be typed."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.app.hardware.machines import as_devices
from autotune.app.job.load import jobs_of_line, load_job
from autotune.catalog.devices import default_host, find_device, load_devices
from autotune.catalog.prices.instances import find_instance, instance_names
from autotune.domain.device import Offer
from autotune.domain.errors import InputError
from autotune.domain.typed.machine import split_machine, split_machines
from autotune.domain.typed.overrides import Overrides

if TYPE_CHECKING:
    from pathlib import Path

H100 = ("h100-sxm", 8)


def machine(text: str) -> tuple[str, int]:
    said = split_machine(text)
    return find_device(said.name).name, said.devices


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("8xH100", H100), ("8x h100-sxm", H100), ("8 x H100", H100), ("8X H100-SXM", H100),
        ("h100:8", H100), ("h100-sxm : 8", H100), ("H100 x8", H100), ("H100 x 8", H100),
        ("H100x8", H100), ("8 H100", H100), ("8*h100", H100), ("h100*8", H100),
        ("8\u00d7H100", H100), ("8x NVIDIA H100 80GB HBM3", H100), ("8x-H100_SXM", H100),
        ("h100-sxm", ("h100-sxm", 1)), ("NVIDIA H100 80GB HBM3", ("h100-sxm", 1)),
        ("GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-5d3f)", ("a100-sxm4-40gb", 1)),
        ("A100-80GB", ("a100-sxm4-80gb", 1)), ("A100-SXM4-80GB", ("a100-sxm4-80gb", 1)),
        ("A100-80GB-SXM", ("a100-sxm4-80gb", 1)), ("nvidia-a100-80gb", ("a100-sxm4-80gb", 1)),
        ("nvidia-tesla-a100", ("a100-sxm4-40gb", 1)), ("nvidia-h100-mega-80gb", ("h100-sxm", 1)),
        ("H100 PCIe", ("h100-pcie", 1)), ("RTX 4090", ("rtx-4090", 1)), ("L40S", ("l40s", 1)),
        ("1x4090", ("rtx-4090", 1)), ("4090 x 2", ("rtx-4090", 2)), ("2 RTX 4090", ("rtx-4090", 2)),
        ("rtx4090", ("rtx-4090", 1)), ("mi300x", ("mi300x", 1)), ("8xMI300X", ("mi300x", 8)),
        ("nvidia-tesla-t4", ("t4", 1)), ("RTX6000-Ada", ("rtx-6000-ada", 1)),
    ],
)  # fmt: skip
def test_a_machine_is_read_as_it_is_written(text: str, meant: tuple[str, int]) -> None:
    assert machine(text) == meant


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("h100:0", "not '0'"), ("h100:x", "not 'x'"), ("0xh100", "not '0'"),
        ("h100:1.5", "not '1.5'"), ("8xh100:8", "two counts, 8 and 8"), ("", "no device"),
        (":8", "no device"), ("h100@", "no price behind @"), ("h100:-1", "not '-1'"),
    ],
)  # fmt: skip
def test_a_text_that_is_no_machine_says_what_one_is(text: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        split_machine(text)
    assert says in caught.value.message
    assert "8xNAME" in str(caught.value.hint)


NAMES = sorted(name for name in load_devices() if name != "cpu")


@given(st.sampled_from(NAMES), st.integers(1, 4096), st.booleans())
def test_every_label_that_is_printed_can_be_typed(name: str, count: int, spot: bool) -> None:
    device = find_device(name)
    label = Offer(device, count, 1.0, default_host(count, device), "", spot=spot).label
    assert split_machines((f"t4,{label},l4",)) == ("t4", label, "l4")
    said = split_machine(label)
    assert (find_device(said.name).name, said.devices, said.spot) == (name, count, spot)


@given(st.sampled_from(sorted(instance_names())), st.booleans())
def test_every_label_of_an_instance_can_be_typed(name: str, spot: bool) -> None:
    instance = find_instance(name)
    device = find_device(instance.device)
    host = default_host(instance.count, device)
    label = Offer(device, instance.count, 1.0, host, "", spot=spot, instance=instance.label).label
    (part,) = split_machines((label,))
    said = split_machine(part)
    entry = as_devices({"gpu": said.name} | ({"count": said.count} if said.count else {}))
    assert (entry["gpu"], entry["count"]) == (instance.device, instance.count)
    assert (entry["instance"], said.spot) == (instance.label, spot)


@given(st.sampled_from(NAMES), st.integers(1, 4096))
def test_every_form_of_a_name_and_count_means_the_same(name: str, count: int) -> None:
    for form in (f"{name}:{count}", f"{count}x{name}", f"{count}x {name}", f"{name} x{count}"):
        assert machine(form) == (name, count)


@given(st.text(max_size=40))
def test_any_other_text_is_a_name_or_a_refusal(text: str) -> None:
    try:
        found = split_machine(text)
    except InputError:
        return
    assert found.name
    assert found.devices >= 1


def test_a_label_on_spot_is_priced_on_spot() -> None:
    stated = {"model": "gpt2", "data.rows": 100}
    (job,) = jobs_of_line(Overrides(gpus=("8x h100-sxm, spot",), stated=stated))
    offer = job.job.offers[0]
    assert (offer.label, offer.spot) == ("8x h100-sxm, spot", True)
    (on_demand,) = jobs_of_line(Overrides(gpus=("8xH100",), stated=stated))
    assert offer.usd_per_hour < on_demand.job.offers[0].usd_per_hour


def write(folder: Path, hardware: object) -> Path:
    path = folder / "job.json"
    path.write_text(json.dumps({"model": "gpt2", "data": {"rows": 9}, "hardware": hardware}))
    return path


@pytest.mark.parametrize(
    "hardware",
    ["8xH100", ["8x h100-sxm"], {"gpu": "8xH100"}, [{"gpu": "H100 x8", "count": 8}],
     {"gpu": "h100", "count": 8}],
)  # fmt: skip
def test_a_job_file_takes_the_same_words(hardware: object, tmp_path: Path) -> None:
    (offer,) = load_job(write(tmp_path, hardware)).offers
    assert (offer.device.name, offer.count) == H100


@pytest.mark.parametrize("hardware", [4090, [4090], {"gpu": 4090}, [{"gpu": 4090, "count": 1}]])
def test_a_name_of_digits_is_a_number_in_a_file(hardware: object, tmp_path: Path) -> None:
    (offer,) = load_job(write(tmp_path, hardware)).offers
    assert (offer.device.name, offer.count) == ("rtx-4090", 1)


@pytest.mark.parametrize("hardware", [True, [True], {"gpu": False}, [4.5]])
def test_another_scalar_is_no_machine(hardware: object, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="must be"):
        load_job(write(tmp_path, hardware))


def test_a_machine_named_again_keeps_what_the_job_says_of_it(tmp_path: Path) -> None:
    path = write(tmp_path, [{"gpu": "2x h100", "price": "1 USD/h"}, "t4"])
    (offer,) = load_job(path, gpus=("H100 x2",)).offers
    assert (offer.device.name, offer.count, offer.usd_per_hour) == ("h100-sxm", 2, 1.0)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"gpu": "8xH100", "count": 4}, "'8xH100', but count is 4"),
        ({"gpu": "h100@2USD/h", "price": "3 USD/h"}, "price elsewhere too"),
        ("8xh100:8", "two counts"),
    ],
)
def test_a_job_file_that_contradicts_itself_is_refused(
    entry: object, says: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="hardware") as caught:
        load_job(write(tmp_path, [entry]))
    assert says in caught.value.message

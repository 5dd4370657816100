"""Instances by a cloud's own names: what they hold, what they cost, and names nobody knows."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from autotune.catalog.devices import load_devices
from autotune.catalog.prices.cache import own_table
from autotune.catalog.prices.instances import find_instance, instance_names, unknown_instance
from autotune.catalog.prices.prices import load_prices, price_for, price_of_instance
from autotune.catalog.prices.table import COLUMNS
from autotune.domain.errors import InputError
from autotune.domain.units import GIB

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path))


def own_prices(folder: Path, *rows: str) -> None:
    assert own_table().parent == folder
    own_table().write_text("\n".join([",".join(COLUMNS), *rows]) + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("text", "label", "device", "count"),
    [
        ("p4d.24xlarge", "aws p4d.24xlarge", "a100-sxm4-40gb", 8),
        ("P5.48XLARGE", "aws p5.48xlarge", "h100-sxm", 8),
        ("aws p5.48xlarge", "aws p5.48xlarge", "h100-sxm", 8),
        ("aws/p5.48xlarge", "aws p5.48xlarge", "h100-sxm", 8),
        ("h100-sxm (aws p5.48xlarge)", "aws p5.48xlarge", "h100-sxm", 8),
        ("g6e.12xlarge", "aws g6e.12xlarge", "l40s", 4),
        ("a2-highgpu-8g", "gcp a2-highgpu-8g", "a100-sxm4-40gb", 8),
        ("a2-ultragpu-1g", "gcp a2-ultragpu-1g", "a100-sxm4-80gb", 1),
        ("g2-standard-48", "gcp g2-standard-48", "l4", 4),
        ("Standard_ND96isr_H100_v5", "azure Standard_ND96isr_H100_v5", "h100-sxm", 8),
        ("nd96isr_h100_v5", "azure Standard_ND96isr_H100_v5", "h100-sxm", 8),
        ("Standard_ND96asr_A100_v4", "azure Standard_ND96asr_v4", "a100-sxm4-40gb", 8),
        ("gpu_8x_h100_sxm5", "lambda gpu_8x_h100_sxm5", "h100-sxm", 8),
        ("gpu_1x_a100", "lambda gpu_1x_a100", "a100-pcie-40gb", 1),
        ("BM.GPU.H100.8", "oci BM.GPU.H100.8", "h100-sxm", 8),
        ("gpu-h100-sxm_8gpu", "nebius gpu-h100-sxm_8gpu", "h100-sxm", 8),
        ("1H100.80S.32V", "verda 1H100.80S.32V", "h100-sxm", 1),
    ],
)
def test_a_name_of_a_cloud_is_its_devices(text: str, label: str, device: str, count: int) -> None:
    found = find_instance(text)
    assert (found.label, found.device, found.count) == (label, device, count)


@pytest.mark.parametrize("text", ["h100-sxm", "8xH100", "secure", "on-demand", "runpod", ""])
def test_a_word_that_is_no_instance_is_none(text: str) -> None:
    assert find_instance(text) is None
    assert unknown_instance(text) is None


def test_every_instance_is_of_a_known_device_and_has_one_name_a_provider() -> None:
    found = [find_instance(f"{p} {name}") for p in PROVIDERS for name in instance_names(p)]
    assert len(found) > 100
    assert all(each is not None and each.device in load_devices() for each in found)


PROVIDERS = ("aws", "azure", "gcp", "lambda", "oci", "nebius", "verda")


def test_what_is_documented_and_what_is_priced_agree() -> None:
    """A price row of an instance is of the devices that the instance has."""
    for price in load_prices():
        found = find_instance(f"{price.provider} {price.instance}")
        if found is not None:
            assert (found.device, found.count) == (price.device_name, price.count), price


def test_the_host_of_a_documented_instance_is_known() -> None:
    found = find_instance("p4d.24xlarge")
    assert (found.vcpus, found.ram_bytes) == (96, 1152 * GIB)
    assert "DescribeInstanceTypes" in found.source


def test_an_instance_costs_what_it_costs_and_not_what_its_devices_cost_elsewhere() -> None:
    price, why = price_of_instance("aws", ("p4d.24xlarge",))
    assert not why
    assert price.usd_per_hour == pytest.approx(21.957642)
    assert price.source.startswith("aws p4d.24xlarge in us-east-1/")
    elsewhere = price_for("a100-sxm4-40gb", 8)
    assert elsewhere.usd_per_hour < price.usd_per_hour
    spot, _ = price_of_instance("aws", ("p4d.24xlarge",), spot=True)
    assert spot.usd_per_hour == pytest.approx(11.932)


@pytest.mark.parametrize(
    ("text", "spot", "why"),
    [
        ("a2-highgpu-8g", False, "does not list it"),
        ("a3-megagpu-8g", False, "the host machine costs extra"),
        ("a3-highgpu-8g", False, "on-demand below spot"),
        ("verda 1H100.80S.32V", False, "about twice this"),
        ("gpu_8x_h100_sxm5", True, "no spot price"),
    ],
)
def test_a_price_that_never_stands_in_is_no_price_of_the_instance(
    text: str, spot: bool, why: str
) -> None:
    found = find_instance(text)
    price, said = price_of_instance(found.provider, found.listed_as, spot=spot)
    assert price is None
    assert why in said


def test_ones_own_price_of_an_instance_wins_and_makes_a_name_known(tmp_path: Path) -> None:
    own_prices(
        tmp_path,
        "aws,p4d.24xlarge,a100-sxm4-40gb,8,15,,eu-west-1,2026-11-20,stated,list,our contract,",
        "ourcloud,big-8,h100-sxm,8,20,,,2026-11-20,stated,list,our contract,",
    )
    price, _ = price_of_instance("aws", ("p4d.24xlarge",))
    assert (price.usd_per_hour, price.source) == (
        15.0,
        "aws p4d.24xlarge in eu-west-1: our contract",
    )
    ours = find_instance("big-8")
    assert (ours.label, ours.device, ours.count) == ("ourcloud big-8", "h100-sxm", 8)


def test_a_name_that_two_clouds_give_to_different_machines_needs_its_cloud(tmp_path: Path) -> None:
    own_prices(
        tmp_path,
        "one,gpu-4,l4,4,3,,,2026-11-20,stated,list,ours,",
        "two,gpu-4,t4,4,2,,,2026-11-20,stated,list,ours,",
    )
    with pytest.raises(InputError, match="several instances: one gpu-4"):
        find_instance("gpu-4")
    found = find_instance("two gpu-4")
    assert found.device == "t4"


@pytest.mark.parametrize(
    ("text", "near", "known"),
    [
        ("p4d.12xlarge", "p4d.24xlarge", "known of aws: g4dn"),
        ("a2-highgpu-6g", "a2-highgpu-8g", "known of gcp: a2-highgpu-1g"),
        ("Standard_ND97isr_H100_v5", "Standard_ND96isr_H100_v5", "known of azure"),
        ("gpu_8x_h300_sxm5", "gpu_8x_h100_sxm5", "known of lambda"),
        ("BM.GPU.B200.8", "BM.GPU.H200.8", "known of oci"),
        ("ml.p4d.24xlarge", "SageMaker", "known of aws"),
    ],
)
def test_an_unknown_name_of_a_cloud_names_those_close_to_it_and_what_is_known(
    text: str, near: str, known: str
) -> None:
    error = unknown_instance(text)
    assert f'unknown instance "{text}"' in error.message
    assert near in error.message
    assert known in str(error.hint)
    assert "8xh100@24USD/h" in str(error.hint)


@pytest.mark.parametrize("text", ["colab", "Google Colab", "kaggle", "Kaggle T4 x2"])
def test_a_service_for_notebooks_is_told_as_a_machine_that_can_be_typed(text: str) -> None:
    error = unknown_instance(text)
    assert error is not None
    assert "is a service for notebooks" in error.message
    assert "t4@0USD/h" in (error.hint or "")
    assert "limits.max_session=12h" in (error.hint or "")


@pytest.mark.parametrize("text", ["runpod 4090", "RTX 4090 RunPod"])
def test_a_device_of_a_provider_is_told_with_its_price_there(text: str) -> None:
    error = unknown_instance(text)
    assert error is not None
    hint = error.hint or ""
    assert re.match(r"--gpu rtx-4090@0\.\d+USD/h; ", hint)
    assert "`autotune prices rtx-4090 --provider runpod`" in hint


@pytest.mark.parametrize("text", ["runpod", "runpod something", "vast runpod 4090", "4090"])
def test_what_is_no_device_of_one_provider_has_no_such_error(text: str) -> None:
    assert unknown_instance(text) is None

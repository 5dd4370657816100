from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from autotune.catalog.devices import (
    _plain,
    default_host,
    find_device,
    identify,
    load_devices,
    local_host,
)
from autotune.catalog.tables import DATA, CatalogDataError, number, read_rows
from autotune.domain.errors import InputError
from autotune.domain.units import GIB, MIB

if TYPE_CHECKING:
    from pathlib import Path

ROWS = {row["name"]: row for row in read_rows(DATA / "devices.csv")}
DEVICES = load_devices()


def test_the_catalogue_holds_every_row_and_the_cpu() -> None:
    assert set(DEVICES) == set(ROWS) | {"cpu"}
    assert len(ROWS) >= 50


@pytest.mark.parametrize("name", ROWS)
def test_every_row_names_its_source_and_date(name: str) -> None:
    assert ROWS[name]["sources"].strip()
    assert "2026-11-21" <= ROWS[name]["retrieved"] <= f"{datetime.now(tz=UTC).date()}"
    assert DEVICES[name].source


@pytest.mark.parametrize("name", [n for n, r in ROWS.items() if r["clock_mhz"]])
def test_the_fp16_rate_is_units_times_clock_times_flop_per_clock(name: str) -> None:
    row = ROWS[name]
    rate = number(row, "units") * number(row, "clock_mhz") * number(row, "fp16_flop_per_unit_clock")
    assert rate * 1e6 == pytest.approx(DEVICES[name].fp16_flop_per_s, rel=0.03)


@pytest.mark.parametrize("name", [n for n, r in ROWS.items() if r["vendor"] == "nvidia"])
def test_bf16_and_tf32_are_native_exactly_from_capability_8_on(name: str) -> None:
    device = DEVICES[name]
    native = device.compute_capability >= 8.0
    assert (device.bf16_flop_per_s > 0) is native
    assert (device.tf32_flop_per_s > 0) is native
    assert (device.fp8_flop_per_s > 0) is (device.compute_capability >= 8.9)


@pytest.mark.parametrize("name", DEVICES)
def test_memory_as_torch_sees_it_is_at_most_the_drivers(name: str) -> None:
    device = DEVICES[name]
    assert 0 < device.memory_torch_bytes <= device.memory_driver_bytes
    if device.vendor == "nvidia":
        assert device.memory_torch_bytes >= 0.96 * device.memory_driver_bytes
        advertised = number(ROWS[name], "memory_advertised_gb") * GIB
        assert 0.9 * advertised < device.memory_driver_bytes <= 1.01 * advertised


def test_no_driver_name_stands_for_two_devices_of_the_same_memory() -> None:
    seen: dict[str, list[float]] = {}
    for device in DEVICES.values():
        for alias in {_plain(alias) for alias in device.aliases}:
            for other in seen.get(alias, []):
                assert abs(other - device.memory_driver_bytes) / other > 0.07, alias
            seen.setdefault(alias, []).append(device.memory_driver_bytes)


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("h100", "h100-sxm"),
        ("H100-SXM", "h100-sxm"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm"),
        ("h100 pcie", "h100-pcie"),
        ("a100", "a100-sxm4-80gb"),
        ("a100-80gb", "a100-sxm4-80gb"),
        ("a100-40gb", "a100-sxm4-40gb"),
        ("A100-SXM4-80GB", "a100-sxm4-80gb"),
        ("h200", "h200-sxm"),
        ("v100", "v100-sxm2-16gb"),
        ("v100-32gb", "v100-sxm2-32gb"),
        ("4090", "rtx-4090"),
        ("rtx4090", "rtx-4090"),
        ("RTX 4090", "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", "rtx-4090"),
        ("T4", "t4"),
        ("Tesla T4", "t4"),
        ("l40s", "l40s"),
        ("L40", "l40"),
        ("L4", "l4"),
        ("a10", "a10"),
        ("A10G", "a10g"),
        ("3090 Ti", "rtx-3090ti"),
        ("RTX 6000 Ada", "rtx-6000-ada"),
        ("Quadro RTX 6000", "quadro-rtx-6000"),
        ("RTX 3060", "rtx-3060"),
        ("rtx3060-12gb", "rtx-3060"),
        ("RTX 2060", "rtx-2060"),
        ("4070 Ti Super", "rtx-4070ti-super"),
        ("RTX 4060 Ti", "rtx-4060ti-8gb"),  # of two boards of one name the smaller
        ("RTX 4060 Ti 16GB", "rtx-4060ti-16gb"),
        ("NVIDIA GeForce RTX 4090 Laptop GPU", "rtx-4090-laptop"),
        ("4090 mobile", "rtx-4090-laptop"),
        ("DGX Spark", "gb10"),
        ("H20", "h20"),
        ("mi300x", "mi300x"),
        ("cpu", "cpu"),
    ],
)
def test_the_names_people_type_find_the_device(text: str, name: str) -> None:
    assert find_device(text).name == name


@pytest.mark.parametrize("name", DEVICES)
def test_every_device_is_found_by_its_own_name(name: str) -> None:
    assert find_device(name.upper()).name == name


def test_an_unknown_device_is_an_error_with_close_names_and_where_help_is() -> None:
    with pytest.raises(InputError, match=r'unknown device "h1000".*h100') as caught:
        find_device("h1000")
    assert "autotune help machines" in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["", "gpu", "nvidia", "\0", "x" * 10_000])
def test_nonsense_is_no_device(text: str) -> None:
    with pytest.raises(InputError):
        find_device(text)


@pytest.mark.parametrize(
    ("driver_name", "reported", "name"),
    [
        ("NVIDIA GeForce RTX 4090", 24564 * MIB, "rtx-4090"),
        ("NVIDIA GeForce RTX 4090", 23.64 * GIB, "rtx-4090"),  # as torch reports it
        ("NVIDIA GeForce RTX 4090", 49140 * MIB, None),  # modified board
        ("NVIDIA GeForce RTX 2080 Ti", 22528 * MIB, None),
        ("NVIDIA GeForce RTX 4060 Ti", 8188 * MIB, "rtx-4060ti-8gb"),
        ("NVIDIA GeForce RTX 4060 Ti", 16380 * MIB, "rtx-4060ti-16gb"),
        ("NVIDIA GeForce RTX 3080", 12288 * MIB, "rtx-3080-12gb"),
        ("NVIDIA GeForce RTX 3060", 8192 * MIB, None),  # the other board of this name
        ("NVIDIA A100-SXM4-40GB", 40536 * MIB, "a100-sxm4-40gb"),
        ("NVIDIA A100-SXM4-80GB", 81920 * MIB, "a100-sxm4-80gb"),
        ("NVIDIA RTX A6000", 46068 * MIB, "rtx-a6000"),  # ECC on
        ("Tesla T4", 15109 * MIB, "t4"),
        ("NVIDIA H200", 143771 * MIB, "h200-sxm"),
        ("NVIDIA GH200 480GB", 97871 * MIB, "gh200-96gb"),
        ("NVIDIA A100-SXM4-80GB MIG 3g.40gb", 40 * GIB, None),
        ("Some New GPU", 24 * GIB, None),
        ("NVIDIA H100 80GB HBM3", 0.0, None),
    ],
)
def test_a_board_is_identified_by_name_and_memory(
    driver_name: str, reported: float, name: str | None
) -> None:
    found = identify(driver_name, reported)
    assert (found.name if found else None) == name


def test_an_apple_chip_takes_the_memory_that_it_reports() -> None:
    found = identify("Apple M3 Max", 36 * GIB)
    assert (found.name, found.memory_driver_bytes) == ("apple-m3-max-40c", 36 * GIB)


def test_measured_ceilings_are_those_of_the_measurements() -> None:
    assert DEVICES["h100-sxm"].matmul_ceiling_fraction == pytest.approx(797.5 / 989.4)
    assert DEVICES["l4"].matmul_ceiling_fraction == pytest.approx(70.9 / 121)
    assert DEVICES["rtx-5090"].matmul_ceiling_fraction > 1
    assert DEVICES["h100-sxm"].matmul_ceiling_measured
    assert not DEVICES["a10g"].matmul_ceiling_measured
    assert DEVICES["gb300"].matmul_ceiling_fraction == 0.80


def test_a_board_that_lowers_its_clock_reaches_what_the_lower_clock_allows() -> None:
    """A T4 was seen to train at 758, 795 and 900 of 1,590 MHz; it does 19 to 24 TFLOP/s of products
    without a pause, and 42.7 in the first second.
    """
    t4 = DEVICES["t4"]
    assert t4.matmul_ceiling_measured
    assert t4.matmul_ceiling_fraction == pytest.approx(0.9 * 795 / 1590)
    assert 24e12 < t4.matmul_ceiling_fraction * t4.fp16_flop_per_s < 42.7e12


def test_every_measurement_speaks_of_a_device_of_the_catalogue() -> None:
    rows = read_rows(DATA / "achievable.csv")
    assert len(rows) == 84
    assert {row["device"] for row in rows} <= set(DEVICES)
    assert all(row["source"] for row in rows)


def test_only_boards_with_a_switch_have_nvlink() -> None:
    assert DEVICES["h100-sxm"].link_bytes_per_s == 450e9
    assert DEVICES["a100-sxm4-80gb"].has_nvlink
    assert not DEVICES["rtx-4090"].has_nvlink
    assert DEVICES["rtx-4090"].link_bytes_per_s == DEVICES["rtx-4090"].pcie_bytes_per_s == 26e9


def test_the_cpu_is_this_machine() -> None:
    cpu = find_device("cpu")
    assert cpu.is_cpu
    assert cpu.fp32_flop_per_s > 1e9
    assert cpu.memory_driver_bytes > 0.1 * GIB
    assert "formula" in cpu.source


def test_the_local_host_is_read_and_only_rates_are_assumed() -> None:
    host = local_host()
    assert host.cores >= 1
    assert host.ram_bytes == find_device("cpu").memory_driver_bytes
    assert "cores" not in host.assumed
    assert "checkpoint_write_bytes_per_s" in host.assumed


def test_a_rented_host_grows_with_the_devices_and_every_field_is_assumed() -> None:
    one, eight = default_host(1, find_device("h100")), default_host(8, find_device("h100"))
    assert (eight.cores, eight.ram_bytes) == (8 * one.cores, 8 * one.ram_bytes)
    assert (one.cores, one.ram_bytes) == (16, 128 * GIB)
    assert len(one.assumed) == 7
    small = default_host(1, find_device("t4"))
    assert small.ram_bytes < one.ram_bytes
    slow = default_host(1, find_device("h100"), "network")
    assert slow.storage_read_bytes_per_s < one.storage_read_bytes_per_s


def test_quota_and_memory_limit_of_a_container_are_respected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from autotune.catalog import local

    files = {"/sys/fs/cgroup/cpu.max": "100000 100000\n", "/sys/fs/cgroup/memory.max": "1073741824"}
    monkeypatch.setattr(local, "_read", lambda path: files.get(path, ""))
    assert local._logical_cores() == 1
    assert local._ram_bytes() == GIB
    unlimited = {"/sys/fs/cgroup/cpu.max": "max 100000", "/sys/fs/cgroup/memory.max": "max"}
    monkeypatch.setattr(local, "_read", lambda path: unlimited.get(path, ""))
    assert local._ram_bytes() > 0


def test_a_row_that_claims_bf16_before_ampere_is_broken(monkeypatch: pytest.MonkeyPatch) -> None:
    def rows(path: Path) -> list[dict[str, str]]:
        found = read_rows(path)
        return [{**row, "bf16_tflop_per_s": "65"} if row["name"] == "t4" else row for row in found]

    assert DEVICES["t4"].bf16_flop_per_s == 0 < DEVICES["a10"].bf16_flop_per_s
    monkeypatch.setattr("autotune.catalog.devices.read_rows", rows)
    with pytest.raises(CatalogDataError, match=r"bf16 rate of t4 .* 7\.5"):
        load_devices.__wrapped__()

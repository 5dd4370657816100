"""What the driver says of this machine's memory, with a management library made by hand."""

from __future__ import annotations

import sys
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from fakenvml import (
    A100,
    DRIVER_NOT_LOADED,
    GPU_IS_LOST,
    LIBRARY_NOT_FOUND,
    MIB,
    NOT_SUPPORTED,
    RTX_4090,
    Fake,
    FakeLibrary,
)

from autotune.app.doctor import examine
from autotune.app.hardware import this_machine as at_hand
from autotune.app.hardware.this_machine import WSL_BYTES, as_the_driver_leaves
from autotune.app.job.load import load_job
from autotune.catalog.devices import default_host, find_device
from autotune.domain.device import Offer
from autotune.probe import device as devices

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Assumption

HALF_GB = Fake("NVIDIA A100-SXM4-40GB MIG 3g.20gb", 20096, 37, 0, uuid="MIG-aa")
SMALL = Fake("NVIDIA A100-SXM4-40GB MIG 1g.5gb", 4864, 12, 0, uuid="MIG-bb")


@pytest.fixture(autouse=True)
def _plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(at_hand, "_is_wsl", lambda: False)


def install(monkeypatch: pytest.MonkeyPatch, *boards: Fake, **library: object) -> FakeLibrary:
    fake = FakeLibrary(boards, **library)  # type: ignore[arg-type]
    monkeypatch.setitem(sys.modules, "pynvml", fake.module())
    return fake


def offer(name: str, count: int = 1, **changes: object) -> Offer:
    device = find_device(name)
    made = Offer(device, count, 1.0, default_host(count, device), "test")
    return replace(made, **changes)  # type: ignore[arg-type]


def read(*offers: Offer) -> tuple[tuple[Offer, ...], list[Assumption]]:
    assumed: list[Assumption] = []
    return as_the_driver_leaves(offers, assumed), assumed


def usable_mib(found: Offer) -> float:
    return found.device.memory_torch_bytes / MIB


def test_the_machine_at_hand_has_what_the_driver_and_others_leave(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    fake = install(monkeypatch, replace(RTX_4090, held=6000, pids=(11, 12)))
    (found,), assumed = read(offer("rtx-4090"))
    assert found.device.memory_driver_bytes == 24564 * MIB
    assert usable_mib(found) == 24564 - 436 - 6000
    assert "held by 2 other processes" in assumed[0].why
    assert assumed[0].key == "hardware[0] (rtx-4090).memory"
    assert found.memory_source == assumed[0].why
    assert fake.shut


def test_another_device_is_left_as_the_catalogue_has_it(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, RTX_4090)
    for elsewhere in (offer("h100"), offer("rtx-4090", 2), offer("rtx-4090", spot=True)):
        (found,), assumed = read(elsewhere)
        assert found == elsewhere
        assert assumed == []


@pytest.mark.parametrize("error", [LIBRARY_NOT_FOUND, DRIVER_NOT_LOADED])
def test_without_a_driver_nothing_changes(monkeypatch: pytest.MonkeyPatch, error: int) -> None:
    install(monkeypatch, RTX_4090, init_error=error)
    own = offer("rtx-4090")
    (found,), assumed = read(own)
    assert found == own
    assert assumed == []


def test_without_the_library_nothing_changes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    own = offer("rtx-4090")
    assert read(own) == ((own,), [])


def test_an_old_driver_counts_its_own_share_as_used(monkeypatch: pytest.MonkeyPatch) -> None:
    for board, library in ((replace(RTX_4090, has_v2=False), True), (RTX_4090, False)):
        install(monkeypatch, board, has_v2=library)
        (found,), _ = read(offer("rtx-4090"))
        assert usable_mib(found) == 24564 - 436


def test_of_several_boards_the_fullest_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, RTX_4090, replace(RTX_4090, held=9000))
    (two,), _ = read(offer("rtx-4090", 2))
    (one,), _ = read(offer("rtx-4090"))
    assert (usable_mib(two), usable_mib(one)) == (24128 - 9000, 24128)


def test_a_board_that_fell_off_the_bus_does_not_hide_the_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    lost = replace(RTX_4090, handle_error=GPU_IS_LOST)
    silent = replace(RTX_4090, memory_error=GPU_IS_LOST)
    install(monkeypatch, lost, silent, replace(RTX_4090, held=100))
    assert [local.refused for local in devices.gpus()] == ["GPU is lost", ""]
    (found,), _ = read(offer("rtx-4090"))
    assert usable_mib(found) == 24128 - 100


def test_of_a_cut_board_the_slice_is_what_there_is(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, replace(A100, mig=(HALF_GB, SMALL)))
    (found,), assumed = read(offer("a100-40gb"))
    assert found.device.memory_driver_bytes == 20096 * MIB
    assert usable_mib(found) == 20096 - 37
    assert "MIG 3g.20gb" in assumed[0].why
    assert "times are of the whole board" in assumed[0].why
    local = devices.gpus()[0]
    assert local.device is None
    assert devices.matching(offer("a100-40gb"), [local]) == []


def test_a_slice_is_chosen_by_its_name_and_slices_are_not_joined(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, replace(A100, mig=(HALF_GB, SMALL)))
    pair = offer("a100-40gb", 2)
    assert read(pair) == ((pair,), [])
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "MIG-bb")
    (found,), _ = read(offer("a100-40gb"))
    assert usable_mib(found) == 4864 - 12


def test_a_cut_board_without_a_slice_is_refused_by_name(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, replace(A100, mig=()))
    assert "no slice" in devices.gpus()[0].refused
    own = offer("a100-40gb")
    assert read(own) == ((own,), [])


@pytest.mark.parametrize(("listed", "held"), [("1", 500), ("GPU-b", 500), ("0,1", 0), ("1,0", 500)])
def test_only_visible_boards_count(monkeypatch: pytest.MonkeyPatch, listed: str, held: int) -> None:
    install(monkeypatch, RTX_4090, replace(RTX_4090, held=500, uuid="GPU-beef"))
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    (found,), _ = read(offer("rtx-4090"))
    assert usable_mib(found) == 24128 - held


@pytest.mark.parametrize("listed", ["", "-1", "7", "GPU-nobody"])
def test_what_no_program_sees_is_not_at_hand(monkeypatch: pytest.MonkeyPatch, listed: str) -> None:
    install(monkeypatch, RTX_4090)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", listed)
    own = offer("rtx-4090")
    assert read(own) == ((own,), [])


def test_under_wsl_windows_keeps_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, replace(RTX_4090, held=1000))
    monkeypatch.setattr(at_hand, "_is_wsl", lambda: True)
    (found,), assumed = read(offer("rtx-4090"))
    assert usable_mib(found) == 24128 - 1000 - WSL_BYTES / MIB
    assert "WSL2" in assumed[0].why


def test_a_host_stated_to_be_wsl_has_less_even_when_it_is_elsewhere(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    install(monkeypatch, init_error=LIBRARY_NOT_FOUND)
    own = offer("rtx-4090")
    stated = replace(own, host=replace(own.host, wsl=True))
    (found,), assumed = read(stated)
    assert found.device.memory_torch_bytes == own.device.memory_torch_bytes - WSL_BYTES
    assert assumed


def test_a_device_on_the_hosts_memory_has_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, Fake("NVIDIA GB10", 0, memory_error=NOT_SUPPORTED))
    monkeypatch.setattr(devices, "_meminfo", lambda: "MemAvailable:   1048576 kB\n")
    (local,) = devices.gpus()
    assert local.unified
    assert local.free_bytes == 2**30
    assert local.total_bytes > local.free_bytes


def test_a_job_file_says_what_was_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(monkeypatch, replace(RTX_4090, held=6000, pids=(11,)))
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: Qwen/Qwen2.5-0.5B\nmethod: lora\ndata: {rows: 100, max_length: 128}\n"
        "hardware: [{gpu: rtx-4090, price: 1 USD/h}]\n"
    )
    job = load_job(path)
    assert usable_mib(job.offers[0]) == 24128 - 6000
    assert any("held by 1 other process" in item.why for item in job.assumed)


def test_doctor_tells_slices_refusals_and_shared_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.app.doctor.WRITTEN_BYTES", 8 * 2**20)
    install(
        monkeypatch,
        replace(A100, mig=(HALF_GB,)),
        replace(RTX_4090, memory_error=GPU_IS_LOST),
        Fake("NVIDIA GB10", 0, memory_error=NOT_SUPPORTED),
    )
    told = " | ".join(f"{f.value}: {f.meaning}" for f in examine(tmp_path).findings)
    assert "slice of a100-sxm4-40gb" in told
    assert "GPU is lost" in told
    assert "the host's memory" in told

"""`autotune doctor`: what it finds is what a job file takes over."""

from __future__ import annotations

import errno
import json
from typing import TYPE_CHECKING

import pytest

from autotune.app import doctor
from autotune.app.job.load import load_job
from autotune.catalog.devices import find_device
from autotune.cli.application import run
from autotune.domain.errors import InputError
from autotune.probe import device as devices
from autotune.probe.device import LocalDevice

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _short_write(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "WRITTEN_BYTES", 8 * 2**20)


def gpu(**changes: object) -> LocalDevice:
    device = find_device("t4")
    values = {
        "index": 0, "name": "Tesla T4", "total_bytes": device.memory_driver_bytes,
        "used_bytes": 0.0, "driver": "550.1", "device": device,
    }  # fmt: skip
    return LocalDevice(**{**values, **changes})  # type: ignore[arg-type]


def test_the_blocks_that_it_writes_are_a_job(tmp_path: Path) -> None:
    blocks = doctor.examine(tmp_path).job_blocks
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: Qwen/Qwen2.5-0.5B\nmethod: full\ndata: {rows: 100, max_length: 128}\n" + blocks
    )
    job = load_job(path)
    assert job.offers[0].device.is_cpu
    assert "checkpoint_write_bytes_per_s" not in job.offers[0].host.assumed


def test_a_gpu_of_the_catalogue_is_named_as_job_files_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: [gpu()])
    found = doctor.examine(tmp_path)
    assert "gpu: t4" in found.job_blocks
    assert any("is t4 in job files" in finding.meaning for finding in found.findings)


def test_memory_that_others_hold_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    busy = gpu(used_bytes=6.0 * 2**30, processes=(1, 2))
    monkeypatch.setattr(devices, "gpus", lambda: [busy])
    found = doctor.examine(tmp_path)
    assert any("6.0 GiB are held by 2 process" in finding.meaning for finding in found.findings)


def test_a_build_without_cuda_beside_a_gpu_is_a_missing_part(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(devices, "gpus", lambda: [gpu()])
    monkeypatch.setattr(doctor, "installed_versions", lambda _: {"torch": "2.13.0+cpu"})
    found = doctor.examine(tmp_path)
    assert not found.can_probe


def test_a_folder_that_cannot_be_written_is_bad_input(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(InputError, match="cannot be written"):
        doctor.examine(file / "below")


def test_a_full_disk_hides_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> float:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(doctor, "write_once", full)
    found = doctor.examine(tmp_path)
    told = {each.name: each for each in found.findings}
    assert told[f"disk of {tmp_path}"].value == "not measured"
    assert "too little room" in told[f"disk of {tmp_path}"].meaning
    assert "RAM" in told
    assert "checkpoint_write" not in found.job_blocks


@pytest.mark.parametrize("width", [40, 80])
def test_what_is_found_keeps_to_the_terminal(
    width: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    monkeypatch.chdir(tmp_path)
    assert run(["doctor"]) == 0
    shown = capsys.readouterr().out.partition("For a job file")[0].splitlines()
    assert max(map(len, shown)) <= width


def test_json_alone_is_on_stdout(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["doctor", "--folder", str(tmp_path), "--format", "json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["schema_version"] == 1
    assert {"cores", "RAM", "/dev/shm"} <= {item["name"] for item in found["findings"]}  # noqa: S108 - a name
    assert list(tmp_path.iterdir()) == []

"""Faults around a worker, its device, disk and rows: each ends in a recorded, named outcome."""

from __future__ import annotations

import errno
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.catalog.devices import find_device
from autotune.probe import device as devices
from autotune.probe import runner as running
from autotune.probe.device import LocalDevice, cpu
from autotune.probe.memo import Memo
from autotune.probe.runner import Place, Runner, worker_environment

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.probe.record import ProbeRecord

    Run = Callable[..., ProbeRecord]

FAKE = Path(__file__).with_name("fake_worker.py")
GIB = 2.0**30


def card(index: int = 0, **changes: Any) -> LocalDevice:
    device = find_device("t4")
    own = LocalDevice(
        index, "Tesla T4", device.memory_driver_bytes, 0.0, "550.1", device, uuid=f"GPU-{index}"
    )
    return replace(own, **changes)


@pytest.fixture
def on_card(tmp_path: Path, request_body: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Any:
    """Runs a fake worker on a card that is not here; `held` is what it has in use, in turn."""

    def run(mode: str, held: list[float]) -> ProbeRecord:
        readings = iter(held)
        last = [held[-1]]

        def used(_: int = 0) -> float:
            last[0] = next(readings, last[0])
            return last[0]

        monkeypatch.setattr(devices, "used_bytes", used)
        monkeypatch.setattr(devices, "reading", lambda _: None)
        monkeypatch.setattr(devices, "gpus", lambda: [card()])
        monkeypatch.setattr(running, "BASELINE_WAIT_S", 0.3)
        place = Place(card(), tmp_path / "probing", 30.0, (str(FAKE), mode), sys.executable)
        return Runner(place).run({**request_body, "device": "cuda"}, {})

    return run


def test_a_worker_that_prints_without_end_is_ended(
    run_fake: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "MOST_PRINTED_BYTES", 2**20)
    record = run_fake("flood")
    assert record.status == "crash"
    assert "printed more than 1 MiB" in record.message


def test_a_worker_that_fills_the_disk_is_ended_before_nothing_can_be_recorded(
    run_fake: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(running, "LEAST_FREE_BYTES", 2**62)
    record = run_fake("hang")
    assert record.status == "interrupted", "it says nothing of the configuration"
    assert "the disk is full" in record.message


def test_no_gpu_is_unsupported_and_not_tried_twice(run_fake: Run) -> None:
    record = run_fake("no-gpu")
    assert (record.status, record.attempts, record.fits) == ("unsupported", 1, None)


def test_a_result_of_another_card_is_no_result(on_card: Any) -> None:
    record = on_card("good", [0.0])
    assert record.status == "invalid_result"
    assert "'cpu' instead of 'Tesla T4'" in record.message
    assert record.result == {}


def test_out_of_memory_beside_a_newcomer_says_nothing_about_the_configuration(
    on_card: Any,
) -> None:
    record = on_card("oom", [0.0, 9 * GIB])
    assert record.status == "invalid_result"
    assert "others held 9.0 GiB" in record.message
    assert record.fits is None


def test_out_of_memory_on_a_card_that_was_shared_all_along_is_not_for_later_studies(
    on_card: Any, tmp_path: Path
) -> None:
    record = on_card("oom", [9 * GIB])
    assert record.status == "oom_device"
    assert record.readings["held_by_others_bytes"] == 9 * GIB
    shared = tmp_path / "shared.jsonl"
    Memo(None, shared, record.fingerprint).add(record)
    assert Memo(None, shared, record.fingerprint).find(record.key) is None
    alone = replace(record, readings={})
    Memo(None, shared, record.fingerprint).add(alone)
    assert Memo(None, shared, record.fingerprint).find(record.key) is not None


def test_a_worker_sees_its_card_and_those_of_its_kind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    others = [card(index, name="another" if index == 0 else "Tesla T4") for index in range(3)]
    monkeypatch.setattr(devices, "gpus", lambda: others)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert worker_environment(Place(card(2), tmp_path), "x")["CUDA_VISIBLE_DEVICES"] == (
        "GPU-2,GPU-1"
    )
    assert worker_environment(Place(cpu(), tmp_path), "x")["CUDA_VISIBLE_DEVICES"] == ""
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "0,2")
    assert [found.name for found in devices.local_devices()] == ["another", "Tesla T4", "cpu"]
    assert worker_environment(Place(card(2), tmp_path), "x")["CUDA_VISIBLE_DEVICES"] == "GPU-2"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("line", "said"),
    [(b"{}", "line 8 has no text"), (b'{"input_ids": []}', "line 8 of the data set has no tokens"),
     (b'{"input_ids": [1, "2"]}', "line 8: input_ids is no list"),
     (b'{"input_ids": [5, 99]}', "line 8 of the data set holds token 99"),
     (b'{"messages": ["hello"]}', "line 8 has no text")],
)  # fmt: skip
def test_rows_that_no_model_can_read_are_named_by_their_line(
    tmp_path: Path, line: bytes, said: str
) -> None:
    pytest.importorskip("torch")
    from autotune.probe.worker.rows import BadData, Source

    path = tmp_path / "rows.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' * 6 + b"\n" + line + b"\n")
    request = {"max_length": 64, "dataset": {"path": str(path), "tokenizer": "bytes"},
               "seed": 0, "longest": 64}  # fmt: skip
    with pytest.raises(BadData, match=said):
        _ = [Source(request, 60).ids(row) for row in range(7)]


@pytest.mark.slow
@pytest.mark.parametrize(
    "error", [OSError(errno.ENOSPC, "No space left on device"), RuntimeError("file write failed")]
)
def test_a_disk_that_fills_while_saving_costs_the_save_and_nothing_else(
    tmp_path: Path, error: Exception
) -> None:
    pytest.importorskip("torch")
    from autotune.probe.worker.parts import checkpoint

    def full(*_: Any, **__: Any) -> None:
        (tmp_path / "checkpoint-1").mkdir()
        raise error

    trainer = SimpleNamespace(
        args=SimpleNamespace(output_dir=str(tmp_path)), model=None,
        state=SimpleNamespace(global_step=0), _save_checkpoint=full,
    )  # fmt: skip
    found = checkpoint(trainer, SimpleNamespace(now=lambda: 0.0))
    assert str(error) in found["error"]
    assert "save_s" not in found
    assert list(tmp_path.iterdir()) == []

"""One server for all probes of a search: each still has a process of its own."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from builders import BRIEF
from waiting import text_of

from autotune.probe.device import cpu
from autotune.probe.request import Effort, key_of, request_for
from autotune.probe.runner import Place, Runner
from autotune.probe.session import CONFIRM, Session
from autotune.probe.worker import server

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.probe.record import ProbeRecord

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="a server forks on Linux alone")
FAKE = Path(__file__).with_name("fake_worker.py")
UNLUCKY = 13


class Asked:
    """A session with a fake worker, asked for one micro-batch size after another."""

    def __init__(self, folder: Path, mode: str, body: dict[str, Any]) -> None:
        self.session = Session(Place(cpu(), folder, 300.0, (str(FAKE), mode), sys.executable))
        self.body = body

    def __call__(
        self, micro: int, *, timeout_s: float = 300.0, role: str = "search"
    ) -> ProbeRecord:
        request = {**self.body, "micro_batch_size": micro}
        request["key"] = key_of(request)
        return self.session.run(request, {}, timeout_s=timeout_s, role=role)


def test_one_server_forks_a_process_for_each_probe_and_leaves_nothing(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    folder = tmp_path / "probing"
    asked = Asked(folder, "good", request_body)
    with asked.session:
        records = [asked(micro) for micro in (1, 2, 4)]
        assert asked.session.starts == 1
    assert [record.status for record in records] == ["ok"] * 3
    assert len({record.result["parent"] for record in records}) == 1, "one server"
    assert len({record.result["pid"] for record in records}) == 3, "a process each"
    assert len({record.key for record in records}) == 3
    assert list(folder.iterdir()) == []


@pytest.mark.parametrize("mode", ["segfault", "kill", "exit", "cuda-text"])
def test_what_ends_a_probe_is_tried_once_more_alone_and_the_server_goes_on(
    tmp_path: Path, request_body: dict[str, Any], mode: str
) -> None:
    asked = Asked(tmp_path, f"{mode}:13", request_body)
    with asked.session:
        records = [asked(micro) for micro in (1, UNLUCKY, 2)]
        assert asked.session.starts == 1
    broken = "cuda_error" if mode == "cuda-text" else "crash"
    assert [record.status for record in records] == ["ok", broken, "ok"]
    assert records[1].attempts == 2
    assert records[0].result["parent"] == records[2].result["parent"]


def test_out_of_memory_is_told_at_once_and_the_next_probe_runs(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    asked = Asked(tmp_path, "cuda-oom-text:13", request_body)
    with asked.session:
        records = [asked(micro) for micro in (UNLUCKY, 2)]
    assert [record.status for record in records] == ["oom_device", "ok"]
    assert records[0].attempts == 1


def test_a_hanging_probe_is_ended_at_its_time_limit_with_its_server(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    asked = Asked(tmp_path, "hang:13", request_body)
    with asked.session:
        record = asked(UNLUCKY, timeout_s=1.0)
        assert record.status == "timeout"
        assert record.wall_s < 300, "it would have hung for twice as long"
        assert asked(2).status == "ok"
        assert asked.session.starts == 2


def test_a_server_that_is_killed_in_the_middle_costs_another_attempt(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    flag = tmp_path / "began"
    asked = Asked(tmp_path / "probing", f"once-and-tell:{flag}", request_body)

    def kill() -> None:
        os.kill(int(text_of(flag)), signal.SIGKILL)

    killer = threading.Thread(target=kill)
    killer.start()
    with asked.session:
        record = asked(1)
        killer.join()
        assert (record.status, record.attempts) == ("ok", 2)
        again = asked(2)
        assert asked.session.starts == 2
    assert again.ok


def test_a_worker_that_cannot_serve_probes_one_by_one(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    asked = Asked(tmp_path, "will-not-serve", request_body)
    with asked.session:
        records = [asked(micro) for micro in (1, 2, 4)]
        assert asked.session.starts == 2, "it is not tried for ever"
    assert [(record.status, record.attempts) for record in records] == [("ok", 1)] * 3


def test_the_confirmation_and_what_a_fork_cannot_have_run_in_a_process_started_for_them(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    own = {"memory_limit_bytes": 10**9}, {"environment": {"OMP_NUM_THREADS": "1"}}
    for more in own:
        asked = Asked(tmp_path, "good", {**request_body, **more})
        with asked.session:
            assert asked(1).ok
            assert asked.session.starts == 0
    asked = Asked(tmp_path, "good", request_body)
    with asked.session:
        served, confirmed = asked(1), asked(1, role=CONFIRM)
    assert confirmed.role == CONFIRM
    assert confirmed.result["parent"] != served.result["parent"]


@pytest.mark.slow
def test_a_served_probe_measures_what_a_process_of_its_own_does(
    tmp_path: Path, job: Job, offer: Offer, config: Config
) -> None:
    """Whatever ran before it: memory of tensors to the byte, of the process within 5 %."""
    for package in ("torch", "transformers", "peft"):
        pytest.importorskip(package)
    effort = Effort(**BRIEF, most=8, measured=3, least=2, seconds=1.0, patience_s=2.0, loader=False,
                    evaluation=False, checkpoint_max_bytes=0.0)  # fmt: skip

    def requested(precision: str) -> tuple[dict[str, Any], dict[str, Any]]:
        other = config.with_knobs(precision=precision)
        return request_for(job, offer, other, effort=effort), other.as_dict()

    place = Place(cpu(), tmp_path, 900.0)
    with Session(place) as session:
        found = [session.run(*requested(precision)) for precision in ("bf16", "fp32")]
        assert session.starts == 1
    alone = Runner(place).run(*requested("fp32"))
    assert [r.status for r in (*found, alone)] == ["ok"] * 3, [r.message for r in found]
    served, own = found[1].result["memory"], alone.result["memory"]
    assert served["allocated_bytes"] == own["allocated_bytes"]
    assert found[0].result["memory"]["allocated_bytes"] != own["allocated_bytes"]
    for name in ("driver_bytes", "context_bytes"):
        assert served[name] == pytest.approx(own[name], rel=0.05), name
    assert found[1].result["seconds"]["import"] < own_seconds(alone)


def own_seconds(record: ProbeRecord) -> float:
    """[s] of importing, in a process of its own."""
    return float(record.result["seconds"]["import"])


def test_a_server_whose_imports_began_cuda_forks_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = pytest.importorskip("torch")
    (tmp_path / "request.json").write_text("{}")
    monkeypatch.setattr(server, "_import_all", lambda: None)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(sys, "stdin", io.StringIO(f"{json.dumps(str(tmp_path))}\n"))
    monkeypatch.setattr(server.os, "fork", lambda: pytest.fail("it forked"))
    monkeypatch.setattr(server.ctypes, "CDLL", lambda _: SimpleNamespace(prctl=lambda *_: 0))
    monkeypatch.setenv(server.FORK_SAFE, "1")
    assert server.serve(lambda *_: None) == server.TOUCHED


def test_a_server_that_cannot_fork_is_started_once(
    tmp_path: Path, request_body: dict[str, Any]
) -> None:
    asked = Asked(tmp_path / "probing", "touched", request_body)
    with asked.session:
        records = [asked(micro) for micro in (1, 2, 4)]
        assert asked.session.starts == 1, "it says that it never will"
    assert [record.status for record in records] == ["ok"] * 3


def test_imports_learn_what_a_board_can_do_without_touching_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    asked: list[str] = []

    def handle(name: str) -> str:
        asked.append(name)
        return name

    driver = SimpleNamespace(
        nvmlInit=lambda: None, nvmlShutdown=lambda: None, nvmlDeviceGetHandleByUUID=handle,
        nvmlDeviceGetCudaComputeCapability=lambda name: (9, 0) if name == "GPU-a" else (8, 6),
    )  # fmt: skip
    monkeypatch.setitem(sys.modules, "pynvml", driver)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-a,GPU-b")
    own = torch.cuda.get_device_capability
    with server._capability_by_driver_library():
        assert torch.cuda.get_device_capability(0) == (8, 6), "what every board can do"
        assert not torch.cuda.is_initialized()
    assert asked == ["GPU-a", "GPU-b"]
    assert torch.cuda.get_device_capability is own

"""Probes of several machines: one leads, the others follow its folder, and all of them count."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from commandline import typed
from waiting import until

from autotune.app.job.load import load_job
from autotune.app.probing.plan import local_for
from autotune.app.workers import join
from autotune.domain.errors import InputError, NoLocalDevice
from autotune.probe import together
from autotune.probe.device import cpu
from autotune.probe.request import request_for
from autotune.probe.runner import Place, Runner
from autotune.probe.together import MACHINES, OVER, TERMS, Meeting, gathered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

    Started = subprocess.Popen[bytes]

ROOT = Path(__file__).parents[2]
TWO = "2x1xcpu over ethernet-10g"


@pytest.fixture
def pair() -> Offer:
    return load_job(ROOT / "jobs" / "tiny_cpu.yaml", gpus=(TWO,)).offers[0]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(together, "LOOK_S", 0.01)
    monkeypatch.setattr(together, "BEAT_S", 0.02)


def beat(folder: Path, over: threading.Event) -> None:
    number = 0
    while not over.wait(0.01):
        number += 1
        (folder / "other.beat").write_text(str(number))


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Path]:
    """A run folder that another machine beats in, and where one did that is dead."""
    folder = tmp_path / MACHINES
    folder.mkdir()
    (folder / "dead.beat").write_text("7")
    over = threading.Event()
    thread = threading.Thread(target=beat, args=(folder, over))
    thread.start()
    yield tmp_path
    over.set()
    thread.join()


@pytest.mark.parametrize("text", ["", "head", "head:", ":29500", "head:x", "head:0", "head:99999"])
def test_what_is_no_host_and_port_is_refused_with_an_example(pair: Offer, text: str) -> None:
    with pytest.raises(InputError, match="HOST:PORT") as error:
        Meeting.of(text, pair)
    assert "node0:29500" in str(error.value.hint)


def test_a_machine_counts_while_its_count_goes_up_and_a_dead_one_does_not(there: Path) -> None:
    Meeting("head:1", 2, 1).wait(there, 60.0)
    told: list[str] = []
    with pytest.raises(NoLocalDevice, match="1 more machine of 3 did not show") as error:
        Meeting("head:1", 3, 1).wait(there, 0.2, told.append)
    assert f"autotune worker {there}" in str(error.value.hint)
    assert told[0].startswith("waiting for ")
    assert told[0].endswith(f"type there: autotune worker {there}")


def test_the_others_are_told_what_they_need_and_when_it_is_over(there: Path) -> None:
    folder = there / MACHINES
    (folder / OVER).write_text("an earlier search")
    with gathered(there, Meeting("head:29500", 2, 4), {"device": "cpu"}, lambda _: None):
        until((folder / together.LEADS).exists)
        kept = json.loads((folder / TERMS).read_text())
        assert kept == {"device": "cpu", "endpoint": "head:29500", "nodes": 2, "per_node": 4}
        assert not (folder / OVER).exists()
        assert together.terms_in(there) == kept
    assert (folder / OVER).exists()
    assert not (folder / together.LEADS).exists()
    assert together.terms_in(there) is None


def test_who_joins_a_search_that_has_ended_waits_a_moment_for_it_to_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, folder = list[str](), tmp_path / MACHINES
    assert join.together_in(tmp_path, told.append) is None
    folder.mkdir()
    (folder / OVER).write_text("the search has ended")
    monkeypatch.setattr(join, "BEGIN_S", 0.1)
    with pytest.raises(InputError, match="on several machines has ended") as caught:
        join.together_in(tmp_path, told.append)
    assert "--resume, then join again" in str(caught.value.hint)
    (tmp_path / "workers").mkdir()  # of a later search: its workers are asked otherwise
    assert join.together_in(tmp_path, told.append) is None
    assert len(told) == 1
    (tmp_path / "workers").rmdir()
    monkeypatch.setattr(join, "BEGIN_S", 600.0)

    def begin(line: str) -> None:
        told.append(line)
        (folder / TERMS).write_text('{"device": "cpu"}')

    assert join.together_in(tmp_path, begin) == {"device": "cpu"}
    assert len(told) == 2


def test_a_follower_runs_its_own_command_once_a_probe_ends_it_with_the_folder_and_then_leaves(
    tmp_path: Path,
) -> None:
    ran, probing = tmp_path / "ran", tmp_path / "probing"
    (tmp_path / MACHINES).mkdir()
    code = "import pathlib, sys, time; pathlib.Path(sys.argv[2]).write_text(sys.argv[1])"
    code += "; time.sleep(0 if 'quick' in sys.argv[1] else 600)"
    runner: Any = SimpleNamespace(
        place=Place(cpu(), tmp_path),
        command=lambda asked, _: (sys.executable, "-c", code, asked, str(ran)),
    )
    ended: list[str] = []
    thread = threading.Thread(
        target=lambda: ended.append(together.follow(tmp_path, runner, lambda _: None))
    )
    thread.start()
    for name in ("probe-quick", "probe-hangs"):
        folder = probing / name
        folder.mkdir(parents=True)
        (folder / "request.json").write_text(json.dumps({"environment": {}}))
        (folder / together.CALLED).touch()
        until(lambda: ran.exists() and name in ran.read_text())  # noqa: B023 - called at once
    (folder / together.CALLED).unlink()
    (tmp_path / MACHINES / OVER).write_text("enough")
    thread.join(600)
    assert ended == ["enough"], "the one that hangs was ended with its folder"
    assert not list((tmp_path / MACHINES).glob("*.beat"))


def test_a_probe_on_two_machines_is_not_answered_by_one_of_two_devices(
    job: Job, pair: Offer, config: Config, tmp_path: Path
) -> None:
    one = replace(pair, network=None)
    assert request_for(job, pair, config)["key"] != request_for(job, one, config)["key"]
    runner = Runner(Place(cpu(), tmp_path / "probing", meeting=Meeting.of("head:29500", pair)))
    words = " ".join(runner.command(str(tmp_path / "probe-x" / "request.json"), "r", count=2))
    assert "--nnodes 2 --nproc-per-node 1 --rdzv-backend c10d" in words
    assert "--rdzv-endpoint head:29500 --rdzv-id probe-x" in words


def test_several_machines_without_a_meeting_point_are_refused_with_what_to_type(
    tmp_path: Path,
) -> None:
    pytest.importorskip("peft")
    words = ("tune", "jobs/tiny_cpu.yaml", "--gpu", TWO, "--score", "probe")
    alone = typed(*words, home=tmp_path)
    assert alone.returncode == 5
    for said in ("its 2 machines together", "--rendezvous HOST:PORT", "autotune worker FOLDER"):
        assert said in " ".join(alone.stderr.split())
    both = typed(*words, "--rendezvous", "head:29500", "--workers", "2", home=tmp_path)
    assert both.returncode == 2
    assert "beside workers" in both.stderr
    bare = typed("tune", "jobs/tiny_cpu.yaml", "--rendezvous", "head:29500", home=tmp_path)
    assert bare.returncode == 2
    assert "add --score probe" in bare.stderr
    with pytest.raises(NoLocalDevice, match="needs a job on several machines"):
        local_for(load_job(ROOT / "jobs" / "tiny_cpu.yaml"), None, together=True)


def test_a_follower_whose_leader_was_killed_ends_its_probe_and_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The folder of the probe still stands. A leader that counts is followed on."""
    folder, ran = tmp_path / MACHINES, tmp_path / "ran"
    code = "import os, pathlib, sys, time; pathlib.Path(sys.argv[1]).write_text(str(os.getpid()))"
    runner: Any = SimpleNamespace(
        place=Place(cpu(), tmp_path),
        command=lambda *_: (sys.executable, "-c", code + "; time.sleep(600)", str(ran)),
    )
    called = tmp_path / "probing" / "probe-1" / together.CALLED
    called.parent.mkdir(parents=True)
    called.with_name("request.json").write_text(json.dumps({"environment": {}}))
    called.touch()
    now = iter(range(10**9))
    monkeypatch.setattr(together.time, "monotonic", lambda: float(next(now)))
    folder.mkdir()
    looks: list[int] = []

    def counted(*_: object) -> bytes:
        looks.append(len(looks))
        lives = len(looks) < 200 or not ran.exists()  # seconds, by that clock
        return str(looks[-1] if lives else -1).encode()

    monkeypatch.setattr(Path, "read_bytes", counted)
    with pytest.raises(NoLocalDevice, match="has not shown itself for 60 s") as lost:
        together.follow(tmp_path, runner, lambda _: None)
    monkeypatch.undo()
    assert len(looks) > 200 + together.LOST_S
    assert "--resume" in str(lost.value.hint)
    assert called.exists()
    with pytest.raises(ProcessLookupError):
        os.kill(int(ran.read_text()), 0)
    assert not list(folder.glob("*.beat"))


def begun(home: Path, *words: str, program: tuple[str, ...] = ("-m", "autotune")) -> Started:
    """A command of another machine: a home and a process group of its own."""
    with home.with_suffix(".txt").open("wb") as said:
        return subprocess.Popen(
            [sys.executable, *program, *words], stdout=said, stderr=said, cwd=ROOT,
            env={**os.environ, "AUTOTUNE_HOME": str(home)}, start_new_session=True,
        )  # fmt: skip


def head_of(run: Path) -> Started:
    """The machine that searches, once others can follow it."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        meeting = f"127.0.0.1:{free.getsockname()[1]}"
    head = begun(
        run.parent / "one", "tune", "jobs/tiny_cpu.yaml", "--gpu", TWO, "--score", "probe",
        "--rendezvous", meeting, "--run", str(run), "--probes", "1", "--set", "precision=fp32",
        "--set", "compile=off", "--set", "sharding=ddp", "--probe-budget", "20s",
    )  # fmt: skip
    until(lambda: (run / MACHINES / TERMS).exists() or head.poll() is not None)
    return head


@pytest.mark.slow
@pytest.mark.services
def test_a_machine_whose_leader_is_killed_in_a_probe_leaves_by_itself(tmp_path: Path) -> None:
    """Two process groups that meet on loopback, the first of which is killed whole."""
    pytest.importorskip("peft")
    run, home = tmp_path / "run", tmp_path / "two"
    lease = "import sys; from autotune.probe import together; together.LOST_S = 10.0; "
    main = "from autotune.cli.application import run; sys.exit(run(sys.argv[1:]))"
    head = head_of(run)
    other = begun(home, "worker", str(run), program=("-c", lease + main))
    try:
        until(lambda: "takes part in probe" in home.with_suffix(".txt").read_text())
        os.killpg(head.pid, signal.SIGKILL)
        code = other.wait(300)
    finally:
        for process in (head, other):
            process.kill()
            process.wait()
    said = home.with_suffix(".txt").read_text()
    assert "has not shown itself for 10 s" in said, said
    assert code == NoLocalDevice.exit_code
    assert list(run.glob("probing/probe-*")), "the probe's folder still stands"


@pytest.mark.slow
def test_tune_on_two_machines_that_meet_on_loopback_answers_with_what_both_ran(
    tmp_path: Path,
) -> None:
    """Two homes, one folder: a launcher each, the slowest rank's step, the largest memory."""
    pytest.importorskip("peft")
    run = tmp_path / "run"
    head = head_of(run)
    other = begun(tmp_path / "two", "worker", str(run))
    try:
        codes = (head.wait(900), other.wait(300))
    finally:
        for process in (head, other):
            process.kill()
            process.wait()
    said = "\n".join((tmp_path / f"{home}.txt").read_text() for home in ("one", "two"))
    assert codes == (0, 0), said[-3000:]
    records = [json.loads(line) for line in (run / "probes.jsonl").read_text().splitlines()]
    ran = [record["result"] for record in records if record["status"] == "ok"]
    assert ran, said[-3000:]
    assert all(found["step"]["world"] == 2 for found in ran)
    sizes = [found["parameters"] for found in ran]
    assert all(size["local_bytes"] == size["bytes"] for size in sizes), "each has all of them"
    assert all(len(found["memory"]["driver_bytes_of_ranks"]) == 2 for found in ran)
    best = json.loads((run / "recommendation.json").read_text())["best"]
    assert (best["basis"], best["nodes"], best["device_count"]) == ("measured", 2, 2)
    assert "the search is over" in said


def test_a_meeting_point_that_cannot_be_one_is_named_before_anybody_waits() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(
            InputError, match="that port cannot be used here: Address already in use"
        ):
            Meeting(f"127.0.0.1:{port}", 2, 1).check_place()
    Meeting(f"127.0.0.1:{port}", 2, 1).check_place()
    with pytest.raises(InputError, match=r"the host 'nohost\.invalid' is not known here"):
        Meeting("nohost.invalid:29500", 2, 1).check_place()

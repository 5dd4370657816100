"""Every way a worker can end has a name, and nothing of it stays behind."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from fake_worker import good
from waiting import text_of, until

from autotune.catalog.locks import LOCK_FILE, own_folder
from autotune.probe.device import cpu
from autotune.probe.outcomes import Ending, read_result, unexplained
from autotune.probe.runner import GUARD, Place, Runner
from autotune.probe.worker.contract import Phase

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.config import Config
    from autotune.probe.record import ProbeRecord

    Run = Callable[..., ProbeRecord]


FAKE = Path(__file__).with_name("fake_worker.py")


def alive(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="ascii")
    except OSError:
        return False
    return status.rpartition(")")[2].split()[0] != "Z"


def test_a_good_result_is_ok_at_the_first_attempt(run_fake: Run) -> None:
    record = run_fake("good")
    assert (record.status, record.attempts) == ("ok", 1)
    assert record.step_s(8) > record.step_s(4)


@pytest.mark.parametrize(
    ("mode", "status", "attempts", "said"),
    [
        ("exit", "crash", 2, "an unexpected end"),
        ("abort", "crash", 2, "SIGABRT"),
        ("segfault", "crash", 2, "SIGSEGV"),
        ("kill", "crash", 2, "signal 9"),
        ("exit-silently", "invalid_result", 2, "left no result"),
        ("garbage", "invalid_result", 2, "cannot be read"),
        ("nan", "invalid_result", 2, "NaN"),
        ("negative", "invalid_result", 2, "driver_bytes is '-1'"),
        ("word", "invalid_result", 2, "'fast'"),
        ("list", "invalid_result", 2, "not a probe's"),
        ("other-key", "invalid_result", 2, "another request"),
        ("other-status", "invalid_result", 2, "unknown status"),
        ("full-disk", "crash", 2, "File too large"),
        ("cuda-text", "cuda_error", 2, "illegal memory access"),
        ("cublas-text", "cuda_error", 2, "CUBLAS_STATUS_ALLOC_FAILED"),
        ("cuda-oom-text", "oom_device", 1, "out of memory"),
        ("host-oom-text", "oom_host", 1, "can't allocate"),
        ("nccl-text", "nccl_error", 2, "NCCL"),
        ("oom", "oom_device", 1, "OutOfMemoryError"),
        ("unsupported", "unsupported", 1, "flash_attn"),
        ("bad-data", "bad_data", 1, "line 7"),
        ("thrash", "thrash", 1, "13 times"),
    ],
)
def test_each_ending_has_its_name(
    run_fake: Run, mode: str, status: str, attempts: int, said: str
) -> None:
    record = run_fake(mode)
    assert (record.status, record.attempts) == (status, attempts), record.message
    assert said in record.message


def test_a_relative_folder_and_a_relative_python_path_reach_the_worker_whole(
    request_body: dict[str, Any], config: Config, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "users_own.py").write_text("")
    worker = tmp_path / "worker.py"
    worker.write_text(
        f"import users_own, runpy\nrunpy.run_path({str(FAKE)!r}, run_name='__main__')\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PYTHONPATH", "mine")
    place = Place(cpu(), Path("my runs ü/probing"), 300.0, (str(worker), "good"), sys.executable)
    record = Runner(place).run(request_body, config.as_dict())
    assert record.status == "ok", record.message


def test_a_word_on_stderr_is_no_failure(run_fake: Run) -> None:
    assert run_fake("harmless-text").status == "ok"


def test_a_full_and_slow_device_has_spilled_and_a_full_and_quick_one_has_not(run_fake: Run) -> None:
    assert run_fake("spill", step_s=0.1).status == "spill"
    assert run_fake("spill", step_s=0.4).status == "ok"


def test_a_failure_that_does_not_repeat_is_forgiven(run_fake: Run, tmp_path: Path) -> None:
    record = run_fake(f"once:{tmp_path / 'flag'}")
    assert (record.status, record.attempts) == ("ok", 2)


def test_a_hanging_worker_is_ended_at_its_time_limit(run_fake: Run) -> None:
    record = run_fake("hang", timeout_s=1.0)
    assert record.status == "timeout"
    assert record.attempts == 1


def test_no_grandchild_outlives_its_probe_even_in_a_session_of_its_own(
    run_fake: Run, tmp_path: Path
) -> None:
    told = tmp_path / "pids"
    assert run_fake(f"grandchildren:{told}").status == "ok"
    pids = [int(pid) for pid in told.read_text().split()]
    assert len(pids) == 2
    until(lambda: not any(map(alive, pids)))


def test_nothing_is_left_in_the_folder(run_fake: Run, tmp_path: Path) -> None:
    for mode in ("good", "exit", "garbage"):
        run_fake(mode)
    assert list((tmp_path / "probing").iterdir()) == []


def test_a_worker_and_all_that_it_started_die_with_the_process_that_started_it(
    tmp_path: Path,
) -> None:
    told = tmp_path / "pid"
    script = tmp_path / "sleeper.py"
    script.write_text(
        "import os, subprocess, sys, time\nfrom pathlib import Path\n"
        "command = [sys.executable, '-c', 'import time; time.sleep(600)']\n"
        "below = subprocess.Popen(command, start_new_session=True, env={})\n"
        f"Path({str(told)!r}).write_text(f'{{os.getpid()}} {{below.pid}}')\ntime.sleep(600)\n"
    )
    code = (
        "import os, subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-S', '-E', {str(GUARD)!r}, str(os.getpid()),"
        f" sys.executable, {str(script)!r}], start_new_session=True)\n"
        "time.sleep(600)\n"
    )
    parent = subprocess.Popen([sys.executable, "-c", code])
    try:
        pids = [int(pid) for pid in text_of(told).split()]
        assert len(pids) == 2
        assert all(map(alive, pids))
    finally:
        parent.kill()
        parent.wait()
    until(lambda: not any(map(alive, pids)))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's guard is Linux's")
def test_a_rank_ends_with_a_launcher_that_is_killed_without_a_guard(tmp_path: Path) -> None:
    told = tmp_path / "pid"
    rank = (
        "import os, time\nfrom pathlib import Path\n"
        "from autotune.probe.worker.ranks import end_with_launcher\nend_with_launcher()\n"
        f"Path({str(told)!r}).write_text(str(os.getpid()))\ntime.sleep(600)\n"
    )
    code = (
        "import subprocess, sys, time\n"
        f"subprocess.Popen([sys.executable, '-c', {rank!r}])\ntime.sleep(600)\n"
    )
    named = {**os.environ, "RANK": "0", "PYTHONPATH": os.pathsep.join(sys.path)}
    launcher = subprocess.Popen([sys.executable, "-c", code], env=named)
    try:
        pid = int(text_of(told))
        assert alive(pid)
    finally:
        launcher.kill()
        launcher.wait()
    until(lambda: not alive(pid))


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's guard is Linux's")
def test_a_guard_misses_no_death_that_is_told_just_before_it_waits() -> None:
    code = (
        "import os, signal, time\nfrom autotune.probe import guard\n"
        "signal.pthread_sigmask(signal.SIG_BLOCK, guard.WAITED_FOR)\n"
        "child = os.fork()\n"
        "if child == 0:\n    time.sleep(600)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "print(guard._status_of(child, os.getppid()), guard._status_of(child, -1))\n"
        "os.kill(child, signal.SIGKILL)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], timeout=300, capture_output=True, text=True, check=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip
    assert done.stdout.split() == ["None", "None"]


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGABRT, signal.SIGTERM])
def test_a_guard_ends_by_the_signal_that_ended_its_command(number: signal.Signals) -> None:
    code = f"import os; os.kill(os.getpid(), {int(number)})"
    guard = [sys.executable, "-S", "-E", str(GUARD), str(os.getpid())]
    assert subprocess.run([*guard, sys.executable, "-c", code], check=False).returncode == -number
    code = "raise SystemExit(7)"
    assert subprocess.run([*guard, sys.executable, "-c", code], check=False).returncode == 7


def test_folders_of_dead_searches_go_and_those_of_living_ones_stay(
    run_fake: Run, tmp_path: Path
) -> None:
    place = tmp_path / "probing"
    dead, empty = place / "probe-dead", place / "probe-empty"
    (dead / "checkpoint-5").mkdir(parents=True)
    (dead / LOCK_FILE).touch()
    (dead / "checkpoint-5" / "model.safetensors").write_bytes(b"0" * 1000)
    empty.mkdir()
    with own_folder(place, "probe-") as living:
        assert run_fake("good").status == "ok"
        assert list(place.iterdir()) == [living]
    assert list(place.iterdir()) == []


def test_a_pipe_or_a_link_to_one_as_a_result_is_not_waited_for(tmp_path: Path) -> None:
    pipe, link = tmp_path / "result.json", tmp_path / "link.json"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    for path in (pipe, link):
        assert "not a regular file" in str(read_result(path, "key"))


@pytest.mark.parametrize(
    ("part", "name", "value", "why"),
    [
        ("step", "step_s", 1e-300, "no machine makes one"),
        ("step", "step_s", 1e12, "more than a month"),
        ("memory", "driver_bytes", 1e30, "more than a petabyte"),
    ],
)
def test_figures_that_no_machine_has_are_refused(
    part: str, name: str, value: float, why: str, tmp_path: Path
) -> None:
    result = good({"key": "key", "gradient_accumulation_steps": 1})
    path = tmp_path / "result.json"
    path.write_text(json.dumps(result))
    assert isinstance(read_result(path, "key"), dict)
    result[part][name] = value
    path.write_text(json.dumps(result))
    assert why in str(read_result(path, "key"))


@pytest.mark.parametrize("mode", ["sleep-and-tell", "ok-and-sleep"])
def test_ctrl_c_ends_the_worker_and_is_an_outcome(
    mode: str, tmp_path: Path, request_body: Any
) -> None:
    """Also where the result is there and the worker is just ending."""
    told = tmp_path / "pid"
    fake = Path(__file__).with_name("fake_worker.py")
    code = (
        "import json, sys\n"
        "from pathlib import Path\n"
        "from autotune.probe.device import cpu\n"
        "from autotune.probe.runner import Place, Runner\n"
        f"place = Place(cpu(), Path({str(tmp_path)!r}) / 'p', 600.0,"
        f" ({str(fake)!r}, '{mode}:{told}'), sys.executable)\n"
        "request = json.loads(sys.stdin.read())\n"
        "print(Runner(place).run(request, {}).status)\n"
    )
    import json

    root = Path(__file__).parents[2]
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        cwd=root,
    ) as process:  # fmt: skip
        process.stdin.write(json.dumps(request_body))
        process.stdin.close()
        pid = int(text_of(told))
        process.send_signal(signal.SIGINT)
        assert process.stdout.read().strip() == "interrupted"
        assert process.wait() == 0
    until(lambda: not alive(pid), 120)  # killed is not yet gone, on a busy machine


@pytest.mark.parametrize(
    ("ending", "status"),
    [
        (Ending(-9, "", oom_kills=1), "oom_host"),
        (Ending(-9, "", oom_kills=0), "crash"),
        (Ending(1, "CUBLAS_STATUS_ALLOC_FAILED", device_was_full=True), "oom_device"),
        (Ending(None, "", rank_failures=({"status": "oom_device"},)), "oom_device"),
        (Ending(None, "CUDA error"), "timeout"),
        (Ending(None, "", interrupted=True), "interrupted"),
        (Ending(0, ""), "invalid_result"),
    ],
)
def test_what_the_parent_knows_decides_what_an_ending_is_called(
    ending: Ending, status: str
) -> None:
    assert unexplained(ending, "no result")[0] == status


def test_the_mark_is_not_left_in_our_own_environment() -> None:
    assert "AUTOTUNE_PROBE" not in os.environ


def test_a_worker_s_phase_is_heard_while_it_runs(
    tmp_path: Path, request_body: dict[str, Any], config: Config
) -> None:
    place = Place(cpu(), tmp_path / "probing", 600.0, (str(FAKE), "phases"), sys.executable)
    runner = Runner(place)
    heard: list[Phase] = []
    runner.on_phase = lambda phase, _seconds: heard.append(phase)
    record = runner.run(request_body, config.as_dict())
    assert record.status == "ok", record.message
    assert Phase("measuring", 3, 26) in heard


def test_readings_of_a_recorded_window_mark_the_record(
    tmp_path: Path, request_body: dict[str, Any], config: Config
) -> None:
    """A worker's window, as it was written down on a busy machine."""
    place = Place(cpu(), tmp_path / "probing", 600.0, (str(FAKE), "busy-window"), sys.executable)
    record = Runner(place).run(request_body, config.as_dict())
    assert record.ok
    assert record.disturbed == ["other programs used 1.6 of 2 cores", "steps differ by 75%"]
    assert record.slowdown == 4.0
    assert record.readings["cores"] >= 1

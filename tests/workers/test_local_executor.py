"""Workers as processes of this machine: how they are told of, and that none outlives its search."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from waiting import until

from autotune.app.workers.executor import LocalExecutor, WorkerJob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from autotune.app.workers.executor import WorkerState

SLEEPS = "import time; time.sleep(600)"


def job(folder: Path, code: str) -> WorkerJob:
    return WorkerJob((sys.executable, "-c", code), folder, "cpu")


@pytest.fixture
def executor() -> Iterator[LocalExecutor]:
    made = LocalExecutor()
    yield made
    made.stop()


def state(executor: LocalExecutor, name: str) -> WorkerState:
    return next(found for found in executor.states() if found.name == name)


def test_a_worker_that_ended_says_its_code_and_its_last_words(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    executor.start(job(tmp_path, "print('no such study'); raise SystemExit(2)"), "1")
    until(lambda: state(executor, "1").state == "ended")
    found = state(executor, "1")
    assert (found.code, found.why, found.is_final) == (2, "no such study", True)


def test_a_worker_that_was_killed_may_be_started_again(
    executor: LocalExecutor, tmp_path: Path
) -> None:
    executor.start(job(tmp_path, f"import os; os.kill(os.getpid(), {int(signal.SIGKILL)})"), "1")
    until(lambda: state(executor, "1").state == "ended")
    assert not state(executor, "1").is_final
    assert "killed" in state(executor, "1").why


def test_no_worker_outlives_a_stop_that_it_does_not_obey(
    executor: LocalExecutor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("autotune.app.workers.executor.LEAVE_S", 0.2)
    deaf = f"import signal; signal.signal(signal.SIGINT, signal.SIG_IGN); print('up'); {SLEEPS}"
    executor.start(job(tmp_path, SLEEPS), "1")
    executor.start(job(tmp_path, deaf), "2")
    executor.stop()
    assert [found.state for found in executor.states()] == ["ended", "ended"]


@pytest.mark.skipif(sys.platform != "linux", reason="the kernel's guard is Linux's")
def test_a_worker_dies_with_a_search_that_is_killed(tmp_path: Path) -> None:
    code = f"""
import sys
from pathlib import Path
from autotune.app.workers.executor import WorkerJob
from autotune.app.workers.executor import LocalExecutor
says = "import os; print(os.getpid(), flush=True); import time; time.sleep(600)"
LocalExecutor().start(WorkerJob((sys.executable, "-c", says), Path({str(tmp_path)!r}), "cpu"), "1")
import time; time.sleep(600)
"""
    search = subprocess.Popen([sys.executable, "-c", code])
    log = tmp_path / "workers" / "1.log"
    until(lambda: log.exists() and log.read_text().strip().isdecimal())
    worker = int(log.read_text())
    search.kill()
    search.wait()
    until(lambda: not alive(worker))


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:
        with open(f"/proc/{pid}/stat") as stat:  # noqa: PTH123 - one line
            return stat.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:  # it ended in between
        return False

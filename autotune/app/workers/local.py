"""Workers as processes of this machine: they die with the search that started them."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from autotune.app.workers.executor import WorkerState
from autotune.domain.errors import InputError
from autotune.probe.outcomes import tail
from autotune.probe.runner import GUARD

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from subprocess import Popen

    from autotune.app.workers.executor import WorkerJob

LEAVE_S = 10.0  # for a worker to end its probe and go, once it is asked to
TOLD = 300  # characters of what a worker said last


def started(argv: Sequence[str], environment: Mapping[str, str], log: Path) -> Popen[bytes]:
    """A worker as a process of this machine, that dies with this one. Raises OSError."""
    guard = (sys.executable, "-S", "-E", str(GUARD), str(os.getpid()))
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("ab") as words:
        return subprocess.Popen(  # noqa: S603 - our own command
            [*guard, *argv], stdin=subprocess.DEVNULL, stdout=words, stderr=words,
            start_new_session=True, env={**os.environ, **environment},
        )  # fmt: skip


def last_words(log: Path) -> str:
    """What a worker said last."""
    words = [line for line in tail(log).splitlines() if line.strip()]
    return " ".join(words[-2:])[-TOLD:]


def end(*processes: Popen[bytes]) -> None:
    """Ask them to leave; whoever has not left in time is killed with what it started."""
    living = [process for process in processes if process.poll() is None]
    for process in living:
        with contextlib.suppress(ProcessLookupError):
            process.send_signal(signal.SIGINT)
    deadline = time.monotonic() + LEAVE_S
    for process in living:
        try:
            process.wait(max(0.0, deadline - time.monotonic()))
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


class LocalExecutor:
    """Processes here, each in a session of its own and under the guard of the kernel."""

    def __init__(self) -> None:
        self._started: dict[str, tuple[Popen[bytes], WorkerJob]] = {}

    def start(self, job: WorkerJob, name: str) -> None:
        """One more process. Raises InputError where the machine has no room for it."""
        try:
            process = started(job.argv, job.environment, job.log(name))
        except OSError as error:
            msg = f"worker {name} cannot be started: {error.strerror or error}"
            raise InputError(msg, "make room, or take fewer --workers") from None
        self._started[name] = (process, job)

    def states(self) -> list[WorkerState]:
        """How each is; of one that ended, the last that it said."""
        return [self._state(name, *found) for name, found in self._started.items()]

    def _state(self, name: str, process: Popen[bytes], job: WorkerJob) -> WorkerState:
        code = process.poll()
        if code is None:
            return WorkerState(name, "running")
        return WorkerState.of_exit(name, code, last_words(job.log(name)))

    def stop(self) -> None:
        """Ask all to leave; whoever has not left in time is killed with what it started."""
        end(*(process for process, _ in self._started.values()))

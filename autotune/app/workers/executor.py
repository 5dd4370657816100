"""Who starts the workers of a search, and where: processes of this machine, or a scheduler's jobs.

A worker is a command (`autotune worker ...`) that joins the search, measures what it is given and
leaves when nothing is left to measure. An executor only starts such commands and says how they are:
it hands out no work, and it loses none when it dies. Processes of this machine die with the search
that started them; other executors are `ray_cluster` and `slurm`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from dataclasses import field
from typing import TYPE_CHECKING, Literal, Protocol, Self

from autotune.domain.errors import InputError, Interrupted, NoLocalDevice
from autotune.frozen import dataclass
from autotune.probe.outcomes import tail
from autotune.probe.runner import GUARD
from autotune.search.study.refusals import AGAIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from subprocess import Popen

FINAL_CODES = (0, InputError.exit_code, NoLocalDevice.exit_code, Interrupted.exit_code)


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """One worker as an executor starts it.

    argv: the whole command, its interpreter first; it needs no other arguments and no input.
    folder: of the run; what a worker prints is kept in `log(name)`. device, count: what one worker
    occupies, by the catalogue's name (`cpu`: no GPU). environment: variables beside the inherited.
    """

    argv: tuple[str, ...]
    folder: Path
    device: str
    count: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """GPUs that one worker occupies."""
        return 0 if self.device == "cpu" else self.count

    def log(self, name: str) -> Path:
        """Where the words of a worker of that name are kept."""
        return self.folder / "workers" / f"{name}.log"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """How a worker is. code: of its exit, where it has ended and that is known.

    unheard: whether who runs it did not answer when it was asked, so that it is taken to run on.
    """

    name: str
    state: Literal["queued", "running", "ended"]
    code: int | None = None
    why: str = ""
    unheard: bool = False

    @classmethod
    def of_exit(cls, name: str, code: int, why: str) -> Self:
        """One that ended with that code; negative: the signal that killed it. why: its words."""
        return cls(name, "ended", code, f"killed by signal {-code}" if code < 0 else why)

    @property
    def is_final(self) -> bool:
        """Whether it ended of its own accord.

        One that was killed, or that a server did not answer for long, may be started again.
        """
        return self.state == "ended" and self.code in FINAL_CODES and AGAIN not in self.why


class Executor(Protocol):
    """Starts workers. Raises InputError where it cannot, before anything was started."""

    def start(self, job: WorkerJob, name: str) -> None:
        """Start one worker. name: unlike every other of this run; its log is called so."""

    def states(self) -> Sequence[WorkerState]:
        """How every worker is that was started here, in the order of their start."""

    def stop(self) -> None:
        """End all of them and wait for that; called once, also after an error or Ctrl-C."""


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

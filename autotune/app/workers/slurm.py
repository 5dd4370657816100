"""Workers as jobs of Slurm, through its own commands: sbatch, squeue, scancel.

The run's folder must be one that the nodes see under the same path. Partition, account, time limit
and constraints are sbatch's own to read, from SBATCH_PARTITION, SBATCH_ACCOUNT, SBATCH_TIMELIMIT,
SBATCH_CONSTRAINT and so on. A job that outlives the search that started it is taken over by the
next search in that folder.
Source: Slurm 24.11, sbatch(1) (--parsable, input environment variables), squeue(1), scancel(1).
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import time
from typing import TYPE_CHECKING

from autotune.app.workers.executor import TOLD, WorkerState, last_words
from autotune.catalog.files import write_whole
from autotune.domain.errors import InputError
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from autotune.app.workers.executor import WorkerJob

COMMANDS = ("sbatch", "squeue", "scancel")
ANSWER_S = 60.0  # for the controller to answer
LEAVE_S = 60.0  # for jobs to go: Slurm's own KillWait is 30 s
POLL_S = 0.5
ASK_S = 5.0  # between two questions to the controller, which all users of the cluster share
LOST = "Slurm ended it without an exit code: its node failed, its time was up, or it was cancelled"
_ID = re.compile(r"(\d+)(?:;[\w.-]+)?")
_WAITING = {"PENDING", "CONFIGURING", "REQUEUED", "REQUEUE_HOLD", "SPECIAL_EXIT", "RESV_DEL_HOLD"}


@dataclass(frozen=True, slots=True)
class _Submitted:
    """A job of Slurm, and where its log, its exit code and its number are kept."""

    number: str
    log: Path

    @property
    def code_file(self) -> Path:
        return self.log.with_suffix(".exit")

    @property
    def number_file(self) -> Path:
        return self.log.with_suffix(".slurm")


class SlurmExecutor:
    """Jobs of the cluster that this machine submits to. Raises InputError where there is none."""

    def __init__(self) -> None:
        """Find the commands."""
        missing = [name for name in COMMANDS if shutil.which(name) is None]
        if missing:
            msg = f"--executor slurm needs {', '.join(missing)}, which this machine does not have"
            raise InputError(msg, "start the search on a login node of the cluster")
        self._jobs: dict[str, _Submitted] = {}
        self._survivors: list[_Submitted] | None = None
        self._heard: tuple[float, dict[str, str] | InputError] | None = None  # when, and what

    def start(self, job: WorkerJob, name: str) -> None:
        """Submit one, or take over one that an earlier search left running in this folder."""
        log = job.log(name)
        try:
            log.parent.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            msg = f"{log.parent} cannot be made: {error.strerror or error}"
            raise InputError(msg, "--run DIR names a folder that the nodes share") from None
        self._heard = None
        if self._survivors is None:
            self._survivors = _survivors(log.parent)
        if self._survivors:
            self._jobs[name] = self._survivors.pop(0)
            return
        submitted = _Submitted("", log)
        submitted.code_file.unlink(missing_ok=True)
        own = {**os.environ, **job.environment}  # a script would show what is secret of it
        answer = _ask(_options(job, name, log), _script(job, submitted.code_file), own)
        found = _ID.fullmatch(answer.strip().splitlines()[-1].strip() if answer.strip() else "")
        if found is None:
            msg = f"sbatch answered {answer.strip()[:80]!r}, which is no job's number"
            raise InputError(msg, "`sbatch --parsable` prints it")
        submitted = _Submitted(found[1], log)
        write_whole(submitted.number_file, f"{submitted.number}\n")
        self._jobs[name] = submitted

    def states(self) -> list[WorkerState]:
        """How each is. What the controller does not answer about is taken to run on."""
        if not self._jobs:
            return []
        if self._heard is None or time.monotonic() - self._heard[0] >= ASK_S:
            said: dict[str, str] | InputError
            try:
                said = _queue([job.number for job in self._jobs.values()])
            except InputError as error:
                said = error
            self._heard = time.monotonic(), said
        _, heard = self._heard
        if isinstance(heard, InputError):
            return [self._ended(n, j) or WorkerState(n, "running", why=heard.message, unheard=True)
                    for n, j in self._jobs.items()]  # fmt: skip
        return [self._state(name, job, heard) for name, job in self._jobs.items()]

    def _state(self, name: str, job: _Submitted, queued: dict[str, str]) -> WorkerState:
        ended = self._ended(name, job)
        if ended is not None:
            return ended
        if job.number not in queued:
            return WorkerState(name, "ended", None, LOST)
        state, _, why = queued[job.number].partition("|")
        if state in _WAITING:
            return WorkerState(name, "queued", why=": ".join(filter(None, (state.lower(), why))))
        return WorkerState(name, "running", why=state.lower())

    @staticmethod
    def _ended(name: str, job: _Submitted) -> WorkerState | None:
        """The state of one that left its exit code; None while there is none."""
        try:
            text = job.code_file.read_text(encoding="utf-8").strip()
        except OSError:
            return None
        if not text.isdecimal():  # still being written
            return None
        return WorkerState.of_exit(name, int(text), last_words(job.log))

    def stop(self) -> None:
        """Cancel what is queued or running, and wait until Slurm has ended it."""
        self._heard = None
        numbers = [job.number for job in (*self._jobs.values(), *(self._survivors or ()))]
        if not numbers:
            return
        try:
            _ask(["scancel", *numbers])
            deadline = time.monotonic() + LEAVE_S
            while _queue(numbers) and time.monotonic() < deadline:
                time.sleep(POLL_S)
        except InputError:
            return  # the controller is gone: what still runs is taken over by the next search
        for job in self._jobs.values():
            job.number_file.unlink(missing_ok=True)


def _options(job: WorkerJob, name: str, log: Path) -> list[str]:
    """Sbatch with what a worker needs; no requeue: the search itself starts another."""
    # A processor is a node with all its cores: sbatch itself gives a task one.
    gpus = [f"--gpus-per-node={job.gpus}"] if job.gpus else ["--exclusive"]
    return [
        "sbatch", "--parsable", "--no-requeue", "--nodes=1", "--ntasks=1", *gpus,
        f"--job-name=autotune-{name}", f"--output={log}", "--open-mode=append",
        f"--chdir={job.folder}", "--export=ALL",
    ]  # fmt: skip


def _script(job: WorkerJob, code_file: Path) -> str:
    """The job: the worker in a process of its own, and its exit code in a file beside its log."""
    part = shlex.quote(f"{code_file}.part")
    return "\n".join([
        "#!/bin/sh", shlex.join(job.argv), "code=$?",
        f"echo $code > {part} && mv -f {part} {shlex.quote(str(code_file))}", "exit $code", "",
    ])  # fmt: skip


def _survivors(folder: Path) -> list[_Submitted]:
    """Jobs that an earlier search submitted here and that Slurm still has."""
    known = []
    for path in sorted(folder.glob("*.slurm")):
        try:
            number = path.read_text(encoding="utf-8").strip()
        except OSError:
            continue
        if number.isdecimal():
            known.append(_Submitted(number, path.with_suffix(".log")))
    alive = _queue([job.number for job in known]) if known else {}
    return [job for job in known if job.number in alive]


def _queue(numbers: Sequence[str]) -> dict[str, str]:
    """State and reason, by number, of those jobs that Slurm still has; in time it forgets them."""
    answer = _ask(["squeue", "--noheader", "--me", "--states=all", "--format=%i|%T|%r"])
    rows = (line.strip().partition("|") for line in answer.splitlines())
    over = {
        "BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY",
        "PREEMPTED", "TIMEOUT", "REVOKED",
    }  # fmt: skip
    return {n: s for n, _, s in rows if n in numbers and s.partition("|")[0] not in over}


def _ask(
    command: Sequence[str], stdin: str | None = None, environment: Mapping[str, str] | None = None
) -> str:
    """What a command of Slurm printed. Raises InputError with its own words where it failed."""
    try:
        done = subprocess.run(  # noqa: S603 - Slurm's own commands
            list(command), input=stdin, capture_output=True, text=True, timeout=ANSWER_S,
            check=False, errors="replace", env=environment,
        )  # fmt: skip
    except (OSError, subprocess.TimeoutExpired) as error:
        msg = f"{command[0]} did not answer: {type(error).__name__}"
        raise InputError(msg, "`sinfo` says whether Slurm runs") from None
    if done.returncode:
        lines = (done.stderr or done.stdout).splitlines()
        said = "; ".join(line.removeprefix(f"{command[0]}: error: ").strip() for line in lines)
        msg = f"{command[0]} refused: {said[:TOLD]}"
        raise InputError(
            msg, "`sinfo` says whether Slurm runs here; SBATCH_PARTITION, SBATCH_ACCOUNT and so on "
            "are sbatch's to read"
        )  # fmt: skip
    return done.stdout

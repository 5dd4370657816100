"""Probes of one search through one process that imports torch once: `worker/server` forks each.

A probe has a process of its own here as with `Runner`: its own memory, its own output, its own
ending. What cannot be served so runs in one that was started for it alone: several devices, a limit
on memory, variables that must be there before the first import, another attempt after a failure,
and the run that confirms the pick, which nothing that a server might do can have touched.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import sys
import time
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Self

from autotune.catalog.locks import own_folder
from autotune.probe import runner
from autotune.probe.outcomes import read_result
from autotune.probe.runner import OF_SESSION, POLL_S, Runner, kill_all, worker_environment
from autotune.probe.watch import Watch
from autotune.probe.worker.contract import PRINTED_FILE, TOUCHED, read_ending

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.probe.outcomes import Ending
    from autotune.probe.record import ProbeRecord
    from autotune.probe.runner import Place

CONFIRM = "confirm"  # the role of a run that is the answer's own
# What torch and the driver say in a fork of a process that had begun CUDA.
UNUSABLE = ("no CUDA device", "forked", "initialization error")
MOST_IN_VAIN = 2  # servers that could not serve, until none is started any more


def alone(request: dict[str, Any], role: str = "search") -> bool:
    """Whether a probe imports everything for itself, since no server may fork it."""
    limited = request.get("memory_limit_bytes") or request.get("environment")
    return role == CONFIRM or bool(limited) or int(request.get("count", 1)) > 1


class Served:
    """A probe in a fork of the server, waited for as for a process."""

    def __init__(self, server: subprocess.Popen[bytes], folder: Path) -> None:
        """folder: of the probe; its request lies there."""
        self.server, self.folder = server, folder

    def ask(self) -> None:
        """Have it begin. A server that is gone is seen by polling."""
        with contextlib.suppress(OSError):
            if self.server.stdin is not None:
                self.server.stdin.write(json.dumps(str(self.folder)).encode() + b"\n")
                self.server.stdin.flush()

    def poll(self) -> int | None:
        """Its exit code, or that of its server; None while it goes on."""
        over = self.server.poll()  # read first: an ending may be told just before
        told = read_ending(self.folder)
        return told if told is not None else over

    def wait(self, timeout: float | None = None) -> int | None:
        """A moment."""
        time.sleep(timeout or POLL_S)
        return self.poll()

    @property
    def began(self) -> bool:
        """Whether it ever ran: then what it printed has a file."""
        return (self.folder / PRINTED_FILE).exists()


class Session(Runner):
    """A runner that imports once for all of its probes. Close it, or use it as a context."""

    def __init__(self, place: Place) -> None:
        """The server starts with the first probe."""
        super().__init__(place)
        self.starts = 0
        self._server: subprocess.Popen[bytes] | None = None
        self._mark = ""
        self._in_vain = 0 if sys.platform == "linux" else MOST_IN_VAIN
        self._alone = False
        self._own = ExitStack()
        self._folder: Path | None = None

    def __enter__(self) -> Self:
        """Use as a context manager: the server ends with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the server."""
        self.close()

    def close(self) -> None:
        """End the server and whatever it is doing; another probe starts another one."""
        if self._server is not None:
            kill_all(self._server, self._mark)
            if self._server.stdin:
                with contextlib.suppress(OSError):
                    self._server.stdin.close()
            self._server = None
        self._own.close()
        self._folder = None

    def run(
        self, request: dict[str, Any], config: dict[str, Any], *,
        predicted: dict[str, float] | None = None, role: str = "search",
        timeout_s: float | None = None,
    ) -> ProbeRecord:  # fmt: skip
        """One probe, as `Runner.run`; another attempt is made in a process that nobody served."""
        self._alone = alone(request, role)
        return super().run(request, config, predicted=predicted, role=role, timeout_s=timeout_s)

    @property
    def serving(self) -> bool:
        """Whether the next probe finds its imports made."""
        return self._server is not None and self._server.poll() is None

    def _process(
        self, folder: Path, result_path: Path, request: dict[str, Any], timeout_s: float
    ) -> tuple[Ending, dict[str, Any]]:
        if self._alone or self._in_vain >= MOST_IN_VAIN:
            return super()._process(folder, result_path, request, timeout_s)
        self._alone = True
        begun = time.monotonic()
        watch = Watch(self.place.local, self.on_phase)
        watch.before()
        kills = runner.oom_kills()
        code, interrupted, ended_for, served = None, False, "", None
        try:
            served = Served(self._started(), folder)
            served.ask()
            ended_for = runner.wait(served, timeout_s, watch, folder)
            code = served.poll()
        except KeyboardInterrupt:
            interrupted = True
        finally:
            if code is None or served is None or served.server.poll() is not None:
                self.close()  # it hangs, was interrupted, or took its server along
        unserved = code is not None and served is not None and not served.began
        if unserved or _without_cuda(result_path, request):
            again = unserved and code != TOUCHED
            self._in_vain += 1 if again else MOST_IN_VAIN
            result_path.unlink(missing_ok=True)
            left = max(timeout_s - (time.monotonic() - begun), POLL_S)
            return super()._process(folder, result_path, request, left)
        ending = runner.ending_of(
            folder, code, watch, kills, interrupted=interrupted, ended_for=ended_for
        )
        return ending, watch.summary()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._server is not None and self.serving:
            return self._server
        self.close()
        self._folder = self._own.enter_context(own_folder(self.place.folder, OF_SESSION))
        self._mark = secrets.token_hex(8)
        self.starts += 1
        with (self._folder / PRINTED_FILE).open("wb") as errors:
            self._server = subprocess.Popen(  # noqa: S603 - our own interpreter and worker
                self.command("--serve"), stdin=subprocess.PIPE, stdout=errors,
                stderr=errors, cwd=self._folder, start_new_session=True,
                env=worker_environment(self.place, self._mark),
            )  # fmt: skip
        return self._server


def _without_cuda(result_path: Path, request: dict[str, Any]) -> bool:
    """Whether a fork could not use the GPU: something touched it while the server imported."""
    if request.get("device") != "cuda":
        return False
    found = read_result(result_path, request["key"])
    return (
        not isinstance(found, str)
        and found["status"] in {"unsupported", "cuda_error"}
        and any(word in str(found.get("message", "")) for word in UNUSABLE)
    )

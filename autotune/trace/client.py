"""Asking the traced process: start it, wait with a limit, check and cache what it answered.

A trace that crashes, hangs, answers nonsense or cannot be built kills nothing: it comes back as
`TraceFailed`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import signal
import subprocess
import sys
import tempfile
import time
from typing import IO, TYPE_CHECKING, Any, Self

from autotune.catalog.files import home_dir, write_whole
from autotune.catalog.software import installed_versions
from autotune.trace.answers import Traced, TraceFailed, read_recorded, read_traced, recorded

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.trace.request import StepRequest

TRACED = ("torch", "transformers", "peft")
__all__ = ["TraceFailed", "Traced", "Tracer", "traced_versions"]

START_LIMIT_S = 120.0  # importing torch, transformers and peft on a busy machine
TRACE_LIMIT_S = 60.0
RUN_LIMIT_S = 600.0  # three steps of a deep model: 0.1 ms an op, more on a busy machine
LONGEST_ANSWER = 1 << 20  # [bytes] of one line
SCHEMA = 6  # part of the cache key: raise it when the tracker counts differently
WORKER = (sys.executable, "-m", "autotune.trace.worker")


class Tracer:
    """One traced process, started on the first request that the cache cannot answer."""

    def __init__(
        self,
        *,
        cache: Path | None = None,
        limit_s: float = TRACE_LIMIT_S,
        run_limit_s: float = RUN_LIMIT_S,
        command: Sequence[str] = WORKER,
    ) -> None:
        """Keep the cache folder (default: below the user's state folder) and the time limits."""
        self.cache = cache or home_dir() / "traces"
        self.limit_s, self.run_limit_s = limit_s, run_limit_s
        self.versions: dict[str, str] = {}
        self._command = tuple(command)
        self._process: subprocess.Popen[bytes] | None = None
        self._said: IO[bytes] | None = None  # the process's stderr
        self._online = False
        self._buffer = b""

    def __enter__(self) -> Self:
        """Use as a context manager: the process ends with the block."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the process."""
        self.close()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
            self._buffer = b""
        if self._said is not None:
            self._said.close()
            self._said = None

    def trace(self, request: StepRequest, *, full: bool = False) -> Traced | TraceFailed:
        """The peak of one step, from two small depths or at full depth."""
        return self._answer(request, {"full": full}, self.limit_s)

    def run(
        self, request: StepRequest, *, capacity_bytes: int, blas_bytes: int = 0
    ) -> Traced | TraceFailed:
        """The first three steps at full depth, through a simulated caching allocator.

        Args:
            request: what is trained.
            capacity_bytes: what the device can give to the allocator.
            blas_bytes: workspaces of the matrix library inside the allocator, for both threads.
        """
        asked = {"capacity": capacity_bytes, "blas": blas_bytes}
        return self._answer(request, asked, self.run_limit_s)

    def _answer(
        self, request: StepRequest, asked: dict[str, Any], limit_s: float
    ) -> Traced | TraceFailed:
        path = self.cache / f"{_key(request, asked)}.json"
        kept = None if request.remote else read_recorded(path)  # foreign code may have changed
        if kept is not None:
            return kept
        failed = self._start(online=bool(request.remote))
        if failed is not None:
            return failed
        answer = self._ask({"request": request.as_json(), **asked}, limit_s)
        if isinstance(answer, TraceFailed):
            self.close()
            return answer
        if "failed" in answer:
            return TraceFailed("unsupported", str(answer["failed"]))
        found = read_traced(answer, self.versions)
        if isinstance(found, TraceFailed):
            self.close()
        elif not request.remote:
            self._record(path, found)
        return found

    def _record(self, path: Path, found: Traced) -> None:
        with contextlib.suppress(OSError):  # a cache that cannot be written is only slower
            self.cache.mkdir(parents=True, exist_ok=True)
            write_whole(path, recorded(found))

    def _start(self, *, online: bool) -> TraceFailed | None:
        """A running process. The hub is only within reach where a model's own code may run."""
        running = self._process is not None and self._process.poll() is None
        if running and online == self._online:
            return None
        if not traced_versions():
            return TraceFailed("missing", "torch, transformers and peft are not installed")
        self.close()
        environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error"}
        if not online:
            environment["HF_HUB_OFFLINE"] = "1"
        self._online = online
        try:
            self._said = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the process
            self._process = subprocess.Popen(  # noqa: S603 - our own command
                self._command,
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self._said,
                env=environment,
            )  # fmt: skip
        except OSError as error:
            self.close()
            return TraceFailed("crash", f"the traced process did not start: {error}")
        hello = self._read(START_LIMIT_S)
        if not isinstance(hello, TraceFailed) and isinstance(hello.get("versions"), dict):
            self.versions = {str(name): str(text) for name, text in hello["versions"].items()}
            return None
        self.close()
        if isinstance(hello, TraceFailed):
            return hello
        return TraceFailed("garbage", "the traced process did not say its versions")

    def _ask(self, message: dict[str, Any], limit_s: float) -> dict[str, Any] | TraceFailed:
        process = self._process
        if process is None or process.stdin is None:
            return TraceFailed("crash", "the traced process is not running")
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        except OSError:
            return TraceFailed("crash", self._end(process))
        return self._read(limit_s)

    def _read(self, limit_s: float) -> dict[str, Any] | TraceFailed:
        """The next line of the process, as a JSON object."""
        process = self._process
        if process is None or process.stdout is None:
            return TraceFailed("crash", "the traced process is not running")
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            left = max(deadline - time.monotonic(), 0.0)
            ready, _, _ = select.select([process.stdout], [], [], left)
            if not ready:
                return TraceFailed("timeout", f"no answer within {limit_s:g} s")
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                return TraceFailed("crash", self._end(process))
            self._buffer += data
            if len(self._buffer) > LONGEST_ANSWER:
                return TraceFailed("garbage", "the traced process does not stop talking")
        line, _, self._buffer = self._buffer.partition(b"\n")
        try:
            found = json.loads(line)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            return TraceFailed("garbage", "the traced process answered something else than JSON")
        return found

    def _end(self, process: subprocess.Popen[bytes]) -> str:
        """How the process ended, and the last line it said."""
        code = process.wait()
        how = f"with exit code {code}"
        if code < 0:
            with contextlib.suppress(ValueError):
                how = f"by {signal.Signals(-code).name}"
        last = ""
        if self._said is not None:
            self._said.seek(0)
            lines = self._said.read()[-2000:].decode("utf-8", "replace").split("\n")
            last = next((line.strip() for line in reversed(lines) if line.strip()), "")
        return f"the traced process ended {how}" + (f": {last[:160]}" if last else "")


def _key(request: StepRequest, asked: dict[str, Any]) -> str:
    text = json.dumps([SCHEMA, traced_versions(), asked, request.as_json()], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def traced_versions() -> dict[str, str]:
    """Versions of what would be traced; empty when any of it is missing. Imports none of it."""
    found = installed_versions(TRACED)
    return found if len(found) == len(TRACED) else {}

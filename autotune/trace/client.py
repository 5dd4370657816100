"""Asking the traced process: start it, wait with a limit, cache what it answered.

A trace that crashes, hangs or cannot be built kills nothing: it comes back as `TraceFailed`.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import select
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from autotune.catalog.home import home_dir

if TYPE_CHECKING:
    from types import TracebackType

    from autotune.trace.request import StepRequest

START_LIMIT_S = 120.0  # importing torch, transformers and peft on a busy machine
TRACE_LIMIT_S = 60.0
SCHEMA = 4  # part of the cache key: raise it when the tracker counts differently


@dataclass(frozen=True, slots=True)
class Traced:
    """[bytes] the peak of one step, what it held, and the op and phase where it was reached."""

    peak_bytes: float
    parts: dict[str, float]
    phases: dict[str, float]
    phase: str
    op: str
    depths: tuple[int, ...]
    seconds: float
    versions: dict[str, str]
    cached: bool = False


@dataclass(frozen=True, slots=True)
class TraceFailed:
    """Why there is no trace: kind is crash | timeout | unsupported | missing."""

    kind: str
    message: str


class Tracer:
    """One traced process, started on the first request that the cache cannot answer."""

    def __init__(self, *, cache: Path | None = None, limit_s: float = TRACE_LIMIT_S) -> None:
        """Keep the cache folder (default: below the user's state folder) and the time limit."""
        self.cache = cache or home_dir() / "traces"
        self.limit_s = limit_s
        self.versions: dict[str, str] = {}
        self._process: subprocess.Popen[bytes] | None = None
        self._buffer = b""

    def __enter__(self) -> Self:
        """Use as a context manager: the process ends with the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process."""
        self.close()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None
            self._buffer = b""

    def trace(self, request: StepRequest, *, full: bool = False) -> Traced | TraceFailed:
        """The peak of one step: from the cache, else traced now."""
        key = self._key(request, full=full)
        recorded = self._recorded(key)
        if recorded is not None:
            return recorded
        started = self._start()
        if started is not None:
            return started
        answer = self._ask({"request": request.as_json(), "full": full})
        if isinstance(answer, TraceFailed):
            return answer
        if "failed" in answer:
            return TraceFailed("unsupported", answer["failed"])
        found = Traced(
            peak_bytes=answer["peak_bytes"], parts=answer["parts"], phases=answer["phases"],
            phase=answer["phase"], op=answer["op"], depths=tuple(answer["depths"]),
            seconds=answer["seconds"], versions=self.versions,
        )  # fmt: skip
        self._record(key, found)
        return found

    def _key(self, request: StepRequest, *, full: bool) -> str:
        text = json.dumps([SCHEMA, installed_versions(), full, request.as_json()])
        return hashlib.sha256(text.encode()).hexdigest()[:32]

    def _recorded(self, key: str) -> Traced | None:
        path = self.cache / f"{key}.json"
        with contextlib.suppress(OSError, ValueError, TypeError, KeyError):
            fields = json.loads(path.read_text(encoding="utf-8"))
            fields["depths"] = tuple(fields["depths"])
            return Traced(**{**fields, "cached": True})
        return None

    def _record(self, key: str, found: Traced) -> None:
        with contextlib.suppress(OSError):  # a cache that cannot be written is only slower
            self.cache.mkdir(parents=True, exist_ok=True)
            handle, name = tempfile.mkstemp(dir=self.cache)
            with os.fdopen(handle, "w", encoding="utf-8") as stream:
                json.dump(asdict(found), stream)
            Path(name).replace(self.cache / f"{key}.json")

    def _start(self) -> TraceFailed | None:
        if self._process is not None and self._process.poll() is None:
            return None
        if not installed_versions():
            return TraceFailed("missing", "torch, transformers and peft are not installed")
        self.close()
        environment = {**os.environ, "TRANSFORMERS_VERBOSITY": "error", "HF_HUB_OFFLINE": "1"}
        self._process = subprocess.Popen(
            [sys.executable, "-m", "autotune.trace.worker"],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
            env=environment,
        )  # fmt: skip
        hello = self._read(START_LIMIT_S)
        if isinstance(hello, TraceFailed):
            self.close()
            return hello
        self.versions = hello["versions"]
        return None

    def _ask(self, message: dict[str, Any]) -> dict[str, Any] | TraceFailed:
        process = self._process
        if process is None or process.stdin is None:
            return TraceFailed("crash", "the traced process is not running")
        try:
            process.stdin.write(json.dumps(message).encode() + b"\n")
            process.stdin.flush()
        except OSError as error:
            self.close()
            return TraceFailed("crash", f"the traced process ended: {error}")
        answer = self._read(self.limit_s)
        if isinstance(answer, TraceFailed):
            self.close()
        return answer

    def _read(self, limit_s: float) -> dict[str, Any] | TraceFailed:
        process = self._process
        if process is None or process.stdout is None:
            return TraceFailed("crash", "the traced process is not running")
        deadline = time.monotonic() + limit_s
        while b"\n" not in self._buffer:
            ready, _, _ = select.select([process.stdout], [], [], deadline - time.monotonic())
            if not ready:
                return TraceFailed("timeout", f"no answer within {limit_s:.0f} s")
            data = os.read(process.stdout.fileno(), 1 << 16)
            if not data:
                return TraceFailed("crash", f"the traced process ended with {process.wait()}")
            self._buffer += data
        line, _, self._buffer = self._buffer.partition(b"\n")
        found: dict[str, Any] = json.loads(line)
        return found


def installed_versions() -> dict[str, str]:
    """Versions of what would be traced; empty when any of it is missing. Imports none of it."""
    from importlib.metadata import PackageNotFoundError, version

    try:
        return {name: version(name) for name in ("torch", "transformers", "peft")}
    except PackageNotFoundError:
        return {}

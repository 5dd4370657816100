"""A worker that stays: many configurations without importing torch again for each.

For sweeps. The process cleans up between configurations and is started anew after a sticky error,
a time-out or a crash; a configuration that such a process spoiled is run once more on its own.
Isolation is weaker than the runner's: what one configuration leaves behind may slow the next.
"""

from __future__ import annotations

import contextlib
import json
import secrets
import subprocess
import time
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from autotune.catalog.locks import own_folder
from autotune.probe.outcomes import INTERRUPTED, judged, read_result
from autotune.probe.runner import Runner, excess, kill_all, worker_environment
from autotune.probe.watch import Watch, disturbed
from autotune.probe.worker.contract import STUCK

if TYPE_CHECKING:
    from types import TracebackType

    from autotune.probe.record import ProbeRecord
    from autotune.probe.runner import Place

POLL_S = 0.05
SPOILING = ("oom_device", "oom_host", "cuda_error", "nccl_error")


class Session:
    """Answers requests through one worker process for as long as that is usable."""

    def __init__(self, place: Place) -> None:
        """The worker starts with the first request."""
        self.runner = Runner(place)
        self.place = self.runner.place
        self.starts = 0
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = ""
        self._own = ExitStack()
        self._folder = self._own.enter_context(own_folder(self.place.folder, "session-"))

    def __enter__(self) -> Self:
        """Use as a context manager: the process ends with the block."""
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """End the process and remove its folder."""
        self.close()
        self._own.close()

    def close(self) -> None:
        """End the process, whatever it is doing."""
        if self._process is not None:
            kill_all(self._process, self._mark)
            if self._process.stdin:
                with contextlib.suppress(OSError):
                    self._process.stdin.close()
            self._process = None

    def run(
        self, request: dict[str, Any], config: dict[str, Any], *,
        predicted: dict[str, float] | None = None, role: str = "search",
        timeout_s: float | None = None,
    ) -> ProbeRecord:  # fmt: skip
        """One configuration, as `Runner.run`.

        What the kept process could not answer runs on its own, in what is left of its time.
        """
        predicted = predicted or {}
        limited = request.get("memory_limit_bytes") or request.get("environment")
        if limited or int(request.get("count", 1)) > 1:  # what a process has cannot be taken back
            return self.runner.run(
                request, config, predicted=predicted, role=role, timeout_s=timeout_s
            )
        begun = time.monotonic()
        record = self._run(request, config, predicted, timeout_s or self.place.timeout_s)
        return replace(
            record, wall_s=time.monotonic() - begun, role=role, predicted=predicted
        )  # fmt: skip

    def _run(
        self, request: dict[str, Any], config: dict[str, Any], predicted: dict[str, float],
        limit: float,
    ) -> ProbeRecord:  # fmt: skip
        begun = time.monotonic()
        watch = Watch(self.place.local)
        watch.before()
        try:
            found = self._ask(request, limit, watch)
            if found is None and self._gave_up:  # after the last answer: it never saw this one
                found = self._ask(request, limit, watch)
        except KeyboardInterrupt:
            self.close()
            return self.runner.record(request, config, INTERRUPTED, "stopped by the user", {})
        if found is None:
            self.close()
            left = limit - (time.monotonic() - begun)
            if left <= 0:
                message = "no result within its time"
                return self.runner.record(request, config, "timeout", message, {})
            return self.runner.run(request, config, predicted=predicted, timeout_s=left)
        status, message = judged(found, predicted.get("step_s"))
        if status in SPOILING:
            self.close()
        record = self.runner.record(request, config, status, message, found)
        readings = watch.summary()
        told = disturbed(found, readings) if record.ok else []
        return replace(record, readings=readings, disturbed=told)

    @property
    def _gave_up(self) -> bool:
        return self._process is not None and self._process.poll() == STUCK

    def _ask(
        self, request: dict[str, Any], limit_s: float, watch: Watch
    ) -> dict[str, Any] | None:  # fmt: skip
        """The kept process's answer; None when it gave none that can be believed."""
        name = secrets.token_hex(4)
        asked, result = self._folder / f"{name}.json", self._folder / f"{name}.result.json"
        asked.write_text(json.dumps({**request, "work_dir": str(self._folder)}), encoding="utf-8")
        process = self._started()
        deadline = time.monotonic() + limit_s
        try:
            if process.stdin is None:
                return None
            process.stdin.write(json.dumps([str(asked), str(result)]).encode() + b"\n")
            process.stdin.flush()
            while not result.exists() and time.monotonic() < deadline:
                if process.poll() is not None and not result.exists():
                    return None
                if excess(self._folder):
                    return None
                watch.sample()
                time.sleep(POLL_S)
            found = read_result(result, request["key"])
        except OSError:
            return None
        finally:
            asked.unlink(missing_ok=True)
            result.unlink(missing_ok=True)
        return None if isinstance(found, str) else found

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is not None and self._process.poll() is None:
            return self._process
        self.close()
        self._mark = secrets.token_hex(8)
        self.starts += 1
        errors = (self._folder / "stderr").open("wb")
        with errors:
            self._process = subprocess.Popen(  # noqa: S603 - our own interpreter and worker
                self.runner.command("--serve"), stdin=subprocess.PIPE, stdout=errors,
                stderr=errors, cwd=self._folder, start_new_session=True,
                env=worker_environment(self.place, self._mark),
            )  # fmt: skip
        return self._process

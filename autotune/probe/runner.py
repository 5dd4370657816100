"""Running one worker so that nothing it does reaches us, and nothing of it stays behind.

Own session, own folder, a time limit, the whole group killed in the end (also after success),
strays found by a mark in their environment, killed by the kernel should this process die.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from autotune.catalog.files import read_regular
from autotune.catalog.locks import own_folder, take_away_dead
from autotune.domain.config import UNSET
from autotune.domain.paths import near, whole
from autotune.domain.units import GIB
from autotune.frozen import dataclass
from autotune.probe import device as devices
from autotune.probe.lease import leased
from autotune.probe.outcomes import (
    MAX_RESULT_BYTES,
    NO_ROOM,
    OK,
    RETRIED,
    Ending,
    explained,
    judged,
    keep_log,
    read_result,
    root_cause,
    tail,
    unexplained,
    without_secrets_in,
)
from autotune.probe.record import ProbeRecord
from autotune.probe.watch import Watch, disturbed
from autotune.probe.worker.contract import PRINTED_FILE, RESULT_FILE
from autotune.probe.worker.disturbance import MARK

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.probe.device import LocalDevice, OtherMachines
    from autotune.probe.worker.contract import Phase

GUARD = Path(__file__).with_name("guard.py")
WORKER = ("-m", "autotune.probe.worker")
POLL_S = 0.05
SWEEPS = 5
BASELINE_WAIT_S = 20.0
BASELINE_SLACK_BYTES = 256 * 2**20
MOST_PRINTED_BYTES = 64 * 2**20  # what a worker may print: a loop that prints would fill the disk
LEAST_FREE_BYTES = 64 * 2**20  # on the disk of the probes: what is left for records
IDLE_BYTES = GIB  # of a GPU: a driver and a desktop hold less
DEFAULT_TIMEOUT_S = 300.0
OF_PROBE, OF_SESSION = "probe-", "session-"  # how names of folders begin, of one and of many probes


@dataclass(frozen=True, slots=True)
class Place:
    """Where probes run: the device, a folder on the disk that checkpoints go to, a time limit."""

    local: LocalDevice
    folder: Path
    timeout_s: float = DEFAULT_TIMEOUT_S
    worker: tuple[str, ...] = WORKER  # arguments of python; tests put a fake one here
    python: str = sys.executable
    logs: Path | None = None  # where the words of a probe that broke are kept
    meeting: OtherMachines | None = None  # with other machines, which take part in each probe


class Runner:
    """Runs requests one after another, each in a process of its own."""

    def __init__(self, place: Place) -> None:
        """Remember what the device holds now: that is what it must come back to.

        What the probes of killed processes left is taken away. `on_phase` may be set: it is told a
        running worker's phase and how long it has run [s].
        """
        place = replace(place, folder=whole(place.folder))  # a worker runs in a folder of its own
        self.place = place
        place.folder.mkdir(parents=True, exist_ok=True)
        take_away_dead(place.folder, OF_PROBE, OF_SESSION)
        self.baseline = self._used()
        self.on_phase: Callable[[Phase, float], None] | None = None

    @property
    def serving(self) -> bool:
        """Whether the next probe finds its imports made."""
        return False

    def close(self) -> None:
        """End what probes ran in: nothing stays between these."""

    def run(
        self, request: dict[str, Any], config: dict[str, Any], *,
        predicted: dict[str, float] | None = None, role: str = "search",
        timeout_s: float | None = None,
    ) -> ProbeRecord:  # fmt: skip
        """One probe, with one more attempt where another could end differently."""
        most_s = 2.0 * (timeout_s or self.place.timeout_s)  # two attempts
        meeting = self.place.meeting
        count = meeting.per_node if meeting else int(request.get("count", 1))
        held = _shown_to(self.place.local)[:count]
        what = f"({self.place.folder.parent})"
        with leased(held, self.on_phase, most_s=most_s, what=what):
            begun = time.monotonic()
            record = self._once(request, config, predicted or {}, timeout_s)
            if record.status in RETRIED:
                first, record = record, self._once(request, config, predicted or {}, timeout_s)
                before, now = (found.message.partition("\n")[0] for found in (first, record))
                if not record.ok and now != before:
                    both = f"{record.message}\nbefore that: {first.status}, {before}"
                    record = replace(record, message=both)
                record = replace(record, attempts=2)
        return replace(record, role=role, wall_s=time.monotonic() - begun)

    def _once(
        self, request: dict[str, Any], config: dict[str, Any], predicted: dict[str, float],
        timeout_s: float | None,
    ) -> ProbeRecord:  # fmt: skip
        held = self._wait_for_baseline()
        begun = time.monotonic()
        with own_folder(self.place.folder, OF_PROBE) as folder:
            result_path = folder / RESULT_FILE
            asked = {**request, "work_dir": str(folder)}
            (folder / "request.json").write_text(json.dumps(asked), encoding="utf-8")
            ending, readings = self._process(
                folder, result_path, request, timeout_s or self.place.timeout_s
            )
            found = read_result(result_path, request["key"])
            status, message, found = self._judged(found, ending, request, predicted)
            log = keep_log(self.place.logs, request["key"], status, found, folder / PRINTED_FILE)
            message = explained(status, message, found, ending.stderr, log)
        if status == "oom_device":
            held = max(held, self._wait_for_baseline())
        if held:
            readings["held_by_others_bytes"] = held
            if status == "oom_device" and held - (self.baseline or 0.0) > BASELINE_SLACK_BYTES:
                status = "invalid_result"
                message = f"out of memory while others held {held / GIB:.1f} GiB: {message}"
        record = self.record(request, config, status, message, found)
        return replace(
            record, wall_s=time.monotonic() - begun, readings=readings, predicted=predicted,
            disturbed=disturbed(found, readings) if record.ok else [],
        )  # fmt: skip

    def _judged(
        self, found: dict[str, Any] | str, ending: Ending, request: dict[str, Any],
        predicted: dict[str, float],
    ) -> tuple[str, str, dict[str, Any]]:  # fmt: skip
        """Status, message and what is kept of the result. A rank that failed fails the probe."""
        if ending.interrupted:  # also where the worker was just ending: Ctrl-C is never swallowed
            return *unexplained(ending, ""), {}
        if isinstance(found, str):
            return *unexplained(ending, found), {}
        first = found if found["status"] != OK else None
        failure = root_cause([*ending.rank_failures, *([first] if first else [])])
        if failure is not None:
            found = {**found, **failure, "key": found["key"]}
        status, message = judged(found, predicted.get("step_s"))
        refused = "ALLOC_FAILED" in str(found.get("message", ""))
        if status == "cuda_error" and refused and ending.device_was_full:
            status = "oom_device"
        other = _other_device(found, request, self.place.local)
        return ("invalid_result", other, {}) if other else (status, message, found)

    def record(
        self, request: dict[str, Any], config: dict[str, Any], status: str, message: str,
        result: dict[str, Any],
    ) -> ProbeRecord:  # fmt: skip
        """A record of a request on this runner's device, made now."""
        return ProbeRecord(
            key=request["key"], status=status, message=message, wall_s=0.0, config=config,
            device=self.place.local.name, fingerprint=devices.fingerprint(self.place.local),
            request={k: v for k, v in request.items() if k not in {"lengths", "model"}},
            result=result, when=datetime.now(UTC).isoformat(timespec="seconds"),
        )  # fmt: skip

    def _process(
        self, folder: Path, result_path: Path, request: dict[str, Any], timeout_s: float
    ) -> tuple[Ending, dict[str, Any]]:
        mark, count = secrets.token_hex(8), int(request.get("count", 1))
        if self.place.meeting is not None:
            self.place.meeting.begin(folder)
        kills = oom_kills()
        watch = Watch(self.place.local, self.on_phase)
        watch.before()
        with (folder / PRINTED_FILE).open("wb") as errors:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and worker
                self.command(str(folder / "request.json"), str(result_path), count=count),
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd=folder,
                start_new_session=True,
                env=worker_environment(self.place, mark, request.get("environment")),
            )  # fmt: skip
            interrupted, ended_for = False, ""
            try:
                ended_for = wait(process, timeout_s, watch, folder)
            except KeyboardInterrupt:
                interrupted = True
            finally:
                code = process.poll()
                kill_all(process, mark)
        ending = ending_of(folder, code, watch, kills, interrupted=interrupted, ended_for=ended_for)
        return ending, watch.summary()

    def command(self, *arguments: str, count: int = 1) -> Sequence[str]:
        """The worker's command line under its guard; on several devices under torchrun.

        arguments: the request's file, in a folder that is called as no other, and the result's.
        """
        python, worker = self.place.python, self.place.worker
        if self.place.meeting is not None:
            worker = (*self.place.meeting.launcher(Path(arguments[0]).parent.name), *worker)
        elif count > 1:
            worker = (
                "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(count),
                *worker,
            )  # fmt: skip
        guard = (python, "-S", "-E", str(GUARD), str(os.getpid()))
        return [*guard, python, *worker, *arguments]

    def _used(self) -> float | None:
        return None if self.place.local.is_cpu else devices.used_bytes(self.place.local.index)

    def _wait_for_baseline(self) -> float:
        """[bytes] of the device that somebody else holds, once our own are given back.

        A killed context frees late, so what is beyond the baseline is waited for. What was held
        before the first probe counts too: a record of it says nothing about an empty device.
        """
        if self.baseline is None:
            return 0.0
        deadline = time.monotonic() + BASELINE_WAIT_S
        while (used := self._used()) is not None:
            back = used - self.baseline <= BASELINE_SLACK_BYTES
            if back or time.monotonic() > deadline:
                return used if used > IDLE_BYTES else 0.0
            time.sleep(0.2)
        return 0.0


def worker_environment(
    place: Place, mark: str, own: Mapping[str, Any] | None = None
) -> dict[str, str]:
    """Ours, with the mark by which strays are found, and nothing fetched over a network.

    own: variables that the request states; they are there before the worker's first import.
    """
    found = {**os.environ, MARK: mark, "HF_HUB_OFFLINE": "1", "PYTHONFAULTHANDLER": "1"}
    for name, value in (own or {}).items():
        found.pop(name, None)
        if value != UNSET:
            found[name] = str(value)
    found["PYTHONPATH"] = os.pathsep.join(
        (str(Path(__file__).resolve().parents[2]), *_absolute_pythonpath())
    )
    if place.local.is_cpu:
        found["CUDA_VISIBLE_DEVICES"] = ""
    else:
        # The management library counts by bus; CUDA, left alone, by speed.
        found["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"
        shown = (gpu.uuid or str(gpu.index) for gpu in _shown_to(place.local))
        found["CUDA_VISIBLE_DEVICES"] = ",".join(shown)
    return found


def _absolute_pythonpath() -> list[str]:
    """The user's PYTHONPATH as it is meant here: a worker runs in another folder."""
    stated = os.environ.get("PYTHONPATH", "")
    return [str(whole(entry)) for entry in stated.split(os.pathsep)] if stated else []


def _shown_to(local: LocalDevice) -> list[LocalDevice]:
    """The device, and then the others of its kind in a circle: of two searches, others of each."""
    if local.is_cpu:
        return [local]
    here = devices.visible(devices.gpus(), os.environ.get("CUDA_VISIBLE_DEVICES"))
    alike = [gpu for gpu in here if gpu.name == local.name]
    at = next((n for n, gpu in enumerate(alike) if gpu.uuid == local.uuid), len(alike))
    return [local, *alike[at + 1 :], *alike[:at]]


def ending_of(
    folder: Path, code: int | None, watch: Watch, kills_before: int, *, interrupted: bool,
    ended_for: str,
) -> Ending:  # fmt: skip
    """How the process of a probe ended; kills_before: of this cgroup, by then."""
    return Ending(
        code=code,
        stderr=tail(folder / PRINTED_FILE),
        oom_kills=oom_kills() - kills_before,
        device_was_full=watch.was_full,
        interrupted=interrupted,
        rank_failures=_rank_failures(folder),
        ended_for=ended_for,
    )


class Waited(Protocol):
    """What can be waited for: a process, or a fork that a server tells of."""

    def poll(self) -> int | None:
        """Its exit code; None while it goes on."""

    def wait(self, timeout: float | None = None) -> int | None:
        """Wait for its end, so long [s] at most."""


def wait(process: Waited, timeout_s: float, watch: Watch, folder: Path) -> str:
    """Wait for the end or the deadline; why it may not go on, else an empty text."""
    deadline = time.monotonic() + timeout_s
    while process.poll() is None and time.monotonic() < deadline:
        watch.sample(folder)
        why = excess(folder)
        if why:
            return why
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(POLL_S)
    return ""


def excess(folder: Path) -> str:
    """What a worker has used too much of: output or disk. Empty while it is within bounds."""
    with contextlib.suppress(OSError):
        if (folder / PRINTED_FILE).stat().st_size > MOST_PRINTED_BYTES:
            return f"it printed more than {MOST_PRINTED_BYTES >> 20} MiB"
    with contextlib.suppress(OSError):
        free = shutil.disk_usage(folder).free
        if free < LEAST_FREE_BYTES:
            return f"{NO_ROOM}: {free >> 20} MiB are left in {near(folder.parent)}"
    return ""


def kill_all(process: subprocess.Popen[bytes], mark: str) -> None:
    """End the group, and whatever left the group but carries the mark."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for _ in range(SWEEPS):  # a process may start another while we look
        found = _marked(mark)
        for pid in found:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGKILL)
        if not found:
            return


def _marked(mark: str) -> list[int]:
    """Living processes whose environment carries the mark (Linux); a dead one has none."""
    wanted = f"{MARK}={mark}".encode()
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def _other_device(
    result: dict[str, Any], request: dict[str, Any], local: LocalDevice
) -> str:  # fmt: skip
    """Why a result is of another device than it should be; empty when it is not."""
    told = result.get("device") or {}
    if result["status"] != OK or request.get("device") != "cuda":
        return ""
    if told.get("kind") == "cuda" and told.get("name") == local.name:
        return ""
    return f"measured on {told.get('name')!r} instead of {local.name!r}"


def _rank_failures(folder: Path) -> tuple[dict[str, Any], ...]:
    found = []
    for path in sorted(folder.glob("result.rank*.json")):
        with contextlib.suppress(OSError, ValueError, AttributeError):
            found.append(without_secrets_in(json.loads(read_regular(path, MAX_RESULT_BYTES))))
    return tuple(found)


def oom_kills() -> int:
    """How often the kernel ended a process of this cgroup for memory."""
    for name in ("/sys/fs/cgroup/memory.events", "/sys/fs/cgroup/memory/memory.oom_control"):
        with contextlib.suppress(OSError, ValueError, IndexError):
            for line in Path(name).read_text(encoding="ascii").splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0

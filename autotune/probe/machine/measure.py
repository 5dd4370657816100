"""Measuring this machine: the worker's speeds, the disk's, what others took meanwhile.

The worker (`probe.worker.speeds`) runs in a process of its own under the rules of a probe: a lock
on the device, a time limit, nothing of it stays behind. What it had measured when it broke is kept.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import secrets
import shutil
import subprocess
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.catalog.files import read_regular
from autotune.catalog.software import install_command, installed_versions
from autotune.domain.device import Fact, MachineFacts
from autotune.domain.units import MB, format_bytes
from autotune.frozen import dataclass
from autotune.probe import runner
from autotune.probe.lease import leased
from autotune.probe.machine.kept import fact_of
from autotune.probe.outcomes import MAX_RESULT_BYTES, Ending, tail, unexplained
from autotune.probe.watch import Watch
from autotune.probe.worker import disturbance
from autotune.probe.worker.contract import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.probe.device import LocalDevice
    from autotune.probe.worker.contract import Phase

WORKER = ("-m", "autotune.probe.worker.speeds")
SECONDS = 40.0  # of the worker's parts; starting it and the disk come on top
PATIENCE = 4.0  # times the seconds, after which the worker is ended
STARTING_S = 60.0  # for the worker to load torch
PARTS = {
    "host": "one thread of the host", "matmul": "matrix products", "elementwise": "memory",
    "issue": "launch cost", "copies": "copies", "loader": "loader", "disk": "disk",
}  # fmt: skip
WRITTEN_BYTES = 128 * 2**20
CHUNK_BYTES = 4 * 2**20
LONGEST_WRITE_S = 5.0
ROOM = 4.0  # times what is written that must be free
WRITES = 3
SLOWED_SD = 0.2  # log sd of a figure of a device that was slowed down or shared: assumption


@dataclass(frozen=True, slots=True)
class NotMeasured:
    """A part that has no figures, and why."""

    part: str
    why: str


@dataclass(frozen=True, slots=True)
class Measurement:
    """What came of it: facts, what is missing, why some are doubtful, and what it cost."""

    found: MachineFacts
    missing: tuple[NotMeasured, ...]
    disturbed: tuple[str, ...]
    seconds: float


def measure(
    local: LocalDevice, folder: Path, *, seconds: float | None = None,
    on_phase: Callable[[Phase, float], None] | None = None,
) -> Measurement:  # fmt: skip
    """Measure the device, its host, and the disk of `folder`. Never raises for a missing part."""
    begun = time.monotonic()
    seconds = SECONDS if seconds is None else seconds
    facts: list[Fact] = []
    missing: list[NotMeasured] = []
    readings: dict[str, Any] = {}
    result: dict[str, Any] = {}
    disk = disk_write(folder)
    if isinstance(disk, Fact):
        facts.append(disk)
    else:
        missing.append(NotMeasured("disk", disk))
    if "torch" in installed_versions():
        with leased([local], on_phase):
            result, readings, why = _worker(local, seconds, on_phase)
    else:
        why = f"torch is not installed: {install_command('probe')}"
    told = _throttling(readings)
    found, lost = _read(result, told)
    facts += found
    missing += lost
    known = {each.part for each in missing} | set(result.get("parts", ()))
    missing += [NotMeasured(part, why) for part in PARTS if part not in known | {"disk"}]
    return Measurement(
        MachineFacts(
            tuple(facts), datetime.now(UTC).date().isoformat(),
            tuple(sorted(installed_versions().items())), int(result.get("threads", 0)),
            str(folder.resolve()),
        ),
        tuple(missing),
        tuple(dict.fromkeys([*told, *(why for fact in facts for why in fact.disturbed)])),
        time.monotonic() - begun,
    )  # fmt: skip


def _worker(
    local: LocalDevice, seconds: float, on_phase: Callable[[Phase, float], None] | None
) -> tuple[dict[str, Any], dict[str, Any], str]:
    """What the worker left, the device's readings, and why it left no more."""
    with tempfile.TemporaryDirectory(prefix="autotune-speeds-") as name:
        place = runner.Place(local, Path(name), worker=WORKER)
        key, mark, result = secrets.token_hex(8), secrets.token_hex(8), place.folder / "result.json"
        device = local.device or local.part_of
        request = {
            "key": key, "device": "cpu" if local.is_cpu else "cuda", "seconds": seconds,
            "work_dir": name,
            "precisions": [p for p in ("fp32", "tf32", "fp16", "bf16")
                           if device is None or device.peak_flop_per_s(p) > 0],
        }  # fmt: skip
        (place.folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        watch = Watch(local, on_phase)
        watch.before()
        with (place.folder / "stderr").open("wb") as errors:
            process = subprocess.Popen(  # noqa: S603 - our own interpreter and worker
                runner.Runner(place).command(str(place.folder / "request.json"), str(result)),
                stdin=subprocess.DEVNULL, stdout=errors, stderr=errors, cwd=name,
                start_new_session=True, env=runner.worker_environment(place, mark),
            )  # fmt: skip
            limit = STARTING_S + PATIENCE * seconds
            try:
                why = runner.wait(process, limit, watch, place.folder)
            finally:
                code = process.poll()
                runner.kill_all(process, mark)
        found = _result(result, key)
        ending = Ending(code, tail(place.folder / "stderr"), ended_for=why)
        return found, watch.summary(), unexplained(ending, "the worker left no result")[1]


def _result(path: Path, key: str) -> dict[str, Any]:
    """The worker's result as far as it came; empty where nothing of it can be believed."""
    with contextlib.suppress(OSError, ValueError, RecursionError):
        content = json.loads(read_regular(path, MAX_RESULT_BYTES))
        known = isinstance(content, dict) and content.get("schema_version") == SCHEMA_VERSION
        if known and content.get("key") == key:
            return dict(content)
    return {}


def _read(result: Mapping[str, Any], told: tuple[str, ...]) -> tuple[list[Fact], list[NotMeasured]]:
    """Facts and what is missing. told: why all of it is doubtful."""
    facts, missing = [], []
    for entry in result.get("facts", ()):
        with contextlib.suppress(ValueError, KeyError, TypeError):
            wider = math.hypot(float(entry["log_sd"]), SLOWED_SD if told else 0.0)
            why = [*told, *entry["disturbed"]]
            facts.append(fact_of({**entry, "log_sd": wider, "disturbed": why}))
    for entry in result.get("not_measured", ()):
        missing += [NotMeasured(str(entry["name"]), str(entry["why"]))]
    return facts, missing


def _throttling(readings: Mapping[str, Any]) -> tuple[str, ...]:
    """Why a GPU's figures are not its own pace: it was slowed down, or others computed on it."""
    seen = {name: readings[name] for name in ("throttled_by", "busy_before") if name in readings}
    return tuple(disturbance.disturbances({**seen, "device": "cuda"}))


def disk_write(folder: Path, *, size: int | None = None) -> Fact | str:
    """[bytes/s] of writing a file until the disk has it, the median of a few; or why there is none.

    At most `WRITTEN_BYTES` a time; the file has no name and is gone however this ends.
    """
    size = WRITTEN_BYTES if size is None else size
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
        if free < ROOM * size:
            return f"{format_bytes(free)} are free in {folder}, too few to write a test file"
        rates = sorted(write_once(folder, size) for _ in range(WRITES))
    except OSError as error:
        return f"{folder} cannot be written: {error.strerror or error}"
    middle = rates[len(rates) // 2]
    spread = max((rates[-1] / rates[0] - 1.0) / 2.0, 0.05)
    return Fact("disk_write", middle, min(spread, 2.0), len(rates))


def write_once(folder: Path, size: int) -> float:
    """[bytes/s] of one file, synced; slow disks get fewer bytes. Raises OSError."""
    block = os.urandom(CHUNK_BYTES)
    with tempfile.TemporaryFile(dir=folder) as stream:
        begun, written = time.perf_counter(), 0
        while written < size and time.perf_counter() - begun < LONGEST_WRITE_S:
            stream.write(block)
            written += len(block)
        stream.flush()
        os.fsync(stream.fileno())
        return written / (time.perf_counter() - begun)


def figure(fact: Fact) -> str:
    """A fact's value in words, with its unit."""
    if fact.name == "matmul":
        sizes = " x ".join(map(str, fact.shape))
        return f"{fact.value / 1e12:.3g} TFLOP/s in {fact.precision}, {sizes}"
    if fact.name == "attention":
        rate = f"{fact.value / 1e12:.3g} TFLOP/s in {fact.precision}"
        return f"attention {rate}, heads of {fact.shape[2]}"
    if fact.name == "new_size":
        return f"{fact.value * 1e3:.2g} ms more where sizes are new"
    if fact.name in {"elementwise", "copy_to_device", "copy_peer", "disk_write"}:
        return f"{fact.value / MB:,.0f} MB/s"
    if fact.name == "loader_workers":
        return f"two processes read {fact.value:.2g} times as fast as none"
    what = {
        "host_thread": "for a thousand rounds of plain Python", "issue_forward": "a forward kernel",
        "issue_backward": "a backward kernel", "loader_row": "a row", "loader_token": "a token",
    }  # fmt: skip
    return f"{fact.value * 1e6:.3g} us {what[fact.name]}"

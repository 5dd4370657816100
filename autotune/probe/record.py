"""A finished probe: one JSON line, on the disk before anybody hears of it.

A record becomes Observations, which is what evidence, calibration and replay read, or a Measured.
"""

from __future__ import annotations

import contextlib
import json
import os
from dataclasses import asdict, dataclass, field, fields
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from autotune.domain.config import Config
from autotune.domain.errors import InputError
from autotune.domain.observation import Observation
from autotune.domain.outcome import Failed, Infeasible, Measured
from autotune.probe.outcomes import INFEASIBLE, OK

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.device import Offer
    from autotune.domain.outcome import ShortOf

PROBES_FILE = "probes.jsonl"
UNREAD_SLOWDOWN = 2.0  # of a disturbed probe that does not say by how much: assumption


@dataclass(frozen=True, slots=True)
class ProbeRecord:
    """One probe.

    status: a name of `outcomes`. wall_s: what it cost, retries included. result: what the worker
    wrote, {} when it wrote nothing. readings: of the host and the device while it ran. reused:
    answered from an earlier study's record. disturbed: why its times are not the machine's own
    pace, after it was measured as often as is allowed; empty: nothing speaks so.
    """

    key: str
    status: str
    message: str
    wall_s: float
    config: dict[str, Any]
    device: str
    fingerprint: str
    request: dict[str, Any]
    result: dict[str, Any] = field(default_factory=dict)
    attempts: int = 1
    readings: dict[str, Any] = field(default_factory=dict)
    when: str = ""
    role: str = "search"  # or confirm, repeat
    reused: bool = False
    predicted: dict[str, float] = field(default_factory=dict)
    disturbed: list[str] = field(default_factory=list)

    @property
    def slowdown(self) -> float:
        """How many times too long its steps may be for what disturbed it; 1 where nothing did."""
        window = (self.result.get("step") or {}).get("window") or {}
        return float(window.get("slowdown", UNREAD_SLOWDOWN)) if self.disturbed else 1.0

    @property
    def ok(self) -> bool:
        """Whether it measured what it was asked for."""
        return self.status == OK

    @property
    def fits(self) -> bool | None:
        """Whether it fitted; None when it says nothing about memory."""
        if self.status == OK:
            return True
        return False if self.status in INFEASIBLE else None

    def line(self) -> bytes:
        """The record as a line of JSON. Raises ValueError for NaN and infinity."""
        return json.dumps(asdict(self), allow_nan=False, separators=(",", ":")).encode() + b"\n"

    @classmethod
    def of(cls, data: Any) -> Self:  # noqa: ANN401 - parsed JSON
        """The record of a line. Raises ValueError when it holds none."""
        known = {item.name for item in fields(cls)}
        if not isinstance(data, dict) or not {"key", "status", "config"} <= set(data):
            msg = "not a probe"
            raise ValueError(msg)
        try:
            return cls(**{name: value for name, value in data.items() if name in known})
        except TypeError as error:
            raise ValueError(str(error)) from None

    def step_s(self, accumulation: int) -> float:
        """[s] an optimizer step of that many micro-steps.

        Formula: step + (wanted - measured) x (micro-steps + loader) / measured.
        Source: derived: micro-steps follow one another; the optimizer runs once.
        """
        step = self.result["step"]
        measured = int(step["accumulation"])
        each = (float(step["micro_s"]) + float(step["data_s"])) / measured
        return float(step["step_s"]) + (accumulation - measured) * each

    def data_s(self, accumulation: int) -> float:
        """[s] of a step that the device waited for batches."""
        step = self.result["step"]
        return float(step["data_s"]) / int(step["accumulation"]) * accumulation

    def measured(self, offer: Offer, config: Config) -> Measured | Infeasible | Failed:
        """The record as the outcome of a candidate."""
        if self.status == OK:
            memory = self.result["memory"]
            return Measured(
                offer, config, self.step_s(config.gradient_accumulation_steps),
                float(memory["allocated_bytes"]), float(memory["reserved_bytes"]),
                f"probe {self.key} on {self.device}, {self.when}",
            )  # fmt: skip
        if self.status in INFEASIBLE:
            available = self.available_bytes
            short: ShortOf = "ram" if self.status == "oom_host" else "memory"
            return Infeasible(offer, config, max(self.needed_bytes, available), available,
                              self.status, short)  # fmt: skip
        return Failed(offer, config, str(self.result.get("stage", "")), self.status, self.message)

    @property
    def needed_bytes(self) -> float:
        """[bytes] the device had in use at the most; 0 when nothing is known."""
        memory = self.result.get("memory") or {}
        return float(memory.get("driver_bytes", 0.0))

    @property
    def available_bytes(self) -> float:
        """[bytes] of the device, or of the part of it that the probe was allowed."""
        memory = self.result.get("memory") or {}
        limit = self.request.get("memory_limit_bytes")
        return float(limit or memory.get("total_bytes", 0.0))


def observations(record: ProbeRecord) -> list[Observation]:
    """What a probe says, quantity by quantity. Failures other than memory say nothing."""
    facts = {
        "gpu": record.device, "max_length": record.request.get("max_length"),
        "num_layers": record.request.get("num_layers"),
        "versions": record.result.get("versions", {}), "fingerprint": record.fingerprint,
    }  # fmt: skip
    shared: dict[str, Any] = {
        "provenance": f"probe on {record.device}, {record.when}",
        "knobs": dict(record.config), "facts": facts,
    }  # fmt: skip
    if record.status in INFEASIBLE:
        return [Observation(id=f"{record.key}-oom", quantity="oom", value=1.0, **shared)]
    if record.status != OK:
        return []
    accumulation = int(record.config["gradient_accumulation_steps"])
    memory = record.result["memory"]
    found = [
        Observation(
            id=f"{record.key}-step", quantity="step_time_s", value=record.step_s(accumulation),
            **shared,
        )
    ]  # fmt: skip
    kinds: tuple[tuple[Any, str], ...] = (
        ("allocated", "allocated_bytes"), ("reserved", "reserved_bytes"),
        ("nvidia-smi", "driver_bytes"),
    )  # fmt: skip
    found += [
        Observation(
            id=f"{record.key}-{kind}", quantity="memory_bytes", value=float(memory[name]),
            kind=kind, **shared,
        )
        for kind, name in kinds
    ]  # fmt: skip
    save = (record.result.get("checkpoint") or {}).get("save_s")
    if save:
        found.append(
            Observation(
                id=f"{record.key}-save", quantity="checkpoint_save_s", value=float(save), **shared
            )
        )
    return found


def config_of(record: ProbeRecord) -> Config:
    """The configuration that was probed."""
    return Config.of(record.config)


def read_records(path: Path) -> list[ProbeRecord]:
    """Records of a file; a torn last line never counted. Raises InputError for other damage."""
    found, bad = _parsed(path)
    if bad:
        msg = f"{path}, line {bad[0]}, is not a probe"
        raise InputError(msg, "the record is damaged; move it away")
    return found


def _parsed(path: Path) -> tuple[list[ProbeRecord], list[int]]:
    """The records of a file's whole lines, and the numbers of the lines that hold none."""
    if not path.exists():
        return [], []
    content = path.read_bytes()
    whole = content[: content.rfind(b"\n") + 1]
    found, bad = [], []
    for number, line in enumerate(whole.splitlines(), start=1):
        try:
            found.append(ProbeRecord.of(json.loads(line)))
        except (ValueError, RecursionError):
            bad.append(number)
    return found, bad


class ProbeLog:
    """Appends records to a file, each on the disk before the call returns."""

    def __init__(self, path: Path) -> None:
        """Read what is there; cut a line that a crash tore."""
        self.path = path
        self.records = read_records(path)
        if path.exists():
            content = path.read_bytes()
            if not content.endswith(b"\n") and content:
                os.truncate(path, content.rfind(b"\n") + 1)

    def append(self, record: ProbeRecord) -> None:
        """Write a record and wait until the disk has it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab") as stream:
            stream.write(record.line())
            stream.flush()
            os.fsync(stream.fileno())
        self.records.append(record)


class SharedProbeLog:
    """A record that several processes append to, and that no bad line of another one can block.

    bad: the numbers of lines that hold no probe; they are left where they are.
    """

    def __init__(self, path: Path) -> None:
        """Read what is there; another process may be writing its last line at this moment."""
        self.path = path
        self.records, self.bad = _parsed(path)

    def append(self, record: ProbeRecord) -> None:
        """Write a record behind whatever others wrote, and wait until the disk has it."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("ab+") as stream:
            _lock(stream)
            end = stream.seek(0, os.SEEK_END)
            if end and os.pread(stream.fileno(), 1, end - 1) != b"\n":
                stream.write(b"\n")  # a line that a crash tore stays a line of its own
            stream.write(record.line())
            stream.flush()
            os.fsync(stream.fileno())
        self.records.append(record)


def _lock(stream: BinaryIO) -> None:
    """Alone with the file until it is closed, where the system has such locks."""
    with contextlib.suppress(ImportError, OSError):
        import fcntl

        fcntl.flock(stream, fcntl.LOCK_EX)

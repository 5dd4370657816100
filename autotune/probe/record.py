"""A finished probe: one JSON line, on the disk before anybody hears of it.

A record becomes Observations, which is what the bill, the sampler and replay read of it. A fit or a
miss so close to the limit that another run may end otherwise is a coin thrown once: it is repeated.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import asdict, field, fields
from typing import TYPE_CHECKING, Any, BinaryIO, Self

from autotune.catalog.files import append_synced, read_regular
from autotune.catalog.locks import hold
from autotune.domain.config import Config
from autotune.domain.errors import InputError
from autotune.domain.observation import Observation
from autotune.domain.units import parse_bytes
from autotune.frozen import dataclass
from autotune.probe.outcomes import INFEASIBLE, OK

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from pathlib import Path

    from autotune.domain.observation import MemoryKind, Quantity


PROBES_FILE = "probes.jsonl"
APPEND_WAIT_S = 60.0  # for another process that writes its own line
MAX_BYTES = 1 << 30
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

    @property
    def digest(self) -> str:
        """The same in every process that has this record, and of no other."""
        return hashlib.sha256(self.line()).hexdigest()[:16]

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

    @property
    def step_log_sd(self) -> float:
        """Sd of the log of its step, by how far the steps of this one run differ."""
        return float(self.result["step"].get("relative_error", 0.0))

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


def observations(record: ProbeRecord, accumulation: int | None = None) -> list[Observation]:
    """What a probe says, quantity by quantity. Failures other than memory say nothing.

    accumulation: micro-steps of the optimizer step that is spoken of; None: as it was asked for.
    """
    facts = {
        "gpu": record.device, "max_length": record.request.get("max_length"),
        "num_layers": record.request.get("num_layers"),
        "versions": record.result.get("versions", {}), "fingerprint": record.fingerprint,
    }  # fmt: skip
    provenance = f"probe {record.key} on {record.device}, {record.when}"

    def seen(quantity: Quantity, value: float, kind: MemoryKind | None = None) -> Observation:
        name = f"{record.key}-{quantity}" + (f"-{kind}" if kind else "")
        return Observation(name, quantity, value, provenance, kind, dict(record.config), facts)

    if record.status in INFEASIBLE:
        return [seen("oom", 1.0)]
    if record.status != OK:
        return []
    result, memory = record.result, record.result["memory"]
    steps = accumulation or int(record.config["gradient_accumulation_steps"])
    found = [seen("step_time_s", record.step_s(steps)), seen("data_wait_s", record.data_s(steps))]
    found += [seen("memory_bytes", float(memory[name]), kind) for kind, name in _READINGS]
    loaders = [e for e in result.get("loader") or [] if e["workers"] == 0]
    beside: tuple[tuple[Quantity, Any], ...] = (
        ("checkpoint_save_s", (result.get("checkpoint") or {}).get("save_s")),
        ("compile_s", (result.get("compile") or {}).get("extra_s")),
        ("batch_s", loaders[-1]["batch_s"] if loaders else None),
    )
    return found + [seen(quantity, float(value)) for quantity, value in beside if value]


_READINGS: tuple[tuple[MemoryKind, str], ...] = (
    ("allocated", "allocated_bytes"), ("reserved", "reserved_bytes"),
    ("nvidia-smi", "driver_bytes"),
)  # fmt: skip


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
    try:
        content = read_regular(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        msg = f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError(msg, "the record is damaged; move it away") from None
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
            append_synced(stream, record.line())
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
            if not hold(stream.fileno(), self.path, APPEND_WAIT_S):
                msg = f"another process has held {self.path} for {APPEND_WAIT_S:.0f} s"
                raise TimeoutError(msg)
            append_synced(stream, _ended(stream) + record.line())
        self.records.append(record)

    def lacks(self, records: Iterable[ProbeRecord]) -> list[ProbeRecord]:
        """Those of some records that it has not."""
        asked = list(records)
        keys = {record.key for record in asked}
        known = {record.line() for record in self.records if record.key in keys}
        return [record for record in asked if record.line() not in known]


def _ended(stream: BinaryIO) -> bytes:
    """What has to stand before the next line of a file that nobody else writes now.

    Half a line is of a writer that was killed, and is cut off. A record whose end of line alone is
    missing, as an editor leaves it, counts.
    """
    stream.seek(0)
    content = stream.read()
    whole = content.rfind(b"\n") + 1
    try:
        ProbeRecord.of(json.loads(content[whole:]))
    except (ValueError, RecursionError):
        if whole < len(content):
            os.ftruncate(stream.fileno(), whole)
        return b""
    return b"\n"


# Assumption: the order of allocations and the workspaces that kernels choose move a peak by up to a
# few per cent from run to run.
NARROW = 0.03
NARROW_RUNS = 3
_ASKED = re.compile(r"Tried to allocate ([\d.]+ [MG]iB)")
_FREE = re.compile(r"of which ([\d.]+ [MG]iB) is free")


def is_narrow(record: ProbeRecord) -> bool:
    """Whether another run of the same may end on the other side of the limit.

    A run that fitted is narrow when less than NARROW of the device was left; one that did not, when
    no more than that was missing in the request that failed (as torch's message tells).
    """
    available = record.available_bytes
    if record.fits is None or available <= 0:
        return False
    if record.ok:
        return record.needed_bytes > (1.0 - NARROW) * available
    if record.status not in INFEASIBLE - {"oom_host"}:
        return False
    if record.status in {"thrash", "spill"}:
        return True
    asked, free = _ASKED.search(record.message), _FREE.search(record.message)
    if not (asked and free):
        return False
    missing = parse_bytes(asked[1]) - parse_bytes(free[1])
    return missing <= NARROW * available


def until_sure(
    first: ProbeRecord, again: Callable[[], ProbeRecord], runs: int = NARROW_RUNS
) -> Iterator[ProbeRecord]:
    """The further runs of a narrow configuration, each handed out before the next one starts.

    Ends early when a run broke or was interrupted: that says nothing about memory.
    """
    if not is_narrow(first):
        return
    for _ in range(runs - 1):
        record = again()
        yield record
        if record.fits is None:
            return

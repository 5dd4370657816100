"""The record of a search: `trials.jsonl`, one line a finished trial.

A line is on the disk before the study hears of the trial, so the study can always be rebuilt from
the record and a killed search loses nothing that finished. Trials that finish together are written
together. A line torn by a crash is cut off.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
from dataclasses import field, fields
from typing import TYPE_CHECKING, Any, BinaryIO, Literal, Self

from autotune.catalog.files import append_synced, write_whole
from autotune.catalog.locks import LOCK_FILE, NoLocks, hold, is_held, unlocked
from autotune.domain.errors import InputError
from autotune.domain.paths import near
from autotune.domain.units import is_number
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.search.axes import ParamValue

TRIALS_FILE = "trials.jsonl"
SEARCH_FILE = "search.json"
WORKERS_FOLDER = "workers"  # of a run: a folder for each worker, with a record of its own
MAX_RECORD_BYTES = 1 << 30

LEARNED = ("measured", "noise", "oom", "disturbed", "withdrawn")  # what samplers read of a trial

Kind = Literal["trial", "repeat", "invalid", "failed"]


@dataclass(frozen=True, slots=True)
class TrialRecord:
    """One finished trial.

    kind: trial, a candidate seen for the first time; repeat, answered from what is known, or
    measured once more; invalid, a combination that is no candidate; failed, a candidate without
    finite figures.
    value: what is minimised; None only when failed. constraints: at most 0 where feasible.
    measured, noise, oom, withdrawn, disturbed: what a probe saw, for samplers that learn from it
    (`measurements`). looks, unexplained: as of `Scored`.
    allowed: of a candidate measured once more, what might be measured when that ended the search;
    empty where the search had ended by itself. probe: of the same, as of `Scored`; older records
    have none.
    """

    number: int
    kind: Kind
    params: dict[str, ParamValue]
    value: float | None
    constraints: dict[str, float]
    fits: bool
    reason: str
    offer: str = ""
    config: str = ""
    sampler: str = ""
    sampler_state: dict[str, int] = field(default_factory=dict)
    measured: dict[str, float] = field(default_factory=dict)
    oom: bool = False
    noise: dict[str, float] = field(default_factory=dict)
    withdrawn: bool = False
    disturbed: bool = False
    looks: int = 0
    unexplained: int = 0
    allowed: dict[str, float] = field(default_factory=dict)
    probe: str = ""

    def line(self) -> bytes:
        """The record as a line of JSON. NaN and infinity are refused."""
        return json.dumps(self.as_dict(), allow_nan=False, separators=(",", ":")).encode() + b"\n"

    def as_dict(self) -> dict[str, Any]:
        """The record by the names of its fields, nothing copied; no empty `allowed` or `probe`."""
        found = {item.name: getattr(self, item.name) for item in fields(self)}
        return {k: v for k, v in found.items() if v or k not in {"allowed", "probe"}}

    @classmethod
    def of(cls, data: Any) -> TrialRecord:  # noqa: ANN401 - parsed JSON
        """The record that a line holds. Raises ValueError when it holds none."""
        known = {item.name for item in fields(cls)}
        if not isinstance(data, dict) or not {"number", "kind", "params", "value"} <= set(data):
            msg = "not a trial"
            raise ValueError(msg)
        value = data["value"]
        if value is not None and not is_number(value):
            msg = "not a value"
            raise ValueError(msg)
        number, named = data["number"], (data["params"], data.get("constraints", {}))
        if type(number) is not int or not all(isinstance(each, dict) for each in named):
            msg = "not the number and the parameters of a trial"
            raise ValueError(msg)
        try:
            return cls(**{name: value for name, value in data.items() if name in known})
        except TypeError as error:
            raise ValueError(str(error)) from None


def next_number(records: Sequence[TrialRecord]) -> int:
    """The number of the trial after these; those of several workers may leave gaps."""
    return max((record.number for record in records), default=-1) + 1


def attributes_of(record: TrialRecord) -> dict[str, Any]:
    """What Optuna's own tools show of a trial; some of them do not know constraints yet."""
    told = {name: getattr(record, name) for name in ("fits", "reason", "offer", "config")}
    learned = {name: value for name in LEARNED if (value := getattr(record, name))}
    return {**told, "record": record.as_dict(), **learned}


def _refused(constant: str) -> None:
    """NaN and infinity are in no record. Raises ValueError."""
    raise ValueError(constant)


def _opened(path: Path) -> BinaryIO:
    """The record to read and write behind. Raises OSError, also for a pipe or a device."""
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, f"{TRIALS_FILE} is not a regular file")
    return path.open("ab+")


class TrialLog:
    """The record of one run folder, held by one process at a time."""

    def __init__(self, run_dir: Path, header: dict[str, str], *, resume: bool) -> None:
        """Open or create the record of a run folder.

        header: what trials must have in common: the job and what is minimised.

        Raises InputError when the folder holds another job's search, holds trials without
        `resume`, is held by another process, or cannot be written.
        """
        self.path = run_dir / TRIALS_FILE
        try:
            run_dir.mkdir(parents=True, exist_ok=True)
            self._file = _opened(self.path)
        except OSError as error:
            msg = f"{near(run_dir)} cannot hold a run: {error.strerror or error}"
            raise InputError(msg, "choose another folder with --run") from None
        try:
            self._lock(run_dir)
            _agree(run_dir, header)
            self.records = self._read()
            self._continue(run_dir, resume=resume)
        except BaseException:
            self._file.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()

    def append(self, *records: TrialRecord) -> None:
        """Write records and wait until the disk has them, once for all of them."""
        append_synced(self._file, b"".join(record.line() for record in records))
        self.records.extend(records)

    def has(self, number: int) -> bool:
        """Whether the disk has a trial."""
        return any(record.number == number for record in self.records)

    def gather(self) -> None:
        """Take over what workers of this run have recorded and this record does not have yet."""
        mine = {record.number for record in self.records}
        found = records_of_workers(self.path.parent)
        new = [found[number] for number in sorted(found.keys() - mine)]
        if new:
            self.append(*new)
        self.records.sort(key=lambda record: record.number)

    def _lock(self, run_dir: Path) -> None:
        """One process a folder. The lock goes with the process, however it ends."""
        try:
            ours = hold(self._file.fileno(), self.path)
        except NoLocks as error:
            raise unlocked(run_dir, error) from None
        if not ours:
            raise unlocked(run_dir)

    def _continue(self, run_dir: Path, *, resume: bool) -> None:
        """Finished trials are never started over by accident."""
        if self.records and not resume:
            msg = f"{near(run_dir)} holds {len(self.records)} trials of this job"
            raise InputError(msg, "add --resume to continue, or choose another --run")

    def _read(self) -> list[TrialRecord]:
        self._file.seek(0, os.SEEK_END)
        if self._file.tell() > MAX_RECORD_BYTES:
            msg = f"{near(self.path)} has more than 1 GiB so it is not the record of a search"
            raise InputError(msg, "choose another --run")
        self._file.seek(0)
        content = self._file.read()
        whole = content.rfind(b"\n") + 1
        if whole < len(content):  # a crash cut the last line off; its trial never counted
            self._file.truncate(whole)
        records = []
        for number, line in enumerate(content[:whole].splitlines(), start=1):
            try:
                records.append(TrialRecord.of(json.loads(line, parse_constant=_refused)))
            except (ValueError, RecursionError):
                msg = f"{near(self.path)}, line {number}, is not a trial"
                raise InputError(msg, "the record is damaged; choose another --run") from None
        return records


def records_of_workers(run_dir: Path) -> dict[int, TrialRecord]:
    """What the workers of a run have recorded, by the trial's number.

    A line that is half written, or damaged, is passed over: its trial never counted.
    """
    found: dict[int, TrialRecord] = {}
    for path in sorted(run_dir.glob(f"{WORKERS_FOLDER}/*/{TRIALS_FILE}")):
        try:
            content = path.read_bytes()
        except OSError:
            continue
        for line in content[: content.rfind(b"\n") + 1].splitlines():
            with contextlib.suppress(ValueError):
                record = TrialRecord.of(json.loads(line, parse_constant=_refused))
                found.setdefault(record.number, record)
    return found


def workers_of(run_dir: Path) -> list[str]:
    """The workers of a run that live, by name. Empty where nobody can tell."""
    folders = sorted(path.parent for path in run_dir.glob(f"{WORKERS_FOLDER}/*/{TRIALS_FILE}"))
    return [folder.name for folder in folders if is_locked(folder)]


def is_locked(run_dir: Path) -> bool:
    """Whether a process works in the folder now. False where nobody can tell."""
    return any(is_held(run_dir / name) for name in (LOCK_FILE, TRIALS_FILE))


def _other_search(found: object, header: dict[str, str]) -> str:
    """What a folder's search is instead."""
    if not isinstance(found, dict) or found.get("job_key") != header["job_key"]:
        return "the search of another job"
    same = {k: v for k, v in found.items() if k != "space"} == {
        k: v for k, v in header.items() if k != "space"
    }
    return "a search of another space" if same else "a search for something else"


def _agree(run_dir: Path, header: dict[str, str]) -> None:
    """The folder's search must be this one; a folder without one becomes it."""
    path = run_dir / SEARCH_FILE
    if path.exists():
        try:
            found = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            found = None
        if found == header:
            return
        what = _other_search(found, header)
        msg = f"{near(run_dir)} holds {what}"
        raise InputError(msg, "choose another folder with --run")
    if (run_dir / TRIALS_FILE).stat().st_size > 0:
        msg = f"{near(run_dir)} holds trials of an unknown job"
        raise InputError(msg, "choose another folder with --run")
    write_whole(path, json.dumps(header))

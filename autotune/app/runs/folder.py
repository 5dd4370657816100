"""Run folders: one a run, holding everything that was asked, tried and answered.

job.json              the job file as resolved, overrides applied
trials.jsonl          one line a finished trial (written by the search room)
study.log             the Optuna journal
recommendation.json   the answer, as `--format json` prints it
failure.json          why it ended without one, where it could still say so
report.html           the same as a page
run.sh, ...           what to run

The recommended row of an answer is checked beyond its shape: it is a file that may lie.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from dataclasses import field, replace
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from autotune.domain.config import KNOBS, Config, is_extra
from autotune.domain.errors import InputError
from autotune.domain.paths import near, whole
from autotune.domain.typed.values import shown
from autotune.domain.units import DAY_S, is_number
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from autotune.domain.job import Job
    from autotune.search.selection import Objective

JOB_FILE = "job.json"
ANSWER_FILE = "recommendation.json"
FAILURE_FILE = "failure.json"
PAGE_FILE = "report.html"
OWN_FILES = (JOB_FILE, ANSWER_FILE, PAGE_FILE)
RECORD_VERSION = 1
USUALLY = MappingProxyType({"sampler": "calibrated", "seed": 0})  # what proposes a search's trials
KEY_VERSION = "content-2:"  # how a key is made; keys of other kinds cannot be compared with it
MAX_BYTES = 100_000_000
TUNE_AGAIN = "tune again with another --run"
DAMAGED = f"the run folder may be damaged: {TUNE_AGAIN}"


def runs_root() -> Path:
    """Where run folders live: $AUTOTUNE_RUNS, else ./runs; from the root."""
    return whole(os.environ.get("AUTOTUNE_RUNS") or "runs")


@dataclass(frozen=True, slots=True)
class Identity:
    """A job and what is asked of it: the search space (a name or a path), the objective, ...

    space: what the space's file holds, as text; empty for a shipped one. limits: of its probes,
    where stated; proposed_by: the sampler and its seed. These do not change which run it is.
    """

    job: Job
    question: tuple[str, ...]
    space: str = ""
    limits: Mapping[str, float] = field(default_factory=dict)
    proposed_by: Mapping[str, Any] = field(default_factory=lambda: USUALLY)

    @property
    def key(self) -> str:
        """A digest of the contract and the question: runs share a folder if it is equal.

        Files count by what they hold, wherever they lie and however their paths were typed.
        """
        job, question = self.job, ("", *self.question[1:]) if self.space else self.question
        known = replace(job.model, name="", source="", hf_config="")
        facts = (
            _without_paths(json.loads(job.spec)) if job.spec else
            replace(job, model=known, base_dir="", dataset_path=None),
            job.model.fingerprint, job.rows, job.lengths, job.row_bytes, self.space, question,
        )  # fmt: skip
        return KEY_VERSION + hashlib.sha256(repr(facts).encode()).hexdigest()[:16]


def _without_paths(spec: dict[str, Any]) -> dict[str, Any]:
    """A job's specification without the paths of files whose content is known."""
    found: dict[str, Any] = json.loads(json.dumps(spec, sort_keys=True))
    found.pop("model", None)
    data = found.get("data") or {}
    for name in ("dataset", "tokenizer"):
        data.pop(name, None)
    if isinstance(data.get("lengths"), dict):
        data["lengths"].pop("histogram", None)
    origin = found.get("origin") or {}
    origin.pop("typed_in", None)
    for file in (origin, *(origin.get("beside") or ())):
        file.pop("path", None)
    return found


@contextlib.contextmanager
def usable(run_dir: Path) -> Iterator[None]:
    """What the operating system refuses about a run folder, in words."""
    try:
        yield
    except OSError as error:
        msg = f"cannot use the run folder {shown(near(run_dir))}: {error.strerror or error}"
        raise InputError(msg, "choose another folder with --run") from None


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a run folder. Raises InputError for anything else."""
    try:
        if not path.is_file():
            what = "is not a regular file" if path.exists() else "is not there"
            msg = f"{near(path)} {what}"
            raise InputError(msg, DAMAGED)
        if path.stat().st_size > MAX_BYTES:
            msg = f"{near(path)} has more than {MAX_BYTES // 10**6} MB"
            raise InputError(msg, DAMAGED)
        content = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        msg = f"{near(path)} cannot be read: {error.strerror or error}"
        raise InputError(msg, "grant access to the run folder, or name another run") from None
    except (ValueError, RecursionError) as error:
        reason = " ".join(str(error).split())[:200] or "nested too deeply"
        msg = f"{near(path)} cannot be read as JSON: {reason}"
        raise InputError(msg, DAMAGED) from None
    if not isinstance(content, dict):
        msg = f"{near(path)} must hold a JSON object"
        raise InputError(msg, DAMAGED)
    return content


def load_recommendation_payload(run_dir: Path) -> dict[str, Any]:
    """The recorded answer of a run. Raises InputError when there is none."""
    path = run_dir / ANSWER_FILE
    with usable(run_dir):
        absent = not path.exists()
    if absent:
        _job_file(run_dir)
        msg = f"{near(run_dir)} holds no finished answer"
        raise InputError(msg, "`autotune runs` lists the runs and which are finished")
    return read_json(path)


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What a run folder says of its job.

    question: space, objective and what else was asked. limits: of its probes, where stated.
    proposed_by: the sampler and its seed.
    """

    spec: dict[str, Any]
    base_dir: Path
    question: tuple[str, ...]
    age_days: int
    limits: Mapping[str, float] = field(default_factory=dict)
    proposed_by: Mapping[str, Any] = field(default_factory=lambda: USUALLY)

    @property
    def space(self) -> str | None:
        """Of the search, where it was stated."""
        return (self.question[0] if self.question else "") or None

    @property
    def objective(self) -> Objective:
        """What was minimised."""
        return "time" if self.question[1:2] == ("time",) else "cost"

    @property
    def probed(self) -> bool:
        """Whether its candidates were scored by probes."""
        return self.question[2:3] == ("probe",)

    @property
    def probed_on(self) -> str | None:
        """The device that probes were to run on, where it was stated."""
        return (self.question[3] if len(self.question) > 3 else "") or None  # noqa: PLR2004 - asked_of


def load_run_job(run_dir: Path) -> Job:
    """The job of a run, resolved again from what was recorded. Raises InputError as the record."""
    from autotune.app.job.load import resolve_spec

    record = load_record(run_dir)
    return resolve_spec(record.spec, record.base_dir)


def load_record(run_dir: Path) -> RecordedRun:
    """The recorded job of a run folder.

    Raises InputError for what is no run folder, is damaged, or is of another version.
    """
    path = _job_file(run_dir)
    record = read_json(path)
    version = record.get("schema_version")
    if version != RECORD_VERSION:
        msg = f"{near(path)} has schema version {shown(version)}, not {RECORD_VERSION}"
        raise InputError(msg, "it was written by another version of autotune: tune again")
    spec, folder = record.get("spec"), record.get("base_dir", ".")
    if not isinstance(spec, dict) or not isinstance(folder, str):
        msg = f"{near(path)} is damaged: its job is {shown(spec)}, in {shown(folder)}"
        raise InputError(msg, "tune again from the job file")
    question = record.get("question", [])
    asked = tuple(str(item) for item in question) if isinstance(question, list) else ()
    seconds = max(datetime.now(UTC).timestamp() - path.stat().st_mtime, 0.0)
    limits = _limits_of(record.get("limits"))
    age_days, by = int(seconds // DAY_S), _proposed_by(record.get("proposed_by"))
    return RecordedRun(spec, whole(run_dir / folder), asked, age_days, limits, by)


def _proposed_by(told: object) -> dict[str, Any]:
    """The sampler and the seed as a file has them; the usual ones where it has none."""
    found = told if isinstance(told, dict) else {}
    sampler, seed = found.get("sampler"), found.get("seed")
    known = {"sampler": sampler} if isinstance(sampler, str) else {}
    return {**USUALLY, **known} | ({"seed": seed} if type(seed) is int and seed >= 0 else {})


def _limits_of(told: object) -> dict[str, float]:
    """Limits of probes as a file has them; what is no limit is left out."""
    found = told if isinstance(told, dict) else {}
    return {str(k): v for k, v in found.items() if is_number(v) and 0 < v <= _MOST}


def is_run(path: Path) -> bool:
    """Whether a path is a run folder, whatever state it is in."""
    with contextlib.suppress(OSError):
        return (path / JOB_FILE).is_file()
    return False


def _job_file(run_dir: Path) -> Path:
    """Where a run folder keeps its job. Raises InputError for what is no run folder."""
    path = run_dir / JOB_FILE
    with usable(run_dir):
        if path.exists():
            return path
        if not run_dir.exists():
            what = "there is no such folder"
        else:
            what = f"it has no {JOB_FILE}" if run_dir.is_dir() else "it is a file"
    msg = f"{near(run_dir)} is not a run folder: {what}"
    raise InputError(msg, "`autotune runs` lists the runs")


_MOST = 1e30  # of any time, price or size


def config_of_row(row: Mapping[str, Any]) -> Config:
    """The config of a checked row."""
    kept = {name: v for name, v in row["config"].items() if name in KNOBS or is_extra(name)}
    return Config.of(kept)


def check_row(row: Mapping[str, Any], where: str) -> None:
    """Raise InputError for knobs that are absent or unknown, and numbers that cannot be."""
    _check_knobs(row["config"], where)
    groups = {"best": row, "best.duration_s": row["duration_s"], "best.cost_usd": row["cost_usd"],
              "best.time_s": row["time_s"], "best.memory_bytes": row["memory_bytes"]}  # fmt: skip
    for path, group in groups.items():
        for key, value in group.items():
            if path != "best" or is_number(value):
                _check_number(value, f"{path}.{key}", where)
    if row["measured"] is not None:
        for key in ("step_time_s", "peak_allocated_bytes"):
            _check_number(row["measured"].get(key) or -1, f"best.measured.{key}", where)


def _check_knobs(config: Mapping[str, Any], where: str) -> None:
    for name, knob in KNOBS.items():
        path = f"best.config.{name}"
        if name not in config:
            raise _damaged(where, path, "it is absent")
        try:
            same = knob.parse(config[name]) == config[name]
        except InputError as error:
            raise _damaged(where, path, error.message) from None
        if not same:
            raise _damaged(where, path, f"it is {shown(config[name])}")
    for name, value in config.items():
        if name not in KNOBS and not (is_extra(name) and isinstance(value, int | str)):
            raise _damaged(where, f"best.config.{name}", f"it is {shown(value)}")


def _check_number(value: Any, path: str, where: str) -> None:  # noqa: ANN401 - whatever it holds
    """At least zero, finite, and no larger than any time, price or size."""
    if not is_number(value) or not 0 <= value <= _MOST:
        raise _damaged(where, path, f"it is {shown(value)}")


def _damaged(where: str, path: str, why: str) -> InputError:
    return InputError(f"the answer in {where} is damaged at {path}: {why}", TUNE_AGAIN)

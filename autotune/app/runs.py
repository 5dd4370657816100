"""Run folders: one a run, holding everything that was asked, tried and answered.

job.json              the job file as resolved, overrides applied
trials.jsonl          one line a finished trial (written by the search room)
study.log             the Optuna journal
recommendation.json   the answer, as `--format json` prints it
report.html           the same as a page
run.sh, ...           what to run
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import shutil
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.domain.jobvalues import shown
from autotune.domain.machine_text import machine_label
from autotune.domain.paths import whole
from autotune.domain.units import DAY_S

if TYPE_CHECKING:
    from autotune.domain.job import Job

JOB_FILE = "job.json"
ANSWER_FILE = "recommendation.json"
RECORD_VERSION = 1
PAGE_FILE = "report.html"


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of `autotune runs`."""

    path: Path
    job_name: str
    created: str
    answered: bool
    summary: str


def runs_root() -> Path:
    """Where run folders live: $AUTOTUNE_RUNS, else ./runs; from the root."""
    return whole(os.environ.get("AUTOTUNE_RUNS") or "runs")


def job_key(job: Job, question: tuple[str, ...] = ()) -> str:
    """A digest of the contract and of what was asked of it: runs share a folder if it is equal."""
    stated = "\n".join([str(Path(job.base_dir).resolve()), job.spec or repr(job), *question])
    return hashlib.sha256(stated.encode()).hexdigest()[:16]


def new_run_dir(job: Job, now: datetime | None = None) -> Path:
    """A path for a new run that does not exist yet: date, time and the job's name."""
    stamp = (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S")
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", job.name).strip("-.")[:48] or "job"
    base = runs_root() / f"{stamp}-{slug}"
    path, number = base, 2
    while path.exists():
        path, number = base.with_name(f"{base.name}-{number}"), number + 1
    return path


def open_run(job: Job, run_dir: Path, *, resume: bool, question: tuple[str, ...] = ()) -> bool:
    """Create the folder, or check that it holds this job and question (space, objective).

    True if the run is new.

    Raises InputError when the folder holds another job, holds this one without `resume`, or cannot
    be read or written.
    """
    try:
        return _open_run(job, run_dir, resume=resume, question=question)
    except OSError as error:
        msg = f"cannot use the run folder {shown(str(run_dir))}: {error.strerror}"
        raise InputError(msg, "choose another folder with --run") from None


def _open_run(job: Job, run_dir: Path, *, resume: bool, question: tuple[str, ...]) -> bool:
    recorded = run_dir / JOB_FILE
    if recorded.exists():
        key = _read_json(recorded).get("job_key")
        if key != job_key(job, question):
            msg = f"{run_dir} holds another job ({_read_json(recorded).get('name', 'unknown')})"
            raise InputError(msg, "choose another folder with --run, or leave --run out")
        if not resume and (run_dir / ANSWER_FILE).exists():
            msg = f"{run_dir} already holds an answer for this job"
            raise InputError(msg, "add --resume to go on in it, or choose another --run")
        return False
    if run_dir.exists() and (not run_dir.is_dir() or any(run_dir.iterdir())):
        msg = f"{run_dir} exists and is not a run folder"
        raise InputError(msg, "choose a new or empty folder with --run")
    if resume:
        msg = f"{run_dir} holds no run to resume"
        raise InputError(msg, "leave --resume out, or name the run's folder with --run")
    run_dir.mkdir(parents=True, exist_ok=True)
    record = {
        "schema_version": RECORD_VERSION,
        "job_key": job_key(job, question),
        "name": job.name,
        "question": list(question),
        "base_dir": str(Path(job.base_dir).resolve()),
        "spec": json.loads(job.spec) if job.spec else None,
    }
    write_text(recorded, json.dumps(record, indent=1) + "\n")
    return True


def discard_untried(run_dir: Path) -> None:
    """Take away a run folder that was just made and in which nothing was tried."""
    from autotune.search.record import TRIALS_FILE

    trials = run_dir / TRIALS_FILE
    if not trials.exists() or trials.stat().st_size == 0:
        shutil.rmtree(run_dir, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Write a file whole or not at all: a temporary name, fsync, rename."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with temporary.open("w", encoding="utf-8") as stream:
            stream.write(text)
            stream.flush()
            os.fsync(stream.fileno())
        temporary.replace(path)
    except BaseException:
        with contextlib.suppress(OSError):
            temporary.unlink()
        raise


def _read_json(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        msg = f"{path} cannot be read as JSON: {error}"
        raise InputError(
            msg, "the run folder may be damaged; tune again with another --run"
        ) from None
    if not isinstance(content, dict):
        msg = f"{path} must hold a JSON object"
        raise InputError(msg, "the run folder may be damaged; tune again with another --run")
    return content


def load_recommendation_payload(run_dir: Path) -> dict[str, Any]:
    """The recorded answer of a run. Raises InputError when there is none."""
    path = run_dir / ANSWER_FILE
    if not path.exists():
        msg = f"{run_dir} holds no finished answer"
        raise InputError(msg, "`autotune runs` lists the runs and which are finished")
    return _read_json(path)


def load_run_job(run_dir: Path) -> Job:
    """The job of a run, resolved again from what was recorded."""
    from autotune.app.load_job import resolve_spec

    path = run_dir / JOB_FILE
    if not path.exists():
        msg = f"{run_dir} is not a run folder: it has no {JOB_FILE}"
        raise InputError(msg, "`autotune runs` lists the runs")
    record = _read_json(path)
    return resolve_spec(record.get("spec"), Path(record.get("base_dir", ".")))


@dataclass(frozen=True, slots=True)
class RecordedRun:
    """What a run folder says of its job. question: space, objective and what else was asked."""

    spec: dict[str, Any]
    base_dir: Path
    question: tuple[str, ...]
    age_days: int


def load_record(run_dir: Path) -> RecordedRun:
    """The recorded job of a run folder.

    Raises InputError for what is no run folder, is damaged, or is of another version.
    """
    path = run_dir / JOB_FILE
    if not path.exists():
        what = "there is no such folder" if not run_dir.exists() else f"it has no {JOB_FILE}"
        msg = f"{run_dir} is not a run folder: {what}"
        raise InputError(msg, "`autotune runs` lists the runs")
    record = _read_json(path)
    version = record.get("schema_version")
    if version != RECORD_VERSION:
        msg = f"{path} has schema version {version!r}, not {RECORD_VERSION}"
        raise InputError(msg, "it was written by another version of autotune: tune again")
    spec, folder = record.get("spec"), record.get("base_dir", ".")
    if not isinstance(spec, dict) or not isinstance(folder, str):
        msg = f"{path} is damaged: its job is {shown(spec)}"
        raise InputError(msg, "tune again from the job file")
    question = record.get("question", [])
    asked = tuple(str(item) for item in question) if isinstance(question, list) else ()
    seconds = max(datetime.now(UTC).timestamp() - path.stat().st_mtime, 0.0)
    return RecordedRun(spec, Path(folder), asked, int(seconds // DAY_S))


def list_runs(root: Path | None = None) -> list[RunSummary]:
    """All runs below the root, newest first; folders that are no runs are passed over."""
    top = root or runs_root()
    found = []
    for path in sorted(top.iterdir(), reverse=True) if top.is_dir() else []:
        if not (path / JOB_FILE).is_file():
            continue
        with contextlib.suppress(InputError):
            record = _read_json(path / JOB_FILE)
            answered = (path / ANSWER_FILE).exists()
            summary = _summary(load_recommendation_payload(path)) if answered else "not finished"
            created = datetime.fromtimestamp((path / JOB_FILE).stat().st_mtime, UTC)
            found.append(
                RunSummary(path, str(record.get("name")), created.isoformat(timespec="seconds"),
                           answered, summary)
            )  # fmt: skip
    return sorted(found, key=lambda run: run.created, reverse=True)


def _summary(payload: dict[str, Any]) -> str:
    from autotune.domain.units import format_seconds, format_usd

    best = payload.get("best")
    if not best:
        return "nothing fits"
    duration, cost = best["duration_s"]["p50"], best["cost_usd"]["p50"]
    where = machine_label(
        best["device"],
        best["device_count"],
        spot=best.get("spot", False),
        instance=best.get("instance"),
        counted=True,
    )
    return f"{where}, {format_seconds(duration)}, {format_usd(cost)}"


def last_run(root: Path | None = None) -> Path:
    """The newest run's folder. Raises InputError when there is none."""
    runs = list_runs(root)
    if not runs:
        msg = f"no runs in {root or runs_root()}"
        raise InputError(msg, "run `autotune tune JOB` first, or name a run folder")
    return runs[0].path

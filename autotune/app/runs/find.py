"""Which run is meant where none is named, and the list of them all."""

from __future__ import annotations

import contextlib
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Literal

from autotune.app.runs.folder import (
    ANSWER_FILE,
    FAILURE_FILE,
    JOB_FILE,
    Identity,
    load_recommendation_payload,
    load_record,
    read_json,
    runs_root,
)
from autotune.catalog.files import read_regular
from autotune.domain.errors import InputError
from autotune.domain.paths import near
from autotune.domain.typed.machine import recorded_label
from autotune.domain.units import format_seconds, format_usd
from autotune.frozen import dataclass
from autotune.search.study.record import TRIALS_FILE, is_locked

if TYPE_CHECKING:
    from pathlib import Path

State = Literal["answered", "running", "failed", "unfinished", "damaged"]
MOST_NAMED = 3


@dataclass(frozen=True, slots=True)
class RunSummary:
    """One line of `autotune runs`. key: of the job and what was asked of it."""

    path: Path
    job_name: str
    created: str
    state: State
    summary: str
    key: str = ""

    @property
    def answered(self) -> bool:
        """Whether it holds an answer."""
        return self.state == "answered"


def list_runs(root: Path | None = None) -> list[RunSummary]:
    """All runs below the root, newest first; folders that are no runs are passed over."""
    top, found = root or runs_root(), []
    with contextlib.suppress(FileNotFoundError, NotADirectoryError):
        for path in top.iterdir():
            try:
                if (path / JOB_FILE).is_file():
                    found.append(_summary(path))
            except OSError as error:
                why = f"cannot be read: {error.strerror or error}"
                found.append(RunSummary(path, "", "", "damaged", why))
    return sorted(found, key=lambda run: (_made_ns(run.path), run.path.name), reverse=True)


def _made_ns(path: Path) -> int:
    """[ns] when a run was begun: two of one second are told apart. 0 where it cannot be read."""
    with contextlib.suppress(OSError):
        return (path / JOB_FILE).stat().st_mtime_ns
    return 0


def _summary(path: Path) -> RunSummary:
    created = datetime.fromtimestamp((path / JOB_FILE).stat().st_mtime, UTC)
    when = created.isoformat(timespec="seconds")
    try:
        record = read_json(path / JOB_FILE)
        load_record(path)
        state, words = _state(path)
    except InputError as error:
        return RunSummary(path, "", when, "damaged", error.message)
    return RunSummary(path, str(record.get("name")), when, state, words, str(record.get("job_key")))


def _state(path: Path) -> tuple[State, str]:
    """How a run stands, and that in a few words."""
    if (path / ANSWER_FILE).exists():
        words = _answer(load_recommendation_payload(path))
        return ("answered", words) if words else ("damaged", f"{ANSWER_FILE} is no answer")
    if is_locked(path):
        return "running", f"running, {_tried(path)} so far"
    if (path / FAILURE_FILE).exists():
        told = str(read_json(path / FAILURE_FILE).get("message", "")).strip().splitlines()
        return "failed", f"failed: {' '.join(told[:1])[:200]}"
    return "unfinished", f"not finished, {_tried(path)}"


def _tried(path: Path) -> str:
    try:
        count = read_regular(path / TRIALS_FILE).count(b"\n")
    except (OSError, ValueError):
        count = 0
    return f"{count} trial{'s' * (count != 1)}"


def _answer(payload: dict[str, Any]) -> str:
    """The answer in a few words; empty for what is none."""
    best = payload.get("best", payload)
    if best is None:
        return "nothing fits"
    try:
        duration, cost = best["duration_s"]["p50"], best["cost_usd"]["p50"]
        machine = recorded_label(best, counted=True)
        return f"{machine}, {format_seconds(float(duration))}, {format_usd(float(cost))}"
    except (KeyError, TypeError, ValueError, OverflowError):
        return ""


def last_answered(root: Path | None = None) -> Path:
    """The folder of the newest run with an answer. Raises InputError when there is none."""
    runs = list_runs(root)
    newest = next((run for run in runs if run.answered), None)
    if newest is not None:
        return newest.path
    top = near(root or runs_root())
    if runs:
        msg = f"no run in {top} has an answer; the last, {near(runs[0].path)}: {runs[0].summary}"
        raise InputError(msg, "tune the job again, with --resume to go on with an unfinished run")
    msg = f"no runs in {top}"
    raise InputError(msg, "run `autotune tune JOB` first, or name a run folder")


def passed_over() -> list[str]:
    """What to say of the runs that are newer than the last answered one: none of them is meant."""
    runs = list_runs()
    first = next((n for n, run in enumerate(runs) if run.answered), 0)
    if not first:
        return []
    named = "; ".join(f"{near(run.path)} ({run.summary})" for run in runs[:first][:MOST_NAMED])
    more = f" and {first - MOST_NAMED} more" if first > MOST_NAMED else ""
    return [f"the last run with an answer is taken, {near(runs[first].path)}; newer: {named}{more}"]


def to_resume(asked: Identity) -> Path:
    """The newest unfinished run of what is asked, else the newest one. Raises InputError."""
    runs = list_runs()
    same = [run for run in runs if run.key == asked.key]
    if same:
        return next((run for run in same if not run.answered), same[0]).path
    top = near(runs_root())
    last = f"; the last is {near(runs[0].path)}, of {runs[0].job_name}" if runs else ""
    msg = f"no run in {top} is of this job and these options{last}"
    raise InputError(msg, "leave --resume out to begin one, or name its folder with --run")

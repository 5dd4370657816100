"""Who works in a run folder: made for one run alone, locked before anything is written in it.

The lock ends with its process. What a killed one left before it wrote the job is as good as new:
it is used again where the folder is named, and taken away where autotune had chosen the name.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import shutil
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.runs.folder import (
    ANSWER_FILE,
    FAILURE_FILE,
    JOB_FILE,
    KEY_VERSION,
    OWN_FILES,
    RECORD_VERSION,
    USUALLY,
    read_json,
    runs_root,
    usable,
)
from autotune.catalog.files import is_scratch, write_new, write_whole
from autotune.catalog.locks import LOCK_FILE, Lock, NoLocks, take, unlocked
from autotune.domain.errors import AutotuneError, InputError, Interrupted
from autotune.domain.paths import check_spelled, near, whole
from autotune.domain.secrets import without_secrets
from autotune.domain.typed.values import shown
from autotune.frozen import dataclass
from autotune.search.study.refusals import of_a_new_run

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.app.runs.folder import Identity
    from autotune.domain.job import Job

NAMED_BY_US = re.compile(r"\d{8}-\d{6}-.+")
ANOTHER = "choose another folder with --run, or leave --run out"
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})


@contextlib.contextmanager
def working_in(asked: Identity, run_dir: Path | None, *, resume: bool) -> Iterator[Path]:
    """Work in a run's folder, alone; why it ended in an error is kept there.

    run_dir: the folder; None: a new one, named after the time and the job. A new one is taken away
    again where the user's input was refused before any trial.

    Raises InputError where the folder holds another job, holds this one without `resume`, is in use
    by another process, or cannot be read or written; also for a disk that is full meanwhile.
    """
    check_spelled(*_named_in_files(asked.job), str(run_dir or runs_root()))
    held = _named(asked, run_dir, resume=resume) if run_dir is not None else _chosen(asked)
    folder, made = held.folder, held.made
    try:
        yield folder
    except (KeyboardInterrupt, Interrupted):
        raise
    except Exception as error:
        if made and isinstance(error, InputError) and _untried(folder):
            shutil.rmtree(folder, ignore_errors=True)
            error.hint = of_a_new_run(error.hint)
        own = error.message if isinstance(error, AutotuneError) else None
        full = disk_is_full(error)
        _note_failure(folder, full or own or f"{type(error).__name__}: {error}")
        if full:
            from autotune.probe.outcomes import MAKE_ROOM

            raise InputError(full, MAKE_ROOM) from error
        raise
    finally:
        held.lock.close(remove=True)


def _named_in_files(job: Job) -> list[str]:
    """The places of the user that what is written for a job names."""
    model = job.stated_file.get("model")
    return [job.base_dir, job.dataset_path or "", *([model] if isinstance(model, str) else [])]


def disk_is_full(error: Exception) -> str:
    """That there is no room, and where as far as that is known; empty for another error."""
    if not isinstance(error, OSError) or error.errno not in FULL:
        return ""
    where = f": {near(Path(os.fsdecode(error.filename)))}" if error.filename else ""
    return f"the disk is full{where}"


@dataclass(frozen=True, slots=True)
class _Held:
    """A folder that this process holds. made: the run in it is new."""

    folder: Path
    lock: Lock
    made: bool


def _chosen(asked: Identity) -> _Held:
    """A new folder under a name of ours."""
    _take_away_unborn(runs_root())
    while True:
        folder = new_run_dir(asked.job)
        try:
            lock = _lock(folder)
        except FileNotFoundError:  # taken for a dead one's before it was locked
            continue
        if lock is None:
            continue
        return _begun(asked, folder, lock, resume=False)


def _named(asked: Identity, folder: Path, *, resume: bool) -> _Held:
    """The folder that the user named."""
    with usable(folder):
        try:
            lock = _made_and_locked(asked, folder, resume=resume)
        except FileNotFoundError:  # its owner was refused a moment ago, and took it away
            lock = _made_and_locked(asked, folder, resume=resume)
    if lock is None:
        raise unlocked(folder)
    return _begun(asked, folder, lock, resume=resume)


def _made_and_locked(asked: Identity, folder: Path, *, resume: bool) -> Lock | None:
    _check_place(asked, folder, resume=resume)  # before a file of ours lies among the user's
    folder.mkdir(parents=True, exist_ok=True)
    return _lock(folder)


def _begun(asked: Identity, folder: Path, lock: Lock, *, resume: bool) -> _Held:
    """Write the job, unless it is there; the lock is given back where that is refused."""
    try:
        with usable(folder):
            made = not _check_place(asked, folder, resume=resume)
            if made:
                _write_job(asked, folder)
            else:
                _keep_changes(asked, folder)
                with contextlib.suppress(FileNotFoundError):
                    (folder / FAILURE_FILE).unlink()
    except BaseException:
        lock.close(remove=True)
        raise
    return _Held(folder, lock, made)


def _lock(folder: Path) -> Lock | None:
    try:
        return take(folder / LOCK_FILE)
    except NoLocks as error:
        raise unlocked(folder, error) from None


def new_run_dir(job: Job, now: datetime | None = None) -> Path:
    """A new, empty folder for a run: date, time and the job's name. Nobody else gets the same.

    Raises InputError where none can be made.
    """
    stamp = (now or datetime.now(UTC)).strftime("%Y%m%d-%H%M%S")
    slug = re.sub(r"[^A-Za-z0-9._-]+", "-", job.name).strip("-.")[:48] or "job"
    base = runs_root() / f"{stamp}-{slug}"
    path, number = base, 2
    with usable(base):
        base.parent.mkdir(parents=True, exist_ok=True)
        while True:
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                return path
            path, number = base.with_name(f"{base.name}-{number}"), number + 1


def _check_place(asked: Identity, folder: Path, *, resume: bool) -> bool:
    """Whether the folder holds this run already. Raises InputError where it cannot be used."""
    if folder.exists() and not folder.is_dir():
        msg = f"{near(folder)} is a file, and a run needs a folder"
        raise InputError(msg, "choose a new or empty folder with --run")
    there = list(folder.iterdir()) if folder.exists() else []
    # Looked for after the others: a run that begins at this moment writes its job first.
    if os.path.lexists(folder / JOB_FILE):
        _check_same(asked, folder, resume=resume)
        return True
    if not all(_is_ours(path) for path in there):
        msg = f"{near(folder)} exists and is not a run folder"
        raise InputError(msg, "choose a new or empty folder with --run")
    if resume:
        msg = f"{near(folder)} holds no run to resume"
        raise InputError(msg, "leave --resume out, or name the run's folder with --run")
    return False


def _is_ours(path: Path) -> bool:
    """Whether a file says nothing of a run: a lock, or what was half written."""
    return path.name == LOCK_FILE or is_scratch(path, OWN_FILES)


def _write_job(asked: Identity, folder: Path) -> None:
    job = asked.job
    record = {
        "schema_version": RECORD_VERSION,
        "job_key": asked.key,
        "name": job.name,
        "question": list(asked.question),
        "base_dir": str(whole(job.base_dir)),
        "spec": json.loads(job.spec) if job.spec else None,
    } | _changeable(asked)
    for path in folder.iterdir():
        if is_scratch(path, OWN_FILES):
            path.unlink(missing_ok=True)
    text, _ = without_secrets(json.dumps(record, indent=1) + "\n")
    if not write_new(folder / JOB_FILE, text):
        msg = f"{near(folder)} was taken by another process a moment ago"
        raise InputError(msg, ANOTHER)


def _changeable(asked: Identity) -> dict[str, Any]:
    """What a run may go on with otherwise than it was begun; what is usual is not written."""
    by = {} if asked.proposed_by == USUALLY else asked.proposed_by
    found = {"limits": dict(asked.limits), "proposed_by": dict(by)}
    return {name: value for name, value in found.items() if value}


def _keep_changes(asked: Identity, folder: Path) -> None:
    """A run that goes on with other limits keeps those: whoever resumes it next finds them."""
    record = read_json(folder / JOB_FILE)
    limits = {"limits": record["limits"]} if "limits" in record else {}
    changed = {k: v for k, v in record.items() if k not in {"limits", "proposed_by"}}
    changed |= limits | _changeable(asked)
    if changed != record:
        write_whole(folder / JOB_FILE, json.dumps(changed, indent=1) + "\n")


def _check_same(asked: Identity, folder: Path, *, resume: bool) -> None:
    record = read_json(folder / JOB_FILE)
    key = str(record.get("job_key"))
    if key != asked.key:
        if not key.startswith(KEY_VERSION):
            msg = (
                f"{near(folder)} holds a run of an earlier version of autotune: its trials have "
                "that version's predictions, and cannot go on with today's"
            )
            raise InputError(
                msg, "tune again in a new folder (no --resume, another --run); "
                f"`autotune recompute {near(folder)}` shows what changed since"
            )  # fmt: skip
        msg = f"{near(folder)} holds another job ({shown(record.get('name', 'unknown'))})"
        raise InputError(msg, ANOTHER)
    if not resume and (folder / ANSWER_FILE).exists():
        msg = f"{near(folder)} already holds an answer for this job"
        raise InputError(msg, "add --resume to go on in it, or choose another --run")


def _untried(folder: Path) -> bool:
    from autotune.search.study.record import TRIALS_FILE

    trials = folder / TRIALS_FILE
    return not trials.exists() or not trials.stat().st_size


def _note_failure(folder: Path, message: str) -> None:
    content = {"message": message, "when": datetime.now(UTC).isoformat(timespec="seconds")}
    with contextlib.suppress(OSError):
        if folder.is_dir():
            write_whole(folder / FAILURE_FILE, json.dumps(content) + "\n")


def _take_away_unborn(root: Path) -> None:
    """Take away folders of ours whose process died before it wrote the job."""
    with contextlib.suppress(OSError), os.scandir(root) as entries:
        named = [Path(e.path) for e in entries if NAMED_BY_US.fullmatch(e.name) and e.is_dir()]
        for folder in named:
            if not os.path.lexists(folder / JOB_FILE):
                _take_away(folder)


def _take_away(folder: Path) -> None:
    with contextlib.suppress(OSError):
        if all(_is_ours(path) for path in folder.iterdir()):
            lock = take(folder / LOCK_FILE)
            if lock is None:
                return
            with lock:
                if not os.path.lexists(folder / JOB_FILE):
                    for path in folder.iterdir():
                        path.unlink()
                    folder.rmdir()

"""The user's own file with the pick in it: into the run folder, or in place with a backup."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.app.trainer_file import COMMAND, imported_again
from autotune.domain.errors import InputError
from autotune.trainers.format import Export, Plan
from autotune.trainers.give_back import Returned, give_back
from autotune.trainers.launch import accelerate_yaml
from autotune.trainers.versions import OLDEST_TRANSFORMERS, check_range, parse_version

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.domain.recommendation import Recommendation

SAME = "same"
OWN_FOLDER = "own"  # of the run folder
_HF_FAMILY = {"hf", "trl", "llamafactory"}


def is_same(target: str) -> bool:
    """Whether an export is of the user's own file: `same`, or `same@5.10.0`."""
    return target.strip().partition("@")[0] == SAME


def check_same(target: str, job: Job) -> None:
    """Raise InputError where a job was not read from a trainer's file, or the version is unknown."""  # noqa: E501
    if job.origin is None:
        msg = "--export same gives back a trainer's file, and the job was not read from one"
        raise InputError(msg, "give your trainer's file as JOB, or --export hf or trl")
    _transformers(target, job)


def check_in_place(job: Job) -> None:
    """Raise InputError where there is no file of the user's to change."""
    check_same(SAME, job)
    if job.origin is not None and not job.origin.path:
        msg = f"{COMMAND} is not in a file, so there is none to change in place"
        raise InputError(msg, "leave --in-place out")


def returned(target: str, job: Job, offer: Offer, config: Config) -> Returned:
    """The user's file with `config` in it. Raises InputError as `check_same` does."""
    check_same(target, job)
    assert job.origin is not None  # noqa: S101 - check_same
    made, values = imported_again(job.origin)
    return give_back(job.origin, values, made, config, _transformers(target, job), offer.count)


def same_export(target: str, job: Job, offer: Offer, config: Config) -> Export:
    """The file, its difference, and where accelerate shards, the launcher's config beside it."""
    found = returned(target, job, offer, config)
    files = {found.name: found.text, f"{found.name}.diff": found.diff}
    if offer.count > 1 and job.origin is not None and job.origin.trainer in _HF_FAMILY:
        files.setdefault("accelerate.yaml", accelerate_yaml(_plan(target, job, offer, config)))
    return Export(files, found.notes)


def _plan(target: str, job: Job, offer: Offer, config: Config) -> Plan:
    return Plan(
        job=job, offer=offer, config=config, torch=job.software.torch,
        transformers=_transformers(target, job), trl=job.software.trl, checkpoint_bytes=0.0,
        risk="", out_dir="output",
    )  # fmt: skip


def _transformers(target: str, job: Job) -> tuple[int, ...]:
    _, at, version = target.strip().partition("@")
    found = parse_version(version, target) if at else job.software.transformers
    check_range("transformers", found, OLDEST_TRANSFORMERS)
    return found


def replace_in_place(found: Returned, path: str, before: str) -> Path:
    """Write the file over the user's, atomically, with the old text in a backup beside it.

    Raises:
        InputError: There is no file, it changed since it was read, or it cannot be written.
    """
    target = Path(path)
    try:
        now = target.read_bytes().decode("utf-8-sig")
        if now != before:
            msg = f"{path} was changed since it was read"
            raise InputError(msg, "tune again from the file as it is now")
        backup = _backup_name(target)
        _write(backup, target.read_bytes(), target)
        _write(target, found.text.encode(), target)
    except (OSError, UnicodeDecodeError) as error:
        msg = f"{path} cannot be changed in place: {getattr(error, 'strerror', None) or error}"
        raise InputError(msg, "take the file from the run folder instead") from None
    return backup


def _backup_name(path: Path) -> Path:
    """A name that does not exist yet: config.yml.bak, then config.yml.bak2, ..."""
    number = 1
    while True:
        backup = path.with_name(f"{path.name}.bak{number if number > 1 else ''}")
        if not backup.exists():
            return backup
        number += 1


def _write(path: Path, content: bytes, like: Path) -> None:
    handle, scratch = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
        Path(scratch).chmod(like.stat().st_mode & 0o777)
        Path(scratch).replace(path)
    except BaseException:
        Path(scratch).unlink(missing_ok=True)
        raise


def own_changes(recommendation: Recommendation, exports: Sequence[str]) -> str:
    """The difference that the pick makes in the user's own file; empty where there is none."""
    job, best = recommendation.job, recommendation.best
    if job.origin is None or best is None:
        return ""
    return returned(_target(exports), job, best.offer, best.config).diff


def put_in_place(recommendation: Recommendation, exports: Sequence[str]) -> str:
    """Change the user's own file, and say where the old one is kept.

    Raises:
        InputError: The job is not of a trainer's file, nothing was picked, or it cannot be written.
    """
    job, best = recommendation.job, recommendation.best
    check_same(_target(exports), job)
    if best is None or job.origin is None:
        msg = "--in-place: nothing fits, so there is nothing to write"
        raise InputError(msg, "see the smallest changes that would fit")
    found = returned(_target(exports), job, best.offer, best.config)
    if not found.changes:
        return f"{job.origin.path} already says what is recommended"
    backup = replace_in_place(found, job.origin.path, job.origin.text)
    return f"{job.origin.path} was changed; the file as it was is {backup}"


def _target(exports: Sequence[str]) -> str:
    return next((target for target in exports if is_same(target)), SAME)

"""A file where a run folder is expected: a job file, or a trainer's own file."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.app.job.file import read_document
from autotune.app.job.overrides import Overrides, line_document, overridden
from autotune.app.job.trainer_file import read_any, refuse_flags
from autotune.domain.errors import InputError
from autotune.trainers.registry import detect

if TYPE_CHECKING:
    from pathlib import Path

SCRIPTS = {".py", ".sh"}


def job_values(path: Path, command: str) -> dict[str, Any]:
    """A job file's mapping. Raises InputError for a trainer's own file, which is no answer yet.

    command: what asks, as it is typed.
    """
    if _is_own(path):
        msg = f"{path} is a trainer's own file, and {command} starts from a run or a job file"
        hint = f"answer it once: `autotune tune {path} --rows N --gpu NAME`; then {command} the run"
        raise InputError(msg, hint)
    return read_document(path).values


def started_from(path: Path, overrides: Overrides) -> tuple[dict[str, Any], Overrides]:
    """A file's mapping of a job file's keys with the machine it starts from, and what changes.

    A trainer's own file names no machine: the first of `overrides.gpus` is the one it runs on.
    Raises InputError for such a file with fewer than two, and for its flags beside a job file.
    """
    if not _is_own(path):
        values = read_document(path).values
        refuse_flags(overrides, str(path))
        return values, overrides
    if len(overrides.gpus) < 2:  # noqa: PLR2004 - from one to another
        msg = f"{path} is a trainer's own file, and it names no machine to start from"
        raise InputError(msg, "name the one it runs on, then the others: --gpu NOW,OTHER")
    document, own = read_any(path, overrides)
    here = overridden(document, Overrides(gpus=own.gpus[:1]))
    return here.values, replace(own, gpus=own.gpus[1:], stated={}, beside=())


def started_from_line(overrides: Overrides) -> tuple[dict[str, Any], Overrides]:
    """A job in one line with the first of its machines, and what changes: the other machines.

    Raises InputError for fewer than two machines, and for what a job in one line lacks.
    """
    document = line_document(overrides)
    if len(overrides.gpus) < 2:  # noqa: PLR2004 - from one to another
        msg = "a job in one line is recomputed from one machine to another, and one is named"
        raise InputError(msg, "name the one it runs on, then the others: --gpu NOW,OTHER")
    here = overridden(document, Overrides(gpus=overrides.gpus[:1]))
    return here.values, replace(overrides, gpus=overrides.gpus[1:], stated={})


def _is_own(path: Path) -> bool:
    script = path.suffix.casefold() in SCRIPTS
    return script or detect(read_document(path).values, str(path)) is not None

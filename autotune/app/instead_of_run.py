"""A file where a run folder is expected: a job file will do, a trainer's own file will not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.app.read_jobfile import read_document
from autotune.domain.errors import InputError
from autotune.trainers.detect import detect

if TYPE_CHECKING:
    from pathlib import Path


def job_values(path: Path, command: str) -> dict[str, Any]:
    """A job file's mapping. Raises InputError for a trainer's own file, which is no answer yet.

    command: what asks, as it is typed.
    """
    script = path.suffix.casefold() in {".py", ".sh"}
    values = {} if script else read_document(path).values
    if script or detect(values, str(path)) is not None:
        msg = f"{path} is a trainer's own file, and {command} starts from a run or a job file"
        hint = f"answer it once: `autotune tune {path} --rows N --gpu NAME`; then {command} the run"
        raise InputError(msg, hint)
    return values

"""A log by its path, whatever form it has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.errors import InputError
from autotune.domain.jobvalues import shown
from autotune.evidence.step_times import RECORD_FILE, read_csv_log, read_record
from autotune.evidence.trainer_state import (
    CHECKPOINT,
    STATE_FILE,
    checkpoint_state,
    read_trainer_state,
)

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.evidence.run_log import RunLog

OUTPUT = "output"  # of a run folder: where its run.sh writes, unless told otherwise
_READERS = {".json": read_trainer_state, ".csv": read_csv_log, ".jsonl": read_record}


def read_log(path: Path) -> RunLog:
    """The log of a file; of a folder, the Trainer's newest state in it, else the run's own record.

    Raises InputError when there is none, or it is damaged.
    """
    try:
        file = _in_folder(path) if path.is_dir() else path
    except (OSError, ValueError) as error:
        msg = f"{shown(str(path))} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError(msg) from None
    reader = _READERS.get(file.suffix.casefold())
    if reader is None:
        msg = f"{shown(str(file))} is no log by its name: it must end in {', '.join(_READERS)}"
        raise InputError(msg, f"name a {STATE_FILE}, a CSV of steps and times, or {RECORD_FILE}")
    return reader(file)


def _in_folder(folder: Path) -> Path:
    for place in (folder, folder / OUTPUT):
        state = checkpoint_state(place) if place.is_dir() else None
        if state is not None:
            return state
    if (folder / RECORD_FILE).is_file():
        return folder / RECORD_FILE
    msg = (
        f"{shown(str(folder))} holds neither {STATE_FILE}, checkpoints with one, nor {RECORD_FILE}"
    )
    raise InputError(msg, "name the Trainer's output folder, a checkpoint of it, or the log itself")


def training_of(path: str) -> str:
    """What names the training that a log is of: its output folder, or the file itself.

    Half-way and finished logs of one training, in several checkpoint folders, have one name.
    """
    from pathlib import Path

    file = Path(path).resolve()
    if file.name != STATE_FILE:
        return str(file)
    here = file.parent
    return str(here.parent if CHECKPOINT.fullmatch(here.name) else here)

"""A log by its path, whatever form it has, and which training it is of.

The forms are read by `trainer_state`, `step_times` and `console`; whether the log is of a planned
run is for `app/verify/log_match`.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from autotune.domain.errors import InputError
from autotune.domain.paths import near
from autotune.domain.typed.values import shown
from autotune.evidence.log.console import read_console
from autotune.evidence.log.step_times import RECORD_FILE, read_csv_log, read_record
from autotune.evidence.log.trainer_state import (
    CHECKPOINT,
    STATE_FILE,
    checkpoint_state,
    read_trainer_state,
)

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.evidence.log.run_log import RunLog

AT_ONCE_S = 60.0  # between the last line of a record and the state saved after it, at most
VERSIONED = "v[0-9]*-[0-9]*"  # in its output folder, where ms-swift writes each of its runs
OUTPUT = "output"  # of a run folder: where its run.sh writes, unless told otherwise
_READERS = {
    ".json": read_trainer_state, ".csv": read_csv_log, ".jsonl": read_record,
    ".log": read_console, ".txt": read_console, ".out": read_console, ".err": read_console,
}  # fmt: skip


def read_log(path: Path) -> RunLog:
    """The log of a file; of a folder, the Trainer's newest state or the run's own record in it.

    Where a folder has both, the one that was written last; a record that was written at the same
    time as a state is of the same training, and says more.

    Raises InputError when there is none, or it is damaged.
    """
    try:
        file = _in_folder(path) if path.is_dir() else path
    except (OSError, ValueError) as error:
        msg = f"{shown(str(path))} cannot be read: {getattr(error, 'strerror', None) or error}"
        raise InputError(msg) from None
    reader = _READERS.get(file.suffix.casefold())
    if reader is None and not file.exists():
        msg = f"{shown(str(file))} does not exist"
        raise InputError(msg, "name the Trainer's output folder once it has trained, or a log")
    if reader is None:
        ends = ", ".join(_READERS)
        msg = f"{shown(str(file))} does not look like a log: its name must end in {ends}"
        raise InputError(msg, f"name a {STATE_FILE}, a CSV of steps and times, or {RECORD_FILE}")
    return reader(file)


def _in_folder(folder: Path) -> Path:
    exported = sorted(script.parent / OUTPUT for script in folder.glob("*/run.sh"))
    written = sorted(folder.glob(VERSIONED), reverse=True)
    named = (folder, folder / OUTPUT, *written, *exported)
    places = [place for place in named if place.is_dir()]
    found = [checkpoint_state(place) for place in places]
    found += [place / RECORD_FILE for place in places]
    logs = [file for file in found if file is not None and file.is_file()]
    if logs:
        return max(logs, key=_written)
    script = folder / "run.sh"
    if script.is_file():
        msg = f"nothing was trained in {near(folder)} yet"
        raise InputError(msg, f"bash {quote(near(script))} trains; or name the log of your own run")
    msg = (
        f"{shown(str(folder))} holds neither {STATE_FILE}, checkpoints with one, nor {RECORD_FILE}"
    )
    raise InputError(msg, "name the Trainer's output folder, a checkpoint of it, or the log itself")


def _written(log: Path) -> float:
    """[s] when a log was written; a record a little later, so that it wins over its own states."""
    return log.stat().st_mtime + (AT_ONCE_S if log.name == RECORD_FILE else 0.0)


def training_of(path: str) -> str:
    """What names the training that a log is of: its output folder, or the file itself.

    Half-way and finished logs of one training, in several checkpoint folders, have one name.
    """
    from pathlib import Path

    file = Path(path).resolve()
    here = file.parent
    if file.name == RECORD_FILE:
        return str(here / OUTPUT if (here / OUTPUT).is_dir() else here)
    if file.name != STATE_FILE:
        return str(file)
    return str(here.parent if CHECKPOINT.fullmatch(here.name) else here)

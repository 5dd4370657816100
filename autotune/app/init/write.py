"""Write the job file: what was found as values, what was not as choices behind a `#`.

A file that exists is never written over. What is missing is one empty key with the word FILL IN
beside it, and every command on the file names that line.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.app.dataset.count import count_dataset
from autotune.app.init.folder import look_into
from autotune.app.init.job_text import Rows, job_text
from autotune.app.job.load import load_jobs
from autotune.app.job.overrides import Overrides
from autotune.catalog.files import write_new
from autotune.catalog.models.models import find_model
from autotune.domain.errors import InputError
from autotune.domain.job import BYTES
from autotune.domain.paths import near, whole
from autotune.probe import device as devices

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.app.init.folder import Folder
    from autotune.domain.model import Model

NAME = "autotune.yaml"
COUNTED_BYTES = 20_000_000  # of the data; what is larger is sampled, a comment needs no more
BYTE_VOCABULARY = range(256, 385)  # tokens: bytes and a few marks


@dataclass(frozen=True, slots=True)
class Written:
    """The file, what it still lacks, and what to type next."""

    path: Path
    found: tuple[str, ...]  # in words, one a line
    missing: str  # what a command on it would say; empty where it is complete
    next_command: str


def init_job(
    folder: Path,
    out: Path | None = None,
    *,
    model: str | None = None,
    data: Path | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> Written:
    """Look around and write a job file.

    Args:
        folder: Where to look; the file goes there, unless `out` names another.
        out: The file to write.
        model: The model to take, instead of one that lies there.
        data: The data set to take, instead of one that lies there.
        progress: Told what is done.

    Raises:
        InputError: The file exists, the folder cannot be read or written, or what was named is bad.
    """
    place = whole(folder)
    target = whole(out) if out is not None else place / NAME
    _refuse_existing(target)
    progress(f"looking into {folder}")
    found = look_into(place)
    chosen = _model(found, model, place)
    rows = _rows(found, data, chosen, progress)
    progress("looking for a GPU")
    text = job_text(found, model, chosen, rows, devices.gpus(), target.parent)
    _write(target, text)
    return _told(target, found, chosen, rows)


def _refuse_existing(target: Path) -> None:
    if os.path.lexists(target):
        msg = f"{near(target)} exists, and init writes over nothing"
        raise InputError(msg, f"name another file with --out, or: autotune tune {near(target)}")


def _model(found: Folder, stated: str | None, place: Path) -> Model | None:
    """The model that the file will name, if it is one that can be priced."""
    if stated is not None:
        return find_model(stated, place)
    if found.model is not None:
        return found.model[1]
    named = found.adapter.base if found.adapter else None
    if found.trainer is not None:
        of_trainer = found.trainer.made.values.get("model")
        named = of_trainer if isinstance(of_trainer, str) else named
    try:
        return find_model(named, place) if named else None
    except InputError:
        return None


def _rows(
    found: Folder, stated: Path | None, model: Model | None, progress: Callable[[str], None]
) -> Rows | None:
    """The rows that the file will name, counted where that can be done."""
    path = whole(stated) if stated is not None else found.data
    if path is None:
        return None
    progress(f"counting {near(path)}")
    tokenizer = None
    own = model.vocab_size if model else None
    try:
        count = count_dataset(path, None, path.parent, model=model, most_bytes=COUNTED_BYTES)
    except InputError as error:
        if own is not None and own in BYTE_VOCABULARY and "like none" in error.message:
            tokenizer = BYTES
            count = count_dataset(path, BYTES, most_bytes=COUNTED_BYTES)
        elif stated is not None:
            raise
        else:
            return Rows(path, None, None, f"{error.message}; {error.hint or ''}".rstrip("; "))
    return Rows(path, count, tokenizer, "")


def _write(target: Path, text: str) -> None:
    try:
        if not write_new(target, text):
            _refuse_existing(target)
    except OSError as error:
        msg = f"{near(target)} cannot be written: {error.strerror}"
        raise InputError(msg, "name a file in a folder that you may write with --out") from None


def _told(target: Path, found: Folder, model: Model | None, rows: Rows | None) -> Written:
    """What was found in words, and what a command on the file would say of it."""
    missing = ""
    try:
        load_jobs(target, Overrides())
    except InputError as error:
        missing = error.message
    lines = [f"model: {model.name}" if model else "model: none was found"]
    lines.append(f"data: {rows.words}" if rows else "data: none was found")
    if found.trainer is not None:
        made = f"{found.trainer.title} in {near(found.trainer.path)}"
        lines.append(f"method and sizes: {made}")
    if found.jobs:
        lines.append(f"a job file was here already: {', '.join(near(p) for p in found.jobs[:3])}")
    command = f"autotune tune {_quoted(near(target))}"
    return Written(target, tuple(lines), missing, command)


def _quoted(text: str) -> str:
    import shlex

    return shlex.quote(text)

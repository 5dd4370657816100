"""A job stated in options instead of a file -> the mapping of a job file."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.job.file import Document
from autotune.app.job.overrides import set_stated
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from autotune.app.job.overrides import Overrides

FORM = "--model NAME --rows N (or --data FILE) --gpu NAME"
_SIZES = {"data.rows", "data.dataset", "data.lengths.histogram", "train.steps"}


def line_document(overrides: Overrides) -> Document:
    """What `overrides.stated` says of a job, by the keys of a job file; still without hardware.

    Raises InputError where the model, the size of the data or the machine is missing.
    """
    stated, given = dict(overrides.stated), overrides.set_values
    if overrides.beside:
        msg = "--beside is of a trainer's own file, and there is none"
        raise InputError(msg, "name the trainer's file as JOB, or give --from-args")
    known = {*stated, *given}
    missing = [] if "model" in known else ["--model NAME"]
    missing += [] if _SIZES & known else ["--rows N or --data FILE"]
    missing += [] if overrides.gpus else ["--gpu NAME"]
    if missing and not stated:
        msg = "JOB is missing: a job file, or a job in one line"
        raise InputError(msg, f"in one line: {FORM}; `jobs/` holds job files that run")
    if missing:
        msg = f"there is no job file, and the one-line form lacks {', '.join(missing)}"
        raise InputError(msg, f"give JOB, or {FORM}; `autotune devices` lists the devices")
    values: dict[str, Any] = {}
    for key, value in stated.items():
        set_stated(values, key, value)
    model = str(given.get("model", stated.get("model")))
    kind = str(given.get("method.kind", stated.get("method.kind", "lora")))
    variant = str(given.get("method.variant", stated.get("method.variant", "none")))
    if variant != "none":
        kind = f"q{variant}" if kind == "qlora" else variant
    values["name"] = f"{Path(model).name or 'model'}-{kind}"[:100]
    return Document(values, "command line")

"""A trainer's own file, or a launch command, as a job: what it states, completed by flags.

The file's own config becomes today's; what it lacks (rows, device, at times model and method) is
asked for by flag.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.job.file import Document, document_of, read_text
from autotune.app.job.from_trainer import COMMAND, completed, flag_of, read_beside
from autotune.app.job.launch_command import command_document
from autotune.domain.errors import InputError
from autotune.domain.job import Assumption, Beside, Origin
from autotune.domain.typed.values import shown
from autotune.trainers.detect import DIALECTS, detect
from autotune.trainers.syntax.command_line import parse_command
from autotune.trainers.syntax.python_source import parse_script, refuse_computed
from autotune.trainers.syntax.shell_file import parse_shell
from autotune.trainers.unknown_keys import refuse_misspelt

if TYPE_CHECKING:
    from autotune.app.job.overrides import Overrides
    from autotune.domain.typed.job import JobFile
    from autotune.trainers.parsed import Imported

_FEW_ODD = 2  # misspelt keys of a job file are named one by one
__all__ = ["COMMAND", "command_document", "imported_again", "notes_of", "origin_of", "read_any"]


def read_any(path: Path, overrides: Overrides) -> tuple[Document, Overrides]:
    """The job file at `path`, or the job of a trainer's file there.

    Raises:
        InputError: The file cannot be read, mixes formats, or lacks what no flag gave.
    """
    kind, text = path.suffix.casefold(), read_text(path)
    if kind == ".ipynb":
        msg = f"{path} is a notebook, and a script is needed"
        raise InputError(msg, f"jupyter nbconvert --to script {path.name}, then name the .py file")
    if kind == ".sh":
        return command_document(text, overrides, path)
    if kind == ".py":
        return _script_document(text, path, overrides)
    document = document_of(text, str(path), json=kind == ".json")
    dialect = detect(document.values, str(path))
    if dialect is None:
        _refuse_unknown(document)
        refuse_flags(overrides, document.name)
        return document, overrides
    syntax = "json" if kind == ".json" else "yaml"
    made = dialect.read(document.values, path.name)
    refuse_misspelt(made, str(path))
    read_beside(made, document.values, path, overrides)
    return completed(made, Origin(dialect.name, syntax, str(path), text), overrides)


def _script_document(text: str, path: Path, overrides: Overrides) -> tuple[Document, Overrides]:
    script = parse_script(text, str(path))
    refuse_computed(script, str(path))
    made = DIALECTS[script.trainer].read(script.values, path.name)
    for key in script.defaulted:
        made.note(f"{path.name}: {key}", script.values[key], "not in the file; PEFT's default")
    for key in script.computed:
        made.note(f"{path.name}: {key}", "not read", "it is computed, and the file is not executed")
    read_beside(made, script.values, path, overrides)
    return completed(made, Origin(script.trainer, "python", str(path), text), overrides)


def _refuse_unknown(document: Document) -> None:
    """Raise InputError for a file most of whose keys neither a job file nor a trainer has."""
    from autotune.domain.typed.job import JobFile

    known = {*JobFile.model_fields, "phases", "runs"}
    odd = [key for key in document.values if key not in known]
    if len(odd) > max(_FEW_ODD, len(document.values) / 2):
        titles = ", ".join(dialect.title for dialect in DIALECTS.values())
        listed = ", ".join(key[:40] for key in odd[:6])
        msg = f"{document.name} is neither a job file nor a trainer's file that is read: {listed}"
        raise InputError(msg, f"read are {titles}")


def refuse_flags(overrides: Overrides, name: str) -> None:
    """Flags of a trainer's file beside a job file, which states these itself."""
    given = [flag_of(key) for key in overrides.stated]
    given += ["--beside"] if overrides.beside else []
    if given:
        msg = f"{name} states the job, so {', '.join(given)} cannot be given beside it"
        changes = " ".join(f"--set {key}={value}" for key, value in overrides.stated.items())
        hint = f"to change the job, use {changes}" if changes else "leave --beside out"
        raise InputError(msg, hint)


def origin_of(jobfile: JobFile) -> Origin | None:
    """The trainer's file that a job file was made of."""
    section = jobfile.origin
    if section is None:
        return None
    return Origin(
        section.trainer, section.syntax, section.path, section.text,
        dict(section.knobs), section.devices,
        tuple(Beside(each.path, each.syntax, each.text) for each in section.beside),
        section.typed_in,
    )  # fmt: skip


def notes_of(jobfile: JobFile) -> list[Assumption]:
    """What was guessed or left alone when the trainer's file was read."""
    section = jobfile.origin
    return [Assumption(*note) for note in section.notes] if section else []


def imported_again(origin: Origin) -> tuple[Imported, dict[str, Any]]:
    """What the recorded text of a trainer's file says, read as safely as the first time."""
    name = Path(origin.path).name or COMMAND
    if origin.trainer not in DIALECTS:
        msg = f"the recorded file is of an unknown trainer, {shown(origin.trainer)}"
        raise InputError(msg, "tune again from your file")
    values: dict[str, Any]
    if origin.syntax == "python":
        values = parse_script(origin.text, name).values
    elif origin.syntax == "shell":
        values = parse_shell(origin.text, name).values
    elif origin.syntax == "args":
        values = parse_command(origin.text).values
    else:
        values = document_of(origin.text, name, json=origin.syntax == "json").values
    made = DIALECTS[origin.trainer].read(values, name)
    made.knobs.update(origin.knobs)
    made.devices = origin.devices
    return made, values


def values_beside(beside: Beside) -> dict[str, Any]:
    """What the recorded text of a config beside the file says."""
    return document_of(beside.text, beside.path, json=beside.syntax == "json").values

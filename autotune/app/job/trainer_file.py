"""A trainer's own file, or a launch command, as a job: what it states, completed by flags.

The file's own config becomes today's; what it lacks (rows, device, at times model and method) is
asked for by flag. A file may also stand where a run folder is expected.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.job.beside import read_beside
from autotune.app.job.command import command_document, python_document
from autotune.app.job.file import (
    COMMAND,
    PAGES,
    SCRIPTS,
    SHELL,
    Document,
    document_of,
    read_document,
    read_text,
)
from autotune.app.job.from_trainer import completed
from autotune.app.job.overrides import flag_of, line_document, on_machine
from autotune.domain.errors import InputError
from autotune.domain.job import Beside, Origin
from autotune.domain.typed.values import shown
from autotune.trainers.launch.other_programs import refuse_foundry
from autotune.trainers.launch.task import script_in
from autotune.trainers.registry import TRAINERS, detect, has_settings
from autotune.trainers.schema import refuse_misspelt, say_defaults
from autotune.trainers.scope import aim_of, settled, take_aim

if TYPE_CHECKING:
    from autotune.domain.typed.overrides import Overrides
    from autotune.trainers.parsed import Parsed

_OF_A_JOB = {"model", "data", "method", "train", "hardware"}
_FEW_ODD = 2  # misspelt keys of a job file are named one by one


def script_document(path: Path, text: str, overrides: Overrides) -> tuple[Document, Overrides]:
    """The job of a script, a shell script, a notebook or a page of commands.

    Raises:
        InputError: It cannot be read, mixes formats, or lacks what no flag gave.
    """
    kind = path.suffix.casefold()
    if kind == ".ipynb":
        from autotune.trainers.syntax.notebook import launch_of, script_of

        script = script_of(text, str(path))
        if launch := launch_of(text, script):
            return command_document(launch, overrides, path.with_suffix(".sh"), str(path))
        return python_document(script, path.with_suffix(".py"), overrides, str(path))
    if kind in PAGES:
        from autotune.trainers.syntax.notebook import page_of

        return command_document(page_of(text), overrides, path.with_suffix(".sh"), str(path))
    if kind in SHELL:
        return command_document(text, overrides, path)
    return python_document(text, path, overrides, str(path))


def own_document(
    path: Path, text: str, document: Document, overrides: Overrides
) -> tuple[Document, Overrides]:
    """The job of a trainer's mapping, or the document as it is where it is no trainer's.

    Raises InputError as `script_document` does, and for a file that is neither's.
    """
    values = document.values
    _refuse_record(values, str(path))
    dialect = detect(values, str(path))
    if dialect is None:
        script = script_in(values)
        if script is not None:
            return command_document(script, overrides, path.with_suffix(".sh"), str(path))
        _refuse_unknown(document)
        refuse_flags(overrides, document.name)
        return document, overrides
    syntax = "json" if path.suffix.casefold() == ".json" else "yaml"
    aim = settled(aim_of(dialect.name, values), str(path), overrides.priced_as, values)
    made = dialect.read(document.values, path.name)
    take_aim(made, aim)
    refuse_misspelt(made, str(path))
    say_defaults(made, document.values)
    read_beside(made, document.values, path, overrides)
    return completed(made, Origin(dialect.name, syntax, str(path), text), overrides)


def _refuse_record(values: dict[str, Any], name: str) -> None:
    """Raise InputError for the config.yaml that W&B keeps of a run: each value is a mapping."""
    kept = [each for key, each in values.items() if "wandb" not in key]
    of_a_run = [
        isinstance(each, dict) and {"value"} <= set(each) <= {"desc", "value"} for each in kept
    ]
    if kept and all(of_a_run):
        msg = f"{name} is what W&B kept of a run, and not what it was started with"
        hint = "name the trainer's file or command; `autotune learn FOLDER` reads what it measured"
        raise InputError(msg, hint)


def _refuse_unknown(document: Document) -> None:
    """Raise InputError for a file most of whose keys neither a job file nor a trainer has."""
    from autotune.domain.typed.job import JobFile

    known = {*JobFile.model_fields, "phases", "runs"}
    odd = [key for key in document.values if key not in known]
    plain = not _OF_A_JOB & set(document.values) or isinstance(document.values.get("model"), dict)
    if len(odd) > (0 if plain else max(_FEW_ODD, len(document.values) / 2)):
        aim = aim_of("llamafactory", document.values)
        if aim.said and aim.objective == "merging":  # a file that only exports has no other sign
            settled(aim, document.name)
        refuse_foundry(document.values, document.name)
        titles = ", ".join(dialect.title for dialect in TRAINERS.values())
        listed = ", ".join(key[:40] for key in odd[:6])
        msg = f"{document.name} is neither a job file nor a trainer's file that is read: {listed}"
        hint = f"read are {titles}"
        if has_settings(document.values):
            alone = "--model NAME --method lora --rows N --max-length N --global-batch N"
            script = f"give the script that loads it as JOB, and --beside {document.name}"
            hint = f"it looks like the settings of a program: {script}; or state them: {alone}"
        raise InputError(msg, hint)


def _set_flag(key: str, value: object) -> str:
    """The `--set` that states it; a whole number of epochs without a point."""
    return f"--set {key}={f'{value:g}' if isinstance(value, float) else value}"


def refuse_flags(overrides: Overrides, name: str) -> None:
    """Flags of a trainer's file beside a job file, which states these itself."""
    given = [flag_of(key) for key in overrides.stated]
    given += ["--beside"] if overrides.beside else []
    given += ["--as"] if overrides.priced_as else []
    if given:
        msg = f"{name} states the job, so {', '.join(given)} cannot be given beside it"
        changes = " ".join(_set_flag(key, value) for key, value in overrides.stated.items())
        hint = f"to change the job, use {changes}" if changes else f"leave {given[-1]} out"
        raise InputError(msg, hint)


def parsed_again(origin: Origin) -> tuple[Parsed, dict[str, Any]]:
    """What the recorded text of a trainer's file says, read as safely as the first time."""
    name = Path(origin.path).name or COMMAND
    if origin.trainer not in TRAINERS:
        msg = f"the recorded file is of an unknown trainer, {shown(origin.trainer)}"
        raise InputError(msg, "tune again from your file")
    values = _values_of(origin, name)
    made = TRAINERS[origin.trainer].read(values, name)
    made.knobs.update(origin.knobs)
    made.kept |= set(origin.kept)
    made.devices = origin.devices
    return made, values


def _values_of(origin: Origin, name: str) -> dict[str, Any]:
    """The recorded text by its syntax, whose reader is loaded where it is that of the file."""
    from autotune.trainers.own_file.patch import settings_of
    from autotune.trainers.syntax import command_line, python_source, shell_script

    if origin.syntax == "python":
        return python_source.parse_script(origin.text, name, settings_of(origin)).values
    if origin.syntax == "shell":
        return shell_script.parse_shell(origin.text, name, origin.launch).values
    if origin.syntax == "args":
        return command_line.parse_command(origin.text).values
    return document_of(origin.text, name, json=origin.syntax == "json").values


def values_beside(beside: Beside) -> dict[str, Any]:
    """What the recorded text of a config beside the file says."""
    json, toml = (beside.syntax == each for each in ("json", "toml"))
    return document_of(beside.text, beside.path, json=json, toml=toml).values


def refuse_own(path: Path) -> None:
    """Raises InputError for a trainer's own file, which is no answer to verify yet."""
    if _is_own(path):
        msg = f"{path} is a trainer's own file, and verify starts from a run or a job file"
        hint = f"answer it once: `autotune tune {path} --rows N --gpu NAME`; then verify the run"
        raise InputError(msg, hint)


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
    text = read_text(path)
    if path.suffix.casefold() in SCRIPTS:
        document, own = script_document(path, text, overrides)
    else:
        document, own = own_document(path, text, read_document(path), overrides)
    here = on_machine(document, own.gpus[0])
    return here, replace(own, gpus=own.gpus[1:], stated={}, beside=())


def started_from_line(overrides: Overrides) -> tuple[dict[str, Any], Overrides]:
    """A job in one line with the first of its machines, and what changes: the other machines.

    Raises InputError for fewer than two machines, and for what a job in one line lacks.
    """
    document = line_document(overrides)
    if len(overrides.gpus) < 2:  # noqa: PLR2004 - from one to another
        msg = "a job in one line is recomputed from one machine to another, and one is named"
        raise InputError(msg, "name the one it runs on, then the others: --gpu NOW,OTHER")
    here = on_machine(document, overrides.gpus[0])
    return here, replace(overrides, gpus=overrides.gpus[1:], stated={})


def _is_own(path: Path) -> bool:
    script = path.suffix.casefold() in SCRIPTS
    return script or detect(read_document(path).values, str(path)) is not None

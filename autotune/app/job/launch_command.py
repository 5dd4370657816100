"""A launch command as JOB: its flags, or the trainer's file that it names."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.job.file import Document, read_document, read_text
from autotune.app.job.from_trainer import COMMAND, completed, read_beside
from autotune.domain.errors import InputError
from autotune.domain.job import Origin
from autotune.domain.typed.values import shown
from autotune.trainers.detect import detect
from autotune.trainers.launch.command import launched_with, processes_of, visible_devices
from autotune.trainers.launch.config import add_accelerate
from autotune.trainers.syntax.command_line import parse_command
from autotune.trainers.syntax.rewrite import changed_values
from autotune.trainers.syntax.shell_file import parse_shell
from autotune.trainers.unknown_keys import refuse_misspelt

if TYPE_CHECKING:
    from autotune.app.job.overrides import Overrides
    from autotune.trainers.dialect import Dialect
    from autotune.trainers.parsed import Imported
    from autotune.trainers.syntax.command_line import Command


def command_document(
    command: str, overrides: Overrides, path: Path | None = None
) -> tuple[Document, Overrides]:
    """The job of a launch command. Raises InputError as `read_any` does."""
    name = str(path) if path else COMMAND
    parsed = parse_shell(command, name) if path else parse_command(command)
    if parsed.config is not None:
        return _configured(parsed, name, overrides, path)
    dialect = detect(parsed.values, name)
    if dialect is None:
        known = "TrainingArguments, SFTConfig or LLaMA-Factory"
        msg = f"{name} holds no flags of {known}: {', '.join(list(parsed.values)[:6])}"
        raise InputError(msg, 'such as "python train.py --per_device_train_batch_size 4"')
    made = dialect.read(parsed.values, name)
    _add_launcher(made, parsed, name, path or Path("command"), parsed.values, overrides)
    return completed(
        made, Origin(dialect.name, "shell" if path else "args", str(path or ""), command), overrides
    )


def _configured(
    parsed: Command, name: str, overrides: Overrides, path: Path | None
) -> tuple[Document, Overrides]:
    """The job of the file that a command names. Flags of the command must not change it."""
    named = str(parsed.config)
    near = [folder / named for folder in ((path.parent, Path()) if path else (Path(),))]
    file = next((each for each in near if each.is_file()), near[0])
    values = read_document(file).values
    dialect = detect(values, str(file))
    if dialect is None:
        msg = f"{name} names {named}, which is the file of no trainer that is read"
        raise InputError(msg, "give the trainer's own file as JOB")
    made = dialect.read(values, file.name)
    refuse_misspelt(made, str(file))
    flags = {key: value for key, value in parsed.values.items() if value != named}
    _refuse_flags_over(dialect, values, flags, made, name)
    _add_launcher(made, parsed, name, file, values, overrides)
    syntax = "json" if file.suffix.casefold() == ".json" else "yaml"
    return completed(made, Origin(dialect.name, syntax, str(file), read_text(file)), overrides)


def _refuse_flags_over(
    dialect: Dialect, values: dict[str, Any], flags: dict[str, Any], made: Imported, name: str
) -> None:
    """Raise InputError for a flag that changes what the command's file says."""
    for key, value in flags.items():
        both = dialect.read(changed_values(values, {key: value}), name)
        if (both.values, both.meaning) == (made.values, made.meaning):
            continue
        says = f"its file says {shown(values[key])}" if key in values else "its file does not"
        msg = f"{name} says --{key} {shown(value)}, but {says}"
        raise InputError(msg, "say it in the file alone, so that one file can be given back")
    if flags:
        made.note(f"{name}: not read", ", ".join(flags)[:200], "flags beside the file")


def _add_launcher(
    made: Imported, parsed: Command, name: str, path: Path, values: dict[str, Any],
    overrides: Overrides,
) -> None:  # fmt: skip
    """Processes, sharding and precision as the words before the script say, and files beside."""
    made.devices = processes_of(parsed)
    visible = visible_devices(parsed)
    if made.devices is None and visible is not None and visible > 1:
        why = f"one process is started; CUDA_VISIBLE_DEVICES names {visible}"
        made.note("devices", 1, why)
        made.devices = 1
    launched = launched_with(parsed)
    if launched:
        add_accelerate(made, launched, f"{name}: accelerate launch")
    configs = [parsed.launcher.get(key) for key in ("config_file", "deepspeed_config_file")]
    more = (*overrides.beside, *(each for each in configs if isinstance(each, str)))
    read_beside(made, values, path, replace(overrides, beside=more))

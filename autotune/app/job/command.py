"""The job of a launch command: its flags, the trainer's file that it names, what it starts.

Flags beside a file are written into that file's text, as its trainer reads them after it; what a
shell decides (`$BS`) the user states by `--set`.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.job.beside import hosts_beside, near_file, read_beside
from autotune.app.job.computed import answered
from autotune.app.job.file import Document, read_document, read_text
from autotune.app.job.from_trainer import COMMAND, completed
from autotune.app.job.python_script import python_document
from autotune.app.job.started_script import (
    Started,
    joined,
    keep_unsaid,
    launch_unsaid,
    no_flags,
    note_away,
    note_script,
    read_abbreviated,
    read_as,
    started,
)
from autotune.domain.config import SPLIT
from autotune.domain.errors import InputError
from autotune.domain.job import Origin, Uncounted
from autotune.domain.typed.values import shown
from autotune.trainers.launch.config import add_accelerate
from autotune.trainers.own_settings import decides
from autotune.trainers.registry import TRAINERS, detect
from autotune.trainers.schema import refuse_misspelt, say_defaults, schema_of
from autotune.trainers.scope import aim_of, settled, take_aim
from autotune.trainers.syntax.rewrite import flat, stated_in

if TYPE_CHECKING:
    from autotune.domain.typed.overrides import Overrides
    from autotune.trainers.contract import Trainer
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.syntax.command_line import Command


def command_document(
    command: str, overrides: Overrides, path: Path | None = None, called: str = ""
) -> tuple[Document, Overrides]:
    """The job of a launch command. Raises InputError as `script_document` does.

    called: what errors call it, a notebook where it was one.
    """
    from autotune.trainers.syntax.command_line import parse_command, rewrite_command
    from autotune.trainers.syntax.shell_script import (
        chosen_launch,
        launches,
        parse_shell,
        rewrite_shell,
    )

    name = called or (str(path) if path else COMMAND)
    launch = 0
    if path and overrides.launch:
        launch = chosen_launch(launches(command, name), overrides.launch)
    parsed = parse_shell(command, name, launch) if path else parse_command(command)
    aim = aim_of("", {}, parsed.program, folders=path.absolute().parts if path else ())
    if aim.said and parsed.config is None:
        aim = settled(aim, name, overrides.priced_as, parsed.values)
    told = answered(parsed.values, name, overrides)
    if told:
        command = (
            rewrite_shell(command, told, name, launch) if path else rewrite_command(command, told)
        )
        parsed = parse_shell(command, name, launch) if path else parse_command(command)
    if parsed.config is not None:
        return _configured(parsed, name, overrides, path)
    dialect, script = _dialect_of(parsed, name, path, overrides)
    if script is not None and not aim.said:
        aim = aim_of("", {}, calls=script.calls)
        aim = settled(aim, name, overrides.priced_as, parsed.values) if aim.said else aim
    if dialect is None:
        raise no_flags(parsed, name, path)
    if not aim.said:
        aim = aim_of(dialect.name, parsed.values)
        aim = settled(aim, name, overrides.priced_as, parsed.values)
    values = joined(parsed.values, script, overrides) if script else parsed.values
    made, values = read_abbreviated(dialect, values, name, script.options if script else None)
    take_aim(made, aim)
    made.told |= {knob for knob in SPLIT if told and knob in overrides.set_values}
    made.uncounted += _unread_of(parsed)
    if script is not None:
        keep_unsaid(made, script, parsed.values)
        note_script(made, script, parsed.values, overrides)
    elif path:
        note_away(made, parsed, path)
    _add_launcher(made, parsed, name, path or Path("command"), values, overrides)
    syntax, kept = "shell" if path else "args", tuple(sorted(made.kept)) if script else ()
    origin = Origin(
        dialect.name, syntax, str(path or ""), command, launch=launch, kept=kept, flags=tuple(told)
    )
    return completed(made, origin, overrides)


def _dialect_of(
    parsed: Command, name: str, path: Path | None, overrides: Overrides
) -> tuple[Trainer | None, Started | None]:
    """Whose flags they are, by the script that makes its arguments itself; and that script."""
    dialect = detect(parsed.values, name, parsed.program)
    own = dialect is None or dialect.name in {"hf", "trl"}
    script = started(parsed, path, overrides)
    if script is None or not (own or script.trainer):
        return dialect, None
    whose = read_as(script, dialect.name if dialect else "", parsed.values)
    return (TRAINERS[whose] if whose else None), script


# How far a batch on each of several devices, or a model spread over them, may lie: assumptions.
_SPLIT_SD = (0.40, 0.30)
# What a flag that is no key of the trainer may say: an assumption.
_FLAGS_SD = (0.15, 0.10)
# What a variable that holds flags may switch on: an adapter, an offload, checkpointing. Wide.
_UNKNOWN_SD = (0.40, 0.40)


def _unread_of(parsed: Command) -> list[Uncounted]:
    """Further launches of a script, flags taken back, and variables of flags it decides itself."""
    why = "is one launch alone; --variant 2 is the next"
    again = f"on line {', '.join(map(str, parsed.others))}" if parsed.others else ""
    plain = [
        ("another launch", again, f"the script launches again there: this {why}"),
        ("also launched with", "; ".join(parsed.swept), f"a loop of the script: this {why}"),
        ("tasks", parsed.array, "#SBATCH --array starts it once for each: this is one alone"),
        ("not read", ", ".join(parsed.repeated),
         "given again further on, which is what counts: the trainer's parser takes the last"),
        ("a blank behind a backslash", f"{parsed.slips} x" if parsed.slips else "",
         "the shell ends the command there: take the blank out; all of it was read"),
        ("a comment between its lines", f"{parsed.cut} x" if parsed.cut else "",
         "the shell ends the command there: take it out; all of it was read"),
    ]  # fmt: skip
    found = [Uncounted(key, value[:120], why, 0.0, 0.0) for key, value, why in plain if value]
    if parsed.unknown:
        why = "the script decides which flags that is: priced without any"
        found.append(Uncounted("flags", " ".join(parsed.unknown)[:120], why, *_UNKNOWN_SD))
    return found


def _configured(
    parsed: Command, name: str, overrides: Overrides, path: Path | None
) -> tuple[Document, Overrides]:
    """The job of the file that a command names, with the command's flags written into it."""
    named = str(parsed.config)
    file = near_file(named, path) if path else Path(named)
    if file is None:
        msg = f"{name} starts with {shown(named)}, and no such file is found"
        where = "looked for beside it, here, and in the folders above"
        raise InputError(msg, f"{where}; give the trainer's own file as JOB")
    values, text = read_document(file).values, read_text(file)
    dialect = detect(values, str(file))
    if dialect is None:
        return _of_own_program(parsed, name, overrides, path, file)
    syntax = "json" if file.suffix.casefold() == ".json" else "yaml"
    flags = flat({key: value for key, value in parsed.values.items() if value != named})
    known = {*schema_of(dialect.name).keys, *dialect.read(values, file.name).asked}
    taken = {key: value for key, value in flags.items() if {key, key.partition(".")[0]} & known}
    text, values = stated_in(text, syntax, values, taken, str(file))
    aim = aim_of(dialect.name, values, parsed.program)
    aim = settled(aim, str(file), overrides.priced_as, values)
    made = dialect.read(values, file.name)
    take_aim(made, aim)
    made.uncounted += _unread_of(parsed)
    refuse_misspelt(made, str(file))
    say_defaults(made, values)
    _say_flags(made, taken, {key: flags[key] for key in flags if key not in taken}, file.name)
    _add_launcher(made, parsed, name, file, values, overrides)
    origin = Origin(dialect.name, syntax, str(file), text, flags=tuple(taken))
    return completed(made, origin, overrides)


def _of_own_program(
    parsed: Command, name: str, overrides: Overrides, path: Path | None, settings: Path
) -> tuple[Document, Overrides]:
    """The job of the script that a command starts with a file of the script's own settings.

    Raises InputError where the script is not at hand, or states no job.
    """
    script = next((word for word in parsed.program if word.endswith(".py")), "")
    near = near_file(script, path or Path("command")) if script else None
    if near is None:
        msg = f"{name} names {settings}, which is the file of no trainer that is read"
        raise InputError(msg, "give the trainer's own file, or the script that loads it, as JOB")
    more = replace(overrides, beside=(*overrides.beside, str(settings)))
    return python_document(read_text(near), near, more, str(near), started=parsed)


def _say_flags(made: Parsed, taken: dict[str, Any], others: dict[str, Any], file: str) -> None:
    """What the command says beside its file: what is priced with it, and what nobody reads."""
    if taken:
        listed = ", ".join(f"{key} {shown(value)}" for key, value in taken.items())
        why = f"the command's flags count before {file}; what is given back holds them"
        made.note("flags beside the file", listed[:200], why)
    if any(key.partition(".")[0] in {"dataset", "datasets"} for key in taken):
        made.datasets = ()  # the command names another
    left = [f"{key} {shown(value)}" for key, value in others.items() if decides(key) is not False]
    if left:
        why = f"beside {file}, and no key of {made.trainer}: not in the price"
        made.uncounted.append(Uncounted("flags", ", ".join(left)[:160], why, *_FLAGS_SD))
    elif others:
        made.note("flags beside the file: not read", ", ".join(others)[:200], "they move no price")


def _add_launcher(
    made: Parsed, parsed: Command, name: str, path: Path, values: dict[str, Any],
    overrides: Overrides,
) -> None:  # fmt: skip
    """Processes, sharding and precision as the words before the script say, and files beside."""
    from autotune.trainers.launch.user_start import (
        launched_with,
        processes_of,
        slurm_devices,
        visible_devices,
    )

    made.devices = hosts_beside(made, parsed, path) or processes_of(parsed) or made.devices
    made.uncounted += launch_unsaid(parsed)
    launched = launched_with(parsed)
    if launched:
        add_accelerate(made, launched, f"{name}: accelerate launch")
    configs = [parsed.launcher.get(key) for key in ("config_file", "deepspeed_config_file")]
    named = [str(near_file(each, path) or each) for each in configs if isinstance(each, str)]
    more = (*overrides.beside, *named)
    read_beside(made, values, path, replace(overrides, beside=more), launched)
    visible = visible_devices(parsed) or slurm_devices(parsed)
    if made.devices is None and visible is not None and visible > 1:
        why = (
            "priced on one, as one process is started; a Trainer that no launcher starts puts a "
            "batch on each (DataParallel), unless the model is placed over them"
        )
        made.uncounted.append(Uncounted("devices", f"{visible} visible", why, *_SPLIT_SD))
        made.devices = 1

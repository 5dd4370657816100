"""The job of a launch command, and of the Python script that it starts or that is given alone.

Of a command: its flags, the trainer's file that it names, what it starts. Flags beside a file are
written into that file's text, as its trainer reads them after it; what a shell decides (`$BS`) the
user states by `--set`. Of a script: what its calls state, its defaults, the settings that it loads.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.job.beside import (
    FLAGS_SD,
    flags_beside,
    hosts_beside,
    modules_of,
    naming_maker,
    near_file,
    read_beside,
    settings_beside,
    sourced,
    started_with,
)
from autotune.app.job.computed import DECIDES, answer, answered, cut, refuse_computed, stand_in
from autotune.app.job.file import COMMAND, Document, document_of, read_text
from autotune.app.job.from_trainer import completed
from autotune.app.job.started_script import (
    COMPUTED_SD,
    FAR,
    Started,
    joined,
    keep_unsaid,
    launch_unsaid,
    left_open,
    no_flags,
    note_away,
    note_script,
    read_as,
    refuse_filled,
    script_of,
    started,
)
from autotune.domain.config import SPLIT
from autotune.domain.errors import InputError
from autotune.domain.job import Origin, Uncounted
from autotune.domain.typed.values import shown
from autotune.trainers.launch.config import add_accelerate
from autotune.trainers.launch.other_programs import refuse_other
from autotune.trainers.registry import TRAINERS, detect
from autotune.trainers.schema import read_abbreviated, refuse_misspelt, say_defaults, schema_of
from autotune.trainers.scope import aim_of, named_reward, settled, take_aim
from autotune.trainers.syntax.rewrite import flat, stated_in
from autotune.trainers.unread import decides, kind_of

if TYPE_CHECKING:
    from autotune.domain.typed.overrides import Overrides
    from autotune.trainers.contract import Trainer
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.syntax.command_line import Command
    from autotune.trainers.syntax.python_source import Script

# How far a batch on each of several devices, or a model spread over them, may lie: assumptions.
_SPLIT_SD = (0.40, 0.30)
# What a variable that holds flags may switch on: an adapter, an offload, checkpointing. Wide.
_UNKNOWN_SD = (0.40, 0.40)
# What is asked for where it is not known, or decides nothing; and dtypes, which a device has.
_QUIET = {
    "model_name_or_path", "lora_alpha", "lora_dropout", "save_total_limit", "use_peft",
    "per_device_eval_batch_size", "bnb_4bit_compute_dtype",
}  # fmt: skip
_DTYPES = {"bf16", "fp16", "tf32", "dtype"}
_QUANTISED = {"load_in_4bit", "load_in_8bit"}  # whose weights have no dtype of the file's
# Of a script's defaults, what is said beside what decides its price.
_SAID = {"model_name_or_path", "load_in_4bit", "load_in_8bit", "gradient_checkpointing", "packing"}


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
    wanted = overrides.launch if path else ""
    launch = chosen_launch(launches(command, name), wanted) if wanted else 0
    parsed = parse_shell(command, name, launch) if path else parse_command(command)
    _refuse_shell(parsed, name, path)
    refuse_other(parsed.program, parsed.values, name, surely=True)
    refuse_filled(parsed, command, name, path)
    aim = aim_of("", {}, parsed.program, folders=path.absolute().parts if path else ())
    if aim.said and parsed.config is None:
        aim = settled(aim, name, overrides.priced_as, parsed.values)
    beside = sourced(command, path, flat(dict(parsed.values))) if path else {}
    told = {**beside, **answered({**flat(dict(parsed.values)), **beside}, name, overrides)}
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
    made.uncounted += [*_unread_of(parsed), *left_open(parsed)]
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
    return completed(made, origin, overrides, called)


def _refuse_shell(parsed: Command, name: str, path: Path | None) -> None:
    """Raise InputError for a command that starts a shell script: that says what its flags mean."""
    shell = next((word for word in parsed.program if word.endswith((".sh", ".bash"))), "")
    if not shell or any(word.endswith(".py") for word in parsed.program):
        return
    near = near_file(shell, path or Path("command"))
    msg = f"{name} starts the shell script {shell}, which says what its flags mean"
    hint = f"give {near or shell} as JOB; what it leaves open is asked for"
    raise InputError(msg, hint)


def _dialect_of(
    parsed: Command, name: str, path: Path | None, overrides: Overrides
) -> tuple[Trainer | None, Started | None]:
    """Whose flags they are, by the script that makes its arguments itself; and that script."""
    dialect = detect(parsed.values, name, parsed.program)
    own = dialect is None or dialect.name in {"hf", "trl"}
    script = started(parsed, path, overrides)
    whose = read_as(script, dialect.name if dialect else "", parsed.values) if script else ""
    if not whose:
        refuse_other(parsed.program, parsed.values, name)
    if script is None or not (own or script.trainer):
        return dialect, None
    return (TRAINERS[whose] if whose else None), script


def _unread_of(parsed: Command) -> list[Uncounted]:
    """Further launches of a script, flags taken back, and variables of flags it decides itself."""
    why = "is one launch alone; --variant 2 is the next"
    again = f"on line {', '.join(map(str, parsed.others))}" if parsed.others else ""
    plain = [
        ("another launch", again, f"the script launches again there: this {why}"),
        ("also started", ", ".join(parsed.beside), "another training: not in this price"),
        ("also launched with", "; ".join(parsed.swept), f"a loop of the script: this {why}"),
        ("tasks", parsed.array, "#SBATCH --array starts it once for each: this is one alone"),
        ("not read", ", ".join(parsed.repeated),
         "given again further on, which is what counts: the trainer's parser takes the last"),
        ("a blank behind a backslash", f"{parsed.slips} x" if parsed.slips else "",
         "the shell ends the command there: take the blank out; all of it was read"),
        ("no backslash before a flag", f"{parsed.unjoined} x" if parsed.unjoined else "",
         "the shell ends the command there: put one in; all of it was read"),
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
    own = parsed.written.get(Path(named).name)
    file = near_file(named, path) if path and own is None else Path(named)
    if file is None:
        msg = f"{name} starts with {shown(named)}, and no such file is found"
        where = "looked for beside it, here, and in the folders above"
        raise InputError(msg, f"{where}; give the trainer's own file as JOB")
    text = read_text(file) if own is None else own
    values = document_of(text, str(file), json=file.suffix.casefold() == ".json").values
    dialect = detect(values, str(file))
    if dialect is None or _is_of_script(parsed, path, dialect):
        return _of_own_program(parsed, name, overrides, path, file)
    syntax = "json" if file.suffix.casefold() == ".json" else "yaml"
    flags = flat({key: value for key, value in parsed.values.items() if value != named})
    known = {*schema_of(dialect.name).keys, *dialect.read(values, file.name).asked}
    taken = {key: value for key, value in flags.items() if {key, key.partition(".")[0]} & known}
    text, values = stated_in(text, syntax, values, taken, str(file))
    aim = aim_of(dialect.name, values, parsed.program)
    aim = settled(aim, str(file), overrides.priced_as, values)
    by_file = replace(parsed, values=values)  # its words are what else would be flags
    script = started(by_file, path, overrides) if dialect.name in {"hf", "trl"} else None
    whole = joined(values, script, overrides) if script else values
    made = dialect.read(whole, file.name)
    take_aim(made, aim)
    made.uncounted += _unread_of(parsed)
    refuse_misspelt(made, str(file))
    say_defaults(made, whole)
    if script is not None:
        keep_unsaid(made, script, values)
        note_script(made, script, values, overrides)
    _say_flags(made, taken, {key: flags[key] for key in flags if key not in taken}, file.name)
    _add_launcher(made, parsed, name, file, values, overrides)
    origin = Origin(dialect.name, syntax, str(file), text, flags=tuple(taken))
    return completed(made, origin, overrides)


def _is_of_script(parsed: Command, path: Path | None, dialect: Trainer) -> bool:
    """Whether what looks like a trainer's file is the settings of a script that is started.

    It makes a trainer's arguments itself, and takes them out of the file: that is no trainer's own
    program, nor one whose arguments the file is (HfArgumentParser).
    """
    from autotune.trainers.syntax.python_arguments import ARGUMENTS, called
    from autotune.trainers.syntax.python_beside import takes_flags
    from autotune.trainers.syntax.python_settings import settings_files, tree_of

    if (found := script_of(parsed, path)) is None:
        return False
    try:
        text = read_text(found)
        whole = dialect.name in {"hf", "trl"} and takes_flags(text, str(found))[0]
        makes = called(text, str(found)) & set(ARGUMENTS)
        return bool(makes) and not whole and settings_files(tree_of(text, str(found)))[1]
    except InputError:
        return False


def _of_own_program(
    parsed: Command, name: str, overrides: Overrides, path: Path | None, settings: Path
) -> tuple[Document, Overrides]:
    """The job of the script that a command starts with a file of the script's own settings.

    Raises InputError where the script is not at hand, or states no job.
    """
    near = script_of(parsed, path)
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
        made.note("flags beside the file", cut(listed, 200), why)
    if any(key.partition(".")[0] in {"dataset", "datasets"} for key in taken):
        made.datasets = ()  # the command names another
    left = [f"{key} {shown(value)}" for key, value in others.items() if decides(key) is not False]
    if left:
        why = f"beside {file}, and no key of {made.trainer}: not in the price"
        made.uncounted.append(Uncounted("flags", cut(", ".join(left)), why, *FLAGS_SD))
    elif others:
        made.note("flags beside the file: not read", ", ".join(others)[:200], "they move no price")


def _add_launcher(
    made: Parsed, parsed: Command, name: str, path: Path, values: dict[str, Any],
    overrides: Overrides,
) -> None:  # fmt: skip
    """Processes, sharding and precision as the words before the script say, and files beside."""
    from autotune.trainers.launch import processes
    from autotune.trainers.launch.user_start import launched_with

    made.devices = (
        hosts_beside(made, parsed, path) or processes.processes_of(parsed) or made.devices
    )
    processes.refuse_spread(parsed, made.trainer, name)
    made.uncounted += launch_unsaid(parsed)
    launched = launched_with(parsed)
    if launched:
        add_accelerate(made, launched, f"{name}: accelerate launch")
    more = (*overrides.beside, *started_with(made, parsed, path, overrides, launched))
    more_of = replace(overrides, beside=more)
    read_beside(made, values, path, more_of, launched, parsed.written)
    visible = processes.visible_devices(parsed) or processes.slurm_devices(parsed)
    if made.devices is None and visible is not None and visible > 1:
        why = (
            "priced on one, as one process is started; a Trainer that no launcher starts puts a "
            "batch on each (DataParallel), unless the model is placed over them"
        )
        made.uncounted.append(Uncounted("devices", f"{visible} visible", why, *_SPLIT_SD))
        made.devices = 1


def python_document(
    text: str, path: Path, overrides: Overrides, name: str, started: Command | None = None
) -> tuple[Document, Overrides]:
    """The job of a script; `name` is what errors call it, a notebook where it was one.

    started: the command that starts it, whose launcher says on how many devices.
    """
    from autotune.trainers.syntax.python_arguments import called, named_model
    from autotune.trainers.syntax.python_settings import settings_files, told_over, tree_of
    from autotune.trainers.syntax.python_source import parse_script

    aim = aim_of("", {}, calls=called(text, name, {}))
    if aim.said:
        aim = settled(aim, name, overrides.priced_as)
    named, loads = settings_files(tree_of(text, name))
    loaded, settings, overrides = settings_beside(named, path, overrides)
    read = loaded.path if loaded else ", ".join(settings or ())
    settings, over = told_over(settings, started.values.values() if started else ())
    with naming_maker(path):
        script = parse_script(text, name, settings, beside=list(modules_of(text, path).values()))
    if not aim.said:
        named_so = {"model_name_or_path": named_model(tree_of(text, name))}
        aim = aim_of(script.trainer, {**named_so, **script.values})
        aim = aim if aim.said else named_reward(name)
        aim = settled(aim, name, overrides.priced_as, script.values)
    lost = set(script.computed)
    answer(script, overrides)
    refuse_computed(script, name, overrides, loads=loads and loaded is None,
                    started=started is not None)  # fmt: skip
    made = TRAINERS[script.trainer].read(_as_called(script), Path(name).name)
    take_aim(made, aim)
    told = "model" in script.calls or "model_init_kwargs" in lost
    made.by_name = script.sft and "by_name" in script.calls and not told
    stand_in(made, overrides, lost)
    if script.total:
        made.global_batch = made.batch_on(1)
    _say_script(made, script, Path(name).name)
    if started is None:
        read_beside(made, script.values, path, overrides)
    else:
        _add_launcher(made, started, name, path, script.values, overrides)
        made.uncounted += flags_beside(started, loaded.path if loaded else "", over)
    made.beside += [loaded] if loaded else []
    if read:
        made.note("read beside the script", read, "the settings that it loads")
    return completed(made, Origin(script.trainer, "python", str(path), text), overrides, name)


def _as_called(script: Script) -> dict[str, Any]:
    """What its calls state; evaluation stays off where they say when, and not that it is on."""
    said = {*script.values, *script.computed}
    off = "eval_steps" in said and not {"eval_strategy", "evaluation_strategy", "**"} & said
    return {**script.values, **({"eval_strategy": "no"} if off else {})}


def _say_script(made: Parsed, script: Script, name: str) -> None:
    """What of the script is not in the price, or is its own default."""
    if script.again:
        lines = ", ".join(map(str, script.again))
        why = "the script trains again there: the price is of its first training alone"
        made.uncounted.append(Uncounted("another training", f"on line {lines}", why, 0.0, 0.0))
    by_default = {key: script.values[key] for key in script.by_default if key in DECIDES | _SAID}
    own = {key: value for key, value in by_default.items() if value not in ("", None)}
    if own:
        why = "the script's own defaults, for which flags may stand: --from-args prices a command"
        said = cut(", ".join(f"{key} {shown(value)}" for key, value in own.items()))
        made.uncounted.append(Uncounted("read", said, why, 0.0, 0.0))
    for key, whose in script.defaulted.items():
        made.note(f"{name}: {key}", script.values[key], f"not in the file; {whose}'s default")
    made.uncounted += [*_computed(script, made), *script.unseen]
    for key in script.computed:
        made.note(f"{name}: {key}", "not read", "it is computed, and the file is not executed")


def _computed(script: Script, made: Parsed) -> list[Uncounted]:
    """What it computes of all that is asked of it."""
    quiet = _QUIET | (_DTYPES & script.by_device)
    quiet |= {"dtype"} if _QUANTISED & set(script.values) else set()
    lost = [key for key in dict.fromkeys(script.computed) if key in (made.asked | FAR) - quiet]
    why = "not read, as the file is never executed"
    found = [Uncounted(key, "computed", why, *COMPUTED_SD) for key in lost if key in FAR]
    for key in dict.fromkeys(script.computed):
        kind = kind_of(key) if key not in lost else None
        if kind is not None:
            found.append(Uncounted(key, "computed", kind.does, kind.time_sd, kind.memory_sd))
    little = ", ".join(key for key in lost if key not in FAR)
    return [*found, Uncounted(little, "computed", why, *FLAGS_SD)] if little else found

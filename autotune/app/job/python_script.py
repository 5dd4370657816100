"""The job of a Python script: what its calls state, its defaults, the settings that it loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.app.job.beside import read_beside, settings_beside
from autotune.app.job.computed import DECIDES, answer, refuse_computed, stand_in
from autotune.app.job.from_trainer import completed
from autotune.app.job.started_script import COMPUTED_SD, FAR
from autotune.domain.job import Origin, Uncounted
from autotune.domain.typed.values import shown
from autotune.trainers.own_settings import decides
from autotune.trainers.registry import TRAINERS
from autotune.trainers.scope import aim_of, named_reward, settled, take_aim
from autotune.trainers.unread import kind_of

if TYPE_CHECKING:
    from autotune.app.job.file import Document
    from autotune.domain.typed.overrides import Overrides
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.syntax.command_line import Command
    from autotune.trainers.syntax.python_source import Script

_LITTLE_SD = (0.15, 0.10)  # an assumption
# What is asked for where it is not known, or decides nothing; and dtypes, which a device has.
_QUIET = {
    "model_name_or_path", "lora_alpha", "lora_dropout", "save_total_limit", "use_peft",
    "per_device_eval_batch_size",
}  # fmt: skip
_DTYPES = {"bf16", "fp16", "tf32", "dtype"}
_QUANTISED = {"load_in_4bit", "load_in_8bit"}  # whose weights have no dtype of the file's
# Of a script's defaults, what is said beside what decides its price.
_SAID = {"model_name_or_path", "load_in_4bit", "load_in_8bit", "gradient_checkpointing", "packing"}


def python_document(
    text: str, path: Path, overrides: Overrides, name: str, started: Command | None = None
) -> tuple[Document, Overrides]:
    """The job of a script; `name` is what errors call it, a notebook where it was one.

    started: the command that starts it, whose launcher says on how many devices.
    """
    from autotune.trainers.launch.user_start import processes_of
    from autotune.trainers.syntax.python_arguments import named_model
    from autotune.trainers.syntax.python_settings import settings_files, tree_of
    from autotune.trainers.syntax.python_source import called, parse_script

    aim = aim_of("", {}, calls=called(text, name))
    if aim.said:
        aim = settled(aim, name, overrides.priced_as)
    named, loads = settings_files(tree_of(text, name))
    loaded, settings, overrides = settings_beside(named, path, overrides)
    script = parse_script(text, name, settings)
    if not aim.said:
        named_so = {"model_name_or_path": named_model(tree_of(text, name))}
        aim = aim_of(script.trainer, {**named_so, **script.values})
        aim = aim if aim.said else named_reward(name)
        aim = settled(aim, name, overrides.priced_as, script.values)
    lost = set(script.computed)
    answer(script, overrides)
    refuse_computed(script, name, overrides, loads=loads)
    made = TRAINERS[script.trainer].read(script.values, Path(name).name)
    take_aim(made, aim)
    stand_in(made, overrides, lost)
    if script.total:
        made.global_batch = made.batch_on(1)
    if script.again:
        lines = ", ".join(map(str, script.again))
        why = "the script trains again there: the price is of its first training alone"
        made.uncounted.append(Uncounted("another training", f"on line {lines}", why, 0.0, 0.0))
    by_default = {key: script.values[key] for key in script.by_default if key in DECIDES | _SAID}
    own = {key: value for key, value in by_default.items() if value not in ("", None)}
    if own:
        why = "the script's own defaults, for which flags may stand: --from-args prices a command"
        said = ", ".join(f"{key} {shown(value)}" for key, value in own.items())
        made.uncounted.append(Uncounted("read", said[:160], why, 0.0, 0.0))
    for key in script.defaulted:
        made.note(
            f"{Path(name).name}: {key}", script.values[key], "not in the file; PEFT's default"
        )
    made.uncounted += [*_computed(script, made), *script.unseen]
    for key in script.computed:
        made.note(
            f"{Path(name).name}: {key}", "not read", "it is computed, and the file is not executed"
        )
    read_beside(made, script.values, path, overrides)
    if started is not None:
        made.devices = processes_of(started)
        made.uncounted += _flags_beside(started, loaded.path if loaded else "")
    if loaded is not None:
        made.beside.append(loaded)
        made.note("read beside the script", loaded.path, "the settings that it loads")
    return completed(made, Origin(script.trainer, "python", str(path), text), overrides)


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
    return [*found, Uncounted(little, "computed", why, *_LITTLE_SD)] if little else found


def _flags_beside(started: Command, settings: str) -> list[Uncounted]:
    """Flags of the command beside the file of settings, which may say otherwise."""
    flags = [
        f"{key} {shown(value)}" for key, value in started.values.items()
        if decides(key) is not False and Path(str(value)).name != Path(settings).name
    ]  # fmt: skip
    why = "beside the file of settings, which is what is priced: they may say otherwise"
    return [Uncounted("flags", ", ".join(flags)[:120], why, *_LITTLE_SD)] if flags else []

"""The job of a Python script: what its calls state, its defaults, the settings that it loads."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.app.job.beside import read_beside, settings_beside
from autotune.app.job.from_trainer import completed
from autotune.app.job.started_script import COMPUTED_SD
from autotune.domain.job import Origin, Uncounted
from autotune.domain.typed.values import shown
from autotune.trainers.hf.keys import OWN_LENGTH
from autotune.trainers.registry import TRAINERS
from autotune.trainers.scope import aim_of, named_reward, settled, take_aim

if TYPE_CHECKING:
    from autotune.app.job.file import Document
    from autotune.domain.typed.overrides import Overrides
    from autotune.trainers.syntax.command_line import Command

# Of what a script computes, what moves time or memory far.
_COMPUTED = {
    "gradient_checkpointing", "load_in_4bit", "load_in_8bit", "attn_implementation", "packing",
    "optim", "lora_target_modules", "use_gradient_checkpointing", "deepspeed", "fsdp", OWN_LENGTH,
}  # fmt: skip
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
    from autotune.trainers.syntax.python_source import (
        DECIDES,
        called,
        loads_of,
        parse_script,
        refuse_computed,
    )

    aim = aim_of("", {}, calls=called(text, name))
    if aim.said:
        aim = settled(aim, name, overrides.priced_as)
    named, loads = loads_of(text, name)
    loaded, settings, overrides = settings_beside(named, path, overrides)
    script = parse_script(text, name, settings)
    if not aim.said:
        aim = aim_of(script.trainer, script.values)
        aim = aim if aim.said else named_reward(name)
        aim = settled(aim, name, overrides.priced_as, script.values)
    refuse_computed(script, name, loads=loads)
    made = TRAINERS[script.trainer].read(script.values, Path(name).name)
    take_aim(made, aim)
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
    made.uncounted += [
        Uncounted(key, "computed", "not read, as the file is never executed", *COMPUTED_SD)
        for key in dict.fromkeys(script.computed)
        if key in _COMPUTED or (key == "dtype" and not _QUANTISED & set(script.values))
    ]
    for key in script.computed:
        made.note(
            f"{Path(name).name}: {key}", "not read", "it is computed, and the file is not executed"
        )
    read_beside(made, script.values, path, overrides)
    if started is not None:
        made.devices = processes_of(started)
    if loaded is not None:
        made.beside.append(loaded)
        made.note("read beside the script", loaded.path, "the settings that it loads")
    return completed(made, Origin(script.trainer, "python", str(path), text), overrides)

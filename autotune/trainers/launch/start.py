"""run.sh for the user's own file: where it starts, with which command, and what it goes on from.

Source: the command lines of trl 1.16 (cli.py) and accelerate 1.15; others stand in their folders.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.trainers.launch.run_script import trainer_sh

if TYPE_CHECKING:
    from autotune.domain.job import Origin
    from autotune.trainers.contract import Plan, Trainer
    from autotune.trainers.patch import Patched

_LONGEST = 1000
LAUNCHER_FILE = "accelerate.yaml"


def own_run_sh(
    plan: Plan,
    trainer: Trainer,
    origin: Origin,
    found: Patched,
    folder: str,
    launcher: str,
    start: str = "",
) -> str:
    """run.sh for the user's own file, started where its relative paths start.

    Args:
        plan: what will run.
        trainer: whose file it is.
        origin: the file as it was read.
        found: the file as it is now; a command that was typed stands in the script itself.
        folder: where the files lie below the script; empty or with a slash at its end.
        launcher: the name of the launcher's config there; empty for one device without any.
        start: the folder that relative paths in the file start in; empty where the user is.
    """
    file = f'"$here"/{shlex.quote(folder + found.name)}'
    config = f'--config_file "$here"/{shlex.quote(folder + launcher)} ' if launcher else ""
    needed = [folder + name for name in (found.name, launcher) if name]
    if origin.syntax == "args":
        return trainer_sh(plan, [found.text.strip()], needed[1:], start)
    if origin.syntax == "shell":
        return trainer_sh(plan, [f"bash {file}"], needed, start)
    if origin.syntax == "python":
        started = f"accelerate launch {config}{file}" if launcher else f"python {file}"
        own = shlex.quote(str(Path(origin.path).parent)) + ":" if origin.path else ""
        path = f'export PYTHONPATH={own}"$PWD${{PYTHONPATH:+:$PYTHONPATH}}"'
        return trainer_sh(plan, [f"{path}  # modules beside your script", started], needed, start)
    return trainer_sh(plan, trainer.commands(plan, file, config), needed, start)


def start_folder(origin: Origin, values: Mapping[str, Any]) -> str:
    """The folder that relative paths of the user's file are found in; empty where none is.

    Trainers start them where they are called. That was most likely where autotune was called, else
    beside the file.
    """
    words = set(_texts(values))
    if origin.syntax in {"args", "shell"}:
        with contextlib.suppress(ValueError):  # an open quote, as in a comment
            words |= set(shlex.split(origin.text, comments=True))
    own = str(Path(origin.path).parent) if origin.path else ""
    folders = [folder for folder in (origin.typed_in, own) if folder]
    found = {folder: sum(_is_there(Path(folder), word) for word in words) for folder in folders}
    best = max(folders, key=lambda folder: found[folder], default="")
    return best if found.get(best) else ""


def _texts(value: object) -> Iterator[str]:
    """Every text in a mapping of mappings and lists."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _texts(item)


def _is_there(folder: Path, word: str) -> bool:
    """Whether a word reads as a relative path, and something lies there."""
    if not word or len(word) > _LONGEST or word.startswith(("/", "~")) or not word.isprintable():
        return False
    with contextlib.suppress(OSError):
        return (folder / word).exists() and word.strip("./") != ""
    return False


def resume_notes(plan: Plan, trainer: Trainer, origin: Origin) -> list[str]:
    """What the file lacks to go on after an interruption, where there may be one."""
    wanted = trainer.resumes_with
    if not wanted or not plan.may_be_interrupted or "resume" in origin.text:
        return []
    return [f"the run may be interrupted, and the file does not go on by itself: add {wanted}"]

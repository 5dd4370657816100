"""How each trainer is started on the user's own file: the commands of its documentation.

Source: the command lines of axolotl 0.19.0 (cli/main.py), llamafactory 0.9.5 (launcher.py),
torchtune 0.6.1 (`tune run`), litgpt 0.5.13, trl 1.16 (cli.py) and accelerate 1.15.
"""

from __future__ import annotations

import contextlib
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.trainers.launch.run_script import prepares, trainer_sh

if TYPE_CHECKING:
    from autotune.domain.job import Origin
    from autotune.trainers.format import Plan
    from autotune.trainers.patch import Returned

_LONGEST = 1000
LAUNCHER_FILE = "accelerate.yaml"
_GOES_ON = {  # what makes a second start go on from the last checkpoint; LLaMA-Factory does unasked
    "axolotl": "auto_resume_from_checkpoints: true", "torchtune": "resume_from_checkpoint: True",
    "litgpt": "resume: auto", "hf": "resume_from_checkpoint", "trl": "resume_from_checkpoint",
    "unsloth": "trainer.train(resume_from_checkpoint=True)",
}  # fmt: skip
_SCRIPT = "${SCRIPT:?set SCRIPT to your training script, which reads this file}"


def own_run_sh(
    plan: Plan, origin: Origin, found: Returned, folder: str, launcher: str, start: str = ""
) -> str:
    """run.sh for the user's own file, started where its relative paths start.

    Args:
        plan: what will run.
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
    return trainer_sh(plan, _commands(plan, origin.trainer, file, config), needed, start)


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


def resume_notes(plan: Plan, origin: Origin) -> list[str]:
    """What the file lacks to go on after an interruption, where there may be one."""
    wanted = _GOES_ON.get(origin.trainer)
    interrupted = plan.offer.spot or plan.job.limits.max_session_s is not None
    if not wanted or not interrupted or "resume" in origin.text:
        return []
    return [f"the run may be interrupted, and the file does not go on by itself: add {wanted}"]


def _commands(plan: Plan, trainer: str, file: str, config: str) -> list[str]:
    """The commands for a file of settings; the last one trains."""
    kind, count = "lora" if plan.job.method.is_lora else "full", plan.offer.count
    if trainer == "axolotl":
        before = [f'CUDA_VISIBLE_DEVICES="" axolotl preprocess {file}'] if prepares(plan) else []
        return [*before, f"axolotl train {file}"]
    if trainer == "llamafactory" and plan.config.sharding == "fsdp":
        return [f"accelerate launch {config}-m llamafactory.launcher {file}"]
    recipe = f"{kind}_finetune_{'single_device' if count == 1 else 'distributed'}"
    several = f"--nproc_per_node {count} " if count > 1 else ""
    sft = config.replace("--config_file", "--accelerate_config")
    return {
        "llamafactory": [f"llamafactory-cli train {file}"],
        "litgpt": [f"litgpt finetune_{kind} --config {file}"],
        "torchtune": [f"tune run {several}{recipe} --config {file}"],
        "trl": [f"trl sft {sft}--config {file}"],
        "hf": [f'accelerate launch {config}"{_SCRIPT}" {file}'],
    }[trainer]

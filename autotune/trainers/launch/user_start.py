"""How the user's own run is started: its launch flags read, its configs patched, its run.sh.

accelerate's and DeepSpeed's configs come back with only the keys changed that the pick changes.
`auto` is left alone: transformers fills it in. What such a config cannot say in place (FSDP in a
file that has no section for it) is said, and the launcher's config of the run folder takes over.
Source: the flags of torchrun (torch 2.13), accelerate 1.15 `launch` (config_args.py), deepspeed
0.19 `launcher`, runtime/config.py and runtime/zero/config.py; transformers 5.23
integrations/deepspeed.py (which values must match); the command line of trl 1.16 (cli.py); the
environment that LLaMA-Factory 0.9.5 reads (FORCE_TORCHRUN, NPROC_PER_NODE, NNODES).
"""

from __future__ import annotations

import contextlib
import difflib
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.domain.answer.recommendation import Decisive
from autotune.domain.config import ZERO_STAGE
from autotune.domain.errors import InputError
from autotune.trainers.hf.keys import LAUNCHER
from autotune.trainers.launch.config import COUNTS, KINDS, STAGES, is_deepspeed, is_settings
from autotune.trainers.launch.run_script import started_by, trainer_sh
from autotune.trainers.own_file.patch import Patched
from autotune.trainers.parsed import at_key
from autotune.trainers.syntax.rewrite import changed_values, rewrite_json, rewrite_yaml, safe_yaml

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.domain.config import Config
    from autotune.domain.job import Beside, Origin
    from autotune.trainers.contract import Changes, Plan, Trainer
    from autotune.trainers.syntax.command_line import Command

_STARTS_ITSELF = re.compile(r"\btrl\s+(sft|dpo|kto|reward|grpo|rloo)\b")  # by accelerate
_SAYS_FSDP = "accelerate|--fsdp[ =]"
_SECTIONS = {"fsdp_": "fsdp_config", "zero": "deepspeed_config"}
_STATES_AWAY = {"optimizer", "all"}
_SHARDS_AWAY = "fsdp_config.fsdp_offload_params"
_DEEPSPEED = ("gradient_accumulation_steps", "offload_optimizer_device", "offload_param_device")


def launched_with(command: Command) -> dict[str, Any]:
    """The flags of `accelerate launch` as the config file that says the same."""
    flags, found = command.launcher, dict[str, Any]()
    if "accelerate" not in " ".join(command.program):
        return found
    for name in ("mixed_precision", "num_processes", "num_machines"):
        if name in flags:
            found[name] = flags[name]
    kinds = {"use_fsdp": "FSDP", "use_deepspeed": "DEEPSPEED", "multi_gpu": "MULTI_GPU"}
    for flag, kind in kinds.items():
        if flags.get(flag) is True:
            found["distributed_type"] = kind
            break
    for name, value in flags.items():
        section = next((s for start, s in _SECTIONS.items() if name.startswith(start)), None)
        section = "deepspeed_config" if name in _DEEPSPEED else section
        if section is not None:
            found.setdefault(section, {})[name] = value
    return found


_OTHERWISE = 'write "auto" there, as transformers fills it in'
_STAGE_OF = {"none": 0, "ddp": 0, **ZERO_STAGE}


def patch_launcher(
    beside: Beside, values: Mapping[str, Any], config: Config, devices: int
) -> Patched:
    """The config with the pick's batch split, sharding, precision and number of processes in it.

    Args:
        beside: the text as it was read.
        values: its mapping, read safely.
        config: one value for every knob.
        devices: how many will run it.

    Raises:
        InputError: the text cannot be changed without changing something else as well.
    """
    name = Path(beside.path).name
    write = deepspeed_changes if is_deepspeed(values) else _accelerate_changes
    wanted, notes = ({}, []) if is_settings(values) else write(values, config, devices)
    changes = {key: value for key, value in wanted.items() if at_key(values, key) != value}
    rewrite = rewrite_json if beside.syntax == "json" else rewrite_yaml
    try:
        text = rewrite(beside.text, changes) if changes else beside.text
        same = not changes or _read(beside.syntax, text) == changed_values(values, changes)
    except Exception as error:  # a layout that the parser's positions do not describe
        msg = f"{name} cannot be changed where it stands: {type(error).__name__}"
        raise InputError(msg, _OTHERWISE) from error
    if not same:
        msg = f"{name} cannot be changed where it stands without changing something else"
        raise InputError(msg, _OTHERWISE)
    told = [f"{name}: {note}" for note in notes]
    if changes and is_deepspeed(values):
        told.append(Decisive(f"put the run folder's {name} in place of yours; --in-place does it"))
    before, after = beside.text.splitlines(), text.splitlines()
    lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm="")
    diff = "".join(f"{line}\n" for line in lines)
    return Patched(name, text, diff, changes, tuple(told))


def takes(beside: Mapping[str, Any], sharding: str) -> bool:
    """Whether an accelerate config can start that sharding by changing values alone."""
    wanted = KINDS[sharding]
    section = {"FSDP": "fsdp_config", "DEEPSPEED": "deepspeed_config"}.get(wanted)
    return section is None or bool(beside.get(section))


def deepspeed_changes(
    values: Mapping[str, Any], config: Config, devices: int
) -> tuple[Changes, list[str]]:
    """What a DeepSpeed config has to say; train_batch_size is the contract and stays."""
    changes: Changes = {}
    for key, knob in COUNTS.items():
        if _is_stated(values.get(key)):
            changes[key] = getattr(config, knob)
    for name in ("bf16", "fp16"):
        if isinstance(at_key(values, f"{name}.enabled"), bool):
            changes[f"{name}.enabled"] = config.precision == name
    changes |= _offload(values, "zero_optimization.offload_{}.device", config)
    return changes, _stage(values, "zero_optimization.stage", config, devices, changes)


def _accelerate_changes(
    values: Mapping[str, Any], config: Config, devices: int
) -> tuple[Changes, list[str]]:
    if not takes(values, config.sharding):
        lead = f"it has no section for {config.sharding}"
        return {}, [f"{lead}: start with the accelerate.yaml written beside it"]
    changes: Changes = {}
    kind = values.get("distributed_type")
    if kind is not None and not (kind == "MULTI_GPU" and config.sharding == "none"):
        changes["distributed_type"] = KINDS[config.sharding]
    if values.get("num_processes") is not None:
        changes["num_processes"] = devices
    if str(values.get("mixed_precision")) in {"bf16", "fp16"}:
        half = config.precision in {"bf16", "fp16"}
        changes["mixed_precision"] = config.precision if half else "no"
    if at_key(values, "fsdp_config.fsdp_activation_checkpointing") is True:
        full = config.activation_checkpointing == "full"
        changes["fsdp_config.fsdp_activation_checkpointing"] = full
    for key, knob in COUNTS.items():
        if _is_stated(at_key(values, f"deepspeed_config.{key}")):
            changes[f"deepspeed_config.{key}"] = getattr(config, knob)
    changes |= _offload(values, "deepspeed_config.offload_{}_device", config)
    if at_key(values, _SHARDS_AWAY) is not None and config.sharding == "fsdp":
        changes[_SHARDS_AWAY] = config.offload == "all"
    return changes, _stage(values, "deepspeed_config.zero_stage", config, devices, changes)


def _offload(values: Mapping[str, Any], key: str, config: Config) -> Changes:
    """Where ZeRO keeps the optimizer's states and, at stage 3, parameters, by the pick.

    What the file has on a disk, and parameters of whose place the pick says nothing, stay.
    key: of the device in the file, with a gap for which of the two it is of.
    """
    section = values.get(key.partition(".")[0])
    if config.sharding not in ZERO_STAGE or not isinstance(section, dict):
        return {}
    changes: Changes = {}
    for part, away in (("optimizer", _STATES_AWAY), ("param", {"all"})):
        stated = str(at_key(values, key.format(part)) or "none")
        wanted = "cpu" if config.offload in away else "none"
        free = part == "optimizer" or (wanted == "cpu" and config.sharding == "zero3")
        if free and stated in {"cpu", "none"} and stated != wanted:
            changes[key.format(part)] = wanted
    return changes


def _stage(
    values: Mapping[str, Any], key: str, config: Config, devices: int, changes: Changes
) -> list[str]:
    """Write the ZeRO stage where it changes; what that leaves for the user to see to."""
    stated = at_key(values, key)
    if not _is_stated(stated) or (devices == 1 and config.sharding == "none"):
        return []
    stage = _STAGE_OF.get(config.sharding)
    if stage is None:
        return [f"sharding {config.sharding} is not DeepSpeed's: start without this file"]
    if STAGES.get(stated) == config.sharding:
        return []
    changes[key] = stage
    section = key.rpartition(".")[0]
    held = values.get(section)
    parameters = isinstance(held, dict) and {"offload_param", "offload_param_device"} & set(held)
    if parameters and stage != 3:  # noqa: PLR2004 - the stage that shards parameters
        return [f"{section} offloads parameters, which stage {stage} does not: take that out"]
    return []


def _is_stated(value: object) -> bool:
    return value is not None and value != "auto"


def _read(syntax: str, text: str) -> object:
    if syntax == "json":
        return json.loads(text)
    return safe_yaml().load(text)


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
    lacks = lacks_launcher(origin, found, plan.config, folder + launcher)
    if origin.syntax == "args":
        typed = found.text.strip()
        by_accelerate = started_by(typed, config) if lacks else typed
        stops = [] if by_accelerate else [f"stop {shlex.quote(lacks)}"]
        return trainer_sh(plan, [*stops, by_accelerate or typed], needed[1:], start)
    if origin.syntax == "shell":
        stops = [f"grep -q accelerate {file} || stop {shlex.quote(lacks)}"] if lacks else []
        return trainer_sh(plan, [*stops, f"bash {file}"], needed, start)
    if origin.syntax == "python":
        started = f"accelerate launch {config}{file}" if launcher else f"python {file}"
        own = shlex.quote(str(Path(origin.path).parent)) + ":" if origin.path else ""
        path = f'export PYTHONPATH={own}"$PWD${{PYTHONPATH:+:$PYTHONPATH}}"'
        return trainer_sh(plan, [f"{path}  # modules beside your script", started], needed, start)
    return trainer_sh(plan, trainer.commands(plan, file, config), needed, start)


def needs_launcher(found: Patched) -> bool:
    """Whether a knob of the pick is said by accelerate's config alone."""
    return any(note.endswith(LAUNCHER) for note in found.notes)


def lacks_launcher(origin: Origin, found: Patched, config: Config, launcher: str) -> str:
    """Why a command that starts without accelerate runs otherwise than the pick; empty if not.

    torchrun, deepspeed and python read no config of accelerate, and the command may say itself how
    it shards.
    launcher: the config beside it.
    """
    shards = config.sharding not in {"none", "ddp"}
    if origin.syntax not in {"args", "shell"} or not (shards or needs_launcher(found)):
        return ""
    says = "accelerate|deepspeed|--fsdp[ =]" if config.sharding in ZERO_STAGE else _SAYS_FSDP
    if re.search(says, found.text):
        return ""
    mend = f"put accelerate launch --config_file {launcher} in the launcher's place"
    if _STARTS_ITSELF.search(found.text):
        mend = f"add --accelerate_config {launcher} to the command"
    lead = f"{found.name} starts without accelerate's config, and only that"
    rest = "precision fp8" if config.precision == "fp8" else "compile_scope regional"
    return f"{lead} {f'shards by {config.sharding}' if shards else f'says {rest}'}: {mend}"


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

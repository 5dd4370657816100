"""accelerate's and DeepSpeed's configs back, with only the keys changed that the pick changes.

`auto` is left alone: transformers fills it in. What such a config cannot say in place (FSDP in a
file that has no section for it) is said, and the launcher's config of the run folder takes over.
Source: accelerate 1.15 commands/config/config_args.py; DeepSpeed 0.19 runtime/config.py and
runtime/zero/config.py; transformers 5.23 integrations/deepspeed.py (which values must match).
"""

from __future__ import annotations

import difflib
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.domain.config import ZERO_STAGE
from autotune.domain.errors import InputError
from autotune.trainers.launch.config import STAGES, is_deepspeed
from autotune.trainers.patch import Patched
from autotune.trainers.syntax.rewrite import changed_values, rewrite_json, rewrite_yaml

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import Config
    from autotune.domain.job import Beside
    from autotune.trainers.contract import Changes

_OTHERWISE = 'write "auto" there, as transformers fills it in'
_STAGE_OF = {"none": 0, "ddp": 0, **ZERO_STAGE}
_KIND_OF = {
    "none": "NO", "ddp": "MULTI_GPU", "fsdp": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED",
}  # fmt: skip
_COUNTS = {
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}


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
    wanted, notes = write(values, config, devices)
    changes = {key: value for key, value in wanted.items() if _at(values, key) != value}
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
    if changes and is_deepspeed(values):
        notes.append("put it where the trainer's file says it is, or take --in-place")
    before, after = beside.text.splitlines(), text.splitlines()
    lines = difflib.unified_diff(before, after, f"a/{name}", f"b/{name}", lineterm="")
    diff = "".join(f"{line}\n" for line in lines)
    return Patched(name, text, diff, changes, tuple(f"{name}: {note}" for note in notes))


def takes(beside: Mapping[str, Any], sharding: str) -> bool:
    """Whether an accelerate config can start that sharding by changing values alone."""
    wanted = _KIND_OF[sharding]
    section = {"FSDP": "fsdp_config", "DEEPSPEED": "deepspeed_config"}.get(wanted)
    return section is None or bool(beside.get(section))


def deepspeed_changes(
    values: Mapping[str, Any], config: Config, devices: int
) -> tuple[Changes, list[str]]:
    """What a DeepSpeed config has to say; train_batch_size is the contract and stays."""
    changes: Changes = {}
    for key, knob in _COUNTS.items():
        if _is_stated(values.get(key)):
            changes[key] = getattr(config, knob)
    for name in ("bf16", "fp16"):
        if isinstance(_at(values, f"{name}.enabled"), bool):
            changes[f"{name}.enabled"] = config.precision == name
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
        changes["distributed_type"] = _KIND_OF[config.sharding]
    if values.get("num_processes") is not None:
        changes["num_processes"] = devices
    if str(values.get("mixed_precision")) in {"bf16", "fp16"}:
        half = config.precision in {"bf16", "fp16"}
        changes["mixed_precision"] = config.precision if half else "no"
    if _at(values, "fsdp_config.fsdp_activation_checkpointing") is True:
        full = config.activation_checkpointing == "full"
        changes["fsdp_config.fsdp_activation_checkpointing"] = full
    for key, knob in _COUNTS.items():
        if _is_stated(_at(values, f"deepspeed_config.{key}")):
            changes[f"deepspeed_config.{key}"] = getattr(config, knob)
    return changes, _stage(values, "deepspeed_config.zero_stage", config, devices, changes)


def _stage(
    values: Mapping[str, Any], key: str, config: Config, devices: int, changes: Changes
) -> list[str]:
    """Write the ZeRO stage where it changes; what that leaves for the user to see to."""
    stated = _at(values, key)
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


def _at(values: Mapping[str, Any], dotted: str) -> Any:  # noqa: ANN401
    found: Any = values
    for part in dotted.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    return found


def _read(syntax: str, text: str) -> object:
    if syntax == "json":
        return json.loads(text)
    from ruamel.yaml import YAML

    return YAML(typ="safe", pure=True).load(text)

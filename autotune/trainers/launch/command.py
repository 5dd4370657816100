"""What stands before the script in a launch command: processes, sharding, precision.

Source: the flags of torchrun (torch 2.13), accelerate 1.15 `launch`, deepspeed 0.19 `launcher`, and
the environment that LLaMA-Factory 0.9.5 reads (FORCE_TORCHRUN, NPROC_PER_NODE, NNODES).
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.domain.typed.values import shown
from autotune.trainers.registry import TRAINERS

if TYPE_CHECKING:
    from autotune.trainers.syntax.command_line import Command

_PROCESSES = ("num_processes", "nproc_per_node", "num_gpus", "nproc")
_NODES = ("nnodes", "num_nodes")
_PER_NODE = {"nproc_per_node", "nproc", "num_gpus"}
_MOST = 4096
_SECTIONS = {"fsdp_": "fsdp_config", "zero": "deepspeed_config"}
_DEEPSPEED = ("gradient_accumulation_steps", "offload_optimizer_device", "offload_param_device")


def processes_of(command: Command) -> int | None:
    """How many processes the launcher starts, where the command says so.

    Raises:
        InputError: A count that is no whole number from 1 on.
    """
    for name in _PROCESSES:
        value = command.launcher.get(name)
        if value is not None:
            each = _count(name, value)
            return each * _nodes(command) if name in _PER_NODE else each
    included = command.launcher.get("include")
    if isinstance(included, str):
        return sum(len(part.partition(":")[2].split(",")) for part in included.split("@"))
    per_node = command.environment.get("NPROC_PER_NODE")
    if per_node is not None:
        return _count("NPROC_PER_NODE", per_node) * _nodes(command)
    visible = visible_devices(command)
    every = {"deepspeed", *(trainer.process_per_device for trainer in TRAINERS.values())} - {""}
    starts_all = any(word.rpartition("/")[2] in every for word in command.program)
    return visible if starts_all or "multi_gpu" in command.launcher else None


def visible_devices(command: Command) -> int | None:
    """How many devices CUDA_VISIBLE_DEVICES names in front of the command."""
    text = command.environment.get("CUDA_VISIBLE_DEVICES", "")
    return len(text.split(",")) if re.fullmatch(r"\d+(,\d+)*", text) else None


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


def _nodes(command: Command) -> int:
    for name in _NODES:
        value = command.launcher.get(name)
        if value is not None:
            return _count(name, str(value).rpartition(":")[2])  # "1:4" is elastic: the most
    value = command.environment.get("NNODES")
    return _count("NNODES", value) if value is not None else 1


def _count(name: str, value: object) -> int:
    text = str(value)
    if not text.isdecimal() or not 1 <= int(text[:9]) <= _MOST:
        typed = name if name.isupper() else f"--{name}"
        msg = f"{typed} is {shown(value)}; it must be a whole number from 1 to {_MOST}"
        raise InputError(msg, "write the number of devices out")
    return int(text)

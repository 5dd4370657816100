"""How many processes a launch command starts, read from it and written into it.

Source: the flags of torchrun (torch 2.13), accelerate 1.15 `launch` (config_args.py) and deepspeed
0.19 (launcher/runner.py). accelerate refuses `--multi_gpu` for one process (commands/launch.py).
"""

from __future__ import annotations

import contextlib
import re
from typing import TYPE_CHECKING

from autotune.domain.errors import InputError
from autotune.domain.typed.values import shown
from autotune.trainers.contract import GONE
from autotune.trainers.registry import TRAINERS
from autotune.trainers.syntax.command_line import LAUNCHERS, parse_command, with_launcher_flag

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.trainers.contract import Changes
    from autotune.trainers.syntax.command_line import Command
    from autotune.trainers.syntax.shell_words import Array

_PROCESSES = ("num_processes", "nproc_per_node", "num_gpus", "nproc")
_NODES = ("nnodes", "num_nodes")
_PER_NODE = {"nproc_per_node", "nproc", "num_gpus"}
_EVERY = {"gpu", "auto"}  # torchrun: one for each device of the machine, however many it has
_MOST = 4096
_VISIBLE, _EACH = "CUDA_VISIBLE_DEVICES", "NPROC_PER_NODE"
_ALONE = re.compile(r"(?P<folder>(?:\S*/)?)(?:python[\d.]*(?:\s+-(?!m\s)\w+)*|torchrun)(?=\s)")


def processes_of(command: Command) -> int | None:
    """How many processes the launcher starts, where the command says so.

    Raises:
        InputError: A count that is no whole number from 1 on.
    """
    for name in _PROCESSES:
        value = command.launcher.get(name)
        if value is None:
            continue
        computed = str(value).startswith("$") and visible_devices(command) is not None
        unsaid = computed or str(value) in _EVERY
        if name in _PER_NODE and unsaid and nodes_of(command) == 1:
            return visible_devices(command)
        each = _count(name, value)
        return each * nodes_of(command) if name in _PER_NODE else each
    included = command.launcher.get("include")
    if isinstance(included, str):
        return sum(len(part.partition(":")[2].split(",")) for part in included.split("@"))
    per_node = command.environment.get("NPROC_PER_NODE")
    if per_node is not None:
        return _count("NPROC_PER_NODE", per_node) * nodes_of(command)
    visible = visible_devices(command)
    every = {"deepspeed", *(trainer.process_per_device for trainer in TRAINERS.values())} - {""}
    starts_all = any(word.rpartition("/")[2] in every for word in command.program)
    starts_all = starts_all or _accelerates_all(command)
    if starts_all and visible is None and nodes_of(command) == 1:  # what sbatch asks for is visible
        return slurm_devices(command)
    return visible if starts_all or "multi_gpu" in command.launcher else None


def refuse_spread(command: Command, trainer: str, name: str) -> None:
    """Raise InputError where each of several processes lays its model over several devices.

    Source: ms-swift 3.9 utils/env.py, is_mp and is_mp_ddp.
    """
    processes, visible = processes_of(command), visible_devices(command)
    if trainer != "swift" or not processes or not visible or not 1 < processes <= visible // 2:
        return
    msg = (
        f"{name} starts {processes} processes on {visible} devices: ms-swift lays each model over "
    )
    msg += f"{visible // processes} of them (device_map), which is not priced"
    raise InputError(msg, f"{_EACH}={visible} starts one a device; or hide the other devices")


def _accelerates_all(command: Command) -> bool:
    """Whether it is `accelerate launch` without a config: a process for each device that it sees.

    Not counted: a default config that somebody has in their home.
    Source: accelerate 1.15 commands/launch.py, _validate_launch_command.
    """
    words = {word.rpartition("/")[2] for word in command.program}
    return {"accelerate", "launch"} <= words and not {"config_file", "cpu"} & set(command.launcher)


def visible_devices(command: Command) -> int | None:
    """How many devices CUDA_VISIBLE_DEVICES names in front of the command."""
    text = command.environment.get("CUDA_VISIBLE_DEVICES", "")
    return len(text.split(",")) if re.fullmatch(r"\d+(,\d+)*", text) else None


def slurm_devices(command: Command) -> int | None:
    """How many devices of its one machine the script's own `#SBATCH` lines ask for."""
    asked = command.environment.get("SLURM_GPUS_ON_NODE", "")
    several = int(command.environment.get("SLURM_NNODES", "1")) > 1
    return _count("SLURM_GPUS_ON_NODE", asked) if asked.isdecimal() and not several else None


def nodes_of(command: Command) -> int:
    """How many machines the command starts on, as far as it says so."""
    if unknown_nodes(command):
        return 1
    for name in _NODES:
        value = command.launcher.get(name)
        if value is not None:
            return _count(name, str(value).rpartition(":")[2])  # "1:4" is elastic: the most
    value = command.environment.get("NNODES")
    return _count("NNODES", value) if value is not None else 1


def unknown_nodes(command: Command) -> str:
    """The variable that the number of machines is, where nothing here says what it holds."""
    stated = [command.launcher.get(name) for name in _NODES]
    given = next((str(value) for value in stated if value is not None), "")
    given = given or command.environment.get("NNODES", "")
    return given if given.startswith("$") else ""


def _count(name: str, value: object) -> int:
    text = str(value)
    if not text.isdecimal() or not 1 <= int(text[:9]) <= _MOST:
        typed = name if name.isupper() else f"--{name}"
        msg = f"{typed} is {shown(value)}; it must be a whole number from 1 to {_MOST}"
        raise InputError(msg, "write the number of devices out")
    return int(text)


def with_processes(
    text: str, devices: int, names: Mapping[str, str] | None = None,
    arrays: Mapping[str, Array] | None = None, *, launched: bool = False,
) -> tuple[str, Changes]:  # fmt: skip
    """The command started as one process a device, and the flags that this changes.

    It stays where what it takes its number from stands elsewhere, or it starts on several machines.
    launched: the script's trainer trains on several devices only if it is launched so.
    """
    command = parse_command(text, names, arrays)
    if nodes_of(command) > 1 or unknown_nodes(command):
        return text, {}
    changes = _flags(command, devices)
    found = text
    for name, value in changes.items():
        found = with_launcher_flag(found, name, value, names, arrays)
    every = ",".join(str(number) for number in range(devices))
    for variable, wanted in ((_VISIBLE, every), (_EACH, str(devices))):
        value = command.environment.get(variable, "")
        stated = f"{variable}={value}"
        known = re.fullmatch(r"\d+(,\d+)*", value) and stated in text
        if known and (value != wanted if variable == _EACH else value.count(",") != devices - 1):
            found = found.replace(stated, f"{variable}={wanted}", 1)
            changes[variable] = wanted
    if launched and devices > 1 and not changes and _starts_one(command):
        typed = _ALONE.match(text, command.begin)
        several = f"{typed['folder']}torchrun --nproc_per_node {devices}" if typed else ""
        found = f"{text[: typed.start()]}{several}{text[typed.end() :]}" if typed else text
        changes |= {"nproc_per_node": devices} if typed else {}
    again = parse_command(found, names, arrays)
    one = {_EACH: str(devices), **again.environment}[_EACH] == str(devices)
    whole = one and visible_devices(again) in {None, devices}
    return (found, changes) if whole else (text, {})


def another_number(
    text: str, devices: int, names: Mapping[str, str] | None = None,
    arrays: Mapping[str, Array] | None = None,
) -> int | None:  # fmt: skip
    """How many processes the command starts, where that is not one a device."""
    started = None
    with contextlib.suppress(InputError):  # a variable that nothing here sets
        started = processes_of(parse_command(text, names, arrays))
    return None if started == devices else started


def _flags(command: Command, devices: int) -> Changes:
    """The launcher's flags that say another number."""
    changes: Changes = {
        name: devices
        for name in (each for each in _PROCESSES if each in command.launched_at)
        if (stated := str(command.launcher[name])).isdecimal() and int(stated) != devices
    }
    if "multi_gpu" in command.launched_at and devices == 1:
        changes["multi_gpu"] = GONE
    if "include" in command.launched_at and processes_of(command) != devices:
        changes["include"] = "localhost:" + ",".join(str(number) for number in range(devices))
    return changes


def _starts_one(command: Command) -> bool:
    """Whether one process of the script is started: by python, or by torchrun without a count."""
    program, *words = command.program
    program = program.rpartition("/")[2]
    if program == "torchrun":
        return not command.launcher.keys() & set(_PROCESSES)
    own = [word for word in words if word == "-m" or not word.startswith("-")]
    starter = own[0] == "-m" and bool(LAUNCHERS.fullmatch(own[1])) if len(own) > 1 else False
    return bool(re.fullmatch(r"python[\d.]*", program) and own) and not starter

"""Machines and devices of a launch command that other words than its launcher's flags say."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from autotune.app.job.beside import near_file
from autotune.app.job.file import read_text
from autotune.app.job.started_script import script_of
from autotune.domain.job import Uncounted
from autotune.trainers.launch.user_start import unknown_nodes, visible_devices
from autotune.trainers.schema import schema_of

if TYPE_CHECKING:
    from collections.abc import Collection
    from pathlib import Path

    from autotune.trainers.contract import Trainer
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.syntax.command_line import Command

_SHORTEST = 5  # letters of an abbreviated flag
# How far a run on the processor may lie from one on a device: as far as anything may.
_HIDDEN_SD = (1.0, 0.7)


def read_abbreviated(
    dialect: Trainer, values: dict[str, Any], name: str, options: Collection[str] | None
) -> tuple[Parsed, dict[str, Any]]:
    """What flags say, also those that argparse completes: `--max_step` where one flag begins so.

    options: flags that the script has itself, where it is at hand.
    """
    made = dialect.read(values, name)
    schema, own = schema_of(dialect.name), set(options or ())
    whole = {**values}
    for flag in values:
        near = [key for key in schema.keys if key.startswith(flag)]
        whole_word = near[:1] and near[0][len(flag) :][:1] in {"", "_"}  # more likely its own
        if len(flag) < _SHORTEST or len(near) != 1 or whole_word or flag in own:
            continue
        if near[0] in made.asked and near[0] not in values:
            whole[near[0]] = whole.pop(flag)
    if whole == values:
        return made, values
    made = dialect.read(whole, name)
    listed = ", ".join(key for key in whole if key not in values)
    made.note(f"{name}: abbreviated", listed, "as argparse completes the beginning of a flag")
    return made, whole


def note_away(made: Parsed, parsed: Command, path: Path) -> None:
    """That a program of people's own is not here, which decides what no flag says."""
    named = next((word for word in parsed.program if word.endswith(".py")), "")
    if made.trainer in {"hf", "trl"} and named and script_of(parsed, path) is None:
        why = "its own defaults, its adapters and its code are not in the price"
        made.note(named, "not found", why)


def hosts_beside(made: Parsed, parsed: Command, path: Path) -> int | None:
    """How many processes `deepspeed --hostfile FILE` starts; None where that is not at hand."""
    named = parsed.launcher.get("hostfile")
    if not isinstance(named, str):
        return None
    near = near_file(named, path)
    found = _slots(parsed, read_text(near)) if near else None
    if found is not None:
        made.note("devices", found, f"the slots of {named}")
    elif near is None:
        why = "no such file is found: the machines that it names are not counted, nor their batch"
        made.uncounted.append(Uncounted("hostfile", named, why, 0.0, 0.0))
    return found


def _slots(parsed: Command, text: str) -> int | None:
    """Processes on the machines of a hostfile, `NAME slots=8` each; None where flags choose others.

    --num_nodes takes the first of them, and --num_gpus as many of each machine.
    Source: deepspeed 0.19 launcher/runner.py.
    """
    slots = [
        int(n) for n in re.findall(r"^\s*[^\s#]\S*\s+slots\s*=\s*(\d{1,4})", text, re.MULTILINE)
    ]
    nodes, each = (str(parsed.launcher.get(name, "-1")) for name in ("num_nodes", "num_gpus"))
    plain = all(re.fullmatch(r"-1|[1-9]\d{0,3}", value) for value in (nodes, each))
    if not slots or not plain or {"include", "exclude"} & set(parsed.launcher):
        return None
    taken = slots if nodes == "-1" else slots[: int(nodes)]
    return sum(slot if each == "-1" else min(slot, int(each)) for slot in taken)


def launch_unsaid(parsed: Command) -> list[Uncounted]:
    """What of the machines and devices nothing here says: how many, or that there is none."""
    found = []
    if nodes := unknown_nodes(parsed):
        why = "nothing here says how many machines: one is counted, and its batch; write the number"
        found.append(Uncounted("machines", nodes, why, 0.0, 0.0))
    stated = [str(parsed.launcher.get(name, "")) for name in ("nproc_per_node", "num_processes")]
    computed = next((value for value in stated if value.startswith("$")), "")
    if computed and visible_devices(parsed):
        why = "not computed: as many as CUDA_VISIBLE_DEVICES names are counted"
        found.append(Uncounted("processes", computed, why, 0.0, 0.0))
    visible = parsed.environment.get("CUDA_VISIBLE_DEVICES", "all")
    if visible.strip("'\" ") in {"-1", ""}:
        why = "hides every device: such a run is on the processor, and is priced on a device"
        found.append(Uncounted("CUDA_VISIBLE_DEVICES", "-1", why, *_HIDDEN_SD))
    return found

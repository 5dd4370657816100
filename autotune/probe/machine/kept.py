"""Facts of machines, kept under `$AUTOTUNE_HOME/machines`: one file a machine, part by part.

A machine is its device, its processor and the cores that a program may use, never a name or a
serial number: what was measured on one node of many alike holds on the others, and nothing private
is kept. A calm figure is not replaced by one that others disturbed.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from autotune.catalog.devices import local_host
from autotune.catalog.files import machines_dir, merging, read_regular, set_aside, write_whole
from autotune.catalog.local import processor_name
from autotune.domain.machine import FACT_NAMES, Fact, MachineFacts
from autotune.probe.device import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from autotune.domain.machine import FactName
    from autotune.probe.device import LocalDevice

SCHEMA_VERSION = 1
MAX_BYTES = 1_000_000
MOST_FACTS, MOST_CHARACTERS = 200, 300


def store_of(local: LocalDevice) -> Path:
    """The file of this machine's facts beside that device."""
    host = local_host()
    board = "cpu" if local.is_cpu else fingerprint(local)  # a clock is read, and it wanders
    facts = (board, processor_name(), host.cores, host.wsl)
    exact = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    plain = "".join(c if c.isalnum() else "-" for c in local.name.casefold())
    return machines_dir() / f"{plain[:40]}-{exact}.json"


def remember(local: LocalDevice, found: MachineFacts) -> Path:
    """Keep facts in the place of earlier ones of the same. Raises OSError.

    A damaged file is moved aside, never written over.
    """
    path = store_of(local)
    with merging(path):
        before, damaged = read(path)
        if damaged:
            set_aside(path)
        merged = MachineFacts(
            merged_facts(before.facts if before else (), found.facts),
            found.measured_on, found.software, found.threads, found.folder,
        )  # fmt: skip
        content = {"schema_version": SCHEMA_VERSION, "device": local.name, **asdict(merged)}
        write_whole(path, json.dumps(content, indent=1, allow_nan=False) + "\n")
    return path


def merged_facts(before: Iterable[Fact], now: Iterable[Fact]) -> tuple[Fact, ...]:
    """The later of each, unless others disturbed it and not the earlier one."""
    kept = {fact.what: fact for fact in before}
    for fact in now:
        known = kept.get(fact.what)
        if known is None or known.disturbed or not fact.disturbed:
            kept[fact.what] = fact
    return tuple(kept.values())


def read(path: Path) -> tuple[MachineFacts | None, bool]:
    """What a file holds, and whether it is damaged; (None, False) where there is none."""
    try:
        content = json.loads(read_regular(path, MAX_BYTES))
        entries = content["facts"][:MOST_FACTS]
        return MachineFacts(
            tuple(fact_of(entry) for entry in entries),
            str(content["measured_on"])[:10],
            tuple((str(name), str(value)) for name, value in content["software"]),
            int(content["threads"]),
            str(content["folder"]),
        ), False
    except (FileNotFoundError, NotADirectoryError):
        return None, False
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None, True


def fact_of(entry: Any) -> Fact:  # noqa: ANN401 - parsed JSON
    """A finite figure above 0. Raises ValueError, KeyError or TypeError for anything else."""
    value, log_sd = float(entry["value"]), float(entry["log_sd"])
    if entry["name"] not in FACT_NAMES or not math.isfinite(value) or value <= 0:
        msg = "not a measurement"
        raise ValueError(msg)
    shape = tuple(int(side) for side in entry["shape"])
    sized = entry["name"] not in {"matmul", "attention"} or (len(shape) == 3 and min(shape) > 0)  # noqa: PLR2004 - m, n, k
    if not sized or not 0.0 <= log_sd < 10.0:  # noqa: PLR2004 - e^10: nothing is known
        msg = "not a measurement"
        raise ValueError(msg)
    return Fact(
        cast("FactName", entry["name"]), value, log_sd, int(entry["samples"]),
        str(entry["precision"])[:MOST_CHARACTERS], shape,
        tuple(str(why)[:MOST_CHARACTERS] for why in entry["disturbed"]),
    )  # fmt: skip

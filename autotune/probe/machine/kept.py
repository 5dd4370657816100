"""Facts of machines, kept under `$AUTOTUNE_HOME/machines`: one file a machine, part by part.

A machine is its device, its processor and the cores that a program may use, never a name or a
serial number: what was measured on one node of many alike holds on the others, and nothing private
is kept. A calm figure is not replaced by one that others disturbed; a damaged one costs no other.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast

from autotune.catalog.devices import local_host
from autotune.catalog.files import kept_entries, machines_dir, merging, set_aside, write_json
from autotune.catalog.local import processor_name
from autotune.domain.device import FACT_NAMES, Fact, MachineFacts
from autotune.probe.device import fingerprint

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from autotune.domain.device import FactName
    from autotune.probe.device import LocalDevice

SCHEMA_VERSION = 1
MAX_BYTES = 1_000_000
MOST_CHARACTERS = 300
UNKNOWN_DAY = "an unknown day"


def store_of(local: LocalDevice) -> Path:
    """The file of this machine's facts beside that device."""
    host = local_host()
    board = "cpu" if local.is_cpu else fingerprint(local)  # a clock is read, and it wanders
    facts = (board, processor_name(), host.cores, host.wsl)
    exact = hashlib.sha256(repr(facts).encode()).hexdigest()[:16]
    plain = "".join(c if c.isalnum() else "-" for c in local.name.casefold())
    return machines_dir() / f"{plain[:40]}-{exact}.json"


def remember(local: LocalDevice, found: MachineFacts) -> tuple[Path, str]:
    """Keep facts in the place of earlier ones of the same. Raises OSError.

    Where, and what became of a damaged file: it is moved aside, never written over, and the facts
    of it that can be read are kept on.
    """
    path = store_of(local)
    with merging(path):
        before, damage = read(path)
        known = before.facts if before else ()
        note = set_aside(path, damage, len(known)) if damage else ""
        merged = MachineFacts(
            merged_facts(known, found.facts),
            found.measured_on, found.software, found.threads, found.folder,
        )  # fmt: skip
        content = {"schema_version": SCHEMA_VERSION, "device": local.name, **asdict(merged)}
        write_json(path, content)
    return path, note


def merged_facts(before: Iterable[Fact], now: Iterable[Fact]) -> tuple[Fact, ...]:
    """The later of each, unless others disturbed it and not the earlier one."""
    kept = {fact.what: fact for fact in before}
    for fact in now:
        known = kept.get(fact.what)
        if known is None or known.disturbed or not fact.disturbed:
            kept[fact.what] = fact
    return tuple(kept.values())


def read(path: Path) -> tuple[MachineFacts | None, str]:
    """What a file holds, and what of it is damaged, in words; (None, "") where there is none."""
    entries = kept_entries(path, MAX_BYTES, "facts", fact_of)
    if not entries.about and not entries.found:
        return None, entries.damage
    facts = merged_facts((), entries.found)
    try:
        return MachineFacts(facts, *_circumstances(entries.about)), entries.damage
    except (ValueError, KeyError, TypeError, OverflowError):
        damage = entries.damage or "when and how it was measured cannot be read"
        return MachineFacts(facts, UNKNOWN_DAY, (), 1, ""), damage


def _circumstances(about: dict[str, Any]) -> tuple[str, tuple[tuple[str, str], ...], int, str]:
    """When, with what, in how many threads and on whose disk. Raises for what is none."""
    software = tuple((str(name), str(value)) for name, value in about["software"])
    day = str(about["measured_on"])[:10]
    return day, software, int(about["threads"]), str(about["folder"])


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

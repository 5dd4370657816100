"""Where past runs are kept: one file under `$AUTOTUNE_HOME`, by the runs' own content.

Writers take a lock, read again, merge and write whole, so two that learn at once lose nothing. A
run that is read twice, or that two loggers wrote down, is one run: the one that says more is kept.
"""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

from autotune.catalog.files import home_dir, kept_entries, merging, set_aside, write_json
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from autotune.evidence.learned.run import PastRun

PLACE = "learned/runs.json"
MAX_BYTES = 30_000_000
MOST_KEPT = 5_000


@dataclass(frozen=True, slots=True)
class Known:
    """Runs that are kept, the oldest first. damage: what of the file cannot be read, in words."""

    runs: tuple[PastRun, ...] = ()
    damage: str = ""


def store_path() -> Path:
    """The file of past runs."""
    return home_dir() / PLACE


def known_runs() -> Known:
    """What is kept."""
    from autotune.evidence.learned.run import from_json

    entries = kept_entries(store_path(), MAX_BYTES, "runs", from_json)
    return Known(entries.found, entries.damage)


@dataclass(frozen=True, slots=True)
class Keeping:
    """How many runs were new, how many are kept now. note: what became of a damaged file."""

    new: int
    known: int
    note: str = ""


def keep(runs: Iterable[PastRun]) -> Keeping:
    """Keep runs beside what is kept by now.

    A damaged file is put aside under another name, never written over; its readable runs stay.
    Raises OSError where the home cannot be written.
    """
    path = store_path()
    with merging(path):
        known = known_runs()
        note = set_aside(path, known.damage, len(known.runs)) if known.damage else ""
        kept = {run.id: run for run in known.runs}
        new = 0
        for run in runs:
            before = kept.pop(run.id, None)
            new += before is None
            kept[run.id] = run if before is None or run.grade <= before.grade else before
        latest = list(kept.values())[-MOST_KEPT:]
        content = {"schema_version": 1, "runs": [asdict(run) for run in latest]}
        write_json(path, content)
    return Keeping(new, len(latest), note)

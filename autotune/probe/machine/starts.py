"""Starts of programs that were watched on this machine: from a program's begin to its training's.

They are kept under `$AUTOTUNE_HOME/machines/starts`, in one file a machine, as its other facts are
named (`kept`). A later log of the same training replaces the earlier one. What reading and moving
the weights took is not in them: it is the model's, not the machine's.
"""

from __future__ import annotations

import math
import statistics
from typing import TYPE_CHECKING, Any

from autotune.catalog.files import kept_entries, merging, set_aside, starts_dir, write_json
from autotune.domain.device import Start
from autotune.frozen import dataclass
from autotune.probe.machine.kept import store_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from autotune.probe.device import LocalDevice

MOST_KEPT, MAX_BYTES = 20, 1_000_000
# [log] between two starts on one machine: files in the page cache or not. Assumption: a factor of
# 1.5 either way at 80 %; the same imports took 4 s warm and 8 s cold.
BETWEEN_LOG_SD = 0.32
LEAST_SHARE = 0.5  # of a start that must be its own, not weights that were read


@dataclass(frozen=True, slots=True)
class Watched:
    """[s] a start took without reading weights. training: names it, as in verified runs."""

    training: str
    seconds: float


@dataclass(frozen=True, slots=True)
class Starts:
    """What is kept of a machine, the oldest first. damage: what of its file cannot be read."""

    path: Path
    watched: tuple[Watched, ...]
    damage: str = ""

    def but(self, training: str) -> tuple[Watched, ...]:
        """All that are not of that training."""
        return tuple(own for own in self.watched if own.training != training)


def starts_of(local: LocalDevice) -> Starts:
    """What is kept of this machine beside that device."""
    path = starts_dir() / store_of(local).name
    entries = kept_entries(path, MAX_BYTES, "starts", _watched)
    return Starts(path, tuple(entries.found), entries.damage)


def remember(local: LocalDevice, training: str, seconds: float) -> tuple[Path, str]:
    """Keep a start in the place of an earlier log's of the same training. Raises OSError.

    Where, and what became of a damaged file: its readable starts are kept on.
    """
    path = starts_of(local).path
    with merging(path):
        known = starts_of(local)
        note = set_aside(path, known.damage, len(known.watched)) if known.damage else ""
        latest = (*known.but(training), Watched(training, seconds))[-MOST_KEPT:]
        entries = [{"training": own.training, "seconds": own.seconds} for own in latest]
        write_json(path, {"schema_version": 1, "device": local.name, "starts": entries})
    return path, note


def start_from(watched: Iterable[Watched]) -> Start | None:
    """What the next start takes: the geometric mean; None where none was watched.

    Formula: log sd = hypot(between two starts, their own scatter x sqrt(1 + 1 / n)).
    Source: prediction interval of a normal sample.
    """
    logs = [math.log(own.seconds) for own in watched]
    if not logs:
        return None
    seen = statistics.stdev(logs) if len(logs) > 1 else 0.0
    spread = math.hypot(BETWEEN_LOG_SD, seen * math.sqrt(1.0 + 1.0 / len(logs)))
    return Start(math.exp(statistics.fmean(logs)), spread)


def _watched(entry: Any) -> Watched:  # noqa: ANN401 - parsed JSON
    """A kept start. Raises ValueError, KeyError or TypeError for anything else."""
    seconds = float(entry["seconds"])
    if not 0.0 < seconds < 1e6:  # noqa: PLR2004 - days
        msg = "no start"
        raise ValueError(msg)
    return Watched(str(entry["training"]), seconds)

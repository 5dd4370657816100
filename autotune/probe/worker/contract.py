"""What the worker and whoever waits for it agree on: versions, limits, what is going on.

Free of torch: the parent reads it with the same code. A request is written by `probe/request`, a
result judged by `probe/outcomes`.
"""

from __future__ import annotations

import contextlib
import json
import time
from dataclasses import dataclass
from pathlib import Path

from .ranks import rank

SCHEMA_VERSION = 1  # of requests and results
RESULT_FILE, PRINTED_FILE = "result.json", "stderr"  # in the folder of a probe
ENDING_FILE = "ending.json"  # the exit code of a served one; negative: the signal
TOUCHED = 3  # exit code of a server that cannot serve: each probe gets a process of its own
KEPT_CHARACTERS = 2000  # of a message, and of a trace
PHASE_FILE = "phase.json"
TOLD_S = 0.5  # between two tellings of the same phase
PHASES = {  # stages of a probe, as a person calls them
    "build": "loading the model", "prepare": "preparing the trainer", "train": "first step",
    "evaluation": "evaluating", "checkpoint": "saving", "loader": "reading batches",
    "done": "finishing",
}  # fmt: skip


@dataclass(frozen=True)
class Phase:
    """What goes on; done of `of` steps where it has steps, else 0 of 0."""

    name: str
    done: int = 0
    of: int = 0


class PhaseFile:
    """Tells the folder of a probe what goes on; of several processes the first one does."""

    def __init__(self, folder: str | None) -> None:
        """folder: None tells nobody."""
        self._path = Path(folder) / PHASE_FILE if folder and rank() == 0 else None
        self._last, self._told_s = "", 0.0

    def enter(self, phase: str, done: int = 0, of: int = 0) -> None:
        """Now this. A disk that refuses is no reason to end a measurement."""
        now = time.monotonic()
        if self._path is None or (phase == self._last and now - self._told_s < TOLD_S):
            return
        self._last, self._told_s = phase, now
        fresh = self._path.with_suffix(".new")
        with contextlib.suppress(OSError):
            fresh.write_text(json.dumps([phase, done, of]), encoding="utf-8")
            fresh.replace(self._path)


def read_phase(folder: Path) -> Phase | None:
    """What was told last; None when nothing readable was."""
    try:
        name, done, of = json.loads((folder / PHASE_FILE).read_text(encoding="utf-8"))
        return Phase(str(name), int(done), int(of))
    except (OSError, ValueError, TypeError):
        return None


def tell_ending(folder: Path, code: int) -> None:
    """A served probe's process has ended, and nothing of it is left."""
    fresh = folder / f"{ENDING_FILE}.new"
    with contextlib.suppress(OSError):
        fresh.write_text(json.dumps(code), encoding="ascii")
        fresh.replace(folder / ENDING_FILE)


def read_ending(folder: Path) -> int | None:
    """The exit code that was told; None while none was."""
    with contextlib.suppress(OSError, ValueError):
        return int(json.loads((folder / ENDING_FILE).read_text(encoding="ascii")))
    return None


def beyond_probes(kernels: str, offload: str, precision: str) -> str:
    """Why no probe measures these settings, whatever the machine; empty where one does.

    A probe runs transformers' Trainer in a process of its own, without a launcher.
    """
    if kernels == "chunked_loss":
        return "kernels chunked_loss is TRL's loss, and a probe runs transformers' Trainer"
    if offload != "none":
        return f"offload {offload}: a probe keeps everything on the device"
    if precision == "fp8":
        return "precision fp8 is the launcher's, and a probe starts without one"
    return ""

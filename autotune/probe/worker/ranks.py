"""Several processes on one host: one folder, one moment to stop, the slowest and largest counts.

Steps of all ranks end together because their collectives do, but each rank would find its own
moment to stop, and one that goes on alone waits for the others until its time-out. So the first
rank decides and leaves the number of the last step in the folder that all share, a few steps ahead:
a rank that has not been told cannot be further ahead than the collectives let it.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import tempfile
from pathlib import Path
from typing import Any

PR_SET_PDEATHSIG = 1
AHEAD = 4  # steps; on CUDA a rank's host is at most two steps before another's
SHARED, STOP = "ranks", "stop"
TIMES = ("step_s", "micro_s", "optimizer_s", "data_s", "cpu_s", "median_s", "mean_s", "expected_s",
         "block_s", "first_step_s")  # fmt: skip


def rank() -> int:
    """The number of this process, 0 where it is alone."""
    return int(os.environ.get("RANK", "0"))


def several() -> bool:
    """Whether a launcher started this process as one of several."""
    return int(os.environ.get("WORLD_SIZE", "1")) > 1


def end_with_launcher() -> None:
    """A rank whose launcher was killed would wait for the others for half an hour."""
    if sys.platform == "linux" and "RANK" in os.environ:
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0)


def working_folder(parent: str | None) -> Path:
    """An empty folder of this probe: one for all ranks, because they write one checkpoint."""
    if not several() or parent is None:
        return Path(tempfile.mkdtemp(prefix="probe-", dir=parent))
    found = Path(parent) / SHARED
    found.mkdir(exist_ok=True)
    return found


class StopSign:
    """The step after which every rank stops."""

    def __init__(self, folder: Path | None) -> None:
        """folder: shared by all ranks; None: this process is alone."""
        self.path = folder / STOP if folder is not None else None
        self._last: int | None = None

    def reached(self, step: int, *, wanted: bool) -> bool:
        """Whether `step` is the last one; the first rank may want it to be soon."""
        if self.path is None:
            return wanted
        if self._last is None and rank() == 0 and wanted:
            self._last = step + AHEAD
            fresh = self.path.with_suffix(".new")
            fresh.write_text(str(self._last), encoding="ascii")
            fresh.replace(self.path)
        if self._last is None and self.path.exists():
            self._last = int(self.path.read_text(encoding="ascii"))
        return self._last is not None and step >= self._last


def slowest(step: dict[str, Any]) -> dict[str, float]:
    """Times of the slowest rank: the step of all is as long as its."""
    every = _gathered(step)
    return {name: max(float(found[name]) for found in every) for name in TIMES}


def largest(memory: dict[str, Any]) -> dict[str, Any]:
    """The memory of the rank that needs most: it is the one that has to fit."""
    every = _gathered(memory)
    most = max(every, key=lambda found: float(found["driver_bytes"]))
    return most | {"driver_bytes_of_ranks": [found["driver_bytes"] for found in every]}


def local_bytes(model: Any) -> int:  # noqa: ANN401 - a module
    """[bytes] of a model's parameters that this rank stores: its shard, or all of them."""
    stored = [getattr(p.data, "_local_tensor", p.data) for p in model.parameters()]
    return sum(t.numel() * t.element_size() for t in stored)


def together() -> None:
    """Wait until every rank is here."""
    if several():
        import torch.distributed as dist

        dist.barrier()


def _gathered(own: dict[str, Any]) -> list[dict[str, Any]]:
    import torch.distributed as dist

    every: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(every, own)
    return every

"""This process: its age, the waiting of its threads, its peak of memory, its end, and its stderr.

torch's peaks of memory count from the start of the process, so they speak of the training once they
exceed what they were when it began. What the allocator holds now is a reading of its own.
"""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path
from typing import Any

KINDS = ("allocated", "reserved")
_trainings = 0


def count_training() -> None:
    """Another training starts in this process."""
    global _trainings  # noqa: PLW0603 - of the process
    _trainings += 1


def age_s() -> float | None:
    """[s] since the process began; None in a notebook, after several trainings, or if unknown.

    Source: man 5 proc, /proc/pid/stat, field 22: starttime, in clock ticks since the system booted.
    """
    if _trainings != 1 or hasattr(sys, "ps1") or "ipykernel" in sys.modules:
        return None
    with contextlib.suppress(OSError, ValueError, IndexError, AttributeError):
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        begun = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - begun
        return age if age > 0 else None
    return None


def scheduled_s() -> tuple[float, float]:
    """[s] that this process's threads ran, and that they were ready and waited for a processor.

    Zero and zero where the system does not say. Threads of other processes, or more threads than
    processors, make them wait. Source: Linux, Documentation/scheduler/sched-stats.rst,
    /proc/<pid>/schedstat: time on the processor and on its queue, in nanoseconds.
    """
    ran = waited = 0
    with contextlib.suppress(OSError, ValueError, IndexError):
        for thread in Path("/proc/self/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):
                fields = (thread / "schedstat").read_text(encoding="ascii").split()
                ran, waited = ran + int(fields[0]), waited + int(fields[1])
    return ran / 1e9, waited / 1e9


def last_error() -> str:
    """The error that ends this program, such as "KeyboardInterrupt"; empty where there is none."""
    error = getattr(sys, "last_value", None)
    if error is None:
        return ""
    return " ".join(f"{type(error).__name__}: {error}".split()).rstrip(": ")[:300]


def say(text: str) -> None:
    """Write one line, past a progress bar where there is one. Never raises."""
    line = f"autotune: {text}"
    tqdm = sys.modules.get("tqdm")
    try:
        if tqdm is None:
            sys.stderr.write(line + "\n")
        else:
            tqdm.tqdm.write(line, file=sys.stderr)
        sys.stderr.flush()
    except Exception:  # noqa: BLE001, S110 - a closed stream, or none at all
        pass


class Memory:
    """Of the fullest device that this process trains on."""

    def __init__(self, devices: tuple[int, ...]) -> None:
        """devices: indices of CUDA devices; none: the host's memory is read."""
        torch = sys.modules.get("torch")
        self.cuda: Any = torch.cuda if torch is not None and devices else None
        self.devices = devices
        self._before = {
            (index, kind): value for index in self._indices for kind, value in self._peaks(index)
        }

    @property
    def _indices(self) -> tuple[int, ...]:
        return self.devices if self.cuda is not None else ()

    def _peaks(self, index: int) -> list[tuple[str, int]]:
        stats = self.cuda.memory_stats(index)
        return [(kind, int(stats.get(f"{kind}_bytes.all.peak", 0))) for kind in KINDS]

    def read(self) -> dict[str, int]:
        """[bytes] allocated and reserved at the peak so far; a kind that is not known is absent."""
        if self.cuda is None:
            peak = resident_peak()
            return {"resident_bytes": peak} if peak else {}
        found: dict[str, int] = {}
        for index in self.devices:
            for kind, peak in self._peaks(index):
                value = peak if peak > self._before[index, kind] else 0
                if kind == "reserved":
                    value = max(value, int(self.cuda.memory_reserved(index)))
                key = f"{kind}_bytes"
                found[key] = max(value, found.get(key, 0))
        return {key: value for key, value in found.items() if value}

    def free(self) -> int | None:
        """[bytes] that the fullest device has left, other processes counted; None on the host."""
        if self.cuda is None:
            return None
        return min(int(self.cuda.mem_get_info(index)[0]) for index in self.devices)


def resident_peak() -> int:
    """[bytes] the most host memory that this process held; 0 where the system does not say.

    Source: man 5 proc, VmHWM.
    """
    with contextlib.suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
            if line.startswith("VmHWM:"):
                return int(line.split()[1]) * 1024
    return 0

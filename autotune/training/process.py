"""This process: its age, the waiting of its threads, how it ends, and a line on its stderr."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from pathlib import Path

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

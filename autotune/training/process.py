"""How long this process has run, where that is the time of one training and nothing else."""

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

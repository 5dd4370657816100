"""The peak of memory of a training, as far as it can be told without resetting anybody's counters.

torch's peaks count from the start of the process, so they speak of the training once they exceed
what they were when it began. What the allocator holds now is a reading of its own.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

KINDS = ("allocated", "reserved")


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

"""Marks in time, by which a training times itself without ever waiting for its device.

On CUDA a mark is an event on the stream: it passes when the device gets there, and the seconds
between two that have passed are the device's own. A stretch in which the host runs ahead of a busy
device is therefore no seconds long, and one in which the device waits for the host is as long as
that. Elsewhere a mark is the host's clock. Source: CUDA C++ programming guide, "Events"; PyTorch,
CUDA semantics, "Asynchronous execution".
"""

from __future__ import annotations

import sys
import time
from typing import Any, Protocol


class Clock(Protocol):
    """Marks of one kind."""

    def mark(self) -> Any:
        """This moment, for the device."""

    def has_passed(self, mark: Any) -> bool:
        """Whether the device has got there."""

    def between(self, start: Any, end: Any) -> float:
        """[s] between two marks that have passed."""


class HostClock:
    """The host's clock."""

    def mark(self) -> float:
        """[s] now."""
        return time.perf_counter()

    def has_passed(self, mark: float) -> bool:
        """Whether it is as late as that."""
        return mark <= time.perf_counter()

    def between(self, start: float, end: float) -> float:
        """[s] from one to the other."""
        return end - start


class CudaClock:
    """Events on the current stream of the current device."""

    def __init__(self, cuda: Any) -> None:
        self.cuda = cuda

    def mark(self) -> Any:
        """An event, queued behind all that was queued before."""
        event = self.cuda.Event(enable_timing=True)
        event.record()
        return event

    def has_passed(self, mark: Any) -> bool:
        """Whether the device has got there."""
        return bool(mark.query())

    def between(self, start: Any, end: Any) -> float:
        """[s] on the device; the events resolve about half a microsecond."""
        return float(start.elapsed_time(end)) / 1000.0


def clock_of(device_type: str) -> Clock:
    """The clock of a kind of device. torch is used where it is loaded, and never loaded."""
    torch = sys.modules.get("torch")
    if device_type == "cuda" and torch is not None:
        return CudaClock(torch.cuda)
    return HostClock()

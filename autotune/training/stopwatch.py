"""How a training is timed without waiting for its device: marks, and the stretches between them.

On CUDA a mark is an event on the stream: it passes when the device gets there, and the seconds
between two that have passed are the device's own. A stretch in which the host runs ahead of a busy
device is therefore no seconds long, and one in which the device waits for the host is as long as
that. Elsewhere a mark is the host's clock. Source: CUDA C++ programming guide, "Events"; PyTorch,
CUDA semantics, "Asynchronous execution".

The stretches between a training's events are sorted into steps, waits, saves and evaluations. Each
event ends a stretch and says what it was. What lies between the last event after a step and
the begin of the next is the wait for data: the Trainer fetches there, and nothing else, except
callbacks that come after this one. What was timed is judged in `verdict`.
"""

from __future__ import annotations

import sys
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal, Protocol

Stretch = Literal["work", "wait", "other", "evaluation", "checkpoint"]


@dataclass(frozen=True, slots=True)
class Step:
    """[s] an optimizer step: its work, the wait for its batches, and logging before it."""

    number: int
    duration_s: float
    data_wait_s: float
    other_s: float

    @property
    def work_s(self) -> float:
        """[s] forward, backward and optimizer."""
        return self.duration_s - self.data_wait_s - self.other_s


@dataclass(frozen=True, slots=True)
class Pause:
    """[s] a save or an evaluation after a step."""

    kind: Literal["checkpoint", "evaluation"]
    step: int
    duration_s: float


class Stopwatch:
    """Takes marks as a training goes, and gives back what has passed, in order."""

    def __init__(self, clock: Clock) -> None:
        """Starts now."""
        self.clock = clock
        self.in_step = False
        self._last = clock.mark()
        self._queue: deque[tuple[Stretch, Any, int]] = deque()
        self._seconds = {"wait": 0.0, "other": 0.0}
        self._evaluation = Pause("evaluation", 0, 0.0)

    def ends(self, stretch: Stretch, step: int) -> None:
        """A stretch ends now. step: the optimizer steps that are done.

        Inside a step only its end counts: what a training evaluates, saves or logs in the midst of
        one is part of it.
        """
        if self.in_step and stretch != "work":
            return
        self.in_step = stretch == "wait"
        self._queue.append((stretch, self.clock.mark(), step))

    def passed(self) -> list[Step | Pause]:
        """What ended since the last call, as far as the device has got there."""
        found: list[Step | Pause] = []
        while self._queue and self.clock.has_passed(self._queue[0][1]):
            stretch, mark, step = self._queue.popleft()
            seconds = max(self.clock.between(self._last, mark), 0.0)
            self._last = mark
            found += self._sorted(stretch, seconds, step)
        return found

    def _sorted(self, stretch: Stretch, seconds: float, step: int) -> list[Step | Pause]:
        """Several evaluations in a row, of several sets of data, are one."""
        found: list[Step | Pause] = []
        if stretch == "evaluation":
            seconds += self._evaluation.duration_s
            self._evaluation = Pause("evaluation", step, seconds)
            return found
        if self._evaluation.duration_s:
            found.append(self._evaluation)
            self._evaluation = Pause("evaluation", 0, 0.0)
        if stretch == "checkpoint":
            found.append(Pause("checkpoint", step, seconds))
        elif stretch == "work":
            wait, other = self._seconds["wait"], self._seconds["other"]
            found.append(Step(step, seconds + wait + other, wait, other))
            self._seconds = {"wait": 0.0, "other": 0.0}
        else:
            self._seconds[stretch] += seconds
        return found

    def rest(self) -> list[Step | Pause]:
        """What has passed by the end of the training, an evaluation at its end included."""
        found = self.passed()
        if self._evaluation.duration_s:
            found.append(self._evaluation)
            self._evaluation = Pause("evaluation", 0, 0.0)
        return found


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

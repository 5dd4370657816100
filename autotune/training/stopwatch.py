"""The stretches between a training's events, sorted into steps, waits, saves and evaluations.

Each event ends a stretch and says what it was. What lies between the last event after a step and
the begin of the next is the wait for data: the Trainer fetches there, and nothing else, except
callbacks that come after this one.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from autotune.training.clock import Clock

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

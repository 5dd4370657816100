"""What is said while a probe runs: which of how many, what it does, and how long yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.probe.record import ProbeRecord
    from autotune.probe.worker.phase import Doing


class ProbeProgress:
    """Names probes as a person counts them: configurations, and runs of each."""

    def __init__(self, most: int, status: Callable[[str], None] | None) -> None:
        """most: configurations that may be probed; status: hears what goes on now."""
        self.most, self._status = most, status
        self._what, self._expected_s = "", 0.0

    def begins(self, number: int, role: str, why: str, expected_s: float) -> None:
        """A probe of configuration `number` begins. why: of a repeat, what is doubted."""
        again = {"repeat": " again", "confirm": " again, to compare it with its rivals"}
        self._what = f"probe {number} of {self.most}{again.get(role, '')}"
        if why:
            self._what += f" ({why})"
        self._expected_s = expected_s

    def hear(self, doing: Doing, since_s: float) -> None:
        """The worker does something."""
        if self._status is None:
            return
        text = f"{self._what}: {doing.phase}"
        if doing.of:
            text += f", step {doing.done} of {doing.of}"
        elif doing.done:
            text += f", step {doing.done}"
        left = self._expected_s - since_s
        yet = f"about {format_seconds(left)} more" if left >= 1.0 else "longer than expected"
        self._status(f"{text}; {format_seconds(since_s)}, {yet}")

    def name(self, number: int, record: ProbeRecord, runs: int) -> str:
        """A finished probe; runs: of its configuration, this one included."""
        if record.reused and record.role == "search":
            return "probe of an earlier study"
        run = f", run {runs}" if runs > 1 else ""
        return f"probe {number} of {self.most}{run}"

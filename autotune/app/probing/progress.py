"""What is said while a probe runs: which of how many, what it does, and how long yet."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.probe.worker.phase import Doing


class ProbeProgress:
    """Names probes as a person counts them: configurations, and runs of each."""

    def __init__(self, most: int, status: Callable[[str], None] | None) -> None:
        """most: configurations that may be probed; status: hears what goes on now."""
        self.most, self._status = most, status
        self._what = self._why = ""
        self._expected_s = self._left_s = 0.0

    def begins(self, number: int, run: int, why: str, expected_s: float, left_s: float) -> None:
        """A run of configuration `number` begins. why: what is doubted of those before.

        expected_s: of this run; left_s: of the probe budget.
        """
        self._what, self._why = self.name(number, run), why
        self._expected_s, self._left_s = expected_s, left_s

    def hear(self, doing: Doing, since_s: float) -> None:
        """The worker does something."""
        if self._status is None:
            return
        text = f"{self._what}: {doing.phase}"
        if doing.of:
            text += f", step {doing.done} of {doing.of}"
        elif doing.done:
            text += f", step {doing.done}"
        more = self._expected_s - since_s
        yet = f"{more:.0f} s more" if more >= 1.0 else "longer than expected"
        left = format_seconds(max(self._left_s - since_s, 0.0))
        parts = [text, f"{since_s:.0f} s, {yet}", f"{left} left at most", self._why]
        self._status(" | ".join(filter(None, parts)))

    def name(self, number: int, run: int) -> str:
        """A run as a person counts: of the configurations that may be probed, and which of it."""
        return f"probe {number} of {self.most}" + (f", run {run}" if run > 1 else "")

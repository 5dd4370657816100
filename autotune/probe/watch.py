"""What the parent sees while a worker runs: the device's readings, the host's load, the phase.

The worker reads what happens during its window; the parent what was there before it, and what only
the device's own library tells.
"""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Any

from autotune.probe import device as devices
from autotune.probe.worker import disturbance
from autotune.probe.worker.contract import Phase, read_phase
from autotune.probe.worker.disturbance import BUSY_DEVICE, Host, between

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from autotune.probe.device import LocalDevice

READING_S = 0.5
BEFORE_S = 0.25  # looked at the host before a worker starts
BUSY_WAIT_S = 10.0  # for others to leave a GPU alone, before each probe
STARTING = Phase("starting")


class Watch:
    """Readings from before a worker starts until it has ended."""

    def __init__(
        self, local: LocalDevice, on_phase: Callable[[Phase, float], None] | None = None
    ) -> None:
        """on_phase: is told the phase and the seconds since the worker's start."""
        self.local, self.on_phase = local, on_phase
        self.samples: list[dict[str, float]] = []
        self.host: dict[str, float] = {}
        self._next = self._said = 0.0
        self._begun = time.monotonic()

    def before(self) -> None:
        """The machine while nothing of ours runs on it."""
        host = Host(alone=True)
        first = host.read()
        time.sleep(BEFORE_S)
        seen = between(first, host.read(), host.cores)
        self.host = {f"{name}_before": seen[name] for name in ("others", "stolen") if name in seen}
        self.host["cores"] = seen["cores"]
        with contextlib.suppress(OSError, AttributeError):
            self.host["load_before"] = os.getloadavg()[0]
        if not self.local.is_cpu:
            self._wait_for_device()
        self._begun = time.monotonic()

    def _wait_for_device(self) -> None:
        """Others may be computing on it: wait a little, then say so."""
        deadline = time.monotonic() + BUSY_WAIT_S
        while (found := devices.reading(self.local.index)) and "busy" in found:
            self.host["busy_before"] = found["busy"]
            if found["busy"] <= BUSY_DEVICE or time.monotonic() > deadline:
                return
            self.report(Phase("waiting for other programs on the device"))
            time.sleep(READING_S)

    def report(self, now: Phase) -> None:
        """Pass on what goes on."""
        if self.on_phase is not None:
            self.on_phase(now, time.monotonic() - self._begun)

    def sample(self, folder: Path | None = None) -> None:
        """Read the device and the worker's phase, unless that was done a moment ago."""
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + READING_S
        if folder is not None:
            self.report(read_phase(folder) or STARTING)
        found = None if self.local.is_cpu else devices.reading(self.local.index)
        if found:
            self.samples.append(found)

    @property
    def was_full(self) -> bool:
        """Whether nearly all of its memory was in use at some time."""
        share = [s["used_bytes"] / s["total_bytes"] for s in self.samples if "total_bytes" in s]
        return max(share, default=0.0) > 0.95  # noqa: PLR2004 - what an allocator leaves over

    def summary(self) -> dict[str, Any]:
        """Means of what was read while busy, extremes of temperature and clock, throttling."""
        busy = [s for s in self.samples if s.get("busy", 0.0) > 0.5] or self.samples  # noqa: PLR2004
        found: dict[str, Any] = dict(self.host)
        for name in ("power_w", "sm_mhz", "celsius", "busy"):
            values = [s[name] for s in busy if name in s]
            if values:
                found[name] = sum(values) / len(values)
                found[f"{name}_min"], found[f"{name}_max"] = min(values), max(values)
        bits = 0
        for sample in busy:
            bits |= int(sample.get("reasons", 0))
        if busy:
            found["throttled_by"] = devices.throttle_words(bits)
            found["samples"] = len(busy)
        return found


def disturbed(result: Mapping[str, Any], readings: Mapping[str, Any]) -> list[str]:
    """Why a probe's times are not the machine's own pace, by the worker's readings and ours."""
    step = result.get("step") or {}
    device = {name: readings[name] for name in ("throttled_by", "busy_before") if name in readings}
    return disturbance.disturbances({**(step.get("window") or {}), **device})

"""How long each part of a run took, printed at its end: services and faults, and all else.

A machine that others share makes the clock say little, so the processors' seconds stand beside it:
those of the test process and of every child it has waited for. Nothing is judged here; the limits
are those that a change of the tests is held to on two quiet cores.
"""

from __future__ import annotations

import resource
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator

SERVICES = "services"  # the marker of what needs a server, a cluster or a browser, or kills
NAMES = {False: "all but services and faults", True: "services and faults"}
LIMITS_S = {False: 12 * 60.0, True: 20 * 60.0}
LONGEST = 10  # files that are named


def processor_s() -> float:
    """The processors' seconds of this process and of the children that it has waited for."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


@dataclass
class Spent:
    """What tests took: how many, and seconds of the clock and of processors."""

    tests: int = 0
    clock_s: float = 0.0
    processor_s: float = 0.0

    def add(self, report: Any) -> None:
        """Count a report: a test has one of its set-up, one of itself and one of its end."""
        self.tests += report.when == "setup"
        self.clock_s += report.duration
        self.processor_s += getattr(report, "processor_s", 0.0)


class Parts:
    """The plug-in: measures where the tests run, adds up where the run is told."""

    def __init__(self) -> None:
        self.parts = {False: Spent(), True: Spent()}
        self.files: dict[str, Spent] = {}
        self._used = processor_s()
        self.begun = time.monotonic()
        self.first: float | None = None
        self.ended: dict[str, float] = {}  # by worker, when its last test was reported

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item, call: Any) -> Generator[None, Any, Any]:
        """Put the processors' seconds since the last report of this process into each report."""
        report = yield
        del item, call
        now = processor_s()
        report.processor_s, self._used = now - self._used, now
        return report

    @pytest.hookimpl(tryfirst=True)
    def pytest_runtest_logstart(self) -> None:
        """What the processors did before a test is none of its own."""
        self._used = processor_s()

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Add a report up, from wherever it came."""
        if self.first is None:
            self.first = time.monotonic() - report.duration
        self.ended[getattr(report, "worker_id", "here")] = time.monotonic()
        self.parts[SERVICES in report.keywords].add(report)
        self.files.setdefault(report.nodeid.partition("::")[0], Spent()).add(report)

    def pytest_terminal_summary(self, terminalreporter: Any, config: pytest.Config) -> None:
        """Of a run of all tests: both parts beside their limits, and what took longest."""
        if self.first is not None and config.args_source is config.ArgsSource.TESTPATHS:
            terminalreporter.section("time by part")
            terminalreporter.write_line("\n".join(self.lines(self.first)))

    def lines(self, first: float) -> list[str]:
        """What is printed of a run whose first test began at `first`."""
        lanes = len(self.ended)
        idle_s = max(self.ended.values()) - min(self.ended.values())
        longest = sorted(self.files.items(), key=lambda item: -item[1].clock_s)[:LONGEST]
        return [
            f"gathering the tests: {first - self.begun:.0f} s",
            *(
                f"{NAMES[services]}: {part.tests} tests, {part.clock_s / lanes / 60:.1f} min on "
                f"{lanes} at once, {part.processor_s:.0f} s of processors (at most "
                f"{LIMITS_S[services] / 60:.0f} min are meant, on two quiet cores)"
                for services, part in self.parts.items()
            ),
            f"from the end of the first worker to that of the last: {idle_s:.0f} s",
            *(
                f"{spent.clock_s:6.1f} s, {spent.processor_s:6.1f} s of processors: {name}"
                for name, spent in longest
            ),
        ]

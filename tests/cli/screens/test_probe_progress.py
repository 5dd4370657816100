"""How often something long says what it does: on a terminal always, off one twice a minute."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

import pytest

from autotune.cli import output

if TYPE_CHECKING:
    from collections.abc import Callable


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def monotonic(self) -> float:
        return self.now_s


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr(output, "time", found)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "200")
    return found


@pytest.fixture
def told(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> Callable[[io.StringIO], str]:
    """Three minutes of a probe that says twice a second what it does."""

    def run(stream: io.StringIO) -> str:
        monkeypatch.setattr(sys, "stderr", stream)
        progress = output.Progress(quiet=False)
        for second in range(180):
            clock.now_s += 1.0
            progress.status(f"probe 1 of 8: measuring, {second} s")
        progress.line("probe 1 of 8 | done")
        return stream.getvalue()

    return run


def test_on_a_terminal_the_line_is_rewritten_every_time(
    told: Callable[[io.StringIO], str],
) -> None:
    shown = told(Terminal())
    assert all(f"measuring, {second} s" in shown for second in range(180))
    assert shown.count("\n") == 1, "only what stays takes a line"


def test_off_a_terminal_there_is_a_line_every_half_minute(
    told: Callable[[io.StringIO], str],
) -> None:
    lines = told(io.StringIO()).splitlines()
    assert len(lines) == 180 // 30 + 1
    assert "\x1b" not in "".join(lines)


def test_quiet_says_nothing(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Terminal()
    monkeypatch.setattr(sys, "stderr", stream)
    progress = output.Progress(quiet=True)
    clock.now_s += 100.0
    progress.status("probe 1 of 8")
    assert stream.getvalue() == ""

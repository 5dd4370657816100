"""Streams: results on stdout, progress and warnings on stderr, colour only for people."""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from enum import StrEnum
from typing import Annotated, Any, Self, TextIO

import typer

SILENT_S = 1.0
STATUS_S = 30.0  # between two lines of what goes on, where they stay
LINE_WIDTH = 80  # where no terminal says its width
_CLEAR_LINE = "\r\x1b[K"


class Fidelity(StrEnum):
    """What the cost model's memory rests on."""

    auto = "auto"
    formula = "formula"
    trace = "trace"


class Format(StrEnum):
    """How a result is printed."""

    text = "text"
    json = "json"
    csv = "csv"
    md = "md"


FormatOption = Annotated[Format, typer.Option("--format", help="How to print the result.")]
TrustOption = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code",
        help="Let the trace run code that comes with the model instead of with transformers.",
    ),
]
VerboseOption = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Everything, instead of the first screen. Text only."),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Neither progress nor warnings on stderr.")
]


def prepare_streams() -> None:
    """Characters that a stream's encoding lacks are escaped instead of ending the program."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def emit(text: str) -> None:
    """Print a result. A reader that has gone away ends the printing, not the program."""
    from autotune.report.layout.text import to_ascii

    try:
        sys.stdout.write(text if _shows_blocks(sys.stdout) else to_ascii(text))
        if not text.endswith("\n"):
            sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        give_up_on_stdout()


def emit_as(chosen: Format, renderers: Mapping[Format, Callable[[], str]]) -> None:
    """Print the one format that was asked for."""
    emit(renderers[chosen]())


def give_up_on_stdout() -> None:
    """Stdout has no reader any more: what is still buffered must not raise at the end."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def warn(warnings: Iterable[str], *, quiet: bool) -> None:
    """Warnings on stderr, for formats that do not show them to a person."""
    for warning in () if quiet else warnings:
        print(f"warning: {warning}", file=sys.stderr)


def look() -> dict[str, Any]:
    """Width and colour of stdout, as keyword arguments of the text renderers."""
    return {"width": shutil.get_terminal_size((LINE_WIDTH, 24)).columns, "colour": _wants_colour()}


def _wants_colour() -> bool:
    """Source: no-color.org: any non-empty NO_COLOR turns colour off."""
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        return False
    return sys.stdout.isatty()


def _shows_blocks(stream: TextIO) -> bool:
    try:
        "█▏░".encode(stream.encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return False
    return True


class Progress:
    """What is being done, on stderr: on a terminal one line, rewritten; else line by line.

    Off a terminal nothing is said in the first second, and then one line a second at most: what is
    quick needs no log, and a log needs no thousand lines.
    """

    def __init__(self, *, quiet: bool) -> None:
        self._quiet = quiet
        self._rewrites = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._last = ""
        self._said = self._told = time.monotonic()

    def __call__(self, message: str) -> None:
        """Say what goes on now."""
        if self._quiet or message == self._last:
            return
        self._last = message
        if self._rewrites:
            width = shutil.get_terminal_size((LINE_WIDTH, 24)).columns - 1
            sys.stderr.write(_CLEAR_LINE + message[:width])
        elif time.monotonic() - self._said >= SILENT_S:
            self._said = time.monotonic()
            sys.stderr.write(message + "\n")
        sys.stderr.flush()

    def status(self, message: str) -> None:
        """Say what goes on within something long; off a terminal twice a minute."""
        if self._rewrites:
            self(message)
        elif time.monotonic() - self._told >= STATUS_S:
            self.line(message)

    def line(self, message: str) -> None:
        """Say something that stays on the screen: a probe that finished."""
        self._told = time.monotonic()
        if not self._quiet:
            sys.stderr.write((_CLEAR_LINE if self._rewrites else "") + message + "\n")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        """Take the line away, so that the answer starts on a clean one."""
        if self._rewrites and self._last and not self._quiet:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()

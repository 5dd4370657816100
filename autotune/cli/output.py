"""Streams, and how an answer is printed: results on stdout, all else on stderr.

Colour is for people alone. What an answer says is made in `report/`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Self, TextIO, TypeVar, cast

import typer

from autotune.app.dataset import TOLD
from autotune.cli.options import option
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.report.layout.report import Report

Payload = TypeVar("Payload")

SILENT_S = 1.0
STATUS_S = 30.0  # between two lines of what goes on, where they stay
LAST_STREAM = 2  # the descriptor of stderr
LINE_WIDTH = 80  # where no terminal says its width
_CLEAR_LINE = "\r\x1b[K"


class Format(StrEnum):
    """How a result is printed."""

    text = "text"
    json = "json"
    csv = "csv"
    md = "md"


FormatOption = Annotated[Format, option("--format", "How to print the result.")]
VerboseOption = Annotated[
    bool,
    typer.Option("--verbose", "-v", help="Everything, instead of the first screen. Text only."),
]
QuietOption = Annotated[
    bool, typer.Option("--quiet", "-q", help="Neither progress nor warnings on stderr.")
]


@dataclass(frozen=True, slots=True)
class Output:
    """How an answer is printed: a set of options, as those of `options.py`."""

    format_: FormatOption = Format.text
    verbose: VerboseOption = False
    quiet: QuietOption = False

    @property
    def is_data(self) -> bool:
        """Whether a program reads it."""
        return self.format_ in {Format.json, Format.csv}


def prepare_streams() -> None:
    """Characters that a stream's encoding lacks are escaped instead of ending the program.

    A stream that was closed before the start (`>&-`) leads nowhere.
    """
    if sys.stdin is None or sys.stdout is None or sys.stderr is None:
        _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(AttributeError, ValueError, OSError):
            stream.reconfigure(errors="backslashreplace")  # type: ignore[union-attr]


def _open_closed_streams() -> None:
    """Descriptors 0 to 2 taken before a file of ours is, which a child would then write into."""
    while (handle := os.open(os.devnull, os.O_RDWR)) <= LAST_STREAM:
        os.set_inheritable(handle, True)
    os.close(handle)
    sys.stdin = sys.stdin or Path(os.devnull).open(encoding="utf-8")  # noqa: SIM115
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115


# What a file's name must not do to the terminal: control characters but for colours, and text that
# is turned around.
_STEERING = re.compile(
    r"\x1b(?!\[[0-9;]*m)|[\x00-\x08\x0b\x0c\x0e-\x1a\x1c-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]"
)


def emit(text: str) -> None:
    """Print a result. A reader that has gone away ends the printing, not the program."""
    from autotune.domain.secrets import without_secrets
    from autotune.report.layout.text import to_ascii

    text, _ = without_secrets(text)
    text = _STEERING.sub(lambda found: repr(found[0])[1:-1], text)
    try:
        sys.stdout.write(text if _shows_blocks(sys.stdout) else to_ascii(text))
        if not text.endswith("\n"):
            sys.stdout.write("\n")
        sys.stdout.flush()
    except BrokenPipeError:
        give_up_on_stdout()


def print_report(
    report: Report[Payload],
    payload: Payload,
    output: Output,
    screen: Callable[..., str] | None = None,
    *,
    json: Callable[[Payload], str] | None = None,
) -> None:
    """Print an answer in the format asked for. screen: its text, unless everything is asked for."""
    from autotune.report.payload import dumps

    if output.format_ is Format.text:
        text = report.text if output.verbose or screen is None else screen
        emit(text(payload, **terminal_options()))
    elif output.format_ is Format.json:
        emit((json or dumps)(payload))
    else:
        emit((report.csv if output.format_ is Format.csv else report.markdown)(payload))


def print_answer(
    report: Report[Payload], payload: Payload, output: Output, screen: Callable[..., str]
) -> None:
    """The same of an answer that has warnings: for a program they are also on stderr."""
    if output.is_data:
        warn(cast("Mapping[str, Any]", payload)["warnings"], quiet=output.quiet)
    print_report(report, payload, output, screen)


def give_up_on_stdout() -> None:
    """Stdout has no reader any more: what is still buffered must not raise at the end."""
    _give_up_on(sys.stdout)


def leave_streams() -> None:
    """What a stream cannot take is dropped: Python would end with a code of its own, 120."""
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            _give_up_on(stream)


def _give_up_on(stream: TextIO) -> None:
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        stream.flush()


def warn(warnings: Iterable[str], *, quiet: bool) -> None:
    """Warnings on stderr, for formats that do not show them to a person."""
    for warning in () if quiet else warnings:
        print(as_wide(_told(f"warning: {warning}")), file=sys.stderr)


def _told(message: str) -> str:
    from autotune.domain.secrets import without_secrets

    return without_secrets(message)[0]


def as_wide(text: str) -> str:
    """A message in lines of a narrow terminal; wider ones, and files, get it in one piece.

    A command stays whole, to be copied.
    """
    import textwrap

    width = columns()
    if width >= LINE_WIDTH or text.startswith(("hint: autotune ", "autotune ")):
        return text
    lines = (
        textwrap.wrap(line, width, subsequent_indent="  ", break_long_words=False,
                      break_on_hyphens=False) or [""]
        for line in text.splitlines()
    )  # fmt: skip
    return "\n".join(line for several in lines for line in several)


def columns() -> int:
    """How many characters a line of the terminal has; LINE_WIDTH where nothing says it."""
    return shutil.get_terminal_size((LINE_WIDTH, 24)).columns


def terminal_options() -> dict[str, Any]:
    """Width and colour of stdout, as keyword arguments of the text renderers."""
    return {"width": columns(), "colour": _wants_colour()}


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
        message = _told(message)
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
            sys.stderr.write((_CLEAR_LINE if self._rewrites else "") + _told(message) + "\n")
            sys.stderr.flush()

    def __enter__(self) -> Self:
        """Every count of rows within it says how far it is."""
        self._before = TOLD.get()
        TOLD.set(self)
        return self

    def __exit__(self, *_: object) -> None:
        """Take the line away, so that the answer starts on a clean one."""
        TOLD.set(self._before)
        if self._rewrites and self._last and not self._quiet:
            sys.stderr.write(_CLEAR_LINE)
            sys.stderr.flush()

"""A person at a terminal, who types only what was printed before."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LONGEST_S = 3600.0  # a command on a machine with a load of ten
STARTS = ("autotune ", "bash ", "MAX_STEPS=", "(cd ")
_QUOTED = re.compile(r"`((?:autotune|bash) [^`]+)`")
_GOES_ON = re.compile(r"^hint: continue with: (.*)$", re.MULTILINE)
_FLAG = re.compile(r"--[a-z][a-z-]*")
_LAST_LINES = 1500  # [characters] of an output that are shown when something is wrong


class WalkError(AssertionError):
    """The walk cannot go on, or what was printed is not so."""


@dataclass(frozen=True, slots=True)
class Typed:
    """A command and what came of it."""

    command: str
    code: int
    stdout: str
    stderr: str

    @property
    def json(self) -> Any:  # noqa: ANN401 - an answer
        """What `--format json` printed, and nothing else."""
        return json.loads(self.stdout)

    def __str__(self) -> str:
        ends = [text[-_LAST_LINES:].rstrip() for text in (self.stdout, self.stderr)]
        return "\n".join([f"$ {self.command}", *filter(None, ends), f"(exit code {self.code})"])


def commands_of(text: str) -> list[str]:
    """The commands of a text: lines of their own, what stands in backticks, and hints."""
    lines = [line.strip().removeprefix("$ ") for line in text.splitlines()]
    found = [line for line in lines if line.startswith(STARTS)]
    return [*found, *_QUOTED.findall(" ".join(text.split())), *_GOES_ON.findall(text)]


class Terminal:
    """A shell in a folder, with a home of its own and nothing set.

    printed: every command that was seen so far. package: the folder that `autotune` is imported
    from.
    """

    def __init__(self, folder: Path, home: Path, package: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.printed: set[str] = set()
        self.log: list[tuple[Typed, float]] = []
        self._helps: dict[str, str] = {}
        self.environment = _environment(home, package)

    def read(self, text: str) -> None:
        """Remember the commands of a text."""
        self.printed.update(commands_of(text))

    def find(self, *parts: str) -> str:
        """The printed command that holds all parts; the shortest of several."""
        found = [command for command in self.printed if all(part in command for part in parts)]
        if not found:
            msg = f"no command with {' and '.join(map(repr, parts))} was printed"
            raise WalkError(msg)
        return min(found, key=lambda command: (len(command), command))

    def type(
        self, command: str, options: str = "", *, codes: tuple[int, ...] = (0,),
        folder: Path | None = None,
    ) -> Typed:  # fmt: skip
        """Run a printed command; options: of its own `--help`, behind it.

        Raises WalkError where it was not printed, ends with another code, or with a traceback.
        """
        line = self._allowed(command, options)
        begun = time.monotonic()
        with self._started(line, folder or self.folder) as process:
            stdout, stderr = process.communicate(timeout=LONGEST_S)
        return self._judged(Typed(line, process.returncode, stdout, stderr), codes, begun)

    def interrupt(self, command: str, options: str, when: Callable[[str], bool]) -> Typed:
        """Run a printed command, press Ctrl-C once `when` is true of its stderr so far.

        Its exit code is 0 where it ended before: a busy machine spends a budget on one probe.
        """
        line = self._allowed(command, options)
        begun = time.monotonic()
        said = self.folder / ".stderr"
        with said.open("w+", encoding="utf-8") as stream:
            process = self._popen(line, self.folder, stderr=stream)
            try:
                _wait(lambda: when(said.read_text(encoding="utf-8")), process)
                with suppress(ProcessLookupError):  # it had ended: judged by its exit code
                    os.killpg(process.pid, signal.SIGINT)
                stdout, _ = process.communicate(timeout=LONGEST_S)
            finally:
                _end(process)
        typed = Typed(line, process.returncode, stdout, said.read_text(encoding="utf-8"))
        return self._judged(typed, (130, 0), begun)

    @contextmanager
    def running(self, command: str) -> Iterator[subprocess.Popen[str]]:
        """A printed command that runs meanwhile; it is waited for at the end."""
        line, begun = self._allowed(command, ""), time.monotonic()
        with self._started(line, self.folder) as process:
            yield process
            stdout, stderr = process.communicate(timeout=LONGEST_S)
        self._judged(Typed(line, process.returncode, stdout, stderr), (0,), begun)

    def _judged(self, typed: Typed, codes: tuple[int, ...], begun: float) -> Typed:
        self.log.append((typed, time.monotonic() - begun))
        self.read(typed.stdout)
        self.read(typed.stderr)
        wrong = typed.code not in codes
        if wrong or ("Traceback (most recent" in typed.stderr and typed.code != 0):
            expected = " or ".join(map(str, codes))
            msg = f"exit code {typed.code}, expected {expected}\n{typed}"
            raise WalkError(msg)
        return typed

    def _allowed(self, command: str, options: str) -> str:
        """The line to type. Raises WalkError for what nobody could know."""
        if command not in self.printed:
            msg = f"`{command}` was never printed"
            raise WalkError(msg)
        if not options:
            return command
        words = shlex.split(command)
        told = self._help(words[words.index("autotune") + 1])
        for flag in _FLAG.findall(options):
            if flag not in told:
                msg = f"{flag} is not in the help of `{command}`"
                raise WalkError(msg)
        return f"{command} {options}"

    def _help(self, command: str) -> str:
        """The help of a command, which every answer's reader can ask for."""
        if command not in self._helps:
            with self._started(f"autotune {command} --help", self.folder) as process:
                self._helps[command] = process.communicate(timeout=LONGEST_S)[0]
            self.read(self._helps[command])
        return self._helps[command]

    @contextmanager
    def _started(self, line: str, folder: Path) -> Iterator[subprocess.Popen[str]]:
        process = self._popen(line, folder, stderr=subprocess.PIPE)
        try:
            yield process
        finally:
            _end(process)

    def _popen(self, line: str, folder: Path, **streams: Any) -> subprocess.Popen[str]:  # noqa: ANN401
        """A group of its own, as a terminal makes one, in which Ctrl-C works.

        Under nohup SIGINT is ignored, and children inherit that.
        """
        return subprocess.Popen(
            ["bash", "-c", line],
            cwd=folder,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
            preexec_fn=_ctrl_c_works,  # noqa: PLW1509 - there are no threads here
            **streams,
        )


def _ctrl_c_works() -> None:
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _wait(done: Callable[[], bool], process: subprocess.Popen[str]) -> None:
    """Until it is done, or the process has ended."""
    until = time.monotonic() + LONGEST_S
    while not done():
        if process.poll() is not None:
            return
        if time.monotonic() > until:
            msg = "waited an hour for nothing"
            raise WalkError(msg)
        time.sleep(0.02)


def _end(process: subprocess.Popen[str]) -> None:
    """Nothing of it stays, whatever happened."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    for stream in (process.stdout, process.stderr):
        if stream is not None:
            stream.close()


def _environment(home: Path, package: Path) -> dict[str, str]:
    """What a new user has set: a home, a place for temporary files, and `autotune` on the path."""
    for name in ("bin", "tmp"):
        (home / name).mkdir(parents=True, exist_ok=True)
    command = home / "bin" / "autotune"
    python = shlex.quote(sys.executable)
    command.write_text(f'#!/bin/sh\nexec {python} -m autotune "$@"\n', encoding="utf-8")
    command.chmod(0o755)
    mine = ("AUTOTUNE_", "PYTHON", "XDG_", "HF_", "COLUMNS", "NO_COLOR", "FORCE_COLOR")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(mine)}
    path = [str(home / "bin"), str(Path(sys.executable).parent), kept.get("PATH", "")]
    return kept | {
        "HOME": str(home),
        "TMPDIR": str(home / "tmp"),
        "PATH": os.pathsep.join(path),
        "PYTHONPATH": str(package),
        "AUTOTUNE_OFFLINE": "1",  # what the network says today must not decide
        "HF_HUB_OFFLINE": "1",
        "TERM": "dumb",
    }

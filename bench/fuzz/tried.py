"""An input at its reader: read, refused with words, a traceback or a hang."""

from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import tempfile
import time
import traceback
import warnings
from dataclasses import asdict, dataclass, field
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, Self

from autotune.domain.errors import AutotuneError
from autotune.evidence.cases import Refused

if TYPE_CHECKING:
    from collections.abc import Iterable

    from bench.fuzz.readers import Reader

CPU_S, WALL_S = 20.0, 30.0
MEMORY_BYTES = 4 << 30  # of the process: what has no end, as /dev/zero, meets it in seconds
LONGEST_MESSAGE = 20_000


class Hang(BaseException):
    """Nothing came in time; no reader's `except Exception` may catch it."""


class TooMuchSaidError(Exception):
    """A message that nobody reads to its end."""


@dataclass(frozen=True, slots=True)
class Failure:
    """What was raised, where in our code, and how to have it again."""

    what: str
    where: str
    again: str
    input: str


@dataclass(slots=True)
class Tally:
    """What became of a reader's inputs."""

    name: str
    inputs: int = 0
    read: int = 0
    refused: int = 0
    seconds: float = 0.0
    tracebacks: list[Failure] = field(default_factory=list)
    hangs: list[Failure] = field(default_factory=list)

    def as_dict(self) -> dict[str, Any]:
        """It as JSON."""
        return asdict(self)


class Limits:
    """Ends what takes too long: of computing, and of waiting where nothing computes."""

    def __init__(self, commands: int = 1) -> None:
        self._commands = commands

    def __enter__(self) -> Self:
        """Start both clocks."""
        for kind in (signal.SIGPROF, signal.SIGALRM):
            signal.signal(kind, _end)
        signal.setitimer(signal.ITIMER_PROF, CPU_S * self._commands)
        signal.setitimer(signal.ITIMER_REAL, WALL_S * self._commands)
        return self

    def __exit__(self, *_: object) -> None:
        """Stop both clocks."""
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)


def _end(*_: object) -> None:
    raise Hang


def try_reader(reader: Reader, seed: int, numbers: Iterable[int], *, trace: bool = False) -> Tally:
    """Draw and read inputs by their numbers. trace: show every traceback on stderr."""
    found, began = Tally(reader.name), time.monotonic()
    home = {"AUTOTUNE_OFFLINE": "1", "AUTOTUNE_DEBUG": "1"}
    before, memory = dict(os.environ), resource.getrlimit(resource.RLIMIT_DATA)
    with tempfile.TemporaryDirectory(prefix="autotune-fuzz-") as top, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        resource.setrlimit(resource.RLIMIT_DATA, (MEMORY_BYTES, memory[1]))
        os.environ.update(home, AUTOTUNE_HOME=f"{top}/home", AUTOTUNE_RUNS=f"{top}/runs")
        try:
            for number in numbers:
                _try(reader, seed, number, Path(top) / str(number), found, trace=trace)
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, memory)
            os.environ.clear()
            os.environ.update(before)
    found.seconds = round(time.monotonic() - began, 1)
    return found


def _try(
    reader: Reader, seed: int, number: int, folder: Path, found: Tally, *, trace: bool
) -> None:
    folder.mkdir(parents=True)
    rng = Random(f"{reader.name}/{seed}/{number}")
    said = reader.draw(rng, folder)
    found.inputs += 1
    try:
        with Limits(reader.commands):
            reader.read(folder)
        found.read += 1
    except (AutotuneError, Refused) as error:
        found.refused += 1
        if not 0 < len(str(error)) < LONGEST_MESSAGE:
            found.tracebacks.append(
                _failure(TooMuchSaidError(str(len(str(error)))), reader, seed, number, said)
            )
    except Hang as error:
        found.hangs.append(_failure(error, reader, seed, number, said))
    except (Exception, SystemExit) as error:  # noqa: BLE001 - what is looked for
        if trace:
            traceback.print_exc()
        found.tracebacks.append(_failure(error, reader, seed, number, said))
    with contextlib.suppress(OSError):
        shutil.rmtree(folder)


def _failure(error: BaseException, reader: Reader, seed: int, number: int, said: str) -> Failure:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "/autotune/" in frame.filename] or frames
    where = f"{own[-1].filename.rpartition('/autotune/')[2]}:{own[-1].lineno}" if own else "nowhere"
    again = f'--only "{reader.name}" --seed {seed} --from {number} --inputs 1'
    return Failure(f"{type(error).__name__}: {error}"[:300], where, again, said)

"""Who starts the workers of a search, and where: processes of this machine, or a scheduler's jobs.

A worker is a command (`autotune worker ...`) that joins the search, measures what it is given and
leaves when nothing is left to measure. An executor only starts such commands and says how they are:
it hands out no work, and it loses none when it dies.
"""

from __future__ import annotations

from dataclasses import field
from typing import TYPE_CHECKING, Literal, Protocol, Self

from autotune.domain.errors import InputError, Interrupted, NoLocalDevice
from autotune.frozen import dataclass
from autotune.search.study.refusals import AGAIN

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

FINAL_CODES = (0, InputError.exit_code, NoLocalDevice.exit_code, Interrupted.exit_code)


@dataclass(frozen=True, slots=True)
class WorkerJob:
    """One worker as an executor starts it.

    argv: the whole command, its interpreter first; it needs no other arguments and no input.
    folder: of the run; what a worker prints is kept in `log(name)`. device, count: what one worker
    occupies, by the catalogue's name (`cpu`: no GPU). environment: variables beside the inherited.
    """

    argv: tuple[str, ...]
    folder: Path
    device: str
    count: int = 1
    environment: Mapping[str, str] = field(default_factory=dict)

    @property
    def gpus(self) -> int:
        """GPUs that one worker occupies."""
        return 0 if self.device == "cpu" else self.count

    def log(self, name: str) -> Path:
        """Where the words of a worker of that name are kept."""
        return self.folder / "workers" / f"{name}.log"


@dataclass(frozen=True, slots=True)
class WorkerState:
    """How a worker is. code: of its exit, where it has ended and that is known."""

    name: str
    state: Literal["queued", "running", "ended"]
    code: int | None = None
    why: str = ""

    @classmethod
    def of_exit(cls, name: str, code: int, why: str) -> Self:
        """One that ended with that code; negative: the signal that killed it. why: its words."""
        return cls(name, "ended", code, f"killed by signal {-code}" if code < 0 else why)

    @property
    def is_final(self) -> bool:
        """Whether it ended of its own accord.

        One that was killed, or that a server did not answer for long, may be started again.
        """
        return self.state == "ended" and self.code in FINAL_CODES and AGAIN not in self.why


class Executor(Protocol):
    """Starts workers. Raises InputError where it cannot, before anything was started."""

    def start(self, job: WorkerJob, name: str) -> None:
        """Start one worker. name: unlike every other of this run; its log is called so."""

    def states(self) -> Sequence[WorkerState]:
        """How every worker is that was started here, in the order of their start."""

    def stop(self) -> None:
        """End all of them and wait for that; called once, also after an error or Ctrl-C."""

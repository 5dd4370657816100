"""What an orchestrator is here: one file beside run.sh that starts it on such a machine.

The training itself is run.sh and what lies beside it; nothing of it is said again. What is not
here: how a trainer is started (`trainers/launch`), and prices.
"""

from __future__ import annotations

import io
import math
from abc import ABC, abstractmethod
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, ClassVar

from autotune.domain.errors import InputError
from autotune.domain.units import GB, GIB, MINUTE_S, format_seconds
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.device import Offer
    from autotune.domain.job import Job

SOFTWARE_BYTES = 100 * GB  # the image with its drivers, an environment with CUDA, room to breathe
STORE = "/checkpoints"  # where what outlives the machine is mounted
SPARE = 1.5  # a run still going after so many times its slow end hangs: it is stopped
SCRIPT, OUTPUT, REQUIREMENTS = "run.sh", "output", "requirements.txt"
_STARTED_BY = "to start it, in this folder: "


@dataclass(frozen=True, slots=True)
class Launch:
    """One pick that is to be started elsewhere."""

    job: Job
    name: str  # lower case, digits and dashes, at most 40 characters
    offer: Offer
    files: Mapping[str, str]  # run.sh and what it needs: text by name below the run folder
    slow_end_s: float  # nine runs in ten end sooner; 0 where nobody knows
    written_bytes: float  # by the run: its results, the model's files, the tokenised rows
    writes_to: str  # the folder of results, below the run folder; empty: the user's file says it

    @property
    def rows(self) -> str:
        """The whole path of the training rows on this machine; empty where the job names none."""
        return self.job.dataset_path or ""

    @property
    def rows_there(self) -> str:
        """Where the rows lie on the machine that trains; empty as above."""
        return f"/data/{PurePath(self.rows).name}" if self.rows else ""

    @property
    def asks_for_rows(self) -> bool:
        """Whether run.sh is ours, and the rows have to be named when it starts."""
        return "DATA is not set" in self.files[SCRIPT] or bool(self.rows)

    @property
    def limit_s(self) -> float:
        """[s] after which the run is stopped: its sessions' length, or well past its slow end."""
        session_s = self.job.limits.max_session_s
        return session_s or math.ceil(SPARE * self.slow_end_s / MINUTE_S) * MINUTE_S

    @property
    def disk_bytes(self) -> float:
        """[bytes] to ask for: what the host was stated to have, or what the run needs."""
        host = self.offer.host
        if "disk_bytes" not in host.assumed:
            return host.disk_bytes
        return SOFTWARE_BYTES + self.written_bytes

    def stated(self, field: str) -> float | None:
        """A figure of the host that somebody stated; None where it was only assumed."""
        host = self.offer.host
        return None if field in host.assumed else float(getattr(host, field))

    def head(self, command: str, *more: str, stops: bool = True) -> str:
        """The comment that the file begins with: what it starts, and the words that start it.

        stops: the file also holds the time limit.
        """
        price = self.offer.usd_per_hour
        lines = [
            f"{self.job.name}: {self.job.model.name} on {self.offer.label}",
            f"{_STARTED_BY}{command}",
        ]
        if price > 0:
            lines.append(
                f"the plan was priced at {price:.2f} USD/h: where it costs another, ask again"
            )
        if self.slow_end_s:
            stop = f"; it is stopped after {format_seconds(self.limit_s)}" if stops else ""
            lines.append(
                f"nine runs in ten should end within {format_seconds(self.slow_end_s)}{stop}"
            )
        return "".join(f"# {' '.join(line.split())}\n" for line in (*lines, *more))

    def keeps_results(self) -> list[str]:
        """Shell lines that put the folder of results onto what outlives the machine."""
        if not self.writes_to:
            return []
        return [
            f"mkdir -p {STORE}/{self.name}",
            f"[ -e {self.writes_to} ] || ln -s {STORE}/{self.name} {self.writes_to}",
        ]


class Orchestrator(ABC):
    """One orchestrator: the file it reads, and the words that start it."""

    name: ClassVar[str]  # what a user types: sky, slurm, dstack, k8s
    title: ClassVar[str]
    file: ClassVar[str]
    command: ClassVar[str]  # that starts the file, in its folder
    has_spot: ClassVar[bool]  # whether it can ask for a machine that may be taken away

    def export(self, launch: Launch) -> tuple[str, list[str]]:
        """The file's text, and what it cannot say.

        Raises:
            InputError: The offer is one that the orchestrator has no words for.
        """
        self.check(launch.offer)
        return self.write(launch)

    def check(self, offer: Offer) -> None:
        """Raise InputError for an offer that cannot be asked for."""
        if offer.device.vendor == "apple":
            msg = f"{self.title} has no machines with {offer.device.name}"
            raise InputError(msg, "start run.sh on the machine itself")
        if offer.spot and not self.has_spot:
            msg = f"{self.title} cannot ask for a spot machine, and {offer.label} was priced as one"
            raise InputError(msg, "export sky or dstack, or price the machine without spot")

    def started_by(self, folder: str) -> str:
        """The words that start the file in `folder`, as its own head says them."""
        try:
            lines = (Path(folder) / self.file).read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError):
            return self.command
        told = (line.partition(f"# {_STARTED_BY}") for line in lines)
        return next((words for before, mark, words in told if mark and not before), self.command)

    @abstractmethod
    def write(self, launch: Launch, /) -> tuple[str, list[str]]:
        """The file's text and its notes. Raises InputError as `export` does."""


def as_yaml(values: Mapping[str, Any]) -> str:
    """Block YAML; text of several lines as it stands."""
    from ruamel.yaml import YAML

    yaml = YAML()
    yaml.width = 4096
    yaml.indent(mapping=2, sequence=4, offset=2)
    text = io.StringIO()
    yaml.dump(_literal(values), text)
    return text.getvalue()


def _literal(value: Any) -> Any:  # noqa: ANN401 - any YAML value
    if isinstance(value, dict):
        return {key: _literal(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_literal(each) for each in value]
    if isinstance(value, str) and "\n" in value:
        from ruamel.yaml.scalarstring import LiteralScalarString

        return LiteralScalarString(value)
    return value


def whole_gb(size_bytes: float) -> int:
    """[GB], rounded up."""
    return math.ceil(size_bytes / GB)


def whole_gib(size_bytes: float) -> int:
    """[GiB], rounded down: a machine of 128 GiB shows a little less."""
    return math.floor(size_bytes / GIB)

"""What a trainer format is given and what it must answer.

Adding a trainer: one file with a class that satisfies `TrainerFormat`, and one line in
`autotune.trainers.export.FORMATS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.trainers.versions import Version


@dataclass(frozen=True, slots=True)
class Plan:
    """One candidate of a job, and the versions of the software that will run it."""

    job: Job
    offer: Offer
    config: Config
    torch: Version
    transformers: Version
    trl: Version | None
    checkpoint_bytes: float  # [bytes] of one saved checkpoint; 0 when nobody knows
    risk: str  # why the candidate fits only narrowly; empty where it fits with room to spare
    out_dir: str  # where checkpoints go unless OUTPUT_DIR says otherwise
    trainer: Version | None = None  # the version that was asked for with @, in its own counting

    @property
    def on_cpu(self) -> bool:
        """Whether the run needs no accelerator."""
        return self.offer.device.is_cpu

    @property
    def model(self) -> str:
        """The model to load: a folder beside the job file, or a name on the hub."""
        folder = Path(self.job.base_dir) / self.job.model.name
        return str(folder) if folder.is_dir() else self.job.model.name

    @property
    def trains(self) -> bool:
        """Whether there are optimizer steps at all; False for an evaluation-only run."""
        return self.job.steps > 0

    @property
    def quantized(self) -> bool:
        """Whether the base is stored by bitsandbytes."""
        return self.job.method.base in {"int8", "nf4"}


@dataclass(frozen=True, slots=True)
class Export:
    """Files to write (relative name -> text), and what the format cannot express."""

    files: dict[str, str]
    notes: tuple[str, ...] = ()


class TrainerFormat(Protocol):
    """Writes one candidate in the words of one trainer."""

    @property
    def name(self) -> str:
        """What a user types: hf, trl, ..."""

    def plan_versions(self, job: Job, version: Version | None) -> tuple[Version, Version | None]:
        """(transformers, trl) that will run: the stated version or the job's software profile."""

    def write(self, plan: Plan) -> Export:
        """The files, and what they cannot say."""


def from_anywhere(path: str) -> str:
    """The whole path of what lies on this machine, for a script that changes its folder."""
    return str(Path(path).resolve()) if Path(path).exists() else path

"""What a trainer format is given and what it must answer.

Adding a trainer: one file with a class that satisfies `TrainerFormat`, and one line in
`autotune.trainers.export.FORMATS`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from autotune.catalog.models.models import local_folder

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.trainers.versions import Version


WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.index.json")


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
    python: str = ""  # the interpreter that made the plan, where it may run here

    @property
    def on_cpu(self) -> bool:
        """Whether the run needs no accelerator."""
        return self.offer.device.is_cpu

    @property
    def model(self) -> str:
        """The model to load: a folder on this machine by its whole path, or a name on the hub."""
        folder = local_folder(self.job.model, self.job.base_dir)
        return str(folder) if folder else self.job.model.name

    @property
    def from_scratch(self) -> bool:
        """Whether the model is a config.json alone: there are no weights to begin from."""
        folder = local_folder(self.job.model, self.job.base_dir)
        if folder is None or self.job.model.hf_config == "{}":
            return False
        return not any(True for pattern in WEIGHTS for _ in folder.glob(pattern))

    @property
    def tokenizer(self) -> str | None:
        """What rows were counted with, if not the model's own: `bytes`, a path or a hub id."""
        return None if self.job.tokenizer == self.model else self.job.tokenizer

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

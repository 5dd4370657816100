"""What a trainer is here: its own file read, patched where it stands, or exported from nothing.

Adding a trainer: a module, or a folder where it is long, with a class of `Trainer`, its name in
`registry`, its keys in `data/`, which `bench/trainer_schemas.py` writes, and in `signs` the keys by
which its file says that it is another kind of training.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, ClassVar, Final

from autotune.catalog.models.models import local_folder
from autotune.domain.candidates import Candidate
from autotune.domain.errors import InputError
from autotune.frozen import dataclass
from autotune.trainers.parsed import at_key
from autotune.trainers.versions import check_known

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import Config, KnobValue
    from autotune.domain.job import Job
    from autotune.domain.objective import Objective
    from autotune.domain.outcome import DiskUse
    from autotune.trainers.parsed import Parsed
    from autotune.trainers.versions import Version


JOB_KEYS = frozenset(
    {"hardware", "limits", "lock", "allow", "evidence", "software", "method", "variants"}
)  # that a job file has, and no trainer's
WEIGHTS = ("*.safetensors", "*.bin", "*.pt", "*.pth", "*.gguf", "*.index.json")


class _Gone:
    """Stands for a key that has to leave the file."""

    def __repr__(self) -> str:
        return "GONE"


GONE: Final = _Gone()
Changes = dict[str, object]  # dotted key -> new value, or GONE


@dataclass(frozen=True, slots=True)
class Target:
    """The file that a knob is written into, and what will run it."""

    values: Mapping[str, Any]
    config: Config
    transformers: Version
    syntax: str  # yaml, json, args or python
    devices: int
    base: str = ""  # that the job is priced with, where the file loads another; empty: as it loads
    by_name: bool = False  # TRL loads the model, not the script
    trl: Version | None = None  # its release, where somebody states one

    def has(self, dotted: str) -> bool:
        """Whether the file states that key."""
        return at_key(self.values, dotted, GONE) is not GONE

    def first(self, *names: str) -> str:
        """The spelling that the file uses; the first one where it uses none."""
        return next((name for name in names if self.has(name)), names[0])

    def gone(self, *names: str) -> Changes:
        """Removals of those of the keys that the file has."""
        return {name: GONE for name in names if self.has(name)}


@dataclass(frozen=True, slots=True)
class Plan(Candidate):
    """One candidate of a job, and the versions of the software that will run it."""

    torch: Version
    transformers: Version
    trl: Version | None
    disk: DiskUse  # what the run writes to it; nothing when nobody knows
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
        return self.job.method.is_quantised

    @property
    def may_be_interrupted(self) -> bool:
        """Whether the machine may be taken away, or its sessions end, before the run does."""
        return self.offer.spot or self.job.limits.max_session_s is not None


@dataclass(frozen=True, slots=True)
class Export:
    """Files to write (relative name -> text), and what the format cannot express."""

    files: dict[str, str]
    notes: tuple[str, ...] = ()


class Trainer(ABC):
    """One trainer: the facts that tell it from the others, and its three verbs.

    `read` says what a file of it means, `spell` how one knob is said in it (which is all that
    `autotune.trainers.own_file.patch` asks), `export` writes its files from nothing.
    """

    name: ClassVar[str]  # what a user types: hf, trl, ...
    title: ClassVar[str]  # what a person calls its file
    own_keys: ClassVar[frozenset[str]] = frozenset()  # that no other trainer's file has
    file: ClassVar[str]  # that an export states its settings in; empty: it has no export
    known: ClassVar[tuple[Version, Version]]  # the oldest and the newest whose words were read
    resumes_with: ClassVar[str] = ""  # what makes a second start go on; empty: it does unasked
    logs_state: ClassVar[bool] = True  # a trainer_state.json in `output_dir`
    launched: ClassVar[bool] = False  # several devices need accelerate's config beside the file
    several_machines: ClassVar[bool] = False  # its export starts on each of several machines
    config_nearby: ClassVar[bool] = False  # which may lie beside the file without being named
    deepspeed_by_name: ClassVar[bool] = False  # a DeepSpeed file that is absent goes by its name
    process_per_device: ClassVar[str] = ""  # its program that starts one process a visible device
    program: ClassVar[str] = ""  # its command, whose flags are its own whatever they are
    runs_on: ClassVar[tuple[str, ...]] = ()  # packages whose newest allowed version will run it
    software: ClassVar[Mapping[str, str]] = {}  # what else of the job's software it implies
    evaluation_batch: ClassVar[str] = "per_device_eval_batch_size"  # empty: it sizes none apart
    stand_in: ClassVar[str] = "trl"  # the format written where its file cannot be changed
    objectives: ClassVar[frozenset[Objective]] = frozenset({"sft", "pretraining"})  # exported

    def is_file(self, values: Mapping[str, Any]) -> bool:  # noqa: ARG002 - few have such a mark
        """Whether the structure of a file, and not single keys, says that it is this trainer's."""
        return False

    @abstractmethod
    def read(self, values: Mapping[str, Any], name: str) -> Parsed:
        """The job that a file's mapping states. Raises InputError for what cannot be."""

    def spell_base(self, target: Target, /) -> Changes | str:  # noqa: ARG002 - none by default
        """The keys that load the weights as `target.base` says, or why there are none."""
        return "write it there yourself"

    @abstractmethod
    def spell(self, knob: str, value: KnobValue, target: Target, /) -> Changes | str:
        """The keys that say a knob's value in the file, or why the format cannot."""

    @abstractmethod
    def commands(self, plan: Plan, file: str, launcher: str = "") -> list[str]:
        """What is typed to train with its file; the last command trains.

        Args:
            plan: what will run.
            file: its name in a shell.
            launcher: accelerate's words for the launcher's config; empty where there is none.
        """

    def plan_versions(
        self, _job: Job, _version: Version | None, /
    ) -> tuple[Version, Version | None]:
        """(transformers, trl) that will run: the stated version or the job's software profile.

        Raises:
            InputError: The version or the job is one that the format has no words for.
        """
        raise self._only_read()

    def export(self, _plan: Plan, /) -> Export:
        """The files from nothing, and what they cannot say.

        Raises:
            InputError: The plan is one that the format has no words for.
        """
        raise self._only_read()

    def version_of(self, job: Job, version: Version | None) -> Version:
        """The version asked for, or the newest known.

        Raises:
            InputError: It is not known, or the job only evaluates, which few trainers can.
        """
        if version:
            check_known(self.name, version, self.known)
        if job.steps == 0:
            msg = f"{self.name} has no run that only evaluates"
            raise InputError(msg, "export hf or trl")
        return version or self.known[1]

    def _only_read(self) -> InputError:
        msg = f"a file of {self.name} is read and given back, but not written from nothing"
        return InputError(msg, "export hf or trl")

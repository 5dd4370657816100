"""The options of the command line, each declared once; a command asks for whole sets of them.

A set is a dataclass whose fields are typer's options; `option_sets` gives them to a command.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from autotune.domain.errors import InputError
from autotune.domain.typed.machine import split_machines
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.app.runs.folder import RecordedRun
    from autotune.domain.job import NamedJob
    from autotune.domain.typed.overrides import Overrides


class Goal(StrEnum):
    """What is minimised."""

    cost = "cost"
    time = "time"


class Fidelity(StrEnum):
    """What the cost model's memory rests on."""

    auto = "auto"
    formula = "formula"
    trace = "trace"


def option(name: str, text: str, metavar: str | None = None) -> Any:  # noqa: ANN401 - typer's own type
    """An option: its help, and what that calls its value."""
    return typer.Option(name, help=text, metavar=metavar)


METHODS = ("lora", "qlora", "full")
STORAGE = "AUTOTUNE_STORAGE"  # a URL with a password is seen by everybody on a command line


def shared_storage(stated: str | None) -> str | None:
    """Where the search of several workers is kept: the stated URL, or the variable's.

    Raises InputError for an empty one.
    """
    if stated is not None and not stated.strip():
        msg = "--storage is empty"
        raise InputError(
            msg, "give a URL (postgresql+psycopg://USER@HOST/DATABASE), or leave it out"
        )
    return stated or os.environ.get(STORAGE) or None


def said(of: Any, text: str, metavar: str = "") -> Any:  # noqa: ANN401 - typer's own type
    """The same option with the help of a command in which it is of something else."""
    own = copy(of)
    own.help, own.metavar = text, metavar or own.metavar
    return own


# Options that several commands have: each is declared here, and `said` in a command's own words.
GPU = option(
    "--gpu",
    "The machines to choose from, instead of the job's own: h100, 8xH100, h100:8, a name "
    "as nvidia-smi prints it, a cloud instance (p4d.24xlarge), or all.",
    "NAME|8xNAME|INSTANCE[@PRICE],...",
)
MODEL = option("--model", "The model: a name on the hub, or a folder.", "NAME")
DATA = option(
    "--data",
    "The training data (JSON lines, CSV, text, Parquet, or a folder of them). Counts its "
    "rows and their lengths; with --rows, only the lengths.",
    "FILE",
)
DEADLINE = option("--deadline", "The most time that the run may take.", "24h")
BUDGET = option("--budget", "The most that the run may cost.", "60USD")
SPACE = option("--space", "Search space: a file, or default, or extended.", "FILE")
MINIMIZE = option("--minimize", "Look for the cheapest or the fastest.")
FIDELITY = option(
    "--fidelity", "Use formulas, or also trace the training code; auto traces if in doubt."
)
Spot = Annotated[bool, option("--spot", "Also price each machine as spot, where a price is known.")]
RUN = option("--run", "The folder for this run.", "DIR")
OUT = option("--out", "Where to write it.", "FILE")

Gpu = Annotated[list[str] | None, GPU]
Price = Annotated[
    str | None, option("--price", '"2.50USD/h" for the machine, "1.99USD/gpu-h" per GPU.', "PRICE")
]
Beside = Annotated[
    list[str] | None,
    option("--beside", "The accelerate or DeepSpeed config that goes with JOB.", "FILE"),
]
Set = Annotated[
    list[str] | None,
    option("--set", "Fix a setting, or change a key of the job; repeatable.", "KNOB=VALUE"),
]
Space = Annotated[str | None, SPACE]
Minimize = Annotated[Goal, MINIMIZE]
FidelityOfModel = Annotated[Fidelity, FIDELITY]
FidelityOfMemory = Annotated[
    Fidelity, said(FIDELITY, "How memory is found; auto and trace take longer.")
]
TrustOption = Annotated[
    bool, option("--trust-remote-code", "Let the trace run code that comes with the model.")
]


@dataclass(frozen=True, slots=True)
class OneLine:
    """A job stated in options; beside a trainer's own file, what that file does not say."""

    model: Annotated[str | None, MODEL] = None
    method: Annotated[
        str | None, option("--method", "How to train; lora if left out.", "|".join(METHODS))
    ] = None
    rows: Annotated[
        str | None, option("--rows", "Rows of training data: 20000, 50k, 1.5M.", "N")
    ] = None
    data: Annotated[str | None, DATA] = None
    max_length: Annotated[str | None, option("--max-length", "The most tokens in a row.", "N")] = (
        None
    )
    epochs: Annotated[float | None, option("--epochs", "Passes over the data.", "N")] = None
    global_batch: Annotated[
        str | None, option("--global-batch", "Rows in one optimizer step.", "N")
    ] = None
    objective: Annotated[
        str | None,
        option(
            "--objective",
            "Supervised fine-tuning (sft, the default), preferences or a reward model.",
            "sft|dpo|kto|orpo|reward",
        ),
    ] = None

    @property
    def stated(self) -> dict[str, object]:
        """What was given, by the keys of a job file. Raises InputError for what is no number."""
        from autotune.domain.typed.values import MAX_BATCH, MAX_LENGTH, MAX_ROWS, whole_of_flag

        found: dict[str, object] = {}
        if self.model is not None:
            found["model"] = self.model
        if self.method is not None:
            found["method.kind"] = _method(self.method)
        if self.data is not None:
            if not self.data.strip():
                msg = f"--data {self.data!r} names no file"
                raise InputError(msg, "name the file or folder that is the training data")
            found["data.dataset"] = str(Path(self.data).expanduser().absolute())
        if self.rows is not None:
            found["data.rows"] = whole_of_flag("--rows", self.rows, MAX_ROWS, scaled=True)
        if self.max_length is not None:
            found["data.max_length"] = whole_of_flag("--max-length", self.max_length, MAX_LENGTH)
        if self.epochs is not None:
            found["train.epochs"] = self.epochs
        if self.global_batch is not None:
            batch = whole_of_flag("--global-batch", self.global_batch, MAX_BATCH)
            found["train.global_batch_size"] = batch
        if self.objective is not None:
            found["train.objective"] = self.objective
        return found


@dataclass(frozen=True, slots=True)
class Changes:
    """What is changed in a job, wherever it comes from."""

    gpu: Gpu = None
    price: Price = None
    set_: Set = None
    allow: Annotated[
        list[str] | None,
        option(
            "--allow",
            "Let the search use a setting that changes rounding or batches; repeatable.",
            "KNOB",
        ),
    ] = None
    as_: Annotated[
        str | None,
        option(
            "--as",
            "Price a trainer's file as this: sft for what is not priced (RL, vision); dpo, "
            "kto or orpo if the file does not say which.",
            "sft|dpo|...",
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Limits:
    """What an answer that chooses must keep to."""

    max_price: Annotated[
        str | None, option("--max-price", "Leave out more expensive machines.", "PRICE")
    ] = None
    deadline: Annotated[str | None, DEADLINE] = None
    budget: Annotated[str | None, BUDGET] = None


@dataclass(frozen=True, slots=True)
class Source:
    """Where the job is read: a file, a run folder, a launch command, or the one-line form."""

    job: Annotated[
        Path | None,
        typer.Argument(
            metavar="JOB",
            help="A job file (YAML), or a trainer's own file: HF or TRL arguments (JSON, YAML, "
            ".py), axolotl, LLaMA-Factory, torchtune, litgpt. Or a model's NAME, with --rows N or "
            "--data FILE.",
            show_default=False,
        ),
    ] = None
    from_args: Annotated[
        str | None,
        option(
            "--from-args",
            'A command instead of JOB: "python train.py --per_device_train_batch_size 4".',
            "COMMAND",
        ),
    ] = None
    variant: Annotated[
        str | None,
        option(
            "--variant",
            "Take this variant of the job file, or this launch of the script (a name or a "
            "number). Without a job file: dora or rslora.",
            "NAME",
        ),
    ] = None
    beside: Beside = None

    def jobs(
        self,
        line: OneLine,
        changes: Changes,
        limits: Limits | None = None,
        *,
        spot: bool = False,
        every: bool = False,
        any_machine: bool = False,
    ) -> list[NamedJob]:
        """The jobs that are asked about.

        spot: each machine on spot too. every: all the trainings that a script launches, not its
        first alone. any_machine: where none is named, every one with a price.

        Raises InputError for several sources, or for none.
        """
        from autotune.app.job.load import jobs_of_command, jobs_of_line, jobs_of_spec, load_jobs

        if self.names_a_model(line):
            line = replace(line, model=str(self.job))
            of_line = replace(self, job=None)
            return of_line.jobs(line, changes, limits, spot=spot, any_machine=any_machine)
        overrides = overrides_of(line, changes, limits, self.beside, spot=spot)
        overrides = replace(overrides, any_machine=any_machine and not overrides.gpus)
        if self.job is not None and self.from_args is not None:
            msg = f"JOB {self.job} and --from-args are both given"
            raise InputError(msg, "keep one of them")
        if self.job is None and self.from_args is None and self.variant is not None:
            stated = {**overrides.stated, "method.variant": _of_lora(self.variant)}
            overrides = replace(overrides, stated=stated)
        if self.from_args is not None:
            return jobs_of_command(self.from_args, overrides, variant=self.variant)
        place = self.job if self.job is not None and os.path.lexists(self.job) else None
        recorded = self.recorded_job() if place is not None and place.is_dir() else None
        if recorded is not None:
            return jobs_of_spec(recorded.spec, recorded.base_dir, overrides, str(self.job))
        if self.job is not None:
            return load_jobs(self.job, overrides, variant=self.variant, every=every)
        return jobs_of_line(overrides)

    def names_a_model(self, line: OneLine) -> bool:
        """Whether a model of the catalogue stands where JOB does, and no file has its name."""
        stated = self.from_args is not None or line.model is not None
        if self.job is None or stated or os.path.lexists(self.job):
            return False
        from autotune.catalog.models.models import is_named

        return is_named(str(self.job))

    def recorded_job(self) -> RecordedRun | None:
        """The record of the run folder that is named in the place of a job; None for a file."""
        from autotune.app.runs.folder import is_run, load_record

        return load_record(self.job) if self.job is not None and is_run(self.job) else None


def _method(text: str) -> str:
    """How to train, as a job file says it. Raises InputError, with what to type instead."""
    from autotune.domain.errors import unknown
    from autotune.domain.typed.other_words import typed_here

    if text in METHODS:
        return text
    instead = typed_here(text) or f"{', '.join(METHODS[:-1])} or {METHODS[-1]}"
    kind, hint = "method", f"write {instead}; `autotune help methods` explains them"
    raise unknown(kind, text[:60], METHODS, hint, "--method")


def _of_lora(text: str) -> str:
    """The variant of LoRA that is named where there is no job file. Raises InputError."""
    from autotune.domain.errors import unknown
    from autotune.domain.job import VARIANTS

    if text not in VARIANTS:
        kind = "variant of LoRA"
        hint = "dora or rslora; variants with names of their own stand in a job file"
        raise unknown(kind, text[:80], VARIANTS, hint, "--variant")
    return text


def overrides_of(
    line: OneLine,
    changes: Changes,
    limits: Limits | None = None,
    beside: Sequence[str] | None = None,
    *,
    spot: bool = False,
) -> Overrides:
    """What the options state and change. Raises InputError for what cannot be read."""
    from autotune.domain.typed.overrides import Overrides

    limits = limits or Limits()
    return Overrides(
        gpus=gpu_names(changes.gpu),
        price=changes.price,
        max_price=limits.max_price,
        set_values=set_values(changes.set_),
        allow=split_names(changes.allow),
        deadline=limits.deadline,
        budget=limits.budget,
        spot=spot,
        stated=line.stated,
        beside=tuple(beside or ()),
        priced_as=_as(changes.as_),
    )


def _as(text: str | None) -> str:
    """What a trainer's file is priced as. Raises InputError for what is not priced."""
    from typing import get_args

    from autotune.domain.objective import Stated

    known = get_args(Stated)
    if text not in {None, *known}:
        msg = f"--as {text!r} is not one of: {', '.join(known)}"
        raise InputError(msg, "--as sft prices supervised fine-tuning with the file's settings")
    return text or ""


def gpu_names(values: Sequence[str] | None) -> tuple[str, ...]:
    """Machines from repeated --gpu that may hold commas. Raises InputError for none at all."""
    split_names(values)
    return split_machines(tuple(values or ()))


def split_names(values: Sequence[str] | None) -> tuple[str, ...]:
    """Names from repeated options that may hold commas. Raises InputError for none at all."""
    parts = [part.strip() for value in values or () for part in value.split(",")]
    names = tuple(part for part in parts if part)
    if values and not names:
        msg = f"{' '.join(repr(value) for value in values)} names nothing"
        hint = "give --gpu, --allow or --export a name, or leave the option out"
        raise InputError(msg, hint)
    return names


def set_values(pairs: Sequence[str] | None) -> dict[str, str]:
    """`KNOB=VALUE` options as a mapping. Raises InputError for anything else, or a key twice."""
    values: dict[str, str] = {}
    for pair in pairs or ():
        name, equals, value = pair.partition("=")
        name, value = name.strip(), value.strip()
        if not equals or not name or not value:
            msg = f"--set {pair!r} must be KNOB=VALUE"
            raise InputError(msg, "for example --set precision=bf16")
        if name in values:
            msg = f"--set gives {name} twice: {values[name]!r} and {value!r}"
            raise InputError(msg, "keep one of them")
        values[name] = value
    return values

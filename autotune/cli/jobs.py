"""Options that state or change a job, shared by the commands that take one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from autotune.app.load_job import NamedJob
    from autotune.app.overrides import Overrides

GpuOption = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        metavar="NAME[:N][@PRICE],...",
        help="Use these devices instead of the job's; or: all.",
    ),
]
PriceOption = Annotated[
    str | None,
    typer.Option(
        "--price", metavar="PRICE", help='"2.50USD/h" for the whole offer, "1.99USD/gpu-h" per GPU.'
    ),
]
SetOption = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KNOB=VALUE", help="Pin a knob or change a job key; repeatable."),
]
AllowOption = Annotated[
    list[str] | None,
    typer.Option("--allow", metavar="KNOB", help="Open a numeric knob to the search; repeatable."),
]
VariantOption = Annotated[
    str | None,
    typer.Option(
        "--variant", metavar="NAME", help="Only this variant of the job file, by name or number."
    ),
]
JobArgument = Annotated[
    Path | None,
    typer.Argument(
        metavar="JOB",
        help="A job file (YAML), or a trainer's own file: HF or TRL arguments (JSON, YAML, .py), "
        "axolotl, LLaMA-Factory, torchtune, litgpt.",
        show_default=False,
    ),
]
ModelOption = Annotated[
    str | None, typer.Option("--model", metavar="NAME", help="Model, if no file names it.")
]
MethodOption = Annotated[
    str | None, typer.Option("--method", metavar="lora|qlora|full", help="How to train it.")
]
RowsOption = Annotated[int | None, typer.Option("--rows", help="Rows of training data.")]
LengthOption = Annotated[int | None, typer.Option("--max-length", help="Tokens a row at most.")]
EpochsOption = Annotated[float | None, typer.Option("--epochs", help="Passes over the data.")]
FromArgsOption = Annotated[
    str | None,
    typer.Option(
        "--from-args",
        metavar="COMMAND",
        help='A launch command instead of JOB: "python train.py --per_device_train_batch_size 4".',
    ),
]
BesideOption = Annotated[
    list[str] | None,
    typer.Option(
        "--beside", metavar="FILE", help="accelerate's or DeepSpeed's config of that trainer."
    ),
]


def stated_by_flags(
    model: str | None,
    method: str | None,
    rows: int | None,
    max_length: int | None = None,
    epochs: float | None = None,
    global_batch: int | None = None,
) -> dict[str, object]:
    """What flags state of a job, by the keys of a job file."""
    given = {
        "model": model, "method.kind": method, "data.rows": rows, "data.max_length": max_length,
        "train.epochs": epochs, "train.global_batch_size": global_batch,
    }  # fmt: skip
    return {key: value for key, value in given.items() if value is not None}


def load_all(
    job: Path | None, command: str | None, overrides: Overrides, variant: str | None
) -> list[NamedJob]:
    """The jobs of a file or of a launch command. Raises InputError for both or neither."""
    from autotune.app.load_job import jobs_of_command, load_jobs

    if job is not None and command is not None:
        msg = f"JOB {job} and --from-args are both given"
        raise InputError(msg, "keep one of them")
    if command is not None:
        return jobs_of_command(command, overrides, variant=variant)
    if job is None:
        msg = "JOB is missing: a job file, or a trainer's own file"
        raise InputError(msg, 'or give a launch command: --from-args "python train.py --..."')
    return load_jobs(job, overrides, variant=variant)


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

"""Options that state or change a job, shared by the commands that take one."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from autotune.domain.errors import InputError

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
    Path,
    typer.Argument(metavar="JOB", help="A job file (YAML).", show_default=False),
]


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

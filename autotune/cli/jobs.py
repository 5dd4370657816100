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
        "--gpu", metavar="NAME[:N],...", help="Use these devices instead of the job's; or: all."
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
JobArgument = Annotated[
    Path,
    typer.Argument(metavar="JOB", help="A job file (YAML).", show_default=False),
]


def split_names(values: Sequence[str] | None) -> tuple[str, ...]:
    """Names from repeated options that may hold commas."""
    names = [part.strip() for value in values or () for part in value.split(",")]
    return tuple(name for name in names if name)


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

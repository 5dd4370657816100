"""`autotune compare`: one row per machine and variant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from autotune.cli.jobs import (
    AllowOption,
    BesideOption,
    EpochsOption,
    FromArgsOption,
    GpuOption,
    JobArgument,
    LengthOption,
    MethodOption,
    ModelOption,
    PriceOption,
    RowsOption,
    SetOption,
    VariantOption,
    load_all,
    set_values,
    split_names,
    stated_by_flags,
)
from autotune.cli.output import (
    Fidelity,
    Format,
    FormatOption,
    Progress,
    QuietOption,
    emit_as,
    look,
    warn,
)
from autotune.cli.tune import Goal

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.app.compare import CompareOptions
    from autotune.app.load_job import NamedJob


def compare(  # noqa: PLR0917 - typer passes by name
    job: JobArgument = None,
    from_args: FromArgsOption = None,
    beside: BesideOption = None,
    model: ModelOption = None,
    method: MethodOption = None,
    rows: RowsOption = None,
    max_length: LengthOption = None,
    epochs: EpochsOption = None,
    gpu: GpuOption = None,
    price: PriceOption = None,
    max_price: Annotated[
        str | None,
        typer.Option("--max-price", metavar="PRICE", help="Leave out offers that are dearer."),
    ] = None,
    spot: Annotated[
        bool, typer.Option("--spot", help="Also each machine on spot, where a price is known.")
    ] = False,
    variant: VariantOption = None,
    set_: SetOption = None,
    allow: AllowOption = None,
    space: Annotated[
        str | None,
        typer.Option("--space", metavar="FILE", help="Search space: a file, default or extended."),
    ] = None,
    minimize: Annotated[
        Goal, typer.Option("--minimize", help="What the best within the limits is the least of.")
    ] = Goal.cost,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="24h", help="The run must end within.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="60USD", help="The run must cost at most.")
    ] = None,
    fidelity: Annotated[
        Fidelity,
        typer.Option("--fidelity", help="What memory rests on; auto and trace take longer."),
    ] = Fidelity.formula,
    format_: FormatOption = Format.text,
    quiet: QuietOption = False,
) -> None:
    """Compare machines: the best config of each, in hours and dollars.

    One row for each device and count (and variant of the job file). For example:
    autotune compare jobs/h100_38h.yaml --gpu h100,a100-40gb:4@4.80USD/h,h100:2@5.00USD/h
    """
    from autotune.app.compare import CompareOptions
    from autotune.app.overrides import Overrides

    changes = Overrides(
        gpus=split_names(gpu),
        price=price,
        max_price=max_price,
        set_values=set_values(set_),
        allow=split_names(allow),
        deadline=deadline,
        budget=budget,
        spot=spot,
        stated=stated_by_flags(model, method, rows, max_length, epochs),
        beside=tuple(beside or ()),
    )
    jobs = load_all(job, from_args, changes, variant)
    print_comparison(
        jobs, CompareOptions(space, minimize.value, fidelity.value), format_, quiet=quiet
    )


def print_comparison(
    jobs: Sequence[NamedJob], options: CompareOptions, chosen: Format, *, quiet: bool
) -> NoReturn:
    """Compare, print, and leave with the exit code of the answer."""
    from autotune.app.compare import compare as find
    from autotune.app.compare import exit_status
    from autotune.report.devices_payload import comparison_csv, comparison_payload
    from autotune.report.devices_table import comparison_markdown, comparison_text
    from autotune.report.payload import dumps

    with Progress(quiet=quiet) as progress:
        found = find(jobs, options, progress)
    payload = comparison_payload(found)
    if chosen in {Format.json, Format.csv}:
        warn(payload["warnings"], quiet=quiet)
    emit_as(
        chosen,
        {
            Format.text: lambda: comparison_text(payload, **look()),
            Format.json: lambda: dumps(payload),
            Format.csv: lambda: comparison_csv(payload),
            Format.md: lambda: comparison_markdown(payload),
        },
    )
    raise typer.Exit(exit_status(found))

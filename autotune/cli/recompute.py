"""`autotune recompute`: the same job on other hardware, prices or versions, as a diff."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.jobs import (
    AllowOption,
    BesideOption,
    EpochsOption,
    GpuOption,
    LengthOption,
    MethodOption,
    ModelOption,
    PriceOption,
    RowsOption,
    SetOption,
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


def recompute(  # noqa: PLR0917 - typer passes by name
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="A run folder (the last one if left out), or a job file: from its first machine; "
            "a trainer's own file: from the first of --gpu.",
            show_default=False,
        ),
    ] = None,
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
    set_: SetOption = None,
    allow: AllowOption = None,
    software: Annotated[
        str | None,
        typer.Option(
            "--software",
            metavar="PROFILE|NAME=VERSION,...",
            help="Other versions: a profile's name, or transformers=5.23.0,torch=2.9.",
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        typer.Option(
            "--vary",
            metavar="KEY=VALUE,...",
            help="Beside the job also this variant: rank=8, or kind=qlora; repeatable.",
        ),
    ] = None,
    space: Annotated[
        str | None,
        typer.Option("--space", metavar="FILE", help="Search space; the run's if left out."),
    ] = None,
    minimize: Annotated[
        Goal | None, typer.Option("--minimize", help="As the run did, unless stated.")
    ] = None,
    deadline: Annotated[
        str | None, typer.Option("--deadline", metavar="24h", help="The run must end within.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option("--budget", metavar="60USD", help="The run must cost at most.")
    ] = None,
    fidelity: Annotated[
        Fidelity, typer.Option("--fidelity", help="What the cost model rests on.")
    ] = Fidelity.auto,
    keep: Annotated[
        Path | None,
        typer.Option("--run", metavar="DIR", help="Keep the new answer as a run in this folder."),
    ] = None,
    fail_on_change: Annotated[
        bool,
        typer.Option(
            "--fail-on-change", help="Exit with 6 if another machine or config is recommended."
        ),
    ] = False,
    format_: FormatOption = Format.text,
    quiet: QuietOption = False,
) -> None:
    """Answer an earlier run's question again, and show what changes and why.

    For example: autotune recompute --gpu a100-40gb, or: autotune recompute --price 2.10USD/h
    """
    from autotune.app.overrides import Overrides
    from autotune.app.recompute import RecomputeOptions, exit_status, software_of, vary_of
    from autotune.app.recompute import recompute as again
    from autotune.report.payload import dumps
    from autotune.report.recompute import (
        recompute_csv,
        recompute_markdown,
        recompute_payload,
        recompute_text,
    )

    options = RecomputeOptions(
        overrides=Overrides(
            gpus=split_names(gpu),
            price=price,
            max_price=max_price,
            set_values=set_values(set_),
            allow=split_names(allow),
            deadline=deadline,
            budget=budget,
            stated=stated_by_flags(model, method, rows, max_length, epochs),
            beside=tuple(beside or ()),
        ),
        software=software_of(software) if software else None,
        vary=[vary_of(text) for text in vary or ()],
        space=space,
        objective=minimize.value if minimize else None,
        fidelity=fidelity.value,
        run_dir=keep,
    )
    with Progress(quiet=quiet) as progress:
        found = again(run, options, progress)
    payload = recompute_payload(found)
    if format_ in {Format.json, Format.csv}:
        warn(payload["warnings"], quiet=quiet)
    emit_as(
        format_,
        {
            Format.text: lambda: recompute_text(payload, **look()),
            Format.json: lambda: dumps(payload),
            Format.csv: lambda: recompute_csv(payload),
            Format.md: lambda: recompute_markdown(payload),
        },
    )
    raise typer.Exit(exit_status(found, fail_on_change=fail_on_change))

"""`autotune recompute`: the same job on other hardware, prices or versions, as a diff."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import Beside, Changes, Limits, OneLine, overrides_of, with_option_sets
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


@with_option_sets
def recompute(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="A run folder (the last one if left out), or a job file: from its first machine; "
            "a trainer's own file, or a job in one line: from the first of --gpu.",
            show_default=False,
        ),
    ] = None,
    *,
    line: OneLine,
    changes: Changes,
    limits: Limits,
    beside: Beside = None,
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
        overrides=overrides_of(line, changes, limits, beside),
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

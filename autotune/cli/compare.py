"""`autotune compare`: one row per machine and variant."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from autotune.cli.options import (
    Changes,
    Limits,
    OneLine,
    Source,
    Space,
    overrides_of,
    with_option_sets,
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


@with_option_sets
def compare(
    *,
    source: Source,
    line: OneLine,
    changes: Changes,
    limits: Limits,
    spot: Annotated[
        bool, typer.Option("--spot", help="Also each machine on spot, where a price is known.")
    ] = False,
    space: Space = None,
    minimize: Annotated[
        Goal, typer.Option("--minimize", help="What the best within the limits is the least of.")
    ] = Goal.cost,
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

    jobs = source.jobs(overrides_of(line, changes, limits, source.beside, spot=spot))
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

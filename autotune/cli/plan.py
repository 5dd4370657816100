"""`autotune plan`: many runs, on one machine or several, within a budget."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import Gpu, Price, Space, gpu_names
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


class HoursFrom(StrEnum):
    """Whose hours count where a run states its own."""

    model = "model"
    stated = "stated"


def plan(  # noqa: PLR0917 - typer passes by name
    campaign: Annotated[
        Path, typer.Argument(metavar="CAMPAIGN", help="A campaign file.", show_default=False)
    ],
    parallel: Annotated[
        int | None,
        typer.Option("--parallel", metavar="N", help="Machines that run at the same time."),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget", metavar="100USD|80h", help="Keep the most valuable runs within it."
        ),
    ] = None,
    hours: Annotated[
        HoursFrom | None,
        typer.Option("--hours", help="Where runs state hours: which count; else as the file says."),
    ] = None,
    hours_per_day: Annotated[
        float | None,
        typer.Option("--hours-per-day", metavar="H", help="Hours a day in which machines run."),
    ] = None,
    barrier: Annotated[
        bool, typer.Option("--barrier", help="A phase starts when the one before it is done.")
    ] = False,
    share: Annotated[
        bool, typer.Option("--share", help="Two launch-bound runs to a card, where that pays.")
    ] = False,
    gpu: Gpu = None,
    price: Price = None,
    minimize: Annotated[
        Goal, typer.Option("--minimize", help="What each run and the machine are the least of.")
    ] = Goal.cost,
    space: Space = None,
    fidelity: Annotated[
        Fidelity,
        typer.Option("--fidelity", help="What memory rests on; auto and trace take longer."),
    ] = Fidelity.formula,
    chart: Annotated[
        Path | None,
        typer.Option("--chart", metavar="FILE.svg", help="Also draw the schedule to this file."),
    ] = None,
    format_: FormatOption = Format.text,
    quiet: QuietOption = False,
) -> None:
    """Plan a campaign: many runs, what they cost, when each runs.

    For example: autotune plan jobs/campaigns/rtx4090_qwen2.yaml --parallel 4 --budget 80h
    """
    from autotune.app.plan import PlanOptions, exit_status, write_chart
    from autotune.app.plan import plan as find
    from autotune.app.read_campaign import load_campaign
    from autotune.report.payload import dumps
    from autotune.report.plan_chart import plan_svg
    from autotune.report.plan_payload import plan_csv, plan_payload
    from autotune.report.plan_text import plan_markdown, plan_text

    options = PlanOptions(
        parallel=parallel,
        budget=budget,
        hours=hours.value if hours is not None else None,
        hours_per_day=hours_per_day,
        barrier=barrier,
        share=share,
        objective=minimize.value,
        fidelity=fidelity.value,
        space=space,
    )
    with Progress(quiet=quiet) as progress:
        progress("reading the campaign")
        found = find(load_campaign(campaign, gpus=gpu_names(gpu), price=price), options, progress)
    payload = plan_payload(found)
    if chart is not None:
        write_chart(chart, plan_svg(payload))
    if format_ in {Format.json, Format.csv}:
        warn(payload["warnings"], quiet=quiet)
    emit_as(
        format_,
        {
            Format.text: lambda: plan_text(payload, **look()),
            Format.json: lambda: dumps(payload),
            Format.csv: lambda: plan_csv(payload),
            Format.md: lambda: plan_markdown(payload),
        },
    )
    raise typer.Exit(exit_status(found))

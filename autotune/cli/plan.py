"""`autotune plan`: many runs, on one machine or several, within a budget."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.options import Goal, Gpu, Price, Space, gpu_names
from autotune.cli.output import (
    Fidelity,
    Format,
    FormatOption,
    Progress,
    QuietOption,
    VerboseOption,
    emit_as,
    look,
    warn,
)
from autotune.cli.typed import asked

if TYPE_CHECKING:
    from autotune.domain.answer.recommendation import NextStep

OPTION, HERE = "--chart", Path("-")  # HERE: --chart without a file


class HoursFrom(StrEnum):
    """Whose hours count where a run states its own."""

    model = "model"
    stated = "stated"


def plan(  # noqa: PLR0917 - typer passes by name
    context: typer.Context,
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
        typer.Option(
            "--chart",
            metavar="[FILE.svg]",
            help="Draw the schedule: below the answer, or to this file.",
        ),
    ] = None,
    format_: FormatOption = Format.text,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
) -> None:
    """Plan a campaign: many runs, what they cost, when each runs.

    For example: autotune plan jobs/campaigns/rtx4090_qwen2.yaml --parallel 4 --budget 80h
    """
    from autotune.app.campaign.file import load_campaign
    from autotune.app.campaign.plan import PlanOptions, exit_status, write_chart
    from autotune.app.campaign.plan import plan as find
    from autotune.report.campaign.payload import plan_csv, plan_payload
    from autotune.report.campaign.schedule import plan_svg
    from autotune.report.campaign.text import plan_markdown, plan_text
    from autotune.report.payload import dumps
    from autotune.report.screens.plan import plan_screen

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
    payload["next"] = [] if chart else _next(context)
    if chart is not None and chart != HERE:
        write_chart(chart, plan_svg(payload))
    screen = partial(plan_screen, chart=chart == HERE)
    text = plan_text if verbose else screen
    if format_ in {Format.json, Format.csv}:
        warn(payload["warnings"], quiet=quiet)
    emit_as(
        format_,
        {
            Format.text: lambda: text(payload, **look()),
            Format.json: lambda: dumps(payload),
            Format.csv: lambda: plan_csv(payload),
            Format.md: lambda: plan_markdown(payload),
        },
    )
    raise typer.Exit(exit_status(found))


def _next(context: typer.Context) -> tuple[NextStep, ...]:
    """The chart, for who did not ask for it."""
    from autotune.report.sections.how_to_run import one_step

    question = asked(context)
    return one_step(question, "plan", OPTION, "which run starts when, and where")

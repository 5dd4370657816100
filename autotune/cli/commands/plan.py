"""`autotune plan`: many runs, on one machine or several, within a budget."""

from __future__ import annotations

from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.option_sets import with_option_sets
from autotune.cli.options import (
    BUDGET,
    DEADLINE,
    MINIMIZE,
    Fidelity,
    FidelityOfMemory,
    Goal,
    Gpu,
    Price,
    Space,
    gpu_names,
    option,
    said,
)
from autotune.cli.output import Output, Progress, print_answer
from autotune.cli.typed import asked

if TYPE_CHECKING:
    from autotune.domain.answer.recommendation import NextStep

OPTION, HERE = "--chart", Path("-")  # HERE: --chart without a file


class HoursFrom(StrEnum):
    """Whose hours count where a run states its own."""

    model = "model"
    stated = "stated"


@with_option_sets
def plan(
    *,
    context: typer.Context,
    campaign: Annotated[
        Path, typer.Argument(metavar="CAMPAIGN", help="A campaign file.", show_default=False)
    ],
    parallel: Annotated[
        int | None, option("--parallel", "How many machines run at the same time.", "N")
    ] = None,
    budget: Annotated[
        str | None,
        said(BUDGET, "Keep the runs with the highest priority within this budget.", "100USD|80h"),
    ] = None,
    deadline: Annotated[
        str | None, said(DEADLINE, "The most time that all runs together may take.", "48h")
    ] = None,
    hours: Annotated[
        HoursFrom | None,
        option("--hours", "Use the hours that the file states, or the predicted ones."),
    ] = None,
    hours_per_day: Annotated[
        float | None, option("--hours-per-day", "How many hours a day the machines run.", "H")
    ] = None,
    barrier: Annotated[
        bool, option("--barrier", "A phase starts when the one before it has ended.")
    ] = False,
    share: Annotated[
        bool, option("--share", "Put two launch-bound runs on one card where that pays.")
    ] = False,
    mixed: Annotated[
        bool, option("--mixed", "Put each run on the machine that is cheapest for it.")
    ] = False,
    gpu: Gpu = None,
    price: Price = None,
    minimize: Annotated[
        Goal, said(MINIMIZE, "Look for the cheapest or the fastest plan.")
    ] = Goal.cost,
    space: Space = None,
    fidelity: FidelityOfMemory = Fidelity.formula,
    chart: Annotated[
        Path | None,
        option("--chart", "Draw the schedule: below the answer, or to this file.", "[FILE.svg]"),
    ] = None,
    output: Output,
) -> None:
    """Plan many runs: their cost, and when each one runs.

    For example: autotune plan campaign.yaml --parallel 4 --budget 80h
    """
    from autotune.app.campaign.file import load_campaign
    from autotune.app.campaign.plan import PlanOptions, exit_status, write_chart
    from autotune.app.campaign.plan import plan as find
    from autotune.report.campaign.payload import plan_payload
    from autotune.report.campaign.schedule import plan_svg
    from autotune.report.campaign.text import PLAN_REPORT
    from autotune.report.screens.plan import plan_screen

    options = PlanOptions(
        parallel=parallel,
        budget=budget,
        deadline=deadline,
        hours=hours.value if hours is not None else None,
        hours_per_day=hours_per_day,
        barrier=barrier,
        share=share,
        mixed=mixed,
        objective=minimize.value,
        fidelity=fidelity.value,
        space=space,
    )
    with Progress(quiet=output.quiet) as progress:
        progress("reading the campaign")
        found = find(load_campaign(campaign, gpus=gpu_names(gpu), price=price), options, progress)
    payload = plan_payload(found)
    payload["next"] = [] if chart else _next(context)
    if chart is not None and chart != HERE:
        write_chart(chart, plan_svg(payload))
    screen = partial(plan_screen, chart=chart == HERE)
    print_answer(PLAN_REPORT, payload, output, screen)
    raise typer.Exit(exit_status(found))


def _next(context: typer.Context) -> tuple[NextStep, ...]:
    """The chart, for who did not ask for it."""
    from autotune.report.sections.how_to_run import one_step

    question = asked(context)
    return one_step(question, "plan", OPTION, "which run starts when, and where")

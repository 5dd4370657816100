"""`autotune compare`: one row per machine and variant."""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING, Annotated, NoReturn

import typer

from autotune.cli.option_sets import with_option_sets
from autotune.cli.options import (
    MINIMIZE,
    Changes,
    Fidelity,
    FidelityOfMemory,
    Goal,
    Limits,
    OneLine,
    Source,
    Space,
    Spot,
    said,
)
from autotune.cli.output import Output, Progress, print_answer
from autotune.cli.typed import asked

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.app.compare.compare import CompareOptions
    from autotune.domain.answer.recommendation import Asked
    from autotune.domain.job import NamedJob


@with_option_sets
def compare(
    *,
    context: typer.Context,
    source: Source,
    line: OneLine,
    changes: Changes,
    limits: Limits,
    spot: Spot = False,
    space: Space = None,
    minimize: Annotated[Goal, said(MINIMIZE, "Look for the cheapest or the fastest.")] = Goal.cost,
    fidelity: FidelityOfMemory = Fidelity.formula,
    output: Output,
) -> None:
    """Compare machines: hours and dollars of the best config on each.

    One row for each device and count (and variant of the job file). For example:
    autotune compare job.yaml --gpu h100,a100-40gb:4@4.80USD/h,h100:2@5.00USD/h
    """
    from autotune.app.compare.compare import CompareOptions

    with Progress(quiet=output.quiet):
        jobs = source.jobs(line, changes, limits, spot=spot, every=True, any_machine=True)
    what = CompareOptions(space, minimize.value, fidelity.value)
    print_comparison(jobs, what, asked(context), output)


def print_comparison(
    jobs: Sequence[NamedJob], options: CompareOptions, question: Asked, output: Output
) -> NoReturn:
    """Compare, print, and leave with the exit code of the answer."""
    from autotune.app.compare.compare import compare as find
    from autotune.app.compare.compare import exit_status
    from autotune.report.compare.payload import comparison_payload
    from autotune.report.compare.table import COMPARE_REPORT
    from autotune.report.screens.compare import comparison_screen
    from autotune.report.sections.how_to_run import one_step

    with Progress(quiet=output.quiet) as progress:
        found = find(jobs, options, progress)
    payload = comparison_payload(found)
    one = f"--variant {quote(jobs[0].variant)}" if len(jobs) > 1 else ""
    payload["next"] = one_step(question, "tune", one, "the best of these, with what to run")
    print_answer(COMPARE_REPORT, payload, output, comparison_screen)
    raise typer.Exit(exit_status(found))

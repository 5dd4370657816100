"""`autotune runs`, `report` and `export`: what earlier runs have answered."""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.commands.lists import print_listing
from autotune.cli.commands.tune import EXPORT_HELP, print_recommendation
from autotune.cli.options import option
from autotune.cli.output import Format, FormatOption, Output, QuietOption, VerboseOption, emit, warn
from autotune.domain.paths import near, whole

RunArgument = Annotated[
    Path | None,
    typer.Argument(metavar="RUN", help="A run folder; the last one with an answer if left out."),
]


def meant(run: Path | None, *, quiet: bool) -> Path:
    """The run folder that was named, else the last with an answer; newer ones are spoken of."""
    if run is not None:
        return whole(run)
    from autotune.app.runs.find import last_answered, passed_over

    warn(passed_over(), quiet=quiet)
    return last_answered()


def runs(format_: FormatOption = Format.text) -> None:
    """List the runs, the newest first."""
    from autotune.app.runs.find import list_runs
    from autotune.report.lists.catalogs import runs_listing

    print_listing(runs_listing(list_runs()), format_)


class ReportFormat(StrEnum):
    """How an answer is printed: as everywhere, or as a page."""

    text = "text"
    json = "json"
    csv = "csv"
    md = "md"
    html = "html"


def report(
    run: RunArgument = None,
    format_: Annotated[
        ReportFormat, option("--format", "How to print the answer.")
    ] = ReportFormat.text,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
) -> None:
    """Print the answer of a run again.

    html is one page that needs nothing else, as report.html in the run's folder:
    autotune report --format html > answer.html
    """
    from autotune.app.runs.folder import load_recommendation_payload
    from autotune.report.recorded import recorded_payload
    from autotune.report.sections.how_to_run import next_steps

    run_dir = meant(run, quiet=quiet)
    found = recorded_payload(load_recommendation_payload(run_dir), near(run_dir))
    payload = replace(found, run_dir=str(run_dir))  # it may have been moved since
    if format_ is ReportFormat.html:
        from autotune.report.page.page import recommendation_html

        warn(payload.warnings, quiet=quiet)
        emit(recommendation_html(payload))
        return
    payload = replace(payload, next=next_steps(payload))
    print_recommendation(payload, Output(Format(format_.value), verbose, quiet))


def export(
    to: Annotated[
        str, typer.Option("--to", metavar="NAME[@VERSION]", help=EXPORT_HELP, show_default=False)
    ],
    run: RunArgument = None,
    quiet: QuietOption = False,
) -> None:
    """Write what to run, from a run's answer.

    Prints the paths of the files written, and on stderr what the format cannot express.
    """
    from autotune.app.runs.export import export_run

    paths, notes = export_run(meant(run, quiet=quiet), to)
    warn(notes, quiet=quiet)
    emit("\n".join(near(path) for path in paths))

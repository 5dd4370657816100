"""`autotune runs`, `report` and `export`: what earlier runs have answered."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.lists import print_listing
from autotune.cli.output import Format, FormatOption, QuietOption, VerboseOption, emit, warn
from autotune.cli.tune import EXPORT_HELP, print_recommendation

RunArgument = Annotated[
    Path | None,
    typer.Argument(metavar="RUN", help="A run folder; the last one if left out."),
]


def runs(format_: FormatOption = Format.text) -> None:
    """List the runs, the newest first."""
    from autotune.app.runs import list_runs
    from autotune.report.catalogs import runs_listing

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
        ReportFormat, typer.Option("--format", help="How to print the answer.")
    ] = ReportFormat.text,
    verbose: VerboseOption = False,
    quiet: QuietOption = False,
) -> None:
    """Print the answer of a run again.

    html is one page that needs nothing else, as report.html in the run's folder:
    autotune report --format html > answer.html
    """
    from autotune.app.runs import last_run, load_recommendation_payload
    from autotune.report.how_to_run import next_steps
    from autotune.report.recorded import recorded_payload

    run_dir = run or last_run()
    payload = recorded_payload(load_recommendation_payload(run_dir), str(run_dir))
    if format_ is ReportFormat.html:
        from autotune.report.html import recommendation_html

        warn(payload["warnings"], quiet=quiet)
        emit(recommendation_html(payload))
        return
    payload["next"] = next_steps(payload)
    print_recommendation(payload, Format(format_.value), quiet=quiet, verbose=verbose)


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
    from autotune.app.export import export_run
    from autotune.app.runs import last_run

    paths, notes = export_run(run or last_run(), to)
    warn(notes, quiet=quiet)
    emit("\n".join(str(path) for path in paths))

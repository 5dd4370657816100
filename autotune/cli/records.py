"""`autotune runs`, `report` and `export`: what earlier runs have answered."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.lists import print_listing
from autotune.cli.output import Format, FormatOption, QuietOption, emit
from autotune.cli.tune import print_recommendation

RunArgument = Annotated[
    Path | None,
    typer.Argument(metavar="RUN", help="A run folder; the last one if left out."),
]


def runs(format_: FormatOption = Format.text) -> None:
    """List the runs, the newest first."""
    from autotune.app.runs import list_runs
    from autotune.report.catalogs import runs_listing

    print_listing(runs_listing(list_runs()), format_)


def report(
    run: RunArgument = None, format_: FormatOption = Format.text, quiet: QuietOption = False
) -> None:
    """Print the answer of a run again."""
    from autotune.app.runs import last_run, load_recommendation_payload
    from autotune.report.recorded import recorded_payload

    run_dir = run or last_run()
    payload = recorded_payload(load_recommendation_payload(run_dir), str(run_dir))
    print_recommendation(payload, format_, quiet=quiet)


def export(
    to: Annotated[
        str, typer.Option("--to", metavar="NAME[@VERSION]", help="hf or trl.", show_default=False)
    ],
    run: RunArgument = None,
) -> None:
    """Write what to run, from a run's answer.

    Prints the paths of the files written.
    """
    from autotune.app.export import export_run
    from autotune.app.runs import last_run

    emit("\n".join(str(path) for path in export_run(run or last_run(), to)))

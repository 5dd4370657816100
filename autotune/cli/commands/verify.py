"""`autotune verify`: a run's log against its prediction."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.commands.records import meant
from autotune.cli.option_sets import with_option_sets
from autotune.cli.options import (
    GPU,
    Changes,
    OneLine,
    Set,
    option,
    overrides_of,
    said,
)
from autotune.cli.output import Output, print_answer

if TYPE_CHECKING:
    from autotune.domain.answer.recommendation import Asked

MOST_RUNS = 10_000


@with_option_sets
def verify(
    first: Annotated[
        Path | None,
        typer.Argument(
            metavar="[RUN|LOG]",
            help="A run folder or a job file, followed by its log. A run folder alone is enough if "
            "its run.sh or the TrainerCallback wrote the log; a log alone belongs to the last run, "
            "or to the job given by --model, --rows and --gpu. Without both: the last run.",
            show_default=False,
        ),
    ] = None,
    second: Annotated[
        Path | None,
        typer.Argument(
            metavar="LOG",
            help="A trainer_state.json, a Trainer's output folder, a CSV of steps and times, an "
            "observations.jsonl, or what the console showed (train.log).",
            show_default=False,
        ),
    ] = None,
    *,
    line: OneLine,
    set_: Set = None,
    gpu: Annotated[
        str | None,
        said(
            GPU,
            "The machine it ran on, if it is not the planned one.",
            "NAME|8xNAME",
        ),
    ] = None,
    elapsed: Annotated[
        str | None,
        option("--elapsed", "Time from the script's start to the log's last step.", "3h"),
    ] = None,
    next_runs: Annotated[
        int,
        typer.Option(
            "--next-runs",
            metavar="N",
            min=1,
            max=MOST_RUNS,
            help="How many more runs of this job to predict.",
        ),
    ] = 1,
    output: Output,
) -> None:
    """Compare a run with its prediction, and learn from it.

    What it measured is kept, and later commands on such a job start from it.
    For example:
    autotune verify outputs/checkpoint-1200/trainer_state.json --next-runs 2
    """
    from autotune.app.runs.folder import is_run
    from autotune.app.verify.verify import VerifyOptions
    from autotune.app.verify.verify import verify as compare
    from autotune.report.screens.verify import verification_screen
    from autotune.report.sections.how_to_run import after_verifying
    from autotune.report.sections.verification import (
        VERIFY_REPORT,
        verification_payload,
    )

    log = second or first or meant(None, quiet=output.quiet)
    if first is not None and second is None and line.model is None and not is_run(log):
        meant(None, quiet=output.quiet)  # a log alone is of the last run: say of which, if in doubt
    run = first if second is not None else None
    machine = [gpu] if gpu and line.model is not None else None  # else it is another than planned
    job = overrides_of(line, Changes(gpu=machine, set_=set_))
    found = compare(run, log, VerifyOptions(None if machine else gpu, elapsed, next_runs, job))
    payload = verification_payload(found)
    payload["next"] = after_verifying(
        found.run_dir, _asked(found.run_dir), taught=bool(found.learned)
    )
    print_answer(VERIFY_REPORT, payload, output, verification_screen)


def _asked(run_dir: str | None) -> Asked | None:
    """The command line that the run's answer was asked with, where it was a command line."""
    from autotune.app.runs.folder import load_recommendation_payload
    from autotune.report.recorded import recorded_payload

    if run_dir is None:
        return None
    return recorded_payload(load_recommendation_payload(Path(run_dir)), run_dir).asked

"""`autotune recompute`: the same job on other hardware, prices or versions, as a diff."""

from __future__ import annotations

from dataclasses import replace
from itertools import count
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from autotune.cli.commands.records import meant
from autotune.cli.option_sets import with_option_sets
from autotune.cli.options import (
    MINIMIZE,
    RUN,
    SPACE,
    Beside,
    Changes,
    Fidelity,
    FidelityOfModel,
    Goal,
    Limits,
    OneLine,
    option,
    overrides_of,
    said,
)
from autotune.cli.output import Output, Progress, print_answer
from autotune.cli.typed import asked
from autotune.domain.paths import near

if TYPE_CHECKING:
    from autotune.domain.answer.recommendation import Asked


@with_option_sets
def recompute(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="A run folder (the last run if left out). Or a job: then the answer on its first "
            "machine is compared with the answer on the others.",
            show_default=False,
        ),
    ] = None,
    *,
    context: typer.Context,
    line: OneLine,
    changes: Changes,
    limits: Limits,
    beside: Beside = None,
    software: Annotated[
        str | None,
        option(
            "--software",
            "Other software versions: a profile's name, or transformers=5.23.0,torch=2.9.",
            "PROFILE|NAME=VERSION,...",
        ),
    ] = None,
    vary: Annotated[
        list[str] | None,
        option(
            "--vary",
            "Also answer for this variant: rank=8, or kind=qlora; repeatable.",
            "KEY=VALUE,...",
        ),
    ] = None,
    space: Annotated[str | None, said(SPACE, "Search space; the run's if left out.")] = None,
    minimize: Annotated[
        Goal | None,
        said(MINIMIZE, "Look for the cheapest or the fastest; the run's choice if left out."),
    ] = None,
    fidelity: FidelityOfModel = Fidelity.auto,
    keep: Annotated[Path | None, said(RUN, "Keep the new answer as a run in this folder.")] = None,
    fail_on_change: Annotated[
        bool, option("--fail-on-change", "Exit with 6 if another machine or config is recommended.")
    ] = False,
    output: Output,
) -> None:
    """Answer an earlier run's question again, and show what changes.

    For example: autotune recompute --gpu a100-40gb, or: autotune recompute --price 2.10USD/h
    """
    from autotune.app.recompute.recompute import RecomputeOptions, exit_status, software_of, vary_of
    from autotune.app.recompute.recompute import recompute as again
    from autotune.report.screens.recompute import recompute_screen
    from autotune.report.sections.how_to_run import one_step
    from autotune.report.sections.recompute import (
        RECOMPUTE_REPORT,
        recompute_payload,
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
    with Progress(quiet=output.quiet) as progress:
        in_line = run is None and "model" in options.overrides.stated
        found = again(None if in_line else meant(run, quiet=output.quiet), options, progress)
    payload = recompute_payload(found)
    if keep is None:
        what = "keep this answer as a run, with what to run"
        to_keep = f"--run {quote(str(_free(found.source)))}"
        payload["next"] = one_step(_question(context, found.source), "recompute", to_keep, what)
    print_answer(RECOMPUTE_REPORT, payload, output, recompute_screen)
    raise typer.Exit(exit_status(found, fail_on_change=fail_on_change))


def _question(context: typer.Context, source: str) -> Asked:
    """What was asked, with the run named: another run may be the last one by then."""
    question = asked(context)
    words = question.words
    if context.params["run"] is None:
        words = (*words[:2], near(source), *words[2:])
    return replace(question, words=words)


def _free(source: str) -> Path:
    """A folder beside the run, or among the runs, that does not exist yet."""
    from autotune.app.runs.folder import runs_root

    path = Path(near(source))
    folder = path.parent if path.is_dir() else Path(near(runs_root()))
    own = path.name if path.is_dir() else path.stem
    names = (f"{own}-again{number or ''}" for number in count())
    return next(folder / name for name in names if not (folder / name).exists())

"""`autotune learn`: past runs teach later answers."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.option_sets import with_option_sets
from autotune.cli.options import GPU, option, said
from autotune.cli.output import Output, Progress, print_answer


@with_option_sets
def learn(
    paths: Annotated[
        list[Path],
        typer.Argument(
            metavar="PATH...",
            help="Folders (read with all below them) or files that past trainings left: W&B runs, "
            "Trainer and LLaMA-Factory outputs, torchtune, TensorBoard and MLflow logs, executed "
            "notebooks, observations.jsonl.",
            show_default=False,
        ),
    ],
    *,
    gpu: Annotated[
        str | None,
        said(GPU, "The machine of runs that name none.", "NAME|8xNAME"),
    ] = None,
    export: Annotated[
        Path | None,
        option(
            "--export",
            "Write the usable runs as a CSV with the columns of the public table, without "
            "paths, names of hosts or of private models.",
            "FILE",
        ),
    ] = None,
    dry_run: Annotated[bool, option("--dry-run", "Only show what would be learned.")] = False,
    output: Output,
) -> None:
    """Read past runs, so that later answers start from them.

    Nothing is executed or unpickled, links are not followed, and nothing leaves this machine.
    For example:
    autotune learn ~/projects/*/wandb ~/outputs --gpu 2xh100-nvl
    """
    from autotune.app.learn.described import named_machine
    from autotune.app.learn.learn import export_rows, unlearned
    from autotune.app.learn.learn import learn as learn_from
    from autotune.domain.paths import whole
    from autotune.report.lists.learned import LEARN_REPORT, learned_payload

    machine = named_machine(gpu) if gpu else None
    with Progress(quiet=output.quiet) as progress:
        progress("reading past runs")
        found = learn_from([whole(path) for path in paths], machine, dry_run=dry_run)
    written = None
    if export is not None and found.usable:
        written = export_rows(found.usable, whole(export))
    payload = learned_payload(found, written, dry_run=dry_run)
    print_answer(LEARN_REPORT, payload, output, LEARN_REPORT.text)
    error = unlearned(found)
    if error is not None:
        raise error

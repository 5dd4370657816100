"""`autotune estimate`: exactly one configuration, no search."""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from autotune.cli.option_sets import with_option_sets
from autotune.cli.options import (
    FIDELITY,
    Changes,
    Fidelity,
    OneLine,
    Source,
    TrustOption,
    option,
    said,
)
from autotune.cli.output import Output, Progress, print_answer
from autotune.cli.typed import OF_ESTIMATE, asked
from autotune.domain.errors import InputError


@with_option_sets
def estimate(
    *,
    context: typer.Context,
    source: Source,
    line: OneLine,
    changes: Changes,
    claim: Annotated[
        str | None,
        typer.Option(
            "--claim",
            metavar="TEXT",
            help='Check a stated speed: "1.0 s/step", "5000 tokens/s" or "38 h".',
            show_default=False,
        ),
    ] = None,
    fidelity: Annotated[Fidelity, said(FIDELITY, "What the memory rests on.")] = Fidelity.auto,
    full_trace: Annotated[
        bool,
        option(
            "--full-trace",
            "Trace every layer for three steps, and simulate torch's caching allocator: "
            "reserved bytes, and where it runs out. Seconds instead of a fraction of one.",
        ),
    ] = False,
    trust_remote_code: TrustOption = False,
    output: Output,
) -> None:
    """Price exactly one config, without a search.

    What the job does not state is the trainer's default. The exit code is 3 where it does not fit.
    For example: autotune estimate job.yaml --set micro_batch_size=4 --set
    compile=default, or in one line:
    autotune estimate --model Qwen/Qwen2.5-1.5B --rows 20k --gpu h100
    """
    from autotune.app.estimate import estimate as price_config
    from autotune.app.estimate import exit_status
    from autotune.app.job.load import several_jobs
    from autotune.report.payload import estimate_payload
    from autotune.report.screens.estimate import estimate_screen
    from autotune.report.sections.answer import ESTIMATE_REPORT
    from autotune.report.sections.how_to_run import to_search

    if full_trace and fidelity is Fidelity.formula:
        msg = "--full-trace and --fidelity formula contradict each other"
        raise InputError(msg, "leave one of them out")
    with Progress(quiet=output.quiet):
        jobs = source.jobs(line, changes)
        if len(jobs) > 1:
            raise several_jobs(jobs, str(source.job or "the command"))
        found = price_config(
            jobs[0].job,
            fidelity=fidelity.value,
            claim=claim,
            full_trace=full_trace,
            trust_remote_code=trust_remote_code,
        )
    payload = estimate_payload(
        found.row,
        found.job,
        found.warnings,
        found.claim,
        shortfall=found.shortfall,
        relaxations=found.relaxations,
        contradictions=found.contradictions,
    )
    told = jobs[0].job.origin.told if jobs[0].job.origin else ()
    payload = replace(
        payload,
        short_rows=found.short_rows,
        fits_if=found.fits_if,
        fits_as_listed=found.fits_as_listed,
        asked=asked(context),
        next=to_search(asked(context, OF_ESTIMATE, knobs=told), found.search),
    )
    print_answer(ESTIMATE_REPORT, payload, output, estimate_screen)
    raise typer.Exit(exit_status(found))

"""`autotune dataset`, `validate` and `calibrate`: what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.output import Format, FormatOption, Progress, QuietOption, emit_as, look


def dataset(
    file: Annotated[
        Path, typer.Argument(metavar="FILE", help="A JSONL file, a row a line.", show_default=False)
    ],
    tokenizer: Annotated[
        str,
        typer.Option(
            "--tokenizer", metavar="FILE", help="A tokenizer.json, its folder, or: bytes."
        ),
    ] = "bytes",
    max_length: Annotated[
        int | None, typer.Option("--max-length", min=1, help="Cut rows to this many tokens.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the histogram for data.lengths."),
    ] = None,
    format_: FormatOption = Format.text,
    quiet: QuietOption = False,
) -> None:
    """Count the tokens of every row of a file.

    Lengths, what padding costs, and what packing would gain.
    """
    from autotune.app.dataset import dataset_histogram, write_histogram
    from autotune.report.dataset import (
        dataset_csv,
        dataset_markdown,
        dataset_payload,
        dataset_text,
    )
    from autotune.report.payload import dumps

    with Progress(quiet=quiet) as progress:
        progress(f"counting the tokens of {file}")
        found = dataset_histogram(file, tokenizer, max_length)
    if out is not None:
        write_histogram(found, out)
        if not quiet:
            typer.echo(f"wrote {out}; in a job file: lengths: {{histogram: {out}}}", err=True)
    payload = dataset_payload(found)
    emit_as(
        format_,
        {
            Format.text: lambda: dataset_text(payload, **look()),
            Format.json: lambda: dumps(payload),
            Format.csv: lambda: dataset_csv(payload),
            Format.md: lambda: dataset_markdown(payload),
        },
    )


def validate(
    data: Annotated[
        Path | None,
        typer.Option("--data", metavar="CSV", help="Measured rows instead of the shipped ones."),
    ] = None,
    fidelity: Annotated[
        str,
        typer.Option(
            "--fidelity",
            metavar="formula|trace",
            help="Where peaks of memory come from: the formula, or a trace where there can be one.",
        ),
    ] = "formula",
    format_: FormatOption = Format.text,
    quiet: QuietOption = False,
) -> None:
    """Compare the cost model with measurements.

    Predicted against published peak memory and step time, the misses included.
    """
    from autotune.app.validate import run_validation
    from autotune.report.payload import dumps
    from autotune.report.validation import (
        validation_csv,
        validation_markdown,
        validation_payload,
        validation_text,
    )

    with Progress(quiet=quiet) as progress:
        progress("pricing the measured rows")
        payload = validation_payload(run_validation(data, fidelity))
    emit_as(
        format_,
        {
            Format.text: lambda: validation_text(payload, **look()),
            Format.json: lambda: dumps(payload),
            Format.csv: lambda: validation_csv(payload),
            Format.md: lambda: validation_markdown(payload),
        },
    )


def calibrate(
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="Write the calibration file that was fitted."),
    ] = None,
    format_: FormatOption = Format.text,
    quiet: QuietOption = False,
) -> None:
    """Fit the time model again on the shipped measurements.

    Efficiencies, overheads, offsets of devices and stacks, and how far groups left out scatter.
    """
    from autotune.app.calibrate import run_calibration
    from autotune.report.calibration import (
        calibration_csv,
        calibration_markdown,
        calibration_payload,
        calibration_text,
    )
    from autotune.report.payload import dumps

    with Progress(quiet=quiet) as progress:
        progress("fitting the time model, and once more without each group")
        found = run_calibration(out)
    payload = calibration_payload(found.refit, found.written, found.seconds)
    emit_as(
        format_,
        {
            Format.text: lambda: calibration_text(payload, **look()),
            Format.json: lambda: dumps(payload),
            Format.csv: lambda: calibration_csv(payload),
            Format.md: lambda: calibration_markdown(payload),
        },
    )

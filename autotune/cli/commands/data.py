"""`autotune dataset`, `init`, `validate` and `calibrate`: what lies here, what was measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import DATA, FIDELITY, MODEL, OUT, option, said
from autotune.cli.output import (
    Format,
    FormatOption,
    Output,
    Progress,
    QuietOption,
    emit,
    print_report,
)
from autotune.domain.paths import near


def dataset(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="JSON lines or array, CSV, text, Parquet or Arrow; or a folder of them.",
            show_default=False,
        ),
    ],
    *,
    model: Annotated[str | None, said(MODEL, "Count with the tokenizer of this model.")] = None,
    tokenizer: Annotated[
        str | None,
        option(
            "--tokenizer",
            "A tokenizer.json, its folder, a name on the hub, or bytes. "
            "Without this and --model, tokens are estimated.",
            "FILE",
        ),
    ] = None,
    column: Annotated[
        str | None,
        option("--column", "The column to count, if its name is not a usual one.", "NAME"),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option("--max-length", min=1, help="Cut rows to this many tokens.")
    ] = None,
    out: Annotated[
        Path | None, said(OUT, "Write the lengths to this file, for data.lengths.")
    ] = None,
    format_: FormatOption = Format.text,
    quiet: QuietOption = False,
) -> None:
    """Count the tokens in every row of a data set.

    Shows the lengths, what padding costs, what packing saves, and the lines for a job file.
    """
    from autotune.app.dataset.report import dataset_histogram, write_histogram
    from autotune.report.lists.dataset import DATASET_REPORT, dataset_payload

    with Progress(quiet=quiet) as progress:
        progress(f"counting the tokens of {file}")
        found = dataset_histogram(file, tokenizer, max_length, model=model, column=column)
    if out is not None:
        write_histogram(found, out)
        if not quiet:
            typer.echo(f"wrote {out}; in a job file: lengths: {{histogram: {out}}}", err=True)
    payload = dataset_payload(found)
    print_report(DATASET_REPORT, payload, Output(format_))


def init(
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="Where to look.", show_default=False)
    ] = Path(),
    *,
    out: Annotated[Path | None, said(OUT, "Write it there; else FOLDER/autotune.yaml.")] = None,
    model: Annotated[str | None, said(MODEL, "Take this model.")] = None,
    data: Annotated[Path | None, said(DATA, "Take these rows.")] = None,
    quiet: QuietOption = False,
) -> None:
    """Write a commented job file from what is in a folder.

    Looks for a model, an adapter, data or a trainer's config, and for the GPU of this machine.
    Existing files are never overwritten.
    """
    from autotune.app.init.write import init_job

    with Progress(quiet=quiet) as progress:
        written = init_job(folder, out, model=model, data=data, progress=progress)
    lines = [f"wrote {near(written.path)}", *(f"  {line}" for line in written.found)]
    lines = [" ".join(line.splitlines()) for line in lines]
    if written.missing:
        lines += [f"still to fill in: {written.missing}", f"then type: {written.next_command}"]
    else:
        lines.append(f"next: {written.next_command}")
    emit("\n".join(lines))


def validate(
    data: Annotated[
        Path | None, said(DATA, "Measured rows instead of the shipped ones.", "CSV")
    ] = None,
    fidelity: Annotated[
        str,
        said(
            FIDELITY,
            "Where peaks of memory come from: the formula, or a trace where there can be one.",
            "formula|trace",
        ),
    ] = "formula",
    format_: FormatOption = Format.text,
    quiet: QuietOption = False,
) -> None:
    """Compare the cost model with measurements.

    Predicted against published peak memory and step time, the misses included.
    """
    from autotune.app.validate import run_validation
    from autotune.report.lists.validation import VALIDATE_REPORT, validation_payload

    with Progress(quiet=quiet) as progress:
        progress("pricing the measured rows")
        payload = validation_payload(run_validation(data, fidelity))
    print_report(VALIDATE_REPORT, payload, Output(format_))


def calibrate(
    out: Annotated[Path | None, said(OUT, "Write the calibration file that was fitted.")] = None,
    format_: FormatOption = Format.text,
    quiet: QuietOption = False,
) -> None:
    """Fit the time model again on the shipped measurements.

    Efficiencies, overheads, offsets of devices and stacks, and how far groups left out scatter.
    """
    from autotune.app.validate import run_calibration
    from autotune.report.lists.calibration import (
        CALIBRATE_REPORT,
        calibration_payload,
    )

    with Progress(quiet=quiet) as progress:
        progress("fitting the time model, and once more without each group")
        found = run_calibration(out)
    payload = calibration_payload(found.refit, found.written, found.seconds)
    print_report(CALIBRATE_REPORT, payload, Output(format_))

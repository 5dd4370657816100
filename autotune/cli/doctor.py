"""`autotune doctor`: this machine, and what it means for training here."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from autotune.cli.options import OUT, said
from autotune.cli.output import emit

MARKS = {"fine": "ok     ", "note": "note   ", "missing": "missing"}


class DoctorFormat(StrEnum):
    """How the findings are printed."""

    text = "text"
    json = "json"


def doctor(
    folder: Annotated[
        Path, typer.Option("--folder", metavar="DIR", help="Where checkpoints would be written.")
    ] = Path(),
    out: Annotated[Path | None, said(OUT, "Write the blocks for a job file there.")] = None,
    format_: Annotated[
        DoctorFormat, typer.Option("--format", help="How to print the result.")
    ] = DoctorFormat.text,
) -> None:
    """Look at this machine: devices, memory, disk speed, versions, and what each means.

    Ends with hardware and software blocks that a job file can take over.
    """
    from autotune.app.doctor import examine
    from autotune.catalog.files import write_whole
    from autotune.domain.errors import InputError

    found = examine(folder)
    if out is not None:
        try:
            write_whole(out, found.job_blocks)
        except OSError as error:
            msg = f"{out} cannot be written: {error.strerror or error}"
            raise InputError(msg) from None
    if format_ is DoctorFormat.json:
        content = {
            "schema_version": 1,
            "can_probe": found.can_probe,
            "findings": [asdict(finding) for finding in found.findings],
            "job_blocks": found.job_blocks,
        }
        emit(json.dumps(content, indent=2, ensure_ascii=False))
        return
    lines = [f"{MARKS[f.level]}  {f.name}: {f.value}\n         {f.meaning}" for f in found.findings]
    written = f"\nWritten to {out}.\n" if out else ""
    emit("\n".join(lines) + f"\n\nFor a job file:\n\n{found.job_blocks}{written}")

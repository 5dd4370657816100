"""`autotune doctor`: this machine, and what it means for training here."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from autotune.cli.options import OUT, option, said
from autotune.cli.output import Progress, columns, emit

if TYPE_CHECKING:
    from autotune.app.doctor import Examination, Finding
    from autotune.app.hardware.measuring import Measured

MARKS = {"fine": "ok     ", "note": "note   ", "missing": "missing"}
INDENT, LEAST_ROOM = 9, 20  # [columns] of the mark; for text beside it


class DoctorFormat(StrEnum):
    """How the findings are printed."""

    text = "text"
    json = "json"


def doctor(
    folder: Annotated[
        Path, option("--folder", "The folder for checkpoints: its disk is measured.", "DIR")
    ] = Path(),
    out: Annotated[Path | None, said(OUT, "Write the blocks for a job file there.")] = None,
    measure: Annotated[
        bool,
        option("--measure", "Also measure its speeds for a minute; later answers for it use them."),
    ] = False,
    job: Annotated[
        Path | None, option("--job", "The job that shows what --measure changes.", "JOB")
    ] = None,
    format_: Annotated[
        DoctorFormat, option("--format", "How to print the result.")
    ] = DoctorFormat.text,
) -> None:
    """Look at this machine, or measure its speeds.

    Ends with hardware and software blocks that a job file can take over. --measure adds matrix
    products, memory, launch cost, copies, the loader and the disk; nothing leaves this machine.
    """
    from autotune.app.doctor import examine
    from autotune.catalog.files import write_whole
    from autotune.domain.errors import InputError

    found = _measured(folder, job) if measure else examine(folder)
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
        if found.measured is not None:
            content["measured"] = _payload(found.measured)
        emit(json.dumps(content, indent=2, ensure_ascii=False))
        _end(found.measured)
        return
    lines = [line for finding in found.findings for line in _lines(finding)]
    written = f"\nWritten to {out}.\n" if out else ""
    emit("\n".join(lines) + f"\n\nFor a job file:\n\n{found.job_blocks}{written}")
    _end(found.measured)


def _lines(finding: Finding) -> list[str]:
    """A finding in lines of the terminal, what it means below what it is."""
    from autotune.report.layout.text import wrapped

    room = max(columns() - INDENT, LEAST_ROOM)
    meaning, install, packages = finding.meaning.partition("pip install ")
    said = [*wrapped(f"{finding.name}: {finding.value}", room), *wrapped(meaning.strip(), room)]
    said += [install + packages] if install else []  # in one piece, to be copied
    marks = [f"{MARKS[finding.level]}  ", *[" " * INDENT] * (len(said) - 1)]
    return [f"{mark}{line.rstrip()}" for mark, line in zip(marks, said, strict=True)]


def _measured(folder: Path, job: Path | None) -> Examination:
    from autotune.app.doctor import examine_and_measure
    from autotune.app.job.load import load_job

    own = load_job(job) if job is not None else None
    with Progress(quiet=False) as progress:
        return examine_and_measure(folder, own, lambda now, _: progress(now.name))


def _payload(done: Measured) -> dict[str, Any]:
    found, effect = done.measurement.found, done.effect
    return {
        "device": done.device,
        "measured_on": found.measured_on,
        "facts": [asdict(fact) for fact in found.facts],
        "not_measured": [asdict(each) for each in done.measurement.missing],
        "disturbed": list(done.measurement.disturbed),
        "seconds": done.measurement.seconds,
        "kept": str(done.path) if done.path else None,
        "effect": asdict(effect) if effect else None,
    }


def _end(done: Measured | None) -> None:
    """Exit code 5 where nothing of the device could be measured, 2 where nothing could be kept."""
    from autotune.domain.errors import InputError, NoLocalDevice

    if done is None:
        return
    if not done.told_of_device:
        why = next((each.why for each in done.measurement.missing if each.part == "matmul"), "")
        msg = f"nothing of {done.device} could be measured: {why or 'no part came to an end'}"
        raise NoLocalDevice(msg, "what was measured of the host and the disk is kept")
    if done.path is None:
        msg = f"what was measured could not be kept: {done.not_kept}"
        raise InputError(msg, "AUTOTUNE_HOME names a folder that can be written")

"""What to run: the recommended configuration in a trainer's own format."""

from __future__ import annotations

from autotune.domain.candidates import Candidate

import json
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.app.runs.user_file import OWN_FOLDER, SAME, check_same, is_same, same_export
from autotune.app.runs.recorded_row import config_of_row
from autotune.app.runs.folder import load_recommendation_payload, load_run_job
from autotune.domain.errors import InputError
from autotune.domain.answer.recommendation import Decisive
from autotune.report.recorded import recorded_payload
from autotune.trainers.export import check_target, export, write_export
from autotune.trainers.registry import FORMATS, TRAINERS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated

DEFAULT_EXPORT = "hf"


def check_exports(job: Job, targets: Sequence[str]) -> None:
    """Raise InputError for a target that cannot be written, before anything is."""
    for target in targets:
        if is_same(target):
            check_same(target, job)
        else:
            check_target(target, job)


def default_exports(job: Job) -> tuple[tuple[str, ...], list[str]]:
    """What is written when nobody asked for a trainer; nothing, and why, if it cannot be.

    A job that was read from a trainer's own file gives that file back.
    """
    if job.origin is not None:
        return (SAME,), []
    try:
        check_target(DEFAULT_EXPORT, job)
    except InputError as error:
        return (), [Decisive(f"nothing to run was written: {error.message}")]
    return (DEFAULT_EXPORT,), []


def export_default(job: Job, best: Estimated, run_dir: Path) -> tuple[list[Path], list[str]]:
    """Write the pick where nobody asked for a format; returns the paths and the notes.

    A file that cannot be changed where it stands is replaced by one of ours, and that is said.
    """
    targets, notes = default_exports(job)
    if best.config.kernels == "chunked_loss" and targets == (DEFAULT_EXPORT,):
        targets = ("trl",)  # Trainer's own loss holds all logits
    try:
        paths, said = export_pick(job, best, targets, run_dir)
    except InputError as error:
        if SAME not in targets:
            raise
        instead = TRAINERS[job.origin.trainer].stand_in if job.origin else DEFAULT_EXPORT
        notes = [f"{error.message}: {instead} was written instead"]
        paths, said = export_pick(job, best, (instead,), run_dir)
    return paths, notes + said


def export_pick(
    job: Job, best: Estimated, targets: Sequence[str], run_dir: Path
) -> tuple[list[Path], list[str]]:
    """Write the pick for each target into the run folder; returns the paths and the notes.

    One target fills the folder itself; several get a folder each.
    """
    paths: list[Path] = []
    notes: list[str] = []
    for target in targets:
        pick = _Pick(job, best.offer, best.config, best.checkpoint_bytes, best.risk)
        written, said = _write(target, pick, run_dir, alone=len(targets) == 1)
        paths += written
        notes += [f"{target}: {note}" for note in said] if len(targets) > 1 else said
    return paths, notes


def other_formats(job: Job, best: Estimated, targets: Sequence[str]) -> tuple[str, ...]:
    """The formats that the pick can be written in as well."""
    named = {target.strip().partition("@")[0] for target in targets}
    named |= {job.origin.trainer} if job.origin and SAME in named else set()
    found = []
    for name in FORMATS:
        try:
            export(name, job, best.offer, best.config)
        except InputError:
            continue
        if name not in named:
            found.append(name)
    return tuple(found)


@dataclass(frozen=True, slots=True)
class _Pick(Candidate):
    """What is written: a candidate, and what the bill knows of it."""

    checkpoint_bytes: float  # [bytes] of one checkpoint
    risk: str


def _write(
    target: str, pick: _Pick, run_dir: Path, *, alone: bool
) -> tuple[tuple[Path, ...], list[str]]:
    """The files of one target, and what its format cannot express."""
    if is_same(target):
        below = f"{OWN_FOLDER}/" if alone else ""
        made = same_export(target, pick.job, pick.offer, pick.config, pick.risk, below)
        folder = run_dir if alone else run_dir / OWN_FOLDER
    else:
        made = export(
            target, pick.job, pick.offer, pick.config,
            checkpoint_bytes=pick.checkpoint_bytes, risk=pick.risk, python=sys.executable,
        )  # fmt: skip
        folder = run_dir if alone else run_dir / target.replace("@", "-")
    return write_export(made, folder), list(made.notes)


def export_run(run_dir: Path, to: str) -> tuple[tuple[Path, ...], list[str]]:
    """Write a finished run's pick in another format; returns the paths and the notes.

    Raises InputError when nothing was picked.
    """
    job = load_run_job(run_dir)
    payload = load_recommendation_payload(run_dir)
    recorded_payload(payload, str(run_dir))  # refuses a damaged one
    row = payload["best"]
    if not row:
        msg = f"the run {run_dir} found nothing that fits: there is nothing to export"
        raise InputError(msg, "see its report for the smallest changes that would fit")
    checkpoint_bytes, risk = float(row.get("checkpoint_bytes", 0.0)), str(row.get("risk", ""))
    pick = _Pick(job, _offer_of(job, row), config_of_row(row), checkpoint_bytes, risk)
    return _write(to, pick, run_dir, alone=True)


def _offer_of(job: Job, row: Mapping[str, Any]) -> Offer:
    same = [
        offer
        for offer in job.offers
        if (offer.device.name, offer.count) == (row["device"], row["device_count"])
    ]
    paid = (row.get("usd_per_hour"), row.get("spot", False))
    same.sort(key=lambda offer: (offer.usd_per_hour, offer.spot) != paid)  # prices may move
    if same:
        return same[0]
    msg = f"the recorded offer {json.dumps(row['device'])} is no longer in the run's job"
    raise InputError(msg, "tune again")

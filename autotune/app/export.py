"""What to run: the recommended configuration in a trainer's own format."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from autotune.app.own_file import OWN_FOLDER, SAME, check_same, is_same, same_export
from autotune.app.runs import load_recommendation_payload, load_run_job
from autotune.domain.config import KNOBS, Config
from autotune.domain.errors import InputError
from autotune.report.recorded import recorded_payload
from autotune.trainers.export import check_target, export, write_export

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path
    from typing import Any

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

    A job that was read from a trainer's own file gives that file back as well.
    """
    own = (SAME,) if job.origin is not None else ()
    wanted = DEFAULT_EXPORT if job.origin is None or job.origin.trainer == "hf" else "trl"
    try:
        check_target(wanted, job)
    except InputError as error:
        return own, [f"nothing to run was written: {error.message}"]
    return (wanted, *own), []


def export_pick(
    job: Job, best: Estimated, targets: Sequence[str], run_dir: Path
) -> tuple[list[Path], list[str]]:
    """Write the pick for each target into the run folder; returns the paths and the notes."""
    paths: list[Path] = []
    notes: list[str] = []
    others = [target for target in targets if not is_same(target)]
    for target in targets:
        if is_same(target):
            made = same_export(target, job, best.offer, best.config)
            paths += write_export(made, run_dir / OWN_FOLDER)
            notes += made.notes
            continue
        made = export(
            target, job, best.offer, best.config,
            checkpoint_bytes=best.checkpoint_bytes, risk=best.risk,
        )  # fmt: skip
        folder = run_dir if len(others) == 1 else run_dir / target.replace("@", "-")
        paths += write_export(made, folder)
        notes += made.notes
    return paths, notes


def export_run(run_dir: Path, to: str) -> tuple[Path, ...]:
    """Write a finished run's pick in another format. Raises InputError when nothing was picked."""
    job = load_run_job(run_dir)
    payload = load_recommendation_payload(run_dir)
    recorded_payload(payload, str(run_dir))  # refuses a damaged one
    row = payload["best"]
    if not row:
        msg = f"the run {run_dir} found nothing that fits: there is nothing to export"
        raise InputError(msg, "see its report for the smallest changes that would fit")
    offer = _offer_of(job, row)
    config = Config(**{name: row["config"][name] for name in KNOBS})
    if is_same(to):
        return write_export(same_export(to, job, offer, config), run_dir / OWN_FOLDER)
    made = export(
        to, job, offer, config,
        checkpoint_bytes=float(row.get("checkpoint_bytes", 0.0)),
        risk=str(row.get("risk", "")),
    )  # fmt: skip
    return write_export(made, run_dir)


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

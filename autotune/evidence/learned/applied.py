"""What the past runs that are kept say of a job: effects on its machines, and their reason."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.domain.job import Assumption
from autotune.evidence.learned.effects import believed, effects_on, pace
from autotune.evidence.learned.residuals import residuals
from autotune.evidence.learned.store import known_runs, store_path

if TYPE_CHECKING:
    from autotune.domain.job import Job
    from autotune.domain.observation import MachineEffect
    from autotune.evidence.cases import Price

MOST_RUNS = 200  # the latest that an answer is made from


def with_learned(job: Job, price: Price) -> Job:
    """The job with what the user's past runs say of its machines."""
    kept = known_runs()
    if kept.damaged:
        note = Assumption("evidence", "past runs left out", f"{store_path()} is damaged")
        return replace(job, assumed=(*job.assumed, note))
    if not kept.runs:
        return job
    found, _ = believed(residuals(kept.runs[-MOST_RUNS:], price))
    shape = f"{job.model.num_layers}x{job.model.hidden_size}"
    method = f"{job.method.kind}-{job.method.base}"
    machines = [(offer.device.name, offer.count) for offer in job.offers]
    effects = effects_on(machines, job.software.stack, method, shape, found)
    stated = {
        (offer.device.name, offer.count)
        for offer in job.offers
        if "checkpoint_write_bytes_per_s" not in offer.host.assumed
    }
    effects = tuple(
        own for own in effects
        if own.component != "checkpoint" or (own.device, own.count) not in stated
    )  # fmt: skip
    notes = tuple(
        Assumption("evidence", f"{own.runs} past run{'s' * (own.runs != 1)}", _why(own))
        for own in effects
        if own.component != "collectives"
    )
    return replace(job, learned=effects, assumed=(*job.assumed, *notes))


def _why(own: MachineEffect) -> str:
    machine = f"{own.count}x {own.device}"
    what = "saves" if own.component == "checkpoint" else "training"
    where = "" if own.here else ", from runs on other machines"
    return f"{machine}: {what} {pace(own.factor)}{where}; delete {store_path()} to forget them"

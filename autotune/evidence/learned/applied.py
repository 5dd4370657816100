"""What the past runs that are kept say of a job: effects on its machines, and their reason."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.catalog.devices import find_device
from autotune.domain.job import Assumption
from autotune.evidence.learned.effects import believed, effects_on, method_of, pace
from autotune.evidence.learned.residuals import residuals
from autotune.evidence.learned.store import known_runs, store_path

if TYPE_CHECKING:
    from autotune.domain.device import Device
    from autotune.domain.job import Job
    from autotune.domain.observation import MachineEffect
    from autotune.evidence.cases import Price

MOST_RUNS = 200  # the latest that an answer is made from


def with_learned(job: Job, price: Price) -> Job:
    """The job with what the user's past runs say of its machines."""
    kept = known_runs()
    if kept.damage:
        why = f"{store_path()} is damaged: {kept.damage}"
        note = Assumption("evidence", "past runs left out", why)
        job = replace(job, assumed=(*job.assumed, note))
    if not kept.runs:
        return job
    found, _ = believed(residuals(kept.runs[-MOST_RUNS:], price))
    shape = f"{job.model.num_layers}x{job.model.hidden_size}"
    method = method_of(job)
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
    job = _as_priced_then(job, effects)
    return replace(job, learned=effects, assumed=(*job.assumed, *notes))


def _as_priced_then(job: Job, effects: tuple[MachineEffect, ...]) -> Job:
    """The job with its machines as the past runs on them were priced: without measured rates.

    What runs of a machine are off by holds against the catalogue's device; against a measured one
    the same would count twice.
    """
    here = {(own.device, own.count) for own in effects if own.here and own.component == "compute"}
    twice = [
        offer for offer in job.offers
        if offer.device.rates is not None and (offer.device.name, offer.count) in here
    ]  # fmt: skip
    if not twice:
        return job
    offers = tuple(
        replace(offer, device=_of_catalogue(offer.device)) if offer in twice else offer
        for offer in job.offers
    )
    labels = ", ".join(dict.fromkeys(offer.label for offer in twice))
    note = Assumption(
        f"{labels}.rates", "left out", "past runs on it say more than its measured rates"
    )
    return replace(job, offers=offers, assumed=(*job.assumed, note))


def _of_catalogue(device: Device) -> Device:
    """The device without its measured rates; the memory that was read of it stays."""
    return replace(
        find_device(device.name),
        memory_driver_bytes=device.memory_driver_bytes,
        memory_torch_bytes=device.memory_torch_bytes,
    )


def _why(own: MachineEffect) -> str:
    machine = f"{own.count}x {own.device}"
    what = "saves" if own.component == "checkpoint" else "training"
    where = "" if own.here else ", from runs on other machines"
    return f"{machine}: {what} {pace(own.factor)}{where}; delete {store_path()} to forget them"

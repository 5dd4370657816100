"""What past runs are off by, and what that says of a job: effects on its machines, and why.

Residuals are kept beside the runs, so that an answer need not price every run again. A kept one
holds for the calibration and the release that made it; another one's are made anew, in memory:
only `autotune learn` writes.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import asdict, replace
from functools import lru_cache
from importlib.metadata import PackageNotFoundError, version
from typing import TYPE_CHECKING, Any

from autotune.catalog.devices import find_device
from autotune.catalog.files import merging, read_regular, write_whole
from autotune.catalog.software import DISTRIBUTION
from autotune.cost.constants import PATH
from autotune.cost.learned import PARTS
from autotune.domain.job import Assumption
from autotune.evidence.cases import Refused
from autotune.evidence.learned.effects import (
    Residual,
    believed,
    effects_on,
    method_of,
    pace,
    residual_of_run,
    shape_of,
)
from autotune.evidence.learned.store import MAX_BYTES, MOST_KEPT, known_runs, store_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.device import Device
    from autotune.domain.job import Job
    from autotune.domain.observation import MachineEffect
    from autotune.evidence.cases import Price
    from autotune.evidence.learned.run import PastRun

FILE = "residuals.json"


@lru_cache(maxsize=1)
def made_by() -> str:
    """What residuals depend on beside the runs: the calibration, and the release."""
    try:
        release = version(DISTRIBUTION)
    except PackageNotFoundError:
        release = "source"
    content = PATH.read_bytes() + release.encode()
    return hashlib.sha256(content).hexdigest()[:16]


def residuals(runs: Sequence[PastRun], price: Price) -> list[Residual]:
    """Of every run that the model covers, the kept ones without pricing."""
    kept = _kept()
    found: list[Residual] = []
    for run in runs:
        known = kept.get(run.id)
        if known is not None:
            found.append(known)
            continue
        try:
            found.append(residual_of_run(run, price))
        except Refused:
            continue
    return found


def remember(found: Sequence[Residual]) -> None:
    """Keep residuals for later answers, beside those that another process keeps. Raises OSError."""
    path = store_path().parent / FILE
    with merging(path):
        every = _kept() | {own.id: own for own in found}
        latest = list(every.values())[-MOST_KEPT:]
        content = {"made_by": made_by(), "residuals": [asdict(own) for own in latest]}
        write_whole(path, json.dumps(content, allow_nan=False) + "\n")


def _kept() -> dict[str, Residual]:
    path = store_path().parent / FILE
    try:
        content: Any = json.loads(read_regular(path, MAX_BYTES))
        if content["made_by"] != made_by():
            return {}
        return {entry["id"]: _residual(entry) for entry in content["residuals"]}
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return {}


def _residual(entry: dict[str, Any]) -> Residual:
    """A kept residual. Raises ValueError or TypeError for anything else."""
    found = Residual(**{**entry, "shares": tuple(entry["shares"])})
    numbers = (
        *found.shares,
        found.tokens,
        found.unsettled,
        found.log,
        found.sd,
        found.noise,
        found.save_log or 0.0,
        found.save_bytes_per_s or 0.0,
        found.evaluation_log or 0.0,
    )
    words = ("id", "device", "stack", "method", "shape")
    named = all(isinstance(entry[w], str) for w in words) and isinstance(entry["count"], int)
    sized = len(found.shares) == PARTS and found.count > 0 and found.sd > 0 and found.noise > 0
    sized = sized and found.tokens > 0
    if not named or not sized or not all(math.isfinite(number) for number in numbers):
        msg = "no residual"
        raise ValueError(msg)
    return found


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
    method = method_of(job)
    machines = [(offer.device.name, offer.count) for offer in job.offers]
    effects = effects_on(machines, job.software.stack, method, shape_of(job), found)
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
    words = {"checkpoint": "saves", "evaluation": "evaluations"}
    what = words.get(own.component, "training")
    where = "" if own.here else ", from runs on other machines"
    return f"{machine}: {what} {pace(own.factor)}{where}; delete {store_path()} to forget them"

"""`autotune doctor --measure`: measure this machine, keep the facts, and say what they change."""

from __future__ import annotations

import math
import os
from dataclasses import replace
from datetime import UTC, date, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.hardware.this_machine import MOST_LOG_SD, known_of, with_facts
from autotune.catalog.devices import default_host
from autotune.domain.device import Offer
from autotune.domain.outcome import Z90, Spread
from autotune.frozen import dataclass
from autotune.pricing import Pricing
from autotune.probe import device as devices
from autotune.probe.machine.kept import remember
from autotune.probe.machine.measure import measure

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.job import Job
    from autotune.probe.device import LocalDevice
    from autotune.probe.machine.measure import Measurement
    from autotune.probe.worker.contract import Phase

OLD_DAYS = 180  # drivers, kernels and libraries have changed by then
REFERENCE: dict[str, Any] = {  # whose step is told where no job was named
    "name": "LoRA of Qwen2.5 0.5B at 512 tokens",
    "model": "Qwen/Qwen2.5-0.5B",
    "method": "lora",
    "data": {"rows": 1000, "max_length": 512, "padding": "max_length", "pretokenized": True},
    "train": {"epochs": 1, "global_batch_size": 8},
    "hardware": "cpu",
}


@dataclass(frozen=True, slots=True)
class Effect:
    """[s] A job's modelled step on this machine without the facts and with them."""

    job: str
    before: Spread
    after: Spread


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured, where it is kept (or why it is not), and what it changes.

    note: what became of a damaged file of earlier facts.
    """

    device: str
    measurement: Measurement
    path: Path | None
    not_kept: str
    effect: Effect | None
    note: str = ""

    @property
    def told_of_device(self) -> bool:
        """Whether anything of the device itself was measured."""
        return self.measurement.found.rates is not None


def local_device() -> LocalDevice:
    """What is measured: the first GPU that a program sees and can read, or the processor."""
    listed = os.environ.get("CUDA_VISIBLE_DEVICES")
    here = devices.visible(devices.gpus(), listed)
    return next((local for local in here if not local.refused), devices.cpu())


def measure_here(
    folder: Path, job: Job | None, on_phase: Callable[[Phase, float], None] | None = None
) -> Measured:
    """Measure this machine and keep what was found.

    job: whose step the effect is told of; None: a small one.
    """
    local = local_device()
    done = measure(local, folder, on_phase=on_phase)
    path, why, note = None, "", ""
    if done.found.facts:
        try:
            path, note = remember(local, done.found)
        except OSError as error:
            why = f"{error.filename or 'the home of autotune'}: {error.strerror or error}"
    return Measured(local.name, done, path, why, _effect(local, done, job), note)


def known_age(local: LocalDevice) -> tuple[str, int | None, str] | None:
    """The date of the facts kept of this machine, its age in days, and what of them is damaged.

    No age: the date cannot be read.
    """
    known, damage = known_of(local)
    if known is None:
        return ("", None, damage) if damage else None
    try:
        days = (datetime.now(UTC).date() - date.fromisoformat(known.facts.measured_on)).days
    except ValueError:
        return known.facts.measured_on, None, damage
    return known.facts.measured_on, days, damage


def too_doubtful(done: Measurement) -> list[str]:
    """Figures that others disturbed so much that prices go on without them."""
    return [fact.name for fact in done.found.facts if fact.log_sd >= MOST_LOG_SD]


def _effect(local: LocalDevice, done: Measurement, job: Job | None) -> Effect | None:
    device = local.device or local.part_of
    if device is None or done.found.rates is None:
        return None
    from autotune.app.job.load import resolve_spec

    own = job or resolve_spec(REFERENCE, Path())
    bare = Offer(device, 1, 0.0, default_host(1, device, own.storage), "this machine")
    return Effect(own.name, *(
        _step(own, offer) for offer in (bare, with_facts(bare, done.found))
    ))  # fmt: skip


def _step(job: Job, offer: Offer) -> Spread:
    """[s] The modelled step of the trainer's defaults on the offer."""
    from autotune.app.job.evidence import default_config

    here = replace(job, offers=(offer,), today=None, evidence=())
    bill = Pricing(here).of([(offer, default_config(here, offer))])
    step_s, grow = float(bill.step_s[0]), math.exp(Z90 * bill.at("compute", "log_sd", 0))
    return Spread(step_s / grow, step_s, step_s * grow)

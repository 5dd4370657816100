"""`evidence:` of a job file -> Observations and today's config.

Facts of an Observation: `gpu` (catalogue name), `n_gpus`, `model_id`, `rows`, `epochs`, `steps`,
`max_length`, `global_batch`, and `same_as_job`: the names of those that the entry did not state and
that were taken from the job.
"""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING

from autotune.app.trainer_defaults import complete_config
from autotune.catalog.devices import find_device
from autotune.domain.errors import InputError
from autotune.domain.job import Assumption
from autotune.domain.jobvalues import parse_step_time
from autotune.domain.observation import Observation
from autotune.domain.units import parse_bytes, parse_seconds

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.domain.jobfile import EvidenceSection, MeasuredSection
    from autotune.domain.observation import Quantity


def observations_of(
    entry: EvidenceSection, index: int, job: Job, assumed: list[Assumption]
) -> list[Observation]:
    """Every quantity that one entry measured, with what it speaks of."""
    if entry.measured is None:
        return []
    where = f"evidence[{index}]"
    facts = _facts(entry, job, where, assumed)
    note = f": {entry.note}" if entry.note else ""
    kind = entry.measured.memory_kind or "unknown"
    return [
        Observation(
            id=f"{where}.{quantity}",
            quantity=quantity,
            value=value,
            provenance=f"job file, {where}{note}",
            kind=kind if quantity == "memory_bytes" else None,
            knobs=dict(entry.config),
            facts=facts,
            today=entry.today,
        )
        for quantity, value in _quantities(entry.measured)
    ]


def _quantities(measured: MeasuredSection) -> list[tuple[Quantity, float]]:
    found: list[tuple[Quantity, float]] = []
    if measured.duration is not None:
        found.append(("duration_s", parse_seconds(measured.duration)))
    if measured.step_time is not None:
        found.append(("step_time_s", parse_step_time(measured.step_time)))
    if measured.tokens_per_s is not None:
        found.append(("tokens_per_s", measured.tokens_per_s))
    if measured.checkpoint_save is not None:
        found.append(("checkpoint_save_s", parse_seconds(measured.checkpoint_save)))
    if measured.peak_memory is not None:
        found.append(("memory_bytes", parse_bytes(measured.peak_memory)))
    if measured.out_of_memory:
        found.append(("oom", 1.0))
    return found


def _facts(
    entry: EvidenceSection, job: Job, where: str, assumed: list[Assumption]
) -> dict[str, object]:
    gpu, count = _machine(entry, job, where, assumed)
    rows, epochs = entry.rows or job.rows, entry.epochs or job.epochs
    batch = _global_batch(entry, count) or job.global_batch_size
    steps = entry.steps or math.ceil(epochs * math.ceil(rows / batch))
    facts: dict[str, object] = {
        "gpu": gpu,
        "n_gpus": count,
        "model_id": job.model.name,
        "rows": rows,
        "epochs": epochs,
        "steps": steps,
        "max_length": entry.max_length or job.max_length,
        "global_batch": batch,
    }
    stated = {
        "gpu": entry.hardware, "rows": entry.rows, "epochs": entry.epochs,
        "max_length": entry.max_length, "global_batch": _global_batch(entry, count),
    }  # fmt: skip
    if entry.or_config:
        facts["or_config"] = dict(entry.or_config)
    facts["same_as_job"] = tuple(name for name, value in stated.items() if value is None)
    return facts


def _machine(
    entry: EvidenceSection, job: Job, where: str, assumed: list[Assumption]
) -> tuple[str, int]:
    """The device and count of an entry; the job's own where it states none."""
    if entry.hardware is not None:
        name, count = named_machine(entry.hardware)
        return find_device(name).name, count
    offer = job.offers[0]
    if len({(other.device.name, other.count) for other in job.offers}) > 1:
        why = "the entry does not say on which hardware; the first offer's is taken"
        assumed.append(Assumption(f"{where}.hardware", offer.label, why))
    return offer.device.name, offer.count


def named_machine(text: str) -> tuple[str, int]:
    """Name and count of "NAME" or "NAME:N"; a count of at least 1."""
    name, colon, count = text.strip().rpartition(":")
    if not colon:
        return text.strip(), 1
    digits = count.strip()
    if not re.fullmatch(r"[1-9][0-9]{0,5}", digits):
        msg = f'"{text[:80]}" must be a device\'s name, or NAME:N with N a count from 1 on'
        raise InputError(msg)
    return name, int(digits)


def _global_batch(entry: EvidenceSection, devices: int) -> int | None:
    micro = entry.config.get("micro_batch_size")
    accumulation = entry.config.get("gradient_accumulation_steps")
    if micro is None or accumulation is None:
        return None
    return int(micro) * int(accumulation) * devices


def todays_config(
    entry: EvidenceSection, index: int, job: Job, assumed: list[Assumption]
) -> Config | None:
    """The entry's config, completed; None where today's hardware is not among the offers.

    Raises InputError when its split does not make the job's global batch.
    """
    offer = todays_offer(entry, job)
    if offer is None:
        why = "today's hardware is not among the offers, so today's config has no row here"
        assumed.append(Assumption(f"evidence[{index}].today", "left out", why))
        return None
    try:
        config = complete_config(entry.config, job, offer)
    except InputError as error:
        msg = f"evidence[{index}].config: {error.message}"
        raise InputError(msg, error.hint) from None
    filled = {k: v for k, v in config.as_dict().items() if k not in entry.config}
    if filled:
        text = ", ".join(f"{name} {value}" for name, value in filled.items())
        why = "not stated of today's config; defaults of transformers' Trainer, native precision"
        assumed.append(Assumption(f"evidence[{index}].config", text, why))
    return config


def todays_offer(entry: EvidenceSection, job: Job) -> Offer | None:
    """The offer that today's config runs on; None where it is not among the offers."""
    if entry.hardware is None:
        return job.offers[0]
    name, count = named_machine(entry.hardware)
    device = find_device(name).name
    same = (o for o in job.offers if o.device.name == device and o.count == count)
    return next(same, None)

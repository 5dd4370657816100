"""What a job file says was seen (`evidence:`), and what it leaves open.

An entry becomes Observations and today's config. What verified runs and the user's past ones taught
joins it. What a plan states (`stated:`) is read by `claims/table`.

Facts of an Observation: `gpu` (catalogue name), `n_gpus`, `model_id`, `rows`, `epochs`, `steps`,
`max_length`, `global_batch`, and `same_as_job`: the names of those that the entry did not state and
that were taken from the job.

What a run does of which its user states nothing: the defaults of transformers' Trainer.
Source: transformers 5 `TrainingArguments` (per_device_train_batch_size 8, accumulation 1, no data
workers, prefetch 2 a worker, pinned memory, save_steps 500, every checkpoint kept, no compile, no
gradient checkpointing, adamw_torch_fused), sdpa attention where the family has it. The precision
default there is the checkpoint's own dtype; here the device's native 16-bit one, which is what the
recipes of these models set.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.app.hardware.offers import offer_of
from autotune.catalog.devices import find_device, find_machine
from autotune.catalog.files import kept_at_home
from autotune.domain.config import KNOBS, Config
from autotune.domain.errors import InputError
from autotune.domain.job import Assumption, Batch
from autotune.domain.observation import Observation
from autotune.domain.typed.values import parse_step_time
from autotune.domain.units import parse_bytes, parse_seconds
from autotune.evidence.learned.store import PLACE as LEARNED
from autotune.evidence.runs_seen import with_verified
from autotune.pricing import plain_bill

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.domain.observation import Quantity
    from autotune.domain.typed.hardware import HardwareSection
    from autotune.domain.typed.job import EvidenceSection, JobFile, MeasuredSection


def with_evidence(job: Job, jobfile: JobFile, assumed: list[Assumption]) -> Job:
    """The job with what was seen before and today's config."""
    machines = [seen_on(entry, job) for entry in jobfile.evidence]
    seen: list[Observation] = []
    for index, entry in enumerate(jobfile.evidence):
        seen += observations_of(entry, index, job, assumed)
        if entry.today:
            job = replace(
                job,
                today=todays_config(entry, index, job, assumed),
                today_offer=todays_offer(entry, job),
                today_batch=todays_batch(entry, job),
            )
    return replace(
        job, evidence=tuple(seen), assumed=tuple(assumed),
        seen_on=tuple(offer for offer in machines if offer is not None),
    )  # fmt: skip


def with_past(job: Job, *, but: str = "") -> Job:
    """The job with what its verified runs and this user's past ones taught. but: one left out."""
    job = with_verified(job, but=but)
    if not kept_at_home(LEARNED):
        return job
    from autotune.evidence.learned.residuals import with_learned

    return with_learned(job, plain_bill)


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
    stated: dict[str, object] = {
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
        return _stated_machine(entry.hardware)
    offer = job.offers[0]
    if len({(other.device.name, other.count) for other in job.offers}) > 1:
        why = "the entry does not say on which hardware; the first offer's is taken"
        assumed.append(Assumption(f"{where}.hardware", offer.label, why))
    return offer.device.name, offer.count


def _stated_machine(hardware: HardwareSection) -> tuple[str, int]:
    """Name in the catalogue and count."""
    return find_device(hardware.gpu).name, hardware.count


def _global_batch(entry: EvidenceSection, devices: int) -> int | None:
    micro = entry.config.get("micro_batch_size")
    accumulation = entry.config.get("gradient_accumulation_steps")
    stated = entry.global_batch_size
    if micro is None or accumulation is None:
        return stated
    made = int(micro) * int(accumulation) * devices
    if stated is not None and made != stated:
        msg = (
            f"the entry's config is {micro} x {accumulation} x {devices} = {made} rows a step, and "
            f"its global_batch_size {stated}"
        )
        raise InputError(msg, "state the batch that the run made, or leave global_batch_size out")
    return made


def todays_config(
    entry: EvidenceSection, index: int, job: Job, assumed: list[Assumption]
) -> Config | None:
    """The entry's config, completed; None where nothing is known of today's machine.

    Raises InputError when its split does not make the global batch: the job's, unless the entry
    states one.
    """
    offer = todays_offer(entry, job)
    batch = todays_batch(entry, job)
    if batch is not None:
        job = replace(job, global_batch_size=batch.global_batch_size, steps=batch.steps)
    if offer is None:
        why = "today's hardware is not offered and has no price, so today's config has no row here"
        assumed.append(Assumption(f"evidence[{index}].today", "left out", why))
        return None
    try:
        config = complete_config(entry.config, job, offer)
    except InputError as error:
        msg = f"evidence[{index}].config: {error.message}"
        hint = f"{error.hint}; or state global_batch_size in the entry, if it ran another"
        raise InputError(msg, error.hint if batch else hint) from None
    filled = {k: v for k, v in config.as_dict().items() if k not in entry.config}
    if filled:
        text = ", ".join(f"{name} {value}" for name, value in filled.items())
        why = "not stated of today's config; defaults of transformers' Trainer, native precision"
        assumed.append(Assumption(f"evidence[{index}].config", text, why))
    return config


def todays_offer(entry: EvidenceSection, job: Job) -> Offer | None:
    """The machine that today's config runs on: an offer, else as the entry describes and prices it.

    None where it is not offered and its price is not stated.
    """
    if entry.hardware is None:
        return job.offers[0]
    offered = _offered(entry.hardware, job)
    if offered is not None:
        return offered
    if entry.hardware.price is None and entry.hardware.owned is None:
        return None
    return _described_offer(entry.hardware, job)


def _offered(hardware: HardwareSection, job: Job) -> Offer | None:
    """The job's offer of the same devices."""
    name, count = _stated_machine(hardware)
    same = (
        offer for offer in job.offers
        if (offer.device.name, offer.count, offer.nodes) == (name, count, hardware.nodes)
    )  # fmt: skip
    return next(same, None)


def seen_on(entry: EvidenceSection, job: Job) -> Offer | None:
    """The machine of an entry with its own host, where the job does not offer it."""
    hardware = entry.hardware
    if hardware is None or hardware.host is None or _offered(hardware, job) is not None:
        return None
    free = hardware.model_copy(update={"price": "free", "owned": None})  # its price says nothing
    return _described_offer(free, job)


def _described_offer(hardware: HardwareSection, job: Job) -> Offer:
    machine = find_machine(hardware.gpu, hardware.per_node, job.storage)
    return offer_of(hardware, 0, machine, [])


def todays_batch(entry: EvidenceSection, job: Job) -> Batch | None:
    """The global batch that the entry states; None where it is the job's."""
    batch = entry.global_batch_size
    if batch is None or batch == job.global_batch_size:
        return None
    steps = entry.steps or math.ceil(job.epochs * math.ceil(job.rows / batch))
    return Batch(batch, steps)


MICRO_BATCH = 8
SAVE_STEPS = 500


def default_config(job: Job, offer: Offer) -> Config:
    """The config of a run that states nothing, on that offer."""
    return complete_config({}, job, offer)


def complete_config(stated: Mapping[str, KnobValue], job: Job, offer: Offer) -> Config:
    """The stated knobs, and the trainer's defaults for the others.

    Raises InputError when no split with the stated part makes the job's global batch.
    """
    micro, accumulation = _split(stated, job.global_batch_size, offer.count)
    every = int(stated.get("checkpoint_every_steps", SAVE_STEPS))
    own = not job.software.has_sdpa(job.model.family)  # its own code, as written out
    knobs: dict[str, KnobValue] = {
        "micro_batch_size": micro,
        "gradient_accumulation_steps": accumulation,
        "checkpoint_every_steps": every,
        "save_total_limit": max(1, math.ceil(job.steps / every)),  # all of them
        "precision": default_precision(job, offer),
        "num_dataloader_workers": 0,
        "prefetch_factor": 2,
        "pin_memory": not offer.device.is_cpu,
        "attention": "eager" if job.model.attention_softcap or own else "sdpa",
        "sharding": "none" if offer.count == 1 else "ddp",
        "optimizer": job.software.usual_optimizer,
        **{name: value for name, value in stated.items() if name in KNOBS},
    }
    return Config(**knobs)  # type: ignore[arg-type]  # kinds checked by Knob.parse


def default_precision(job: Job, offer: Offer) -> str:
    """bf16 where it is native, then fp16; fp32 on a 32-bit base where neither is."""
    device = offer.device
    if device.bf16_flop_per_s > 0:
        return "bf16"
    if device.fp16_flop_per_s > 0 and not device.is_cpu:
        return "fp16"
    return "fp32" if job.method.base == "32bit" else "bf16"


def _split(stated: Mapping[str, KnobValue], global_batch: int, devices: int) -> tuple[int, int]:
    """Micro-batch and accumulation whose product with the devices is the global batch."""
    micro = stated.get("micro_batch_size")
    accumulation = stated.get("gradient_accumulation_steps")
    per_device, rest = divmod(global_batch, devices)
    if rest == 0 and micro is None and accumulation is None:
        micro = max(n for n in range(1, MICRO_BATCH + 1) if per_device % n == 0)
    if accumulation is None and micro is not None:
        accumulation = max(1, per_device // int(micro))
    if micro is None and accumulation is not None:
        micro = max(1, per_device // int(accumulation))
    if (
        micro is None
        or accumulation is None
        or (int(micro) * int(accumulation) * devices != global_batch)
    ):
        split = f"micro {micro or '?'} x accumulation {accumulation or '?'} x {devices} devices"
        msg = f"{split} does not make the global batch of {global_batch}"
        raise InputError(
            msg, "the global batch is the job's contract: state a split that makes it exactly"
        )
    return int(micro), int(accumulation)

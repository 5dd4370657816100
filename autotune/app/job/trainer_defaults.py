"""What a run does when its user states nothing: the defaults of transformers' Trainer.

Source: transformers 5 `TrainingArguments` (per_device_train_batch_size 8, accumulation 1, no data
workers, prefetch 2 a worker, pinned memory, save_steps 500, every checkpoint kept, no compile, no
gradient checkpointing, adamw_torch_fused), sdpa attention where the family has it. The precision
default there is the checkpoint's own dtype; here the device's native 16-bit one, which is what the
recipes of these models set.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.domain.config import KNOBS, Config
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

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
    knobs: dict[str, KnobValue] = {
        "micro_batch_size": micro,
        "gradient_accumulation_steps": accumulation,
        "checkpoint_every_steps": every,
        "save_total_limit": max(1, math.ceil(job.steps / every)),  # all of them
        "precision": default_precision(job, offer),
        "num_dataloader_workers": 0,
        "prefetch_factor": 2,
        "pin_memory": not offer.device.is_cpu,
        "attention": "eager" if job.model.attention_softcap else "sdpa",
        "sharding": "none" if offer.count == 1 else "ddp",
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

"""The checks an export makes before a line is written: the job's contract survives it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job


def check_contract(job: Job, offer: Offer, config: Config) -> None:
    """Raise InputError if `config` on `offer` would not train what `job` says."""
    _check_devices(offer, config)
    product = config.micro_batch_size * config.gradient_accumulation_steps * offer.count
    if product != job.global_batch_size:
        msg = (
            f"micro_batch_size {config.micro_batch_size} x gradient_accumulation_steps "
            f"{config.gradient_accumulation_steps} x {offer.count} devices is {product}, but the "
            f"job's global_batch_size is {job.global_batch_size}"
        )
        raise InputError(msg, "the global batch is part of the job; change the split, not it")
    if config.precision in {"fp32", "tf32"} and job.method.base == "16bit":
        msg = f"precision {config.precision} needs base 32bit, but the job's base is 16bit"
        raise InputError(msg, "set base: 32bit in the job, or a 16-bit precision")
    if config.precision == "fp16" and job.method.kind == "full" and job.method.base == "16bit":
        msg = "precision fp16 with 16-bit trained weights cannot be scaled: base must be 32bit"
        raise InputError(msg, "set base: 32bit in the job, or precision bf16")


def _check_devices(offer: Offer, config: Config) -> None:
    if config.sharding == "none" and offer.count > 1:
        msg = f"sharding none uses one device, but the offer has {offer.count}"
        raise InputError(msg, "sharding must be ddp, fsdp, zero2 or zero3 on several devices")
    offloads = (config.sharding, config.offload) == ("zero2", "optimizer")
    if config.sharding != "none" and offer.count == 1 and not offloads:
        msg = f"sharding {config.sharding} needs at least two devices, but the offer has one"
        raise InputError(msg, "sharding must be none on one device")

"""What fp8 needs: a method, a trainer, torch.compile, whole weights on every device.

Source: accelerate 1.15 accelerator.py _prepare_ao, utils/ao.py; torchao 0.18 float8/README.md (use
with torch.compile); axolotl 0.21, whose key fp8 sets the same. LLaMA-Factory 0.9.5 has that key
too, but trains fp32 weights beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

FP8_TRAINERS = frozenset({"", "hf", "trl", "axolotl"})


def fp8_trains(job: Job, offer: Offer, precision: str) -> bool:
    """Adapters over frozen weights in fp8 are another matter, which nobody measured."""
    if precision != "fp8":
        return True
    trainer, method = trainer_of(job), job.method
    full = method.kind == "full" and method.base == "16bit"
    return full and job.software.torchao is not None and trainer in FP8_TRAINERS and _nvidia(offer)


def _nvidia(offer: Offer) -> bool:
    return offer.device.vendor == "nvidia"


def fp8_compiled(_job: Job, _offer: Offer, precision: str, compiled: str) -> bool:
    """Eager, its casts cost more than its products gain."""
    return precision != "fp8" or compiled == "default"


def fp8_replicated(_job: Job, _offer: Offer, precision: str, sharding: str) -> bool:
    """Mixed precision of accelerate's FSDP2 turns trained 16-bit weights into fp32."""
    return precision != "fp8" or sharding in {"none", "ddp"}

"""What the values of `offload` need: a trainer, a way of sharding, other knobs, a GPU.

Source: accelerate 1.15 utils/dataclasses.py (DeepSpeedPlugin, FullyShardedDataParallelPlugin);
transformers 5.23 training_args.py (activation_checkpointing_kwargs, fsdp_config); trl
sft_config.py; axolotl 0.21 utils/schemas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.config import EIGHT_BIT, ZERO_STAGE

if TYPE_CHECKING:
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

OFFLOADED_STATES = frozenset({"optimizer", "all"})
# How the weights are divided under each value. DeepSpeed's ZeRO-2 runs on one device as well.
SHARDINGS = {
    "none": frozenset({"none", "ddp", "fsdp", "zero2", "zero3"}),
    "optimizer": frozenset(ZERO_STAGE),
    "all": frozenset({"fsdp"}),
    "activations": frozenset({"none", "ddp"}),
}
ON_ONE_DEVICE = {"none": "none", "activations": "none", "optimizer": "zero2"}
LAUNCHED = frozenset({"", "hf", "trl", "axolotl", "llamafactory"})  # by accelerate or DeepSpeed
CHECKPOINTS_AWAY = frozenset({"", "hf", "trl", "axolotl"})
# transformers: activation_checkpointing_kwargs takes `offload`; trl: activation_offloading.
CHECKPOINTS_AWAY_FROM, TRL_CHECKPOINTS_AWAY_FROM = (5, 23), (0, 19, 1)


def offload_is_open(job: Job) -> bool:
    """Whether the job lets something else than none be tried."""
    return "offload" in job.allow or job.lock.get("offload", "none") != "none"


def trainer_offloads(job: Job, _offer: Offer, offload: str) -> bool:
    """Whether the trainer and its versions have it."""
    trainer, software = trainer_of(job), job.software
    if offload == "none":
        return True
    if software.own_model or software.kernels == "unsloth":
        return False
    if offload in OFFLOADED_STATES:
        return trainer in LAUNCHED
    newer = software.transformers >= CHECKPOINTS_AWAY_FROM
    trl = (
        trainer in {"", "trl"}
        and software.trl is not None
        and software.trl >= TRL_CHECKPOINTS_AWAY_FROM
    )
    return trainer in CHECKPOINTS_AWAY and (newer or trl or trainer == "axolotl")


def offloads_from_gpu(_job: Job, offer: Offer, offload: str) -> bool:
    """A processor's memory is the host's already."""
    return offload == "none" or not offer.device.is_cpu


def sharded_for_offload(_job: Job, offer: Offer, offload: str, sharding: str) -> bool:
    """DeepSpeed offloads states, FSDP its shards; on one device ZeRO-2 runs without others."""
    if offer.count == 1:
        return ON_ONE_DEVICE.get(offload) == sharding
    return sharding in SHARDINGS[offload]


def checkpoints_to_offload(_job: Job, _offer: Offer, offload: str, checkpointing: str) -> bool:
    """What is offloaded is what checkpointed layers keep."""
    return offload != "activations" or checkpointing == "full"


def steps_on_processor(_job: Job, _offer: Offer, offload: str, optimizer: str) -> bool:
    """The processor steps in 32 bit: bitsandbytes' states live on a GPU."""
    return offload not in OFFLOADED_STATES or optimizer not in EIGHT_BIT


def offloads_eagerly(_job: Job, _offer: Offer, offload: str, compiled: str) -> bool:
    """Hooks that move tensors to the host break compiled graphs."""
    return offload == "none" or compiled == "off"

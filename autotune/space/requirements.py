"""What settings need beyond a plain run (fused kernels, fp8, offload), and need of the host.

In here: the trainers, versions, families, devices and other knobs that levers' values go with, and
the cores, /dev/shm and RAM of the processes that feed the devices. Each function is a rule of
`rules.RULES`, which names it with its reason; what plain settings need stands there. A fact of the
host that nobody stated keeps the search within it, and forbids nothing that the user locked:
whoever rents a machine knows it better. `host_doubts` says so.

Source of `kernels`: liger-kernel 0.8.5 transformers/monkey_patch.py, MODEL_TYPE_TO_APPLY_LIGER_FN,
read 2026-11-22; trl 1.16 trainer/sft_trainer.py; transformers 5.23 training_args.py; axolotl 0.21
integrations/liger and integrations/cut_cross_entropy; llamafactory 0.9.5 model_args.py.
Source of fp8: accelerate 1.15 accelerator.py _prepare_ao, utils/ao.py; torchao 0.18
float8/README.md (use with torch.compile); axolotl 0.21, whose key fp8 sets the same. LLaMA-Factory
0.9.5 has that key too, but trains fp32 weights beside it.
Source of `offload`: accelerate 1.15 utils/dataclasses.py (DeepSpeedPlugin,
FullyShardedDataParallelPlugin); transformers 5.23 training_args.py (fsdp_config,
activation_checkpointing_kwargs); trl sft_config.py; axolotl 0.21 utils/schemas.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from autotune.catalog.software import TRL_CHUNKS_FROM
from autotune.catalog.text_tokens import TOKENISED_BYTES
from autotune.domain.config import EIGHT_BIT, OFFLOADED_STATES, ZERO_STAGE
from autotune.domain.units import GB, format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

# Model types of decoders of text that Liger 0.8.5 patches; any other it leaves as it is.
LIGER_FAMILIES = frozenset(
    {"deepseek_v2", "deepseek_v3", "deepseek_v4", "exaone4", "falcon_h1", "gemma", "gemma2",
     "gemma3_text", "gemma4_text", "glm4", "gpt_oss", "granite", "hunyuan_v1_dense",
     "hunyuan_v1_moe", "llama", "llama4_text", "ministral", "mistral", "mixtral", "muse_glimmer",
     "nemotron", "olmo2", "olmo3", "phi3", "qwen2", "qwen3", "qwen3_5_moe_text", "qwen3_5_text",
     "qwen3_moe", "qwen3_next", "smollm3"}
)  # fmt: skip
TRITON_CAPABILITY = 7.0  # Triton's README: NVIDIA GPUs from Volta on
# What a trainer's own file can switch on: fp8; Liger; a loss in tiles that is not its default;
# states and checkpoints in the host's memory. `own_`: by code of its own, whatever the versions of
# transformers and TRL. "" is a job that was not read from a trainer's file: it becomes hf or trl.
_ARGUMENTS = frozenset({"fp8", "liger", "states", "checkpoints"})
LEVERS_OF = {
    "": _ARGUMENTS | {"tiles"}, "hf": _ARGUMENTS, "trl": _ARGUMENTS,
    "axolotl": _ARGUMENTS | {"own_tiles", "own_checkpoints"},
    "llamafactory": frozenset({"liger", "states"}),
}  # fmt: skip


def levers_of(job: Job) -> frozenset[str]:
    """What the trainer whose own file the job was read from can switch on."""
    return LEVERS_OF.get(job.origin.trainer if job.origin else "", frozenset())


def trainer_has_kernels(job: Job, _offer: Offer, kernels: str) -> bool:
    """Whether the trainer and the installed software have them, and not by default already."""
    levers, software = levers_of(job), job.software
    if kernels == "none":
        return True
    if software.own_model or software.kernels != "eager":
        return False
    if kernels == "liger":
        return software.liger_kernel is not None and "liger" in levers
    newer = software.trl is not None and software.trl >= TRL_CHUNKS_FROM
    tiles = "own_tiles" in levers or ("tiles" in levers and newer)
    return tiles and software.loss not in {"chunked", "fused"}


def family_has_kernels(job: Job, _offer: Offer, kernels: str) -> bool:
    """Whether Liger patches the model's class. A loss of its own needs no family."""
    return kernels != "liger" or job.model.family in LIGER_FAMILIES


def triton_runs(_job: Job, offer: Offer, kernels: str) -> bool:
    """Whether Triton compiles for the device."""
    device = offer.device
    capable = device.vendor == "amd" or device.compute_capability >= TRITON_CAPABILITY
    return kernels == "none" or (not device.is_cpu and capable)


def kernels_run_eagerly(_job: Job, _offer: Offer, kernels: str, compiled: str) -> bool:
    """Compiling fuses the same operations: the two do not add up, and graphs break.

    Source: linkedin/Liger-Kernel issue 642 (with torch.compile 40 hours slower).
    """
    return kernels == "none" or compiled == "off"


def fp8_trains(job: Job, offer: Offer, precision: str) -> bool:
    """Adapters over frozen weights in fp8 are another matter, which nobody measured."""
    if precision != "fp8":
        return True
    method = job.method
    full = method.kind == "full" and method.base == "16bit"
    return (
        full
        and job.software.torchao is not None
        and "fp8" in levers_of(job)
        and offer.device.vendor == "nvidia"
    )


def fp8_compiled(_job: Job, _offer: Offer, precision: str, compiled: str) -> bool:
    """Eager, its casts cost more than its products gain."""
    return precision != "fp8" or compiled == "default"


def fp8_replicated(_job: Job, _offer: Offer, precision: str, sharding: str) -> bool:
    """Mixed precision of accelerate's FSDP2 turns trained 16-bit weights into fp32."""
    return precision != "fp8" or sharding in {"none", "ddp"}


# How the weights are divided under each value. DeepSpeed's ZeRO-2 runs on one device as well.
SHARDINGS = {
    "none": frozenset({"none", "ddp", "fsdp", "zero2", "zero3"}),
    "optimizer": frozenset(ZERO_STAGE),
    "all": frozenset({"fsdp"}),
    "activations": frozenset({"none", "ddp"}),
}
ON_ONE_DEVICE = {"none": "none", "activations": "none", "optimizer": "zero2"}
# transformers: activation_checkpointing_kwargs takes `offload`; trl: activation_offloading.
CHECKPOINTS_AWAY_FROM, TRL_CHECKPOINTS_AWAY_FROM = (5, 23), (0, 19, 1)


def offload_is_open(job: Job) -> bool:
    """Whether the job lets something else than none be tried."""
    return "offload" in job.allow or job.lock.get("offload", "none") != "none"


def sharding_by_count(job: Job, offer: Offer, sharding: str) -> bool:
    """DeepSpeed on one device is of use where it offloads, which `sharded_for_offload` judges."""
    if offer.count == 1 and offload_is_open(job):
        return sharding in {"none", "zero2"}
    return (sharding == "none") == (offer.count == 1)


def trainer_offloads(job: Job, _offer: Offer, offload: str) -> bool:
    """Whether the trainer and its versions have it."""
    levers, software = levers_of(job), job.software
    if offload == "none":
        return True
    if software.own_model or software.kernels == "unsloth":
        return False
    if offload in OFFLOADED_STATES:
        return "states" in levers
    newer = software.transformers >= CHECKPOINTS_AWAY_FROM
    trainer = job.origin.trainer if job.origin else ""
    if trainer in {"", "trl"} and software.trl is not None:
        newer |= software.trl >= TRL_CHECKPOINTS_AWAY_FROM
    return "own_checkpoints" in levers or ("checkpoints" in levers and newer)


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


WORKERS = "num_dataloader_workers"
FEEDING = ("micro_batch_size", WORKERS, "prefetch_factor")  # what decides how much is kept ready
PREFETCHED = 2  # batches of each worker, where nothing is stated (torch's DataLoader)
TOO_FEW_CORES = "more data workers than the host has cores"
BUFFERS_TOO_LARGE = "prefetched batches exceed /dev/shm or RAM"
_HELD_IN = {"shm": "shm_bytes", "ram": "ram_bytes"}


def workers_within_cores(job: Job, offer: Offer, workers: int) -> bool:
    """A core for each worker; what the user locked may exceed cores that were only assumed."""
    return workers * offer.per_node <= offer.host.cores or _may_exceed(job, offer, "cores", WORKERS)


def batches_in_memory(job: Job, offer: Offer, micro: int, workers: int, prefetch: int) -> bool:
    """Batches kept ready lie in /dev/shm, which is a part of RAM."""
    held_bytes = _buffer_bytes(job, offer, micro, workers, prefetch)
    return all(
        held_bytes <= getattr(offer.host, field) or _may_exceed(job, offer, field, *FEEDING[:2])
        for field in _HELD_IN.values()
    )


def _may_exceed(job: Job, offer: Offer, field: str, *names: str) -> bool:
    """Whether nobody stated the fact, and the user locked all of what needs more of it."""
    return field in offer.host.assumed and all(name in job.lock for name in names)


def _buffer_bytes(job: Job, offer: Offer, micro: int, workers: int, prefetch: int) -> float:
    """[bytes] of the batches that all workers of a host keep ready."""
    return offer.per_node * workers * prefetch * micro * job.max_length * TOKENISED_BYTES


def least_buffers(job: Job, offer: Offer) -> tuple[float, float, Literal["shm", "ram"]]:
    """[bytes] of batches kept ready at the least that the locks leave, what holds them, and of it.

    Batches lie in /dev/shm, which is a part of RAM.
    """
    held = _buffer_bytes(job, offer, *(int(job.lock.get(name, 1)) for name in FEEDING))
    shm, ram = offer.host.shm_bytes, offer.host.ram_bytes
    return (held, shm, "shm") if shm <= ram else (held, ram, "ram")


def host_options(job: Job, offer: Offer, reasons: Mapping[str, object]) -> str:
    """What to type where the host is what keeps a lock from running; empty where it is not."""
    found = []
    if TOO_FEW_CORES in reasons:
        found.append(f"--set host.cores={int(job.lock.get(WORKERS, 1)) * offer.per_node}")
    if BUFFERS_TOO_LARGE in reasons:
        held, _, short = least_buffers(job, offer)
        found.append(f"--set host.{short}={math.ceil(held / GB)}GB")
    return " ".join(found)


def host_doubts(job: Job, offer: Offer, knobs: Mapping[str, KnobValue]) -> list[str]:
    """What settings need of a host beyond what was assumed of it."""
    host, found = offer.host, []
    workers = int(knobs.get(WORKERS, 0)) * offer.per_node
    if workers > host.cores and "cores" in host.assumed:
        found.append(
            f"{workers} data workers in all, and {host.cores} cores are assumed of {offer.label}: "
            f"--set host.cores=N states them"
        )
    stated = {"prefetch_factor": PREFETCHED, **knobs}
    held = _buffer_bytes(job, offer, *(int(stated.get(name, 0)) for name in FEEDING))
    for key, field in _HELD_IN.items():
        there = getattr(host, field)
        if held > there and field in host.assumed:
            found.append(
                f"batches kept ready take {format_bytes(held)}, and {format_bytes(there)} of {key} "
                f"are assumed of {offer.label}: --set host.{key}=SIZE states it"
            )
            break
    return found

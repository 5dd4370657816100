"""What the values of knobs need: of the device, model, method, trainer, versions, host and others.

Each function is a rule of `rules.RULES`, which names it with the knobs that it reads and its
reason, and says whether their values may run. A host's fact that nobody stated keeps the search
within it, and forbids nothing that the user locked.

Source of `kernels`: trl 1.16 trainer/sft_trainer.py; transformers 5.23 training_args.py; axolotl
0.21 integrations/liger and integrations/cut_cross_entropy; llamafactory 0.9.5 model_args.py.
Source of fp8: accelerate 1.15 accelerator.py _prepare_ao, utils/ao.py; torchao 0.18
float8/README.md (use with torch.compile); axolotl 0.21, whose key fp8 sets the same (LLaMA-Factory
0.9.5's trains fp32 weights beside it).
Source of `offload`: accelerate 1.15 utils/dataclasses.py; transformers 5.23 training_args.py
(fsdp_config, activation_checkpointing_kwargs); trl sft_config.py; axolotl 0.21 utils/schemas.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.catalog.software import (
    LEVERS_OF,
    LIGER_FAMILIES,
    NO_FLASH,
    REGIONAL_SINCE,
    TRL_CHUNKS_FROM,
)
from autotune.catalog.text_tokens import TOKENISED_BYTES
from autotune.domain.config import EIGHT_BIT, FLASH, OFFLOADED_STATES, ZERO_STAGE
from autotune.domain.device import FLASH_CAPABILITY, HOPPER, INT8_CAPABILITY, TRITON_CAPABILITY
from autotune.domain.model import DeltaNet
from autotune.domain.objective import PAIRED
from autotune.domain.software import JOINS_ROWS, ZERO3_DIVIDES_NF4
from autotune.domain.units import format_bytes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

FLASH_HEAD_DIM = 256  # flash-attention 2 README: head dimensions up to 256
CUDA_GRAPH_MODES = frozenset({"reduce-overhead", "max-autotune"})
HALF = frozenset({"fp16", "bf16", "fp8"})  # of activations and of what the trainer casts to
UNUSED_PREFETCH = 2  # stands for "nothing is prefetched" when there are no workers


def levers_of(job: Job) -> frozenset[str]:
    """What the trainer whose own file the job was read from can switch on."""
    return LEVERS_OF.get(job.trainer, frozenset())


def trainer_has_kernels(job: Job, _offer: Offer, kernels: str) -> bool:
    """Whether the trainer and the installed software have them, and not by default already."""
    levers, software = levers_of(job), job.software
    if kernels == "none" or software.own_model or software.kernels != "eager":
        return kernels == "none"
    if kernels == "liger":
        return software.liger_kernel is not None and "liger" in levers
    newer = software.trl is not None and software.trl >= TRL_CHUNKS_FROM
    tiles = "own_tiles" in levers or ("tiles" in levers and newer)
    return tiles and software.loss not in {"chunked", "fused"}


def family_has_kernels(job: Job, _offer: Offer, kernels: str) -> bool:
    """Whether Liger patches the model's class. A loss of its own needs no family."""
    return kernels != "liger" or job.model.family in LIGER_FAMILIES


def compiles(_job: Job, offer: Offer, compiled: str) -> bool:
    """Whether Inductor compiles for the device; processors and Apple's chips need no Triton.

    Source: torch 2.13 _inductor/scheduler.py, create_backend: GPUTooOldForTriton below 7.
    """
    old = 0.0 < offer.device.compute_capability < TRITON_CAPABILITY
    return compiled == "off" or offer.device.vendor != "nvidia" or not old


def triton_runs(_job: Job, offer: Offer, kernels: str) -> bool:
    """Whether Triton compiles for the device."""
    capable = offer.device.vendor == "amd" or offer.device.compute_capability >= TRITON_CAPABILITY
    return kernels == "none" or (not offer.device.is_cpu and capable)


def kernels_run_eagerly(_job: Job, _offer: Offer, kernels: str, compiled: str) -> bool:
    """Compiling fuses the same, and graphs break: 40 hours slower (Liger-Kernel issue 642)."""
    return kernels == "none" or compiled == "off"


def fp8_trains(job: Job, offer: Offer, precision: str) -> bool:
    """Adapters over frozen weights in fp8 are another matter, which nobody measured."""
    full = job.method.kind == "full" and job.method.base == "16bit"
    runs = job.software.torchao is not None and offer.device.vendor == "nvidia"
    return precision != "fp8" or (full and runs and "fp8" in levers_of(job))


def fp8_compiled(_job: Job, _offer: Offer, precision: str, compiled: str) -> bool:
    """Eager, its casts cost more than its products gain."""
    return precision != "fp8" or compiled == "default"


def fp8_replicated(_job: Job, _offer: Offer, precision: str, sharding: str) -> bool:
    """Mixed precision of accelerate's FSDP2 turns trained 16-bit weights into fp32."""
    return precision != "fp8" or sharding in {"none", "ddp"}


# How the weights are divided under each value. DeepSpeed's ZeRO-2 runs on one device as well.
SHARDINGS = {
    "none": frozenset({"none", "ddp", "fsdp", "zero2", "zero3"}), "all": frozenset({"fsdp"}),
    "optimizer": frozenset(ZERO_STAGE), "activations": frozenset({"none", "ddp"}),
}  # fmt: skip
ON_ONE_DEVICE = {"none": "none", "activations": "none", "optimizer": "zero2"}
# transformers: activation_checkpointing_kwargs takes `offload`; trl: activation_offloading.
CHECKPOINTS_AWAY_FROM, TRL_CHECKPOINTS_AWAY_FROM = (5, 23), (0, 19, 1)


def sharding_by_count(job: Job, offer: Offer, sharding: str) -> bool:
    """DeepSpeed on one device is of use where it offloads, which `sharded_for_offload` judges."""
    if offer.count == 1 and ("offload" in job.allow or job.lock.get("offload", "none") != "none"):
        return sharding in {"none", "zero2"}
    return (sharding == "none") == (offer.count == 1)


def trainer_offloads(job: Job, _offer: Offer, offload: str) -> bool:
    """Whether the trainer and its versions have it."""
    levers, software = levers_of(job), job.software
    if offload == "none" or software.kernels == "unsloth":
        return offload == "none"
    if software.own_model:  # by code of its own alone
        return offload == "activations" and "own_checkpoints" in levers
    if offload in OFFLOADED_STATES:
        return "states" in levers
    newer = software.transformers >= CHECKPOINTS_AWAY_FROM
    if job.trainer in {"", "trl"} and software.trl is not None:
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


def offloads_eagerly(job: Job, _offer: Offer, offload: str, compiled: str) -> bool:
    """Hooks that move tensors to the host break compiled graphs.

    torchtune compiles each layer, and its hooks stand around the whole model. Source: torchtune
    0.6.1 training/_compile.py, _activation_offloading.py, recipes/full_finetune_single_device.py.
    """
    own = job.trainer == "torchtune" and offload == "activations"
    return offload == "none" or compiled == "off" or own


WORKERS = "num_dataloader_workers"
FEEDING = ("micro_batch_size", WORKERS, "prefetch_factor")  # what decides how much is kept ready
PREFETCHED = 2  # batches of each worker, where nothing is stated (torch's DataLoader)
HELD_IN = {"shm": "shm_bytes", "ram": "ram_bytes"}


def workers_within_cores(job: Job, offer: Offer, workers: int) -> bool:
    """A core for each worker; what the user locked may exceed cores that were only assumed."""
    return workers * offer.per_node <= offer.host.cores or _may_exceed(job, offer, "cores", WORKERS)


def batches_in_memory(job: Job, offer: Offer, micro: int, workers: int, prefetch: int) -> bool:
    """Batches kept ready lie in /dev/shm, which is a part of RAM."""
    held_bytes = buffer_bytes(job, offer, micro, workers, prefetch)
    return all(
        held_bytes <= getattr(offer.host, field) or _may_exceed(job, offer, field, *FEEDING[:2])
        for field in HELD_IN.values()
    )


def _may_exceed(job: Job, offer: Offer, field: str, *names: str) -> bool:
    """Whether nobody stated the fact, and the user locked all of what needs more of it."""
    return field in offer.host.assumed and all(name in job.lock for name in names)


def buffer_bytes(job: Job, offer: Offer, micro: int, workers: int, prefetch: int) -> float:
    """[bytes] of the batches that all workers of a host keep ready."""
    return offer.per_node * workers * prefetch * micro * job.max_length * TOKENISED_BYTES


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
    held = buffer_bytes(job, offer, *(int(stated.get(name, 0)) for name in FEEDING))
    for key, field in HELD_IN.items():
        there = getattr(host, field)
        if held > there and field in host.assumed:
            found.append(
                f"batches kept ready take {format_bytes(held)}, and {format_bytes(there)} of {key} "
                f"are assumed of {offer.label}: --set host.{key}=SIZE states it"
            )
            break
    return found


def splits_batch(job: Job, offer: Offer, micro: int) -> bool:
    """Whether the devices' micro-batches make the global batch."""
    return job.global_batch_size % (micro * offer.count) == 0


def accumulation_as_locked(job: Job, offer: Offer, micro: int) -> bool:
    """Whether the locked accumulation makes it, where one is locked."""
    locked = job.lock.get("gradient_accumulation_steps")
    return locked is None or micro * offer.count * int(locked) == job.global_batch_size


def native_dtype(_job: Job, offer: Offer, precision: str) -> bool:
    """Say, bf16 needs Ampere: the catalogue has a rate only for what a device multiplies itself."""
    return offer.device.peak_flop_per_s(precision) > 0


def base_holds_dtype(job: Job, _offer: Offer, precision: str) -> bool:
    """Whether weights are kept in at least the precision that is computed in."""
    return precision in HALF or job.method.base == "32bit"


def fp16_is_second_choice(job: Job, offer: Offer, precision: str) -> bool:
    """Whether fp16 is locked, or the device has no bf16."""
    locked = job.lock.get("precision") == "fp16"
    return precision != "fp16" or locked or offer.device.peak_flop_per_s("bf16") == 0


def fp16_full_needs_fp32_weights(job: Job, _offer: Offer, precision: str) -> bool:
    """Whether what is trained has masters that fp16's scaled gradients can step."""
    return precision != "fp16" or job.method.is_lora or job.method.base == "32bit"


def quantised_base_runs(job: Job, offer: Offer, _precision: str) -> bool:
    """Whether bitsandbytes is there, and a device that runs its kernels."""
    if not job.method.is_quantised:
        return True
    capable = job.method.base != "int8" or offer.device.compute_capability >= INT8_CAPABILITY
    return job.software.bitsandbytes is not None and offer.device.vendor == "nvidia" and capable


def family_has_kernel(job: Job, _offer: Offer, attention: str) -> bool:
    """Whether the model's class offers the attention."""
    model = job.model
    if attention == "sdpa":
        return not model.attention_softcap and job.software.has_sdpa(model.family)
    return attention not in FLASH or (model.family not in NO_FLASH and model.position != "alibi")


def flash_runs(job: Job, offer: Offer, attention: str) -> bool:
    """Whether the package is there, the device runs its kernels and the heads fit them."""
    device, third = offer.device, attention == "flash_attention_3"
    if attention not in FLASH:
        return True
    software, capability = job.software, device.compute_capability
    installed = software.has_flash_attention_3 if third else software.has_flash_attention
    capable = int(capability) == HOPPER if third else capability >= FLASH_CAPABILITY
    capable &= max(layer.head_dim for layer in job.model.layers) <= FLASH_HEAD_DIM
    return installed and device.vendor == "nvidia" and capable


def quantised_sharding(job: Job, _offer: Offer, sharding: str) -> bool:
    """Whether quantised weights can be divided this way; nf4 by ZeRO-3 where the user does so."""
    own = {job.lock.get("sharding"), job.today.sharding if job.today else None}
    own = own if job.software.transformers >= ZERO3_DIVIDES_NF4 else set()
    whole = {"int8": {"fsdp", "zero3"}, "nf4": {"zero3"} - own}.get(job.method.base, set())
    return sharding not in whole


def dora_reads_weights(job: Job, _offer: Offer, sharding: str) -> bool:
    """Source: peft 0.21 tuners/lora/dora.py: `forward` reads `base_layer.weight` ungathered."""
    return not job.method.is_dora or sharding != "zero3"


def states_as_today(job: Job, offer: Offer, sharding: str) -> bool:
    """DeepSpeed keeps fp32 masters and moments; to leave it for 16-bit ones is the user's step."""
    if job.method.is_lora or job.method.base != "16bit" or offer.count == 1:
        return True
    stated = job.origin.knobs.get("sharding") if job.origin else None  # of a machine not offered
    now = job.today.sharding if job.today else stated
    return now not in ZERO_STAGE or sharding in ZERO_STAGE or "sharding" in job.lock


def pinned_needs_cuda(_job: Job, offer: Offer, pinned: bool) -> bool:  # noqa: FBT001 - a knob
    """Whether there is a device that pinned pages are copied to."""
    return not pinned or offer.device.has_cuda


def optimizer_runs(job: Job, offer: Offer, optimizer: str, sharding: str) -> bool:
    """8-bit states need bitsandbytes and NVIDIA. It takes the shards of FSDP2 for whole tensors.

    Source: bitsandbytes 0.50.2 optim/optimizer.py, and its issues 89 and 1633.
    """
    here = job.software.bitsandbytes is not None and offer.device.vendor == "nvidia"
    now = job.today is not None and (job.today.optimizer, job.today.sharding)  # it may have FSDP1
    whole = sharding != "fsdp" or now == (optimizer, sharding)
    return optimizer not in EIGHT_BIT or (here and whole)


def graphs_need_cuda(_job: Job, offer: Offer, compiled: str) -> bool:
    """Whether graphs can be captured."""
    return compiled not in CUDA_GRAPH_MODES or offer.device.has_cuda


def scope_needs_compile(_job: Job, _offer: Offer, compiled: str, scope: str) -> bool:
    """Whether a part of the model is compiled in a mode that can."""
    return scope == "model" or compiled == "default"


def scope_offered(job: Job, _offer: Offer, scope: str) -> bool:
    """Our own script is launched with accelerate's config; another trainer launches itself."""
    return scope == "model" or (not job.origin and job.software.accelerate >= REGIONAL_SINCE)


def adapters_exist(job: Job, _offer: Offer, adapter_dtype: str) -> bool:
    """Whether there are adapters to have a dtype."""
    return job.method.is_lora or adapter_dtype == "fp32"


def grouping_saves_padding(job: Job, _offer: Offer, grouping: str) -> bool:
    """Whether rows are padded to the longest of their batch."""
    return grouping == "off" or job.padding == "longest"


def prefetch_needs_workers(job: Job, _offer: Offer, workers: int, prefetch: int) -> bool:
    """Whether somebody prefetches; the value that stands for nobody is one."""
    return workers > 0 or prefetch == UNUSED_PREFETCH or "prefetch_factor" in job.lock


def flash_needs_half(_job: Job, _offer: Offer, attention: str, precision: str) -> bool:
    """Whether attention is computed in a dtype that flash attention has."""
    return attention not in FLASH or precision in HALF


def bf16_adapters_need_bf16(_job: Job, _offer: Offer, adapter_dtype: str, precision: str) -> bool:
    """Whether the adapters' dtype is computed in."""
    return adapter_dtype == "fp32" or precision == "bf16"


def packing_keeps_rows_apart(job: Job, _offer: Offer, packing: str, attention: str) -> bool:
    """Whether the kernel masks by rows; who locks packing has decided.

    A gated delta net carries a state from row to row without its kernels: transformers refuses. A
    short convolution reads the end of the row before, and a Mamba layer its state: its kernels take
    the rows' numbers (`seq_idx`), which a collator hands on only where it is asked to.
    """
    if packing == "off":
        return True
    nets = job.model.kernel_package == DeltaNet.package
    if nets and not job.fuses_mixers:
        return False
    mixes = job.model.family in JOINS_ROWS or any(layer.mixer for layer in job.model.layers)
    return job.lock.get("packing") == "on" or (attention in FLASH and (nets or not mixes))


def pairs_can_have_it(job: Job, _offer: Offer, value: str) -> bool:
    """Whether rows of preferences can: none are packed, and their loss is another."""
    return value not in {"on", "chunked_loss"} or job.objective not in PAIRED


def pairs_are_not_grouped(job: Job, _offer: Offer, grouping: str) -> bool:
    """TRL's have neither of what transformers' LengthGroupedSampler takes: input_ids, a length."""
    return grouping == "off" or job.objective not in PAIRED or job.origin is not None


def kto_needs_two_rows(job: Job, _offer: Offer, micro_batch_size: int) -> bool:
    """TRL's makes a row's other answer of its neighbour (kto_trainer.py, 1.0 to 1.16)."""
    return micro_batch_size > 1 or job.objective != "kto" or job.origin is not None


def packing_or_grouping(_job: Job, _offer: Offer, packing: str, grouping: str) -> bool:
    """Whether at most one of them arranges the rows."""
    return packing == "off" or grouping == "off"


def graphs_need_fixed_shapes(job: Job, _offer: Offer, compiled: str, packing: str) -> bool:
    """Whether captured graphs meet one shape: packed, or every batch known to be as long."""
    alike = job.one_length and (job.padding == "max_length" or job.lengths.known)
    return compiled not in CUDA_GRAPH_MODES or packing == "on" or alike

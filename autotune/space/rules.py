"""Which settings are valid for a job on an offer: one small function a rule, one table of them.

A rule says which knobs it reads; it is asked once for each distinct combination of their values on
an offer, and answers whether the combination may run. Memory is not a rule: whether a setting fits
is priced, because how far it misses matters.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.config import EIGHT_BIT, FLASH, KNOBS, ZERO_STAGE
from autotune.domain.device import FLASH_CAPABILITY
from autotune.domain.objective import PAIRED
from autotune.frozen import dataclass
from autotune.space.requirements import (
    BUFFERS_TOO_LARGE,
    TOO_FEW_CORES,
    batches_in_memory,
    checkpoints_to_offload,
    family_has_kernels,
    fp8_compiled,
    fp8_replicated,
    fp8_trains,
    kernels_run_eagerly,
    offloads_eagerly,
    offloads_from_gpu,
    sharded_for_offload,
    sharding_by_count,
    steps_on_processor,
    trainer_has_kernels,
    trainer_offloads,
    triton_runs,
    workers_within_cores,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.config import Config
    from autotune.domain.device import Device, Offer
    from autotune.domain.job import Job

HOPPER = 9  # flash-attention 3 README: H100 and H800, and what else has capability 9
FLASH_HEAD_DIM = 256  # flash-attention 2 README: head dimensions up to 256
INT8_CAPABILITY = 7.5  # bitsandbytes installation guide: LLM.int8() needs Turing or later
# Classes without `_supports_sdpa` in transformers 5.23 (soft-capping, sinks, or never ported).
NO_SDPA = frozenset({"gemma2", "gpt_oss", "gpt_neo", "gptj", "bloom", "mpt", "codegen", "xglm"})
# Classes without `_supports_flash_attn` in transformers 5.23; gpt_oss's sinks need another kernel.
NO_FLASH = frozenset({"gpt_oss", "bloom", "mpt", "codegen", "xglm"})
# accelerate's `use_regional_compilation`, which transformers' Trainer takes from the launcher.
# Source: accelerate 1.6.0 release notes, `utils/other.py` compile_regions.
REGIONAL_SINCE = (1, 6)
CUDA_GRAPH_MODES = frozenset({"reduce-overhead", "max-autotune"})
HALF = frozenset({"fp16", "bf16", "fp8"})  # of activations and of what the trainer casts to
UNUSED_PREFETCH = 2  # stands for "nothing is prefetched" when there are no workers


@dataclass(frozen=True, slots=True)
class Rule:
    """A named condition over a few knobs. `allows(job, offer, *values)` in the order of `reads`."""

    name: str
    reads: tuple[str, ...]
    reason: str  # why a setting was rejected
    allows: Callable[..., bool]


def has_cuda(device: Device) -> bool:
    """Whether torch drives the device through its CUDA (or ROCm) interface."""
    return device.vendor in {"nvidia", "amd"}


def native(device: Device, precision: str) -> bool:
    """Whether the device multiplies in that dtype itself, without emulation."""
    return device.peak_flop_per_s(precision) > 0


def fixed_shapes(job: Job) -> bool:
    """Whether every unpacked batch is known to have the same length."""
    return job.one_length and (job.padding == "max_length" or job.lengths.known)


def _splits_batch(job: Job, offer: Offer, micro: int) -> bool:
    return job.global_batch_size % (micro * offer.count) == 0


def _accumulation_as_locked(job: Job, offer: Offer, micro: int) -> bool:
    locked = job.lock.get("gradient_accumulation_steps")
    return locked is None or micro * offer.count * int(locked) == job.global_batch_size


def _native_dtype(_job: Job, offer: Offer, precision: str) -> bool:
    """Say, bf16 needs Ampere: the catalogue has a rate only for what a device multiplies itself."""
    return native(offer.device, precision)


def _base_holds_dtype(job: Job, _offer: Offer, precision: str) -> bool:
    return precision in HALF or job.method.base == "32bit"


def _fp16_is_second_choice(job: Job, offer: Offer, precision: str) -> bool:
    locked = job.lock.get("precision") == "fp16"
    return precision != "fp16" or locked or not native(offer.device, "bf16")


def _fp16_full_needs_fp32_weights(job: Job, _offer: Offer, precision: str) -> bool:
    return precision != "fp16" or job.method.is_lora or job.method.base == "32bit"


def _quantised_base_runs(job: Job, offer: Offer, _precision: str) -> bool:
    if job.method.base not in {"int8", "nf4"}:
        return True
    capable = job.method.base == "nf4" or offer.device.compute_capability >= INT8_CAPABILITY
    return job.software.bitsandbytes is not None and offer.device.vendor == "nvidia" and capable


def _family_has_kernel(job: Job, _offer: Offer, attention: str) -> bool:
    model = job.model
    if attention == "sdpa":
        return not model.attention_softcap and model.family not in NO_SDPA
    if attention in FLASH:
        return model.family not in NO_FLASH and model.position != "alibi"
    return True


def _flash_runs(job: Job, offer: Offer, attention: str) -> bool:
    device, third = offer.device, attention == "flash_attention_3"
    if attention not in FLASH:
        return True
    software = job.software
    installed = software.has_flash_attention_3 if third else software.has_flash_attention
    capability = device.compute_capability
    capable = int(capability) == HOPPER if third else capability >= FLASH_CAPABILITY
    narrow = job.model.head_dim <= FLASH_HEAD_DIM
    return installed and device.vendor == "nvidia" and capable and narrow


def _quantised_sharding(job: Job, _offer: Offer, sharding: str) -> bool:
    if job.method.base == "int8":
        return sharding not in {"fsdp", "zero3"}
    return job.method.base != "nf4" or sharding != "zero3"


def _dora_reads_weights(job: Job, _offer: Offer, sharding: str) -> bool:
    """Source: peft 0.21 tuners/lora/dora.py: `forward` reads `base_layer.weight` ungathered."""
    return not job.method.is_dora or sharding != "zero3"


def _states_as_today(job: Job, offer: Offer, sharding: str) -> bool:
    """DeepSpeed keeps fp32 masters and moments; to leave it for 16-bit ones is the user's step."""
    today, method = job.today, job.method
    if today is None or method.is_lora or method.base != "16bit" or offer.count == 1:
        return True
    return today.sharding not in ZERO_STAGE or sharding in ZERO_STAGE or "sharding" in job.lock


def _pinned_needs_cuda(_job: Job, offer: Offer, pinned: bool) -> bool:  # noqa: FBT001 - a knob
    return not pinned or has_cuda(offer.device)


def _optimizer_runs(job: Job, offer: Offer, optimizer: str) -> bool:
    installed = job.software.bitsandbytes is not None and offer.device.vendor == "nvidia"
    return optimizer not in EIGHT_BIT or installed


def _graphs_need_cuda(_job: Job, offer: Offer, compiled: str) -> bool:
    return compiled not in CUDA_GRAPH_MODES or has_cuda(offer.device)


def _scope_needs_compile(_job: Job, _offer: Offer, compiled: str, scope: str) -> bool:
    return scope == "model" or compiled == "default"


def _scope_offered(job: Job, _offer: Offer, scope: str) -> bool:
    """Our own script is launched with accelerate's config; another trainer launches itself."""
    offered = job.origin is None and job.software.accelerate >= REGIONAL_SINCE
    return scope == "model" or offered


def _adapters_exist(job: Job, _offer: Offer, adapter_dtype: str) -> bool:
    return job.method.is_lora or adapter_dtype == "fp32"


def _grouping_saves_padding(job: Job, _offer: Offer, grouping: str) -> bool:
    return grouping == "off" or job.padding == "longest"


def _prefetch_needs_workers(job: Job, _offer: Offer, workers: int, prefetch: int) -> bool:
    return workers > 0 or prefetch == UNUSED_PREFETCH or "prefetch_factor" in job.lock


def _flash_needs_half(_job: Job, _offer: Offer, attention: str, precision: str) -> bool:
    return attention not in FLASH or precision in HALF


def _bf16_adapters_need_bf16(_job: Job, _offer: Offer, adapter_dtype: str, precision: str) -> bool:
    return adapter_dtype == "fp32" or precision == "bf16"


def _packing_keeps_rows_apart(job: Job, _offer: Offer, packing: str, attention: str) -> bool:
    locked = job.lock.get("packing") == "on"
    return packing == "off" or attention in FLASH or locked


def _pairs_are_not_packed(job: Job, _offer: Offer, packing: str) -> bool:
    return packing == "off" or job.objective not in PAIRED


def _pairs_have_their_own_loss(job: Job, _offer: Offer, kernels: str) -> bool:
    return kernels != "chunked_loss" or job.objective not in PAIRED


def _packing_or_grouping(_job: Job, _offer: Offer, packing: str, grouping: str) -> bool:
    return packing == "off" or grouping == "off"


def _graphs_need_fixed_shapes(job: Job, _offer: Offer, compiled: str, packing: str) -> bool:
    return compiled not in CUDA_GRAPH_MODES or packing == "on" or fixed_shapes(job)


RULES: tuple[Rule, ...] = (
    Rule("splits_batch", ("micro_batch_size",),
         "micro-batch x devices does not divide the global batch", _splits_batch),
    Rule("accumulation_as_locked", ("micro_batch_size",),
         "micro-batch x devices x the locked accumulation is not the global batch",
         _accumulation_as_locked),
    Rule("native_dtype", ("precision",), "the device does not have the precision natively",
         _native_dtype),
    Rule("base_holds_dtype", ("precision",), "fp32 and tf32 compute need base 32bit",
         _base_holds_dtype),
    Rule("fp16_second_choice", ("precision",), "fp16 is tried only where bf16 is not native",
         _fp16_is_second_choice),
    Rule("fp16_full", ("precision",), "full fine-tuning in fp16 needs base 32bit",
         _fp16_full_needs_fp32_weights),
    Rule("fp8_trains", ("precision",),
         "fp8 needs full fine-tuning from 16-bit weights, torchao and a trainer that hands it on",
         fp8_trains),
    Rule("fp8_compiled", ("precision", "compile"),
         "fp8 needs torch.compile in mode default, which joins its casts", fp8_compiled),
    Rule("fp8_replicated", ("precision", "sharding"),
         "fp8 runs on one device or under DDP: FSDP would keep fp32 weights beside it",
         fp8_replicated),
    Rule("quantised_base", ("precision",),
         "an int8 or nf4 base needs bitsandbytes and a CUDA device that runs it",
         _quantised_base_runs),
    Rule("family_has_kernel", ("attention",), "the model's family does not have the kernel",
         _family_has_kernel),
    Rule("flash_runs", ("attention",),
         "flash attention needs its package, heads up to 256 wide and compute capability 8.0 and "
         "later; flash_attention_3 a Hopper GPU (9.0) and software flash_attn_3",
         _flash_runs),
    Rule("sharding_by_count", ("sharding",), "one device is not sharded, several always are",
         sharding_by_count),
    Rule("states_as_today", ("sharding",),
         "today's run keeps fp32 masters and moments under DeepSpeed: sharding zero2 or zero3",
         _states_as_today),
    Rule("quantised_sharding", ("sharding",), "a quantised base cannot be split this way",
         _quantised_sharding),
    Rule("dora_reads_weights", ("sharding",),
         "DoRA reads every frozen weight outside its own layer, where ZeRO-3 has it partitioned",
         _dora_reads_weights),
    Rule("workers_within_cores", ("num_dataloader_workers",),
         TOO_FEW_CORES, workers_within_cores),
    Rule("pinned_needs_cuda", ("pin_memory",), "pinned memory needs a CUDA device",
         _pinned_needs_cuda),
    Rule("optimizer_runs", ("optimizer",), "8-bit optimizers need bitsandbytes and CUDA",
         _optimizer_runs),
    Rule("graphs_need_cuda", ("compile",), "CUDA graphs need a CUDA device", _graphs_need_cuda),
    Rule("adapters_exist", ("adapter_dtype",), "only LoRA has adapters", _adapters_exist),
    Rule("grouping_saves_padding", ("length_grouping",),
         "length grouping does nothing when every row is padded to max_length",
         _grouping_saves_padding),
    Rule("prefetch_needs_workers", ("num_dataloader_workers", "prefetch_factor"),
         "without workers nothing is prefetched", _prefetch_needs_workers),
    Rule("batches_in_memory", ("micro_batch_size", "num_dataloader_workers", "prefetch_factor"),
         BUFFERS_TOO_LARGE, batches_in_memory),
    Rule("flash_needs_half", ("attention", "precision"), "flash attention needs fp16 or bf16",
         _flash_needs_half),
    Rule("bf16_adapters", ("adapter_dtype", "precision"), "bf16 adapters need bf16 compute",
         _bf16_adapters_need_bf16),
    Rule("packing_keeps_apart", ("packing", "attention"),
         "packing needs flash attention to keep joined rows apart", _packing_keeps_rows_apart),
    Rule("pairs_are_not_packed", ("packing",),
         "rows of a preference stay apart: no trainer packs them", _pairs_are_not_packed),
    Rule("pairs_have_their_own_loss", ("kernels",),
         "chunked_loss is of supervised fine-tuning", _pairs_have_their_own_loss),
    Rule("packing_or_grouping", ("packing", "length_grouping"),
         "packed sequences have one length already", _packing_or_grouping),
    Rule("scope_offered", ("compile_scope",),
         "the trainer compiles the whole model only", _scope_offered),
    Rule("scope_needs_compile", ("compile", "compile_scope"),
         "one block at a time is compiled in mode default only", _scope_needs_compile),
    Rule("graphs_need_shapes", ("compile", "packing"),
         "CUDA graphs need batches of one shape", _graphs_need_fixed_shapes),
    Rule("trainer_has_kernels", ("kernels",),
         "liger needs liger-kernel and a trainer with a switch for it; chunked_loss needs TRL from "
         "1.9 on or axolotl, and a loss that does not do so by itself", trainer_has_kernels),
    Rule("family_has_kernels", ("kernels",),
         "Liger has no kernels for the model's family", family_has_kernels),
    Rule("triton_runs", ("kernels",),
         "fused kernels need a GPU that Triton compiles for, compute capability 7.0 and later",
         triton_runs),
    Rule("kernels_eager", ("kernels", "compile"),
         "fused kernels and torch.compile fuse the same operations: one of the two",
         kernels_run_eagerly),
    Rule("trainer_offloads", ("offload",),
         "the trainer, in this version, keeps nothing of that in the host's memory",
         trainer_offloads),
    Rule("offloads_from_gpu", ("offload",), "a processor's memory is the host's already",
         offloads_from_gpu),
    Rule("sharded_for_offload", ("offload", "sharding"),
         "the optimizer is offloaded by ZeRO-2 or ZeRO-3 (on one device ZeRO-2), all by FSDP on "
         "several devices, activations on one device or by DDP; one device without it is not "
         "sharded", sharded_for_offload),
    Rule("checkpoints_to_offload", ("offload", "activation_checkpointing"),
         "activations are offloaded from checkpointed layers: activation_checkpointing full",
         checkpoints_to_offload),
    Rule("steps_on_processor", ("offload", "optimizer"),
         "an 8-bit optimizer steps on the GPU: offload its states with adamw_torch_fused",
         steps_on_processor),
    Rule("offloads_eagerly", ("offload", "compile"),
         "torch.compile does not trace what moves tensors to the host", offloads_eagerly),
)  # fmt: skip


def violations(job: Job, offer: Offer, config: Config) -> list[str]:
    """Reasons why a configuration is not valid for the job on the offer; empty when it is."""
    knobs = config.as_dict()
    broken = [
        rule.reason
        for rule in RULES
        if not rule.allows(job, offer, *(knobs[name] for name in rule.reads))
    ]
    split = config.micro_batch_size * config.gradient_accumulation_steps * offer.count
    if split != job.global_batch_size and not broken:
        broken.append("micro-batch x accumulation x devices is not the global batch")
    return broken


if not all(set(rule.reads) <= set(KNOBS) for rule in RULES):  # pragma: no cover - import-time guard
    message = "every rule reads knobs"
    raise AssertionError(message)

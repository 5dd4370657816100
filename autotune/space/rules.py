"""Which settings are valid for a job on an offer: the table of the rules, each with its reason.

A rule says which knobs it reads; it is asked once for each distinct combination of their values on
an offer, and answers whether the combination may run: by its function in `requirements`. Memory is
not a rule: whether a setting fits is priced, because how far it misses matters. What to type where
a host lacks something is said here too.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Literal

from autotune.domain.config import KNOBS
from autotune.domain.units import GB
from autotune.frozen import dataclass
from autotune.space import requirements as needs
from autotune.space.requirements import FEEDING, WORKERS, buffer_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.domain.config import Config
    from autotune.domain.device import Offer
    from autotune.domain.job import Job

TOO_FEW_CORES = "more data workers than the host has cores"
BUFFERS_TOO_LARGE = "prefetched batches exceed /dev/shm or RAM"


@dataclass(frozen=True, slots=True)
class Rule:
    """A named condition over a few knobs. `allows(job, offer, *values)` in the order of `reads`."""

    name: str
    reads: tuple[str, ...]
    reason: str  # why a setting was rejected
    allows: Callable[..., bool]


RULES: tuple[Rule, ...] = (
    Rule("splits_batch", ("micro_batch_size",),
         "micro-batch x devices does not divide the global batch", needs.splits_batch),
    Rule("accumulation_as_locked", ("micro_batch_size",),
         "micro-batch x devices x the locked accumulation is not the global batch",
         needs.accumulation_as_locked),
    Rule("native_dtype", ("precision",), "the device does not have the precision natively",
         needs.native_dtype),
    Rule("base_holds_dtype", ("precision",), "fp32 and tf32 compute need base 32bit",
         needs.base_holds_dtype),
    Rule("fp16_second_choice", ("precision",), "fp16 is tried only where bf16 is not native",
         needs.fp16_is_second_choice),
    Rule("fp16_full", ("precision",), "full fine-tuning in fp16 needs base 32bit",
         needs.fp16_full_needs_fp32_weights),
    Rule("fp8_trains", ("precision",),
         "fp8 needs full fine-tuning from 16-bit weights, torchao and a trainer that hands it on",
         needs.fp8_trains),
    Rule("fp8_compiled", ("precision", "compile"),
         "fp8 needs torch.compile in mode default, which joins its casts", needs.fp8_compiled),
    Rule("fp8_replicated", ("precision", "sharding"),
         "fp8 runs on one device or under DDP: FSDP would keep fp32 weights beside it",
         needs.fp8_replicated),
    Rule("quantised_base", ("precision",),
         "an int8 or nf4 base needs bitsandbytes and a CUDA device that runs it",
         needs.quantised_base_runs),
    Rule("family_has_kernel", ("attention",), "the model's family does not have the kernel",
         needs.family_has_kernel),
    Rule("flash_runs", ("attention",),
         "flash attention needs its package, heads up to 256 wide and compute capability 8.0 and "
         "later; flash_attention_3 a Hopper GPU (9.0) and software flash_attn_3",
         needs.flash_runs),
    Rule("sharding_by_count", ("sharding",), "one device is not sharded, several always are",
         needs.sharding_by_count),
    Rule("states_as_today", ("sharding",),
         "today's run keeps fp32 masters and moments under DeepSpeed: sharding zero2 or zero3",
         needs.states_as_today),
    Rule("quantised_sharding", ("sharding",), "a quantised base cannot be split this way",
         needs.quantised_sharding),
    Rule("dora_reads_weights", ("sharding",),
         "DoRA reads every frozen weight outside its own layer, where ZeRO-3 has it partitioned",
         needs.dora_reads_weights),
    Rule("workers_within_cores", ("num_dataloader_workers",),
         TOO_FEW_CORES, needs.workers_within_cores),
    Rule("pinned_needs_cuda", ("pin_memory",), "pinned memory needs a CUDA device",
         needs.pinned_needs_cuda),
    Rule("optimizer_runs", ("optimizer", "sharding"),
         "8-bit optimizers need bitsandbytes and CUDA, and crash on the shards of FSDP2: there, "
         "sharding zero2 or zero3", needs.optimizer_runs),
    Rule("graphs_need_cuda", ("compile",), "CUDA graphs need a CUDA device",
         needs.graphs_need_cuda),
    Rule("compiles", ("compile",),
         "torch.compile needs a GPU that Triton compiles for, compute capability 7.0 and later",
         needs.compiles),
    Rule("adapters_exist", ("adapter_dtype",), "only LoRA has adapters", needs.adapters_exist),
    Rule("grouping_saves_padding", ("length_grouping",),
         "length grouping does nothing when every row is padded to max_length",
         needs.grouping_saves_padding),
    Rule("prefetch_needs_workers", ("num_dataloader_workers", "prefetch_factor"),
         "without workers nothing is prefetched", needs.prefetch_needs_workers),
    Rule("batches_in_memory", ("micro_batch_size", "num_dataloader_workers", "prefetch_factor"),
         BUFFERS_TOO_LARGE, needs.batches_in_memory),
    Rule("flash_needs_half", ("attention", "precision"), "flash attention needs fp16 or bf16",
         needs.flash_needs_half),
    Rule("bf16_adapters", ("adapter_dtype", "precision"), "bf16 adapters need bf16 compute",
         needs.bf16_adapters_need_bf16),
    Rule("packing_keeps_apart", ("packing", "attention"),
         "packing needs flash attention to keep joined rows apart (that of GPT-J and GPT-Neo does "
         "not), and in a model with gated delta nets software flash_linear_attention",
         needs.packing_keeps_rows_apart),
    Rule("pairs_are_not_packed", ("packing",),
         "rows of a preference stay apart: no trainer packs them", needs.pairs_can_have_it),
    Rule("pairs_have_their_own_loss", ("kernels",),
         "chunked_loss is of supervised fine-tuning", needs.pairs_can_have_it),
    Rule("pairs_are_not_grouped", ("length_grouping",),
         "TRL's rows of a preference have no length to group by", needs.pairs_are_not_grouped),
    Rule("kto_needs_two_rows", ("micro_batch_size",),
         "KTO scores a row beside another of its micro-batch", needs.kto_needs_two_rows),
    Rule("packing_or_grouping", ("packing", "length_grouping"),
         "packed sequences have one length already", needs.packing_or_grouping),
    Rule("scope_offered", ("compile_scope",),
         "the trainer compiles the whole model only", needs.scope_offered),
    Rule("scope_needs_compile", ("compile", "compile_scope"),
         "one block at a time is compiled in mode default only", needs.scope_needs_compile),
    Rule("graphs_need_shapes", ("compile", "packing"),
         "CUDA graphs need batches of one shape", needs.graphs_need_fixed_shapes),
    Rule("trainer_has_kernels", ("kernels",),
         "liger needs liger-kernel and a trainer with a switch for it; chunked_loss needs TRL from "
         "1.9 on or axolotl, and a loss that does not do so by itself", needs.trainer_has_kernels),
    Rule("family_has_kernels", ("kernels",),
         "Liger has no kernels for the model's family", needs.family_has_kernels),
    Rule("triton_runs", ("kernels",),
         "fused kernels need a GPU that Triton compiles for, compute capability 7.0 and later",
         needs.triton_runs),
    Rule("kernels_eager", ("kernels", "compile"),
         "fused kernels and torch.compile fuse the same operations: one of the two",
         needs.kernels_run_eagerly),
    Rule("trainer_offloads", ("offload",),
         "the trainer, in this version, keeps nothing of that in the host's memory",
         needs.trainer_offloads),
    Rule("offloads_from_gpu", ("offload",), "a processor's memory is the host's already",
         needs.offloads_from_gpu),
    Rule("sharded_for_offload", ("offload", "sharding"),
         "the optimizer is offloaded by ZeRO-2 or ZeRO-3 (on one device ZeRO-2), all by FSDP on "
         "several devices, activations on one device or by DDP; one device without it is not "
         "sharded", needs.sharded_for_offload),
    Rule("checkpoints_to_offload", ("offload", "activation_checkpointing"),
         "activations are offloaded from checkpointed layers: activation_checkpointing full",
         needs.checkpoints_to_offload),
    Rule("steps_on_processor", ("offload", "optimizer"),
         "an 8-bit optimizer steps on the GPU: offload its states with adamw_torch_fused",
         needs.steps_on_processor),
    Rule("offloads_eagerly", ("offload", "compile"),
         "torch.compile does not trace what moves tensors to the host", needs.offloads_eagerly),
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


def least_buffers(job: Job, offer: Offer) -> tuple[float, float, Literal["shm", "ram"]]:
    """[bytes] of batches kept ready at the least that the locks leave, what holds them, and of it.

    Batches lie in /dev/shm, which is a part of RAM.
    """
    held = buffer_bytes(job, offer, *(int(job.lock.get(name, 1)) for name in FEEDING))
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


if not all(set(rule.reads) <= set(KNOBS) for rule in RULES):  # pragma: no cover - import-time guard
    message = "every rule reads knobs"
    raise AssertionError(message)

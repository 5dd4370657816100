"""The knob `offload`: what lies in the host's memory instead of the device's, and what that costs.

    optimizer    DeepSpeed's fp32 masters and moments; the processor takes the optimizer's step
    all          FSDP's shards of weights, gradients and states; the processor steps as well
    activations  the inputs of checkpointed layers

Covers: DeepSpeed's offload_optimizer (ZeRO-2 also on one device, ZeRO-3), FSDP's CPU offload,
offloaded checkpoints of transformers, TRL and axolotl.
Does not cover: ZeRO-3's offload_param: the one public measurement (an 8B LoRA on one H100: 40 GB,
Soup) is many times what its formulas give; disks; several hosts.

Here too: what the host's memory holds while weights are loaded, and while they are saved, whatever
is offloaded.

Source of the bytes: deepspeed 0.18.9 runtime/zero/stage_1_and_2.py and its
estimate_zero2_model_states_mem_needs; torch 2.13 CPUOffloadPolicy, autograd.graph.save_on_cpu;
trl 1.16 models/activation_offloading.py. Legend: P trained elements; N devices.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import deepspeed, whole_modules
from autotune.cost.batches import longest_length
from autotune.cost.memory.modelling_code import unsloths
from autotune.cost.memory.states import sizes, weight_bytes
from autotune.cost.parameters import parameter_count, trainable_parameters
from autotune.domain.config import OFFLOADED_STATES
from autotune.domain.units import MIB

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.domain.job import Job

KNOB = "offload"
STASHED = 5.0  # layer inputs that stay on the device: trl's max_fwd_stash_size
# [elements/s] that one core updates, and cores that still help: ZeRO-Offload (Ren et al. 2021,
# table 4) reports about 0.26 s a billion on the 48 cores of a DGX-2. 13B in full by ZeRO-2 on one
# H800 took 9.1 s a step of four micro-steps: half of it transfers, half 3.3 billion a second.
UPDATED_PER_CORE_S, MOST_CORES = 8e7, 48.0
PCIE_SHARE = 0.8  # of the data sheet's rate, from and to pinned memory: assumption
# Of the host's memory. DeepSpeed's own estimate: masters, moments and gradients, 16 bytes a trained
# element, and half as much again in buffers. FSDP: 127 GB beside 40 GB of a 70B's nf4 weights
# (philschmid). Pinned blocks are rounded up to powers of two.
STATE_BYTES, STATE_BUFFERS, SHARD_BUFFERS, PINNED = 16.0, 1.5, 3.0, 2.0
# Unsloth's checkpoints: inputs of layers of more than 2 MiB go to pinned memory on a stream of
# their own, but the last layer's; one buffer on the device takes them back. Source: unsloth_zoo
# gradient_checkpointing.py (ce232d6c of August 2026), UnslothCheckpointFunction and MINIMUM_SIZE;
# unsloth models/_utils.py, Unsloth_Offloaded_Gradient_Checkpointer, of April 2024.
UNSLOTH_OFFLOADS_FROM, UNSLOTH_STAYS, UNSLOTH_LEAST = "2024-04", 2.0, 2.0 * MIB
# Log sds, assumptions: of a device's memory, which nobody published beside its parts, and of the
# seconds of transfers and of the processor. One pair (7B in full by ZeRO-2 and offload on one card
# and on eight) is a factor two off on eight.
MEMORY_SD = {"none": 0.0, "optimizer": 0.10, "all": 0.15, "activations": 0.05}
TIME_SD = 0.5


def states_away(columns: Columns) -> BoolArray:
    """[rows] whose optimizer states lie in the host's memory."""
    return columns.equals(KNOB, *OFFLOADED_STATES)


def shards_away(columns: Columns) -> BoolArray:
    """[rows] whose weights and gradients do so too, but for what is gathered."""
    return columns.equals(KNOB, "all")


def checkpoints_away(columns: Columns) -> BoolArray:
    """[rows] whose checkpointed layers keep their inputs there."""
    return columns.equals(KNOB, "activations")


def memory_sd(columns: Columns) -> FloatArray:
    """[rows] log sd that the knob adds to a device's memory."""
    return columns.choose(KNOB, MEMORY_SD)


def kept_share(job: Job, columns: Columns) -> FloatArray:
    """[rows] of what checkpointed layers keep, the share that stays on the device."""
    stashed = min(STASHED / job.model.num_layers, 1.0)
    staying = min(UNSLOTH_STAYS / job.model.num_layers, 1.0)
    tokens = columns.sequences(job) * longest_length(job, columns)
    wide = 2.0 * job.model.hidden_size * tokens > UNSLOTH_LEAST
    has = unsloths(job) and not job.software.keeps_inputs
    own = has & (job.software.as_of >= UNSLOTH_OFFLOADS_FROM) & wide
    return np.where(checkpoints_away(columns), stashed, np.where(own, staying, 1.0))


def checkpoint_bytes(job: Job, columns: Columns) -> FloatArray:
    """[bytes] that one device moves out of its memory in a forward: an input a layer."""
    tokens = columns.sequences(job) * longest_length(job, columns)
    each = job.method.plain_bytes * job.model.hidden_size * job.model.num_layers * tokens
    return np.where(checkpoints_away(columns), each, 0.0)


def host_bytes(job: Job, columns: Columns) -> FloatArray:
    """[bytes] of one machine's memory that its devices' parts take."""
    kept: FloatArray = columns.per_node() * PINNED * checkpoint_bytes(job, columns)
    return _states_on_host(job, columns, STATE_BUFFERS, SHARD_BUFFERS) + kept


def _states_on_host(job: Job, columns: Columns, buffered: float, gathered: float) -> FloatArray:
    """[bytes] of offloaded states and shards in one machine, so many times with their buffers."""
    trained = trainable_parameters(job) * float(job.steps > 0)
    zero = columns.equals(KNOB, "optimizer") * STATE_BYTES * buffered * trained
    moving = whole_modules.trained_bytes(job, columns) * float(job.steps > 0)
    stored = weight_bytes(job, sizes(job.model)) + 3.0 * moving
    shards = shards_away(columns) * gathered * stored
    nodes = columns.of_network(lambda own: float(own.nodes), 1.0)
    return (zero + shards) / nodes


WIDE_BYTES = 4.0  # of a weight made fp32, from a file of 16 bits
LOADED_BY_ALL = (5,)  # transformers from here on: also where one process was to load for all
SAVED_AT_ONCE = 50e9  # bytes of the tensors of one safetensors file: transformers' max_shard_size


def loading_host_bytes(job: Job, columns: Columns) -> FloatArray:
    """[bytes] of one machine's memory before its devices have their weights; 0 of mapped files.

    Formula: processes of a machine x models x elements x 4. Weights in the dtype of their file stay
    pages of it, which the kernel may drop; so do those that are quantised or partitioned on their
    way to the device. In another dtype every process has a copy of its own, and all of it at once.
    Source: `from_pretrained` on Linux (transformers 5.23, safetensors 0.8, 317 million weights in
    16 bits) takes 4.0 bytes of anonymous memory a weight for fp32, 2.0 for fp16, none for bf16; in
    two processes 4.0 in each, also with FSDP's cpu_ram_efficient_loading, which transformers heeds
    before 5.0 alone (modeling_utils.py: there all but the first load to meta).
    Covers: one process a device, also under DDP, FSDP and ZeRO-2; a reference model. Does not
    cover: files in other dtypes than 16 bit; older releases of transformers, which take more;
    ZeRO-3, of which one process loads for all; what the libraries hold themselves.
    """
    if job.method.base != "32bit" or job.software.own_model or _placed(job):
        return np.zeros(columns.rows)
    second = 0.0 if job.method.is_lora or not job.work.reference else 1.0
    each = WIDE_BYTES * parameter_count(job.model) * (1.0 + second)
    # of a trainer's file fp32 may be said of ZeRO's masters under fp16 alone
    masters = columns.equals("precision", "fp16") & (not job.method.is_lora)
    alone = columns.equals("sharding", "none", "ddp")
    by_all = columns.equals("sharding", "fsdp") & (job.software.transformers >= LOADED_BY_ALL)
    whole = alone | by_all | (columns.equals("sharding", "zero2") & ~masters)
    whole &= columns.device("compute_capability") > 0
    return np.where(whole, columns.per_node() * each, 0.0)


def saving_host_bytes(job: Job, columns: Columns) -> FloatArray:
    """[bytes] of one machine's memory while the model is written, what is offloaded included.

    Formula: the first process has a copy of what was trained, a file's worth at a time. FSDP
    gathers the whole model in it, frozen weights too, and ZeRO-3 what was trained. Under ZeRO-2
    every process copies the whole model, though one of them writes it.
    Source: transformers 5.23 `Trainer.save_model`; accelerate 1.15 `Accelerator.get_state_dict`;
    deepspeed 0.19.6 runtime/engine.py (_zero3_consolidated_16bit_state_dict) and
    checkpoint/utils.py (clone_tensors_for_torch_save); safetensors 0.8 torch.py (_flatten_as_ptr).
    FSDP in two processes on a CPU: 2.1 bytes a weight of 16 bit in the first, and writing them
    takes no more.
    Covers: the model at the end, and in checkpoints but FSDP's sharded ones; torchtune and litgpt.
    Does not cover: other model code of one's own; a DeepSpeed config that gathers none.
    """
    if job.steps == 0 or (job.software.own_model and job.software.stack not in OWN_SAVING):
        return np.zeros(columns.rows)
    trained = whole_modules.trained_bytes(job, columns)
    if job.software.stack in OWN_SAVING:
        return _by_their_own_code(job, columns, trained) + _states_on_host(job, columns, 1.0, 1.0)
    frozen = weight_bytes(job, sizes(job.model)) if job.method.is_lora else 0.0
    narrow = np.where(deepspeed.casts(columns), 2.0 * parameter_count(job.model), np.inf)
    whole = trained + np.minimum(frozen, narrow)
    copied = np.minimum(trained, SAVED_AT_ONCE)
    copied = np.where(columns.equals("sharding", "zero3"), trained, copied)
    copied = np.where(columns.equals("sharding", "zero2"), columns.per_node() * whole, copied)
    if not _stays_sharded(job):
        # the states are gathered once the model is written
        gathered = np.maximum(whole, _state_bytes(columns, trained) * _gathers_states(job))
        copied = np.where(columns.equals("sharding", "fsdp"), gathered, copied)
    copied = np.where(columns.device("compute_capability") > 0, copied, 0.0)
    return copied + _states_on_host(job, columns, 1.0, 1.0)


OWN_SAVING = ("torchtune", "litgpt")  # trainers with code of their own that writes the model


def _by_their_own_code(job: Job, columns: Columns, trained: FloatArray) -> FloatArray:
    """[bytes] that the first process holds of the model where torchtune or litgpt write it.

    torchtune copies the whole model, an adapter's base in 16 bit too, and before its last epoch the
    states beside it. litgpt merges an adapter into a copy of its base at the end, and gathers a
    sharded model; on one device it writes one tensor after the other.
    Source: torchtune training/checkpointing/_checkpoint_client.py @b113ffe, _save_checkpoint_sync;
    litgpt 0.5.13 finetune/full.py (state_dict_type="full") and scripts/merge_lora.py.
    Does not cover: torchtune's `enable_async_checkpointing`, `save_adapter_weights_only`.
    """
    on_gpus = columns.device("compute_capability") > 0
    whole = (
        np.full(columns.rows, 2.0 * parameter_count(job.model)) if job.method.is_lora else trained
    )
    if job.software.stack == "torchtune":
        goes_on = job.epochs > 1
        return np.where(on_gpus, whole + _state_bytes(columns, trained) * goes_on, 0.0)
    kept = job.method.is_lora | columns.equals("sharding", "fsdp")
    return np.where(on_gpus & kept, whole, 0.0)


def _state_bytes(columns: Columns, trained: FloatArray) -> FloatArray:
    """[bytes] of AdamW's two moments, as wide as `trained`; those in 8 bits are left out."""
    narrow = columns.equals("optimizer", "adamw_bnb_8bit", "paged_adamw_8bit")
    return np.where(narrow, 0.0, 2.0 * trained)


_GATHERED = re.compile(r"(?<!final_)state_dict_type\W+FULL_STATE_DICT")


def _gathers_states(job: Job) -> bool:
    """Whether the user's own files have FSDP gather the optimizer's states for a checkpoint.

    Source: accelerate 1.15 utils/fsdp_utils.py, save_fsdp_optimizer; utils/dataclasses.py,
    set_state_dict_type (offload_to_cpu, rank0_only).
    """
    origin = job.origin
    texts = [origin.text, *(each.text for each in origin.beside)] if origin else []
    return any(_GATHERED.search(text) for text in texts)


def _stays_sharded(job: Job) -> bool:
    """Whether the user's own files keep FSDP's shards apart to the end."""
    origin = job.origin
    texts = [origin.text, *(each.text for each in origin.beside)] if origin else []
    kinds = ("SHARDED_STATE_DICT", "FULL_STATE_DICT")
    return [any(kind in text for text in texts) for kind in kinds] == [True, False]


def _placed(job: Job) -> bool:
    """Whether a script says where to load to, so that weights pass the host one at a time."""
    origin = job.origin
    return origin is not None and origin.syntax == "python" and "device_map" in origin.text


def transfer_seconds(job: Job, columns: Columns) -> tuple[FloatArray, FloatArray]:
    """[s] of a micro-step and of an optimizer step on the bus, at most partly hidden.

    Formula: gradients of a device's share go out every micro-step; ZeRO's 16-bit weights come back
    once a step; FSDP's weights come in twice a micro-step, forward and backward; layer inputs go
    out and come back, with nothing beside them.
    """
    count = np.maximum(columns.number("offer.count"), 1.0)
    bus = PCIE_SHARE * columns.device("pcie_bytes_per_s")
    share = whole_modules.trained_bytes(job, columns) / count
    weights = weight_bytes(job, sizes(job.model)) / count
    micro = np.where(states_away(columns), share, 0.0)
    micro = micro + np.where(shards_away(columns), 2.0 * weights, 0.0)
    micro = micro + 2.0 * checkpoint_bytes(job, columns)
    step = np.where(columns.equals(KNOB, "optimizer"), share, 0.0)
    return micro / bus, step / bus


def update_seconds(job: Job, columns: Columns) -> FloatArray:
    """[s] of the processor's optimizer step over everything that is trained, by all ranks."""
    cores = columns.host("cores")
    rate = UPDATED_PER_CORE_S * np.clip(cores, 1.0, MOST_CORES)
    nodes = columns.of_network(lambda own: float(own.nodes), 1.0)
    return np.where(states_away(columns), trainable_parameters(job) / (nodes * rate), 0.0)

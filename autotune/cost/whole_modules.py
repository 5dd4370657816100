"""Modules that a LoRA job trains whole: what their copies hold, in which dtype, and what moves.

PEFT leaves the module where it is, frozen, and trains a deep copy of it (`modules_to_save`): its
weight, gradient and two moments beside the adapters'. Unsloth moves the frozen one to the host.

Covers: the token embedding and the output head, also of tied weights, whose copies are apart; one
device, DDP, FSDP, ZeRO. Does not cover: norms (too small), matrices of the layers, rows of an
embedding alone (`trainable_token_indices`); PEFT's `ensure_weight_tying`, which trains one copy;
more processor work for two tensors; Unsloth's frozen modules on the host's side.

Source: peft 0.21 utils/other.py, ModulesToSaveWrapper; tuners/tuners_utils.py, cast_adapter_dtype,
which makes fp32 of adapters and leaves these as they are loaded; counts and dtypes of both against
peft in tests/cost. llamafactory 0.9.5 model/adapter.py casts all that is trained, as the exported
scripts do; unsloth models/llama.py, _offload_frozen_module_for_training: as loaded, fp16 becomes
fp32.
Legend: E and H elements of the embedding and of the head that train; w bytes of one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import deepspeed
from autotune.cost.parameters import (
    adapter_parameters,
    saved_embedding,
    saved_head,
    saved_parameters,
    trainable_parameters,
)

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.domain.job import Job

# [bytes] an element: a 16-bit copy of an fp32 head in the forward (read 4, write 2), and its
# gradient back (read 2, write 4); a gradient added to the one of the micro-steps before it.
CAST_BYTES, ADDED_PASSES = 6.0 + 6.0, 3.0


def saves(job: Job) -> bool:
    """Whether anything trains whole beside adapters."""
    return job.method.is_lora and bool(job.method.modules_to_save)


def loaded_bytes(job: Job) -> float:
    """[bytes] of an element of the embedding or the head as the base holds it, quantised or not."""
    prepared = job.method.is_quantised and job.software.kbit_upcast == "all"
    return 4.0 if prepared else job.method.plain_bytes


def element_bytes(job: Job, columns: Columns) -> FloatArray:
    """[rows] w, of a copy and of its gradient, on whatever device its share of them lies.

    fp16's gradients can be unscaled in fp32 alone. FSDP under mixed precision makes fp32 of what is
    trained; without it, it runs where the adapters are bf16 as well.
    Source: torch.amp.grad_scaler, unscale_; accelerate 1.15 accelerator.py and utils/fsdp_utils.py.
    """
    adapters = columns.choose("adapter_dtype", {"fp32": 4.0, "bf16": 2.0})
    own = np.full(columns.rows, loaded_bytes(job)) if job.software.saves_as_loaded else adapters
    own = np.where(columns.equals("precision", "fp16"), 4.0, own)
    pure = (adapters < 4.0) & (not job.method.is_quantised) & (not job.software.saves_as_loaded)
    shared = columns.shared_by("fsdp")
    own = np.where(shared & ~pure & columns.equals("precision", "bf16"), 4.0, own)
    return np.where(deepspeed.runs(columns), deepspeed.trained_bytes(job, columns), own)


def trained_bytes(job: Job, columns: Columns) -> FloatArray:
    """[rows, bytes] of everything that is trained, all devices together: so many its gradients."""
    element = deepspeed.trained_bytes(job, columns)
    if not saves(job):
        return element * trainable_parameters(job)
    adapters = element * adapter_parameters(job.model, job.method)
    return adapters + element_bytes(job, columns) * saved_parameters(job.model, job.method)


def gathered_bytes(job: Job, columns: Columns, compute: FloatArray) -> FloatArray:
    """[rows, bytes] of copies that FSDP and ZeRO-3 gather for a forward, as they travel.

    The first FSDP has them as units of their own, one after the other; the second with what else
    lies outside the layers, which stays. Source: as `Software.wraps_adapters_alone`.
    """
    if not saves(job):
        return np.zeros(columns.rows)
    parts = (saved_embedding(job.model, job.method), saved_head(job.model, job.method))
    here = float(max(parts) if job.software.wraps_adapters_alone else sum(parts))
    zero = np.where(columns.equals("sharding", "zero3"), float(max(parts)), here)
    return np.minimum(element_bytes(job, columns), compute) * zero


def travelling_bytes(job: Job, columns: Columns) -> FloatArray:
    """[rows, bytes] of copies that a gather of all weights moves, before fp32 is halved."""
    if not saves(job):
        return np.zeros(columns.rows)
    narrow = columns.equals("precision", "bf16", "fp16") & (job.method.base != "32bit")
    width: FloatArray = np.where(narrow, 2.0, element_bytes(job, columns))
    return width * float(saved_parameters(job.model, job.method))


def moved_bytes(job: Job, columns: Columns) -> FloatArray:
    """[rows, bytes] that gradients of a whole micro-step travel with, all of what is trained.

    Under FSDP those of fp32 copies travel in the compute dtype, whatever the adapters' do.
    """
    total = trained_bytes(job, columns)
    if not saves(job) or job.method.base == "32bit":
        return total
    half = columns.equals("precision", "bf16", "fp16") & columns.equals("sharding", "fsdp")
    wide = np.where(half, np.maximum(element_bytes(job, columns) - 2.0, 0.0), 0.0)
    narrow: FloatArray = total - wide * float(saved_parameters(job.model, job.method))
    return narrow


def kept_on_host(job: Job) -> float:
    """[bytes] of frozen originals that Unsloth moves off the device; tied ones are one."""
    if not saves(job) or job.software.kernels != "unsloth":
        return 0.0
    model, method = job.model, job.method
    parts = (saved_embedding(model, method), saved_head(model, method))
    if model.tied_head:
        return loaded_bytes(job) * (parts[0] if all(parts) else 0.0)
    return loaded_bytes(job) * sum(parts)


def widens_stream(job: Job, columns: Columns) -> BoolArray:
    """[rows] whose residual stream is fp32 because the embedding that trains is.

    What a sharded module is given and gives is 16-bit.
    """
    if not (saves(job) and saved_embedding(job.model, job.method)):
        return np.zeros(columns.rows, np.bool_)
    return (element_bytes(job, columns) > 2.0) & ~_handed_narrow(columns)


def cast_head(job: Job, columns: Columns) -> FloatArray:
    """[rows, elements] of a head in fp32 that autocast copies to 16 bit for its product."""
    if not saves(job) or not job.software.autocast:
        return np.zeros(columns.rows)
    narrow = columns.equals("precision", "bf16", "fp16", "fp8") & ~_handed_narrow(columns)
    wide = narrow & (element_bytes(job, columns) > 2.0)
    return np.where(wide, float(saved_head(job.model, job.method)), 0.0)


def _handed_narrow(columns: Columns) -> BoolArray:
    """[rows] whose modules are given their weights in 16 bit, whatever their shards are in."""
    return columns.shared_by("fsdp", "zero3") | deepspeed.casts(columns)


def traffic_bytes(job: Job, columns: Columns) -> FloatArray:
    """[rows, bytes] a micro-step reads and writes for them, beside the products and the optimizer.

    Formula: w E zeros that rows of the gradient are added to, 12 H where the head is cast, and
    3 w (E + H) to add to the gradient so far, at all micro-steps but the first.
    Source: torch, embedding_dense_backward and AccumulateGrad (the first gradient is taken as it
    is); derived.
    """
    if not saves(job):
        return np.zeros(columns.rows)
    width = element_bytes(job, columns)
    later = 1.0 - 1.0 / np.maximum(columns.accumulation(job), 1.0)
    added = ADDED_PASSES * later * width * saved_parameters(job.model, job.method)
    zeros = width * saved_embedding(job.model, job.method)
    return zeros + added + CAST_BYTES * cast_head(job, columns)


def moment_bytes(job: Job, columns: Columns, moments_8bit: float) -> FloatArray:
    """[rows, bytes] of AdamW's two moments of everything that is trained, outside DeepSpeed.

    transformers keeps those of an embedding in fp32 under bitsandbytes' optimizers: trainer.py,
    GlobalOptimManager (5.23).
    """
    embedding = float(saved_embedding(job.model, job.method)) if saves(job) else 0.0
    eight = moments_8bit * (trainable_parameters(job) - embedding) + 8.0 * embedding
    narrow = columns.equals("optimizer", "adamw_bnb_8bit", "paged_adamw_8bit")
    return np.where(narrow, eight, 2.0 * trained_bytes(job, columns))

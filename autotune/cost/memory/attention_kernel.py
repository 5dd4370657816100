"""Which kernel runs the attention of a training step, and what of its scores is kept.

    workspace of the memory-efficient backward = 2 x 4 S d ceil(S / 64) bytes for a head of a row

In torch 2.1 to 2.3 that kernel, where its outputs do not fit in registers, takes a buffer in fp32
for the gradients of all keys and values once for every 64 keys: it grows with the square of the
length, and ten times as much as the rest of a layer is usual. That is so for 16-bit heads wider
than 64 on devices with less shared memory than an A100 (T4, and GeForce and workstation boards of
Ampere and Ada). An out-of-memory message of such a run names it to two digits (Llama 2 7B, two rows
of 4096 tokens on an RTX 3090: 16.13 GiB asked for, 16.13 by this formula and what the gradient of
the queries takes).

Covers: grouped heads, copied or not; torch 2.0 to 2.3 and later. Does not cover: V100, whose shared
memory lies between; xformers' own builds of the same kernel, which bound the number of splits:
Unsloth hands its heads to them (unsloth models/llama.py, xformers_attention).

Source: PyTorch 2.1 aten/src/ATen/native/transformers/cuda: attention_backward.cu, which splits the
keys without a bound where nobody asks for a number, mem_eff_attention/kernel_backward.h,
workspace_elements_gk, and sdp_utils.cpp, which keeps flash attention 1 from training such heads on
those boards; pytorch/pytorch#101847 brought it, pytorch/pytorch#127090 (torch 2.4) took it away.

Legend: S keys, d width of a head.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.memory.modelling_code import family_memory, is_litgpt, is_torchtune, unsloths
from autotune.cost.time.attention import SECOND_IN_TORCH
from autotune.domain.device import FLASH_CAPABILITY

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.cost.memory.modelling_code import Attention, Mode
    from autotune.domain.job import Job
    from autotune.domain.model import Model

# Until then every query head gets a copy of its key and value heads before sdpa, also without a
# mask. Source: transformers 4.53 and 4.54 integrations/sdpa_attention.py, repeat_kv and
# use_gqa_in_sdpa; torch 2.5 has `enable_gqa`.
GROUPED_FROM, GROUPED_IN_TORCH = (4, 54), (2, 5)
SPLITS_FROM, SPLITS_UNTIL = (2, 1), (2, 4)  # torch
SPLIT_KEYS = 64.0
NARROW_HEAD = 64  # up to it a block of 64 keys holds its gradients in registers
# A kernel of its own for heads up to it, on capability 8.0 and later. Source: torch 2.1
# mem_eff_attention/kernels/generate_kernels.py, "K=80".
NARROW_FROM_AMPERE = 96
SMALL_SHARED_MEMORY = (7.5, 8.6, 8.9)  # compute capabilities with 64 or 100 KiB
NO_TRAINING_BY_FLASH = (8.6, 8.9)  # of such heads, before flash attention 2


def copies_heads(job: Job, attention: Attention) -> bool:
    """Whether grouped keys and values are copied for every query head before such a kernel.

    Source: above; litgpt 0.5.13 model.py, repeat_interleave; torchtune 0.6.1 modules/attention.py,
    expand and flatten; unsloth utils/attention_dispatch.py, what it hands to xformers where
    flash-attn is not installed.
    """
    software = job.software
    if is_litgpt(job) or is_torchtune(job) or (unsloths(job) and software.flash_attn is None):
        return True
    if software.own_model or family_memory(job.model.family).broadcasts_heads:
        return False
    grouped = software.transformers >= GROUPED_FROM and software.torch >= GROUPED_IN_TORCH
    return attention == "sdpa" and not grouped


def falls_to_math(job: Job, columns: Columns, compute: FloatArray, masked: FloatArray) -> BoolArray:
    """[rows] where sdpa has no fused kernel: grouped heads without a mask, and flash cannot run.

    transformers then asks for grouped heads (use_gqa_in_sdpa); flash needs 16 bit and compute
    capability 8.0, the efficient kernel and the CPU's kernel take no grouped heads.
    Source: PyTorch aten/src/ATen/native/transformers/cuda/sdp_utils.cpp and sdp_utils_cpp.cpp;
    pytorch/pytorch#181528.
    """
    if job.model.kv_size == job.model.query_size or copies_heads(job, "sdpa"):
        return np.zeros(columns.rows, np.bool_)
    if family_memory(job.model.family).broadcasts_heads and job.model.num_kv_heads == 1:
        return columns.equals("attention", "sdpa")
    flash = (compute < 4.0) & (columns.device("compute_capability") >= FLASH_CAPABILITY)
    return columns.equals("attention", "sdpa") & (masked < 1.0) & ~flash


def splits_keys(job: Job, columns: Columns, compute: FloatArray, masked: FloatArray) -> BoolArray:
    """[rows] where the backward of sdpa takes the workspace above."""
    version, width = job.software.torch, job.model.head_dim
    if not SPLITS_FROM <= version < SPLITS_UNTIL or width <= NARROW_HEAD or unsloths(job):
        return np.zeros(columns.rows, np.bool_)
    capability = columns.device("compute_capability")
    small = np.isin(capability, SMALL_SHARED_MEMORY)
    if width <= NARROW_FROM_AMPERE:
        small = small & (capability < FLASH_CAPABILITY)
    first = np.isin(capability, NO_TRAINING_BY_FLASH) & (version < SECOND_IN_TORCH)
    efficient = (masked > 0.0) | (capability < FLASH_CAPABILITY) | first
    return columns.equals("attention", "sdpa") & (compute < 4.0) & small & efficient


def split_bytes(query_size: float) -> float:
    """[bytes/token and key] of that workspace, over all query heads."""
    return 2.0 * 4.0 * query_size / SPLIT_KEYS


def runs_efficient(model: Model, mode: Mode) -> bool:
    """Whether sdpa runs its memory-efficient kernel, which lays its output out as it is read.

    Flash attention takes no mask, and no values of another width than the keys.
    Source: PyTorch 2.13 aten/src/ATen/native/transformers/sdp_utils_cpp.h.
    """
    odd = mode.attention == "sdpa" and model.output_size != model.query_size
    return mode.biased or odd


def scores_kept(model: Model, mode: Mode) -> float:
    """[bytes] an eager score keeps: fp32 softmax, its 16-bit copy, tanh of capped scores, dropout.

    Source: derived; memory of the fp32 softmax and the copy agree with traces of nine families.
    """
    e, facts = mode.compute, family_memory(model.family)
    if facts.softmax == "stated":  # fp32 sinks, as norms are, widen the scores they are joined to
        return e if mode.stream <= e else 4.0 + e
    upcast = mode.autocast or facts.softmax == "fp32"
    kept = e if not upcast or e == 4.0 else 4.0 + e
    if model.attention_softcap:
        kept += e
    if facts.score_dropout:
        kept += 1.0 if upcast and e < 4.0 else 1.0 + e
    return kept


def scores_forward(model: Model, mode: Mode) -> tuple[float, float]:
    """[bytes/token, bytes/token and key] of an eager forward that still holds earlier scores.

    Products, their masked and widened copies, and softmax twice: this layer's and the last one's.
    Nothing where the family hands no scores up. Checked with traces of Falcon and MPT.
    """
    facts = family_memory(model.family)
    each = facts.forward_scores[0 if mode.autocast or mode.compute == 4.0 else 1]
    if mode.attention != "eager" or not each:
        return 0.0, 0.0
    inputs = mode.compute * (2.0 * model.query_size + 3.0 * model.kv_size)
    return mode.stream * model.hidden_size + inputs, each * model.num_attention_heads

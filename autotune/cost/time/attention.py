"""Which attention kernel really runs: the one asked for, or what the trainer makes of it.

`sdpa` is not one kernel. Causal attention without a mask takes flash; with an explicit mask it
takes the memory-efficient kernel, which computes both halves of the scores. transformers leaves the
mask out where nothing is padded, but has to look at the values of the batch's `attention_mask` for
that, and cannot while torch.compile traces the whole model. Compiled block by block, the mask is
made outside of what is compiled, as in eager mode.

Nor is flash one kernel, nor is it always flash (`takes_cudnn`). Times in `operators/` are of
serving stacks: on Ampere and Ada they run flash attention 2, on Hopper the third one and its like,
on Blackwell kernels newer still, which no trainer runs unless asked. `flash_share` says what share
of those rates a trainer's own kernel has.

Covers: padding, sliding windows, families that always pass a mask, whole-model and regional
compilation, devices without flash kernels, flash attention by generation.
Does not cover: kernels fetched from the hub; flex attention.

Source: transformers 5.23 masking_utils.py, `_ignore_causal_mask_sdpa` (issue 48925, PR 48975; with
torch before 2.14 a mask is made under compilation wherever the batch carries an `attention_mask`,
which every collator of transformers and TRL adds); the same in `AttentionMaskConverter` of 4.38 to
4.52. `tests/trace/test_attention_mask.py` runs the real call and compares.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.batches import distinct_lengths, unchanging_lengths
from autotune.cost.memory.mixers import CHUNK
from autotune.cost.memory.modelling_code import (
    GROUPED_HEAD_DIM,
    family_memory,
    windowed_share,
)
from autotune.cost.time.flops import FLASH_BACKWARD
from autotune.domain.config import FLASH
from autotune.domain.model import DeltaNet, Mamba2, ShortConv

# torch's flash kernel is the first generation until this release, then the second. Source: PyTorch
# 2.2 release notes, "FlashAttention-v2 backend".
SECOND_IN_TORCH = (2, 2)
SECOND_OF_FLASH = (2, 0)  # of the package flash-attn
# Rate of flash attention's first generation (its Triton form included) against the second: 1.3 to
# 3.0 times slower (Dao, "FlashAttention-2", 2023, section 4.1); the least where rows are long,
# which is where it counts: llm-foundry's tables, 512 to 65k tokens, are even in length at this.
FIRST = 0.65
# The second against the timed kernels, from Hopper on: it keeps to Ampere's instructions, whose
# rate goes with units and clock, as the fp32 rate does, whatever the newer ones reach. 329 of 631
# TFLOP/s on an H100, at 4,608 tokens in 128 dimensions (pytorch/pytorch issue 142132); the third is
# 1.5 to 2.0 times as fast forward, 1.5 to 1.75 backward (Shah et al., "FlashAttention-3", 2024,
# section 4.1). Of a chip whose tensor cores were cut more is left: ms-swift, 7B in full, 16k
# tokens, four H20: 35.5 -> 32.4 s a step.
SECOND_ON_H100, H100_FLOP_PER_S, H100_FP32, SECOND_AT_MOST = 0.55, 989.4e12, 66.9e12, 0.72
# torch's sdpa asks cuDNN first on these chips where it brings a cuDNN above 9.15.0, as it does
# since this release; earlier ones take flash attention 2, but for 2.5.0, whose successor undid it.
# 631 TFLOP/s on an H100, which is the third's rate, against 329 (pytorch/pytorch issue 142132).
# With a mask it computes the whole square: 3.6 ms forward and backward of 16,384 tokens in rows of
# 1,024, 12.6 of 4,096, against 1.6 and 3.9 without (32 heads of 128, 8 of keys, torch 2.11 on an
# H100: runs/recorded/h100-sxm/kernels.jsonl), which is what MASKED_ATTENTION makes.
# Source: torch 2.14 aten/.../cuda/sdp_utils.cpp, check_prefer_cudnn_attention;
# huggingface/transformers pull request 48163.
CUDNN_IN_TORCH, CUDNN_ONCE_IN_TORCH = (2, 11), (2, 5, 0)
CUDNN_CHIPS, CUDNN_HEAD_DIM = (9.0, 10.0, 10.3), 128
# [s] cuDNN builds a plan for each shape of a batch that a thread has not met: forward and backward,
# and forward once more in autograd's thread where layers are recomputed there. 0.44 and 0.55 on a
# B200 (modelscope/FunASR issue 3704, torch 2.11); on an H100 steps of new lengths took 2.2 to 2.6 s
# longer, 2.6 to 3.6 with recomputation, on a host half as fast (runs/recorded/h100-sxm). Between.
# Source: torch 2.13 aten/src/ATen/native/cudnn/MHA.cpp, its caches.
PLAN_FORWARD_S, PLAN_BACKWARD_S = 0.6, 0.8
# sdpa's memory-efficient kernel against flash, for the same FLOP: assumption. Of whole steps it
# makes 1.3 at 4k tokens and 1.6 at 8k, as published (huggingface/transformers issue 30461: 3,247
# to 2,483 and 3,083 to 1,918 tokens/s).
MASKED_ATTENTION = 0.75
# The same kernel holds what it sums in registers up to this width of a head, and in memory above:
# there the backward takes 5.3 times the forward, not 2.5. 512 dimensions at 8,192 tokens: 19 and
# 100 ms (xlite-dev/ffpa-attn pull request 137); 256 with a mask on an H200: 72 ms for both (verl
# pull request 7131), twice what this makes. Counted where the layers of a model differ, and of
# latent attention.
# Source: PyTorch 2.13 aten/.../cuda/mem_eff_attention/kernel_backward.h, kOutputInRF.
WIDE_HEAD, WIDE_BACKWARD = 128, 5.3
NEWER_INSTRUCTIONS = (9.0, 12.0)  # compute capabilities; GeForce Blackwell has Ampere's again

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.domain.config import Config
    from autotune.domain.device import Device
    from autotune.domain.job import Job
    from autotune.domain.model import Mixer, Model


def flash_share(job: Job, columns: Columns, *, gains: BoolArray | bool = True) -> FloatArray:
    """[rows] rate of the flash kernel that runs, over the timed one of its device.

    gains: [rows] False for what it is if flash attention 3 gains nothing.
    """

    def second(device: Device) -> float:
        oldest, end = NEWER_INSTRUCTIONS
        if not oldest <= device.compute_capability < end:
            return 1.0
        reached = SECOND_ON_H100 * H100_FLOP_PER_S * device.fp32_flop_per_s / H100_FP32
        return min(reached / max(device.bf16_flop_per_s, 1.0), SECOND_AT_MOST)

    share = columns.of_device(second)
    first = columns.equals("attention", "sdpa") & (job.software.torch < SECOND_IN_TORCH)
    if (job.software.flash_attn or SECOND_OF_FLASH) < SECOND_OF_FLASH:
        first = first | columns.equals("attention", FLASH[0])
    newest = (columns.equals("attention", FLASH[1]) & gains) | takes_cudnn(job, columns)
    return np.where(newest, 1.0, share * np.where(first, FIRST, 1.0))


def takes_cudnn(job: Job, columns: Columns) -> BoolArray:
    """[rows] whether sdpa runs cuDNN's kernel where it would have run flash attention 2."""
    model = job.model
    masked = np.zeros(columns.rows, np.bool_)
    if not job.software.own_model:
        if model.sliding_window or family_memory(model.family).always_masked:
            return masked
        masked = padded(job, columns) | traced_whole(job, columns) | flattened(job, columns)
    return asks_cudnn(job, columns) & ~masked


def asks_cudnn(job: Job, columns: Columns) -> BoolArray:
    """[rows] whether sdpa asks cuDNN first, with a mask or without."""
    if not torch_asks_cudnn(job) or job.software.cudnn_attention is False:
        return np.zeros(columns.rows, np.bool_)
    chips = columns.of_device(lambda d: float(d.compute_capability in CUDNN_CHIPS)) > 0
    narrow = columns.equals("precision", "bf16", "fp16", "fp8")
    asks = chips & narrow & columns.equals("attention", "sdpa")
    return asks & (bool(job.software.cudnn_attention) | unchanging_lengths(job, columns))


def torch_asks_cudnn(job: Job) -> bool:
    """Whether this release of torch asks cuDNN first, on the chips that it does so for."""
    torch = job.software.torch
    first = torch >= CUDNN_IN_TORCH or torch == CUDNN_ONCE_IN_TORCH
    return first and job.model.head_dim <= CUDNN_HEAD_DIM


def may_plan(job: Job, device: Device) -> bool:
    """Whether sdpa would build plans on this device, for lengths that go on changing."""
    here = device.compute_capability in CUDNN_CHIPS
    return here and torch_asks_cudnn(job) and not job.one_length


def leaves_cudnn(job: Job, device: Device, config: Config) -> bool:
    """Whether a run of this configuration is to have WITHOUT_CUDNN set, as it is priced."""
    if job.software.cudnn_attention is not None:
        return not job.software.cudnn_attention
    changing = may_plan(job, device) and config.packing == "off"
    return changing and config.attention == "sdpa"


def plans_s(job: Job, columns: Columns) -> FloatArray:
    """[rows, s] of a run in which cuDNN builds plans for lengths that batches had not had before.

    The first plan of all comes with starting.
    """
    asks = asks_cudnn(job, columns)
    if not asks.any():
        return np.zeros(columns.rows)
    again = columns.equals("activation_checkpointing", "full")
    each = PLAN_FORWARD_S * (1.0 + again) + PLAN_BACKWARD_S
    return np.where(asks, each * (distinct_lengths(job, columns) - 1.0), 0.0)


FLATTENED_FROM = ((0, 19), (4, 53), (2, 6))  # trl, transformers, torch


def padded(job: Job, columns: Columns) -> BoolArray:
    """[rows] whether batches hold padding.

    Rows of one length are not padded to the longest of them; a row by itself is only where every
    row is padded to max_length; packed sequences are filled.
    """
    fixed = job.padding == "max_length"
    shorter = job.lengths.quantiles[0] < (job.max_length if fixed else job.lengths.maximum)
    together = (columns.sequences(job) > 1) | fixed
    return shorter & together & ~columns.equals("packing", "on")


def traced_whole(job: Job, columns: Columns) -> BoolArray:
    """[rows] whether torch.compile traces the code that makes the mask.

    Model code of a trainer's own (litgpt, torchtune, llm-foundry) asks for causal attention itself.
    """
    whole = columns.equals("compile_scope", "model") & ~columns.equals("compile", "off")
    made_inside = not job.software.own_model
    return whole & made_inside & ~columns.equals("packing", "on")


def flattened(job: Job, columns: Columns) -> BoolArray:
    """[rows] whether packed sequences of a batch become one, with a full mask under sdpa.

    TRL packs by `bfd`: its collator joins a batch to one sequence and gives positions instead of a
    mask, for which transformers builds one of all the tokens, within which rows are apart.
    Source: trl 0.19 to 1.16 trainer/sft_trainer.py, `padding_free` and the collator; transformers
    4.53 to 5.23 masking_utils.py, `find_packed_sequence_indices`.
    """
    own = job.software
    versions = (own.trl or (), own.transformers, own.torch)
    apart = all(has >= needs for has, needs in zip(versions, FLATTENED_FROM, strict=True))
    packed = columns.equals("packing", "on") & columns.equals("attention", "sdpa")
    return packed & (own.trainer == "trl" and apart)


def masked_share(job: Job, columns: Columns, length: FloatArray) -> FloatArray:
    """[rows] share of the layers whose attention gets an explicit mask under sdpa.

    length: [rows, tokens] of the batch, which a layer's window may be shorter than.
    """
    whole = padded(job, columns) | traced_whole(job, columns) | flattened(job, columns)
    if family_memory(job.model.family).always_masked:
        whole = np.ones(columns.rows, np.bool_)
    if job.software.own_model:  # it asks for causal attention, and pads on the right
        whole = np.zeros(columns.rows, np.bool_)
    window = job.model.sliding_window or np.inf
    return np.where(whole, 1.0, np.where(length >= window, windowed_share(job.model), 0.0))


def kernel_work(
    job: Job, columns: Columns, layer: Model, masked: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """[rows] work of a layer's forward, in causal halves at flash's rate; backward over forward.

    masked: share of all layers with a mask. Where layers differ it is those with a window, if it is
    not all; and heads wider than any flash kernel takes, or of another width than their values, run
    the memory-efficient one without too.
    """
    if job.model.kinds:
        windowed = float(layer.sliding_window is not None)
        masked = np.where((masked > 0.0) & (masked < 1.0), windowed, masked)
    work = 1.0 + masked * (2.0 / MASKED_ATTENTION - 1.0)
    backward = np.full(columns.rows, FLASH_BACKWARD)
    if not job.model.is_unmeasured or layer.head_dim <= WIDE_HEAD:
        return work, backward
    efficient = columns.equals("attention", "sdpa").astype(np.float64)
    if layer.head_dim > GROUPED_HEAD_DIM or layer.output_size != layer.query_size:
        work = work + efficient * (1.0 - masked) * (1.0 / MASKED_ATTENTION - 1.0)
    else:
        efficient = efficient * masked
    return work, backward + efficient * (WIDE_BACKWARD - FLASH_BACKWARD)


# A gated delta net without its kernels (`Job.fuses_mixers`). [bytes per token] moved by
# all that is no projection, and kernels, forward and backward: counted with a torch dispatch mode
# on transformers 5.23, where they came out linear in these widths; projections are products.
# Slicing chunks makes the backward write whole tensors for each: it grows with the length.
# Of the widths (`_widths`): keys, values, keys repeated for every value head, chunk x value heads,
# state / chunk; and for each chunk of a row values and repeated keys once more.
DELTA_NET = ((4, 187, 166, 64, 30, 0, 0), (70, 221, 325, 222, 59, 47, 40))
DELTA_NET_KERNELS = ((68.0, 9.0), (103.0, 26.0))  # once, and for each chunk of a row
# The same in kernels of flash-linear-attention: what each reads and writes, and the gated norm of
# torch behind them; the backward makes the forward again and is taken to move 2.5 times as much.
# An NVIDIA A2 issued 73 kernels fewer in a layer's forward (iapp-technology/openthai-systemone
# issue 2). The backward's are an assumption.
FUSED_DELTA_NET = ((26, 74, 4, 12, 4, 0, 0), (65, 185, 10, 30, 10, 0, 0))
FUSED_DELTA_NET_KERNELS = ((22.0, 0.0), (50.0, 0.0))
# A Mamba-2 mixer by torch, counted in the same way of GraniteMoeHybridMambaLayer: of all heads,
# what the convolution reads, states read for every head, chunk x heads, states / chunk. In kernels
# of mamba_ssm: derived from what each reads and writes, and 2.5 times as much in the backward.
MAMBA = ((152, 18, 80, 48, 17), (302, 26, 128, 98, 29))
MAMBA_KERNELS = ((80.0, 0.0), (124.0, 0.0))
FUSED_MAMBA, FUSED_MAMBA_KERNELS = (
    ((10, 8, 0, 0, 12), (25, 20, 0, 0, 30)),
    ((14.0, 0.0), (30.0, 0.0)),
)
# A gated short convolution. [bytes of 16 bit per token and channel] and kernels, counted so on
# Lfm2ShortConv; in the forward also the copy in order that a GPU's convolution needs.
SHORT_CONV, SHORT_CONV_KERNELS = ((20,), (58,)), ((4.0, 0.0), (8.0, 0.0))
MIXER_PRODUCTS = 0.1  # rate of products of a chunk's rows, many at once, over the peak: assumption


def _ways(net: Mixer, *, fused: bool) -> tuple[tuple[tuple[float, ...], ...], ...]:
    """Bytes of each width, and kernels, of a mixer; of the forward and the backward."""
    if isinstance(net, ShortConv):
        return SHORT_CONV, SHORT_CONV_KERNELS
    if isinstance(net, Mamba2):
        return (FUSED_MAMBA, FUSED_MAMBA_KERNELS) if fused else (MAMBA, MAMBA_KERNELS)
    if fused:
        return FUSED_DELTA_NET, FUSED_DELTA_NET_KERNELS
    return DELTA_NET, DELTA_NET_KERNELS


def _widths(net: Mixer, length: FloatArray) -> tuple[FloatArray | float, ...]:
    """[elements/token] of the tensors that a mixer moves, in the order of its ways."""
    if isinstance(net, ShortConv):
        return (float(net.width),)
    if isinstance(net, Mamba2):
        read, pairs = float(net.heads * net.state), float(net.heads * net.chunk)
        whole = np.ceil(length / net.chunk) * net.chunk / length
        states = net.width * net.state / net.chunk
        return net.width, net.convolved, whole * read, whole * pairs, whole * states
    repeated = float(net.value_heads * net.key_dim)
    chunks = np.maximum(length / CHUNK, 1.0)
    state = repeated * net.value_dim / CHUNK
    once = (net.keys, net.values, repeated, CHUNK * net.value_heads, state)
    return (*once, chunks * net.values, chunks * repeated)


def mixer_bytes(job: Job, length: FloatArray) -> tuple[FloatArray, FloatArray]:
    """[bytes/token] that what mixes tokens beside scores moves: forward, backward."""
    found = [np.zeros_like(length), np.zeros_like(length)]
    for layer in job.model.layers:
        if layer.mixer is None:
            continue
        widths, (each, _) = _widths(layer.mixer, length), _ways(layer.mixer, fused=job.fuses_mixers)
        for i, way in enumerate(each):
            moved = sum(number * width for number, width in zip(way, widths, strict=True))
            found[i] = found[i] + layer.num_layers * moved
    return found[0], found[1]


def mixer_kernels(job: Job, length: FloatArray) -> tuple[FloatArray, FloatArray]:
    """[rows] kernels that what mixes tokens beside scores issues, forward and backward."""
    chunks, found = np.ceil(length / CHUNK), [np.zeros_like(length), np.zeros_like(length)]
    for layer in job.model.layers:
        if layer.mixer is None:
            continue
        for i, (once, each) in enumerate(_ways(layer.mixer, fused=job.fuses_mixers)[1]):
            found[i] = found[i] + layer.num_layers * (once + each * chunks)
    return found[0], found[1]


def mixer_flop(model: Model) -> float:
    """[FLOP/token] of the chunked rule of all layers, forward, two for each multiply-add.

    Formula, for each value head of a delta net: 4 C k + 2 C v (the chunk's pairs), C (k + v) (the
    triangular system), 6 k v (the state read twice and written). C tokens of a chunk, k and v
    widths of heads. For each Mamba head: 2 C (n + p) (the chunk's pairs), 4 n p (its state written
    and read), n the size of a state, p of a head.
    Source: derived: transformers 5.23 torch_chunk_gated_delta_rule, mamba2_chunk_scan.
    """
    found = 0.0
    for layer in model.layers:
        net, each = layer.mixer, 0.0
        if isinstance(net, DeltaNet):
            k, v = net.key_dim, net.value_dim
            each = 4.0 * CHUNK * k + 2.0 * CHUNK * v + CHUNK * (k + v) + 6.0 * k * v
            each *= net.value_heads
        elif isinstance(net, Mamba2):
            n, p = net.state, net.head_dim
            each = net.heads * (2.0 * net.chunk * (n + p) + 4.0 * n * p)
        found += layer.num_layers * each
    return found


def waits_for_lengths(job: Job, columns: Columns) -> BoolArray:
    """[rows] whether flash attention 2 asks the device for the lengths of padded rows.

    Once a layer, in the forward only; an all-ones mask is dropped once, before the layers.
    Source: transformers 5.23 modeling_flash_attention_utils.py, `_upad_input` (nonzero and item).
    """
    asked = columns.equals("attention", *FLASH)
    return asked & padded(job, columns)

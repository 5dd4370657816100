"""Bytes of logits and of the loss: T V numbers, several times over.

Covers: the losses of `Software.loss`, 16-bit and fp32 logits, soft-capped logits.
Does not cover: losses over several heads (multi-token prediction).

Legend: T tokens, V vocabulary, h hidden, e bytes of the compute dtype.
Source: derived from the loss code of transformers 5.23 and 4.48, the tiled loss of trl 1.16 and the
chunks of liger-kernel 0.8.5, and checked with traces: 10 and 12 bytes a logit at forward and
backward, 14 where a copy is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.memory.modelling_code import (
    CHUNK_TOKENS,
    LISTED_CHUNKS,
    LOGIT_BYTES,
    family_memory,
    is_litgpt,
    is_torchtune,
    normalises_head,
    unsloths,
)
from autotune.cost.parameters import trains_head
from autotune.cost.whole_modules import saves
from autotune.domain.software import (
    LOSS_COPIES_FROM,
    LOSS_COPIES_UNTIL,
    TILE_TOKENS,
    TILE_VOCABULARY,
    UNSLOTH_SIZES_FROM,
)
from autotune.domain.units import GIB

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.domain.job import Job


def _native(job: Job, compute: FloatArray, autocast: BoolArray) -> FloatArray:
    """[bytes per logit] logits, their shifted copy and log-softmax; autocast makes it take fp32.

    Model code of one's own has shifted the labels in its data. Source: nanoGPT train.py, get_batch;
    rasbt LLMs-from-scratch ch02, GPTDatasetV1.
    """
    copies = 1.0 if job.software.own_model else 2.0
    return copies * compute + np.where(autocast, 8.0, compute)


def _forward_each(job: Job, compute: FloatArray, autocast: BoolArray) -> FloatArray | None:
    """[bytes per logit] at the end of the loss's forward; None for a loss that tiles."""
    loss = job.software.loss
    upcast = np.where(compute < 4.0, compute + 8.0, 8.0) + _softcap(job, compute)
    if loss == "upcast":
        # before 4.46 the model replaces its logits by their fp32 copy and shifts that
        shifted = job.software.transformers < LOSS_COPIES_FROM
        return upcast + (4.0 - np.where(compute < 4.0, compute, 0.0) if shifted else 0.0)
    if loss == "upcast_copy":
        return upcast + 4.0
    if loss == "native":
        return _native(job, compute, autocast)
    if loss == "inplace":
        return _inplace(job, compute, autocast) + _answered(job, autocast)
    return None


def _answered(job: Job, autocast: BoolArray) -> FloatArray:
    """[bytes per logit] of the fp32 copy in which accelerate hands the logits on.

    Elsewhere that copy is made when the loss has dropped one of its own. Source: accelerate 1.15
    accelerator.py, prepare_model: convert_outputs_to_fp32 around the forward under autocast.
    """
    return np.where(autocast & unsloths(job), 4.0, 0.0)


def _inplace(job: Job, compute: FloatArray, autocast: BoolArray) -> FloatArray:
    """[bytes per logit] of a kernel that overwrites the shifted logits with their gradient.

    The shifted copy, and in the backward the gradient of the logits before the shift beside it.
    Unsloth's own forward shifts the labels and widens nothing: the logits alone. Source:
    fms-acceleration's and unsloth's cross-entropy kernel; rows of fms-acceleration on one A100
    under transformers 4.45 and 4.48; unsloth models/llama.py, CausalLM_fast_forward (August 2024).
    """
    if unsloths(job):
        return compute
    old = job.software.transformers < LOSS_COPIES_UNTIL
    if old and family_memory(job.model.family).native_loss:
        return _native(job, compute, autocast)
    copies = old and job.software.transformers >= LOSS_COPIES_FROM
    return 8.0 + (compute if copies else 0.0) + _softcap(job, compute)


def forward_bytes(
    job: Job,
    tokens: FloatArray,
    compute: FloatArray,
    autocast: BoolArray,
    compiled: BoolArray | bool = False,  # noqa: FBT001, FBT002 - a column
) -> FloatArray:
    """[bytes] logits, their fp32 copy where they are 16-bit, and the log-softmax.

    autocast: whether the loss of such logits runs in fp32, which decides that of their own dtype.
    """
    eager = _forward(job, tokens, compute, autocast)
    return np.where(compiled, compiled_bytes(job, tokens, compute), eager)


def _forward(job: Job, tokens: FloatArray, compute: FloatArray, autocast: BoolArray) -> FloatArray:
    if _lists(job):
        return _listed(job, tokens, compute)
    if job.software.loss == "liger":
        return _ligers_gradients(job, tokens, compute) + _ligers_chunk(job, tokens, compute)
    each = _forward_each(job, compute, autocast)
    return _tiled(job, tokens, compute) if each is None else each * tokens * job.model.vocab_size


def backward_bytes(
    job: Job,
    tokens: FloatArray,
    compute: FloatArray,
    kept: FloatArray,
    autocast: BoolArray,
    compiled: BoolArray | bool = False,  # noqa: FBT001, FBT002 - a column
) -> FloatArray:
    """[bytes] log-softmax and the gradients of loss and log-softmax, all fp32: 12 a logit.

    kept: bytes of a logit that the caller holds on to (fp32 under FSDP) where the loss copies. A
    loss in the logits' dtype has the same three tensors, and the caller keeps the logits; under
    autocast the three are fp32 and the shifted copy stays too.
    """
    eager = _backward(job, tokens, compute, kept, autocast)
    return np.where(compiled, compiled_bytes(job, tokens, compute), eager)


def _backward(
    job: Job, tokens: FloatArray, compute: FloatArray, kept: FloatArray, autocast: BoolArray
) -> FloatArray:
    loss = job.software.loss
    if _lists(job):
        return _listed(job, tokens, compute)
    if loss == "native":
        copies = 1.0 if job.software.own_model else 2.0
        each = np.where(autocast, 12.0 + copies * compute, 4.0 * compute)
    elif loss == "inplace":
        each = _inplace(job, compute, autocast)
    elif loss == "liger":
        return _ligers_gradients(job, tokens, compute)
    elif loss in {"upcast", "upcast_copy"}:
        each = 12.0 + _softcap(job, compute)
        each = each + (kept if loss == "upcast_copy" else 0.0)
    else:
        return _tiled(job, tokens, compute)
    return each * tokens * job.model.vocab_size


def compiled_bytes(job: Job, tokens: FloatArray, compute: FloatArray) -> FloatArray:
    """[bytes] of a loss that is compiled by itself: it keeps what it reads and a sum a token.

    A list of chunks: 16-bit logits, and the gradient of one. Whole logits come in fp32, and
    their gradient beside them is fp32, then in 16 bits. Source: torchtune 0.6.1
    modules/transformer.py (`.float()` outside the layers) and training/_compile.py, compile_loss.
    """
    each = compute * (1.0 + 1.0 / LISTED_CHUNKS) if _lists(job) else 8.0 + compute
    return each * tokens * job.model.vocab_size


UNSLOTH_MOST = 4.0 * GIB  # of fp32 logits at once; less where half of what is free is less
UNSLOTH_CAPS_FROM = "2026-07"  # month of that limit; source: unsloth_zoo, commit d9fe1f43
# Tokens up to which Unsloth holds all logits while it has the cut loss for longer batches.
UNSLOTH_WHOLE = 1024.0


def sized_chunk_bytes(
    job: Job, tokens: FloatArray, compute: FloatArray, free: FloatArray
) -> FloatArray:
    """[bytes] of the logits of one chunk, as Unsloth's loss sizes it by the memory that is free.

    Formula: all logits where 4 T V bytes fit in half of it, else the next multiple of four chunks;
    before July 2026 the nearest one. Of a logit: 16 bits and one copy in fp32. Source: unsloth_zoo
    fused_losses/cross_entropy_loss.py, get_chunk_size and UnslothFusedLoss. It is compiled, and how
    much fuses depends on torch: 2.13's Inductor has 2 bytes on the CPU, eagerly there are 14.
    """
    if not _sizes_chunks(job):
        return np.zeros_like(tokens)
    logits = tokens * job.model.vocab_size
    caps = job.software.as_of >= UNSLOTH_CAPS_FROM
    share = 4.0 * logits / np.clip(free / 2.0, 1.0, UNSLOTH_MOST if caps else np.inf)
    whole = share <= 1.0 if caps else share < 2.0
    fours = np.ceil(share / 4.0) if caps else np.round(share / 4.0)
    chunks = np.where(whole, 1.0, 4.0 * fours)
    return (compute + 4.0) * logits / np.minimum(chunks, tokens)


def _sizes_chunks(job: Job) -> bool:
    software = job.software
    sized = software.loss == "fused" and software.as_of >= UNSLOTH_SIZES_FROM
    return unsloths(job) and (software.loss == "chunked" or sized)


def _cuts(job: Job) -> bool:
    """Whether Unsloth's loss of November 2024 to August 2025 runs: cut cross-entropy."""
    software = job.software
    return unsloths(job) and software.loss == "fused" and software.as_of < UNSLOTH_SIZES_FROM


def gradient_bytes(job: Job, tokens: FloatArray, compute: FloatArray) -> FloatArray:
    """[bytes] of the logits' gradient while the head's weight gradient is computed."""
    if job.software.loss in {"chunked", "fused", "liger"}:
        return np.zeros_like(tokens)
    return (compute + _softcap(job, compute)) * tokens * job.model.vocab_size


def evaluation_bytes(
    job: Job, tokens: FloatArray, compute: FloatArray, autocast: BoolArray
) -> FloatArray:
    """[bytes] at the peak of scoring without gradients: nothing stays for the backward of tanh."""
    whole = _forward_each(job, compute, autocast)
    capped = 0.0 if whole is None or _lists(job) else _softcap(job, compute)
    made = forward_bytes(job, tokens, compute, autocast)
    return made - capped * tokens * job.model.vocab_size


def normalised_head(
    job: Job, compute: FloatArray, autocast: BoolArray
) -> tuple[FloatArray, FloatArray]:
    """[bytes] of a head's normalised weight until its backward, and of its fp32 one before that.

    Autocast normalises in fp32, and so in a block that is free again when the first logits are
    made: they take it where they fit. A trained weight keeps its fp32 copy for the backward.
    Source: torch.nn.functional.normalize under the autocast rule of `norm`;
    modeling_baichuan.py of Baichuan2, NormHead.
    """
    each = float(job.model.vocab_size * job.model.hidden_size) * normalises_head(job.model)
    wide = np.where(autocast, 4.0, 0.0)
    return (compute + (wide if trains_head(job.method) else 0.0)) * each, wide * each


def _softcap(job: Job, compute: FloatArray) -> FloatArray:
    """[bytes] a soft-capped logit keeps for the backward of tanh."""
    return compute if job.model.final_softcap else np.zeros_like(compute)


def _lists(job: Job) -> bool:
    """Whether the loss goes over a list of chunks of logits."""
    return is_litgpt(job) or (is_torchtune(job) and job.software.loss == "chunked")


def _listed(job: Job, tokens: FloatArray, compute: FloatArray) -> FloatArray:
    """[bytes] of a loss over a list of chunks: all of them stay, and one has gradients."""
    if is_torchtune(job):
        each = compute + 4.0 + 8.0 / LISTED_CHUNKS
        return each * tokens * job.model.vocab_size
    chunk = CHUNK_TOKENS / max(job.lengths.maximum, CHUNK_TOKENS)
    return LOGIT_BYTES * (1.0 + chunk) * tokens * job.model.vocab_size


def _ligers_gradients(job: Job, tokens: FloatArray, compute: FloatArray) -> FloatArray:
    """[bytes] of the gradients that Liger's forward makes: of the hidden states, and of the head.

    They stay until the backward multiplies them where they are; a frozen head has none.
    Source: liger-kernel 0.8.5 ops/fused_linear_cross_entropy.py: zeros_like(input), (weight).
    """
    vocabulary, hidden = float(job.model.vocab_size), float(job.model.hidden_size)
    made = compute * tokens * hidden
    if not trains_head(job.method):
        return made
    narrow = job.method.base == "16bit" if not saves(job) else job.software.saves_as_loaded
    return made + (compute if narrow else 4.0) * vocabulary * hidden


def _ligers_chunk(job: Job, tokens: FloatArray, compute: FloatArray) -> FloatArray:
    """[bytes] of the logits of one chunk, which their gradient overwrites.

    Formula: the next power of two of T / ceil(V / h) tokens, at most all of them. Without gradients
    to make, the chunk is the same. Source: as above: inc_factor, chunk_size.
    """
    vocabulary = float(job.model.vocab_size)
    share = np.ceil(tokens / np.ceil(vocabulary / job.model.hidden_size))
    chunk: FloatArray = np.minimum(2.0 ** np.ceil(np.log2(np.maximum(share, 1.0))), tokens)
    return compute * chunk * vocabulary


def _tiled(job: Job, tokens: FloatArray, compute: FloatArray) -> FloatArray:
    """[bytes] of a loss that never has all logits: fp32 gradients of hidden and head, and a tile.

    Source: trl 1.16 kernels/chunked_logprob.py, backward.
    """
    vocabulary, hidden = float(job.model.vocab_size), float(job.model.hidden_size)
    trained = 4.0 * vocabulary * hidden if trains_head(job.method) else 0.0
    states = (4.0 + compute) * tokens * hidden + trained
    if _cuts(job):
        short = tokens <= UNSLOTH_WHOLE  # then as `inplace`
        return states + np.where(short, compute, 0.0) * tokens * vocabulary
    if job.software.loss == "fused" or _sizes_chunks(job):
        return states
    tile = np.minimum(tokens, TILE_TOKENS) * min(TILE_VOCABULARY, vocabulary)
    return states + compute * tile

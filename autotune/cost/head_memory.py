"""Bytes of logits and of the loss: T V numbers, several times over.

Covers: the losses of `Software.loss`, 16-bit and fp32 logits, soft-capped logits.
Does not cover: losses over several heads (multi-token prediction).

Legend: T tokens, V vocabulary, h hidden, e bytes of the compute dtype.
Source: derived from the loss code of transformers 5.23 and 4.48 and the tiled loss of trl 1.16, and
checked with traces: 10 and 12 bytes a logit at forward and backward, 14 where a copy is kept.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from autotune.cost.columns import FloatArray
    from autotune.domain.job import Job

CHUNK_TOKENS = 4096.0  # trl 1.16 kernels/chunked_logprob.py: tokens of a projection tile
CHUNK_VOCABULARY = 8192.0  # prior: vocabulary width of a tile


# Releases of transformers whose loss shifts (and so copies) the upcast logits.
COPIES_FROM, COPIES_UNTIL = (4, 46), (4, 50)
# Families whose loss takes the logits in their own dtype, before COPIES_UNTIL.
NATIVE = frozenset({"gpt2", "gpt_bigcode"})


def _forward_each(job: Job, compute: FloatArray) -> FloatArray | None:
    """[bytes per logit] at the end of the loss's forward; None for a loss that tiles."""
    loss = job.software.loss
    upcast = np.where(compute < 4.0, compute + 8.0, 8.0) + _softcap(job, compute)
    if loss == "upcast":
        return upcast
    if loss == "upcast_copy":
        return upcast + 4.0
    if loss == "native":  # logits, their shifted copy, log-softmax; autocast makes it take fp32
        return 2.0 * compute + (8.0 if job.software.autocast else compute)
    if loss == "inplace":
        return _inplace(job, compute)
    return None


def _inplace(job: Job, compute: FloatArray) -> FloatArray:
    """[bytes per logit] of a kernel that overwrites the shifted logits with their gradient.

    The shifted copy, and in the backward the gradient of the logits before the shift beside it.
    Source: fms-acceleration's and unsloth's cross-entropy kernel; rows of fms-acceleration on one
    A100 under transformers 4.45 and 4.48.
    """
    old = job.software.transformers < COPIES_UNTIL
    if old and job.model.family in NATIVE:
        return 2.0 * compute + (8.0 if job.software.autocast else compute)
    copies = old and job.software.transformers >= COPIES_FROM
    return 8.0 + (compute if copies else 0.0) + _softcap(job, compute)


def forward_bytes(job: Job, tokens: FloatArray, compute: FloatArray) -> FloatArray:
    """[bytes] logits, their fp32 copy where they are 16-bit, and the log-softmax."""
    each = _forward_each(job, compute)
    return _tiled(job, tokens, compute) if each is None else each * tokens * job.model.vocab_size


def backward_bytes(
    job: Job, tokens: FloatArray, compute: FloatArray, kept: FloatArray
) -> FloatArray:
    """[bytes] log-softmax and the gradients of loss and log-softmax, all fp32: 12 a logit.

    kept: bytes of a logit that the caller holds on to (fp32 under FSDP) where the loss copies. A
    loss in the logits' dtype has the same three tensors, and the caller keeps the logits; under
    autocast the three are fp32 and the shifted copy stays too.
    """
    loss = job.software.loss
    if loss == "native":
        each = 12.0 + 2.0 * compute if job.software.autocast else 4.0 * compute
    elif loss == "inplace":
        each = _inplace(job, compute)
    elif loss in {"upcast", "upcast_copy"}:
        each = 12.0 + _softcap(job, compute)
        each = each + (kept if loss == "upcast_copy" else 0.0)
    else:
        return _tiled(job, tokens, compute)
    return each * tokens * job.model.vocab_size


def gradient_bytes(job: Job, tokens: FloatArray, compute: FloatArray) -> FloatArray:
    """[bytes] of the logits' gradient while the head's weight gradient is computed."""
    if job.software.loss in {"chunked", "fused"}:
        return np.zeros_like(tokens)
    return (compute + _softcap(job, compute)) * tokens * job.model.vocab_size


def evaluation_bytes(job: Job, tokens: FloatArray, compute: FloatArray) -> FloatArray:
    """[bytes] at the peak of scoring without gradients."""
    return forward_bytes(job, tokens, compute)


def _softcap(job: Job, compute: FloatArray) -> FloatArray:
    """[bytes] a soft-capped logit keeps for the backward of tanh."""
    return compute if job.model.final_softcap else np.zeros_like(compute)


def _tiled(job: Job, tokens: FloatArray, compute: FloatArray) -> FloatArray:
    """[bytes] of a loss that never has all logits: fp32 gradients of hidden and head, and a tile.

    Source: trl 1.16 kernels/chunked_logprob.py, backward.
    """
    vocabulary, hidden = float(job.model.vocab_size), float(job.model.hidden_size)
    trained = 0.0 if job.method.is_lora else 4.0 * vocabulary * hidden
    states = (4.0 + compute) * tokens * hidden + trained
    if job.software.loss == "fused":
        return states
    tile = np.minimum(tokens, CHUNK_TOKENS) * min(CHUNK_VOCABULARY, vocabulary)
    return states + compute * tile

"""What a token mixer other than attention holds: a gated delta net, by torch or by kernels.

By torch alone a gated delta net makes its products chunk by chunk, in fp32 or cast by autocast, and
autograd keeps every factor. The kernels of flash-linear-attention keep what they are given and one
small matrix a chunk, and make the rest again in their backward.

Covers: heads of 128, as published models have them; other widths within a tenth. Does not cover:
rows shorter than a few chunks, which keep less; causal-conv1d, which keeps one tensor less.

Source: transformers 5.23 modeling_qwen3_5.py, torch_chunk_gated_delta_rule; coefficients counted
with a storage-counting trace of Qwen3_5GatedDeltaNet where each width was varied alone: they came
out whole. The backward's are fitted to the same. Kernels: derived from flash-linear-attention
ops/gated_delta_rule/chunk.py, ChunkGatedDeltaRuleFunction, not seen by a trace.

Legend: K and V width of all key and of all value heads, R the keys repeated for every value head,
H value heads, S elements of the state of all heads, e bytes of the compute dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.model import ShortConv

if TYPE_CHECKING:
    from autotune.cost.memory.modelling_code import Mode
    from autotune.domain.model import DeltaNet

CHUNK = 64.0  # tokens


def _repeated(net: DeltaNet) -> float:
    return float(net.value_heads * net.key_dim)


def _state(net: DeltaNet) -> float:
    return float(net.value_heads * net.key_dim * net.value_dim)


def mixer_kept(net: DeltaNet | ShortConv, mode: Mode) -> float:
    """[bytes/token] kept between what its projections read and what the last of them reads."""
    if isinstance(net, ShortConv):  # three tensors of one matrix, their product, and its mixture
        return 5.0 * mode.compute * net.width
    return _net_kept(net, mode)


def _net_kept(net: DeltaNet, mode: Mode) -> float:
    """[bytes/token] of a gated delta net.

    The convolution keeps its input, its activation what it reads. The norm computes in fp32 and
    multiplies by a gate in fp32; its scale, if trained, keeps what it scales.
    """
    e, keys, values = mode.compute, float(net.keys), float(net.values)
    token = 2.0 * e * (2.0 * keys + values) + (12.0 + e) * values + e * values * mode.train_base
    if mode.fused_mixer:  # queries, keys and values, log decays, and the solved system of a chunk
        kernel = 4.0 * keys + 2.0 * values + 2.0 * CHUNK * net.value_heads
        return token + kernel + 14.0 * net.value_heads
    cast = mode.autocast and e < 4.0
    repeated, pairs, state = (38.0, 14.0, 8.0) if cast else (32.0, 20.0, 4.0)
    token += 12.0 * values + repeated * _repeated(net) + state * _state(net) / CHUNK
    return token + (pairs * CHUNK + 38.0) * net.value_heads


def mixer_transient(net: DeltaNet | ShortConv, mode: Mode, hidden: float) -> float:
    """[bytes/token] at the fullest moment of its backward, beside what it kept of all but the MLP.

    What its last projection read is gone by then, and what the norm after it kept.
    """
    if isinstance(net, ShortConv):
        return 5.0 * mode.compute * net.width
    values, repeated = float(net.values), _repeated(net)
    freed = mode.compute * values * (2.0 if mode.train_base else 0.0)
    stream = (-8.0 if mode.train_base else 0.0) * hidden
    if mode.fused_mixer:
        inner = 8.0 * repeated + 10.0 * values + 4.0 * _state(net) / CHUNK
        return max(inner - freed, 0.0) + stream
    return 4.0 * net.keys + 11.5 * repeated + 5.0 * values - freed + stream

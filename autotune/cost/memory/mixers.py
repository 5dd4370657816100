"""What a token mixer other than attention holds, by torch or by kernels.

By torch alone a gated delta net makes its products chunk by chunk, in fp32 or cast by autocast, and
autograd keeps every factor. The kernels of flash-linear-attention keep what they are given and one
small matrix a chunk, and make the rest again in their backward.

By torch a Mamba-2 mixer holds the pairs of a chunk for every head, and states and what is read of
them for every head though a group shares them. Its kernel keeps what in_proj gave and what it read
of the states, in 16 bit, and takes the weight of out_proj itself.

Covers: heads of 128, as published models have them; other widths within a tenth. Does not cover:
rows shorter than a few chunks, which keep less; causal-conv1d, which keeps one tensor less.

Source: transformers 5.23 modeling_qwen3_5.py, torch_chunk_gated_delta_rule; coefficients counted
with a storage-counting trace of Qwen3_5GatedDeltaNet where each width was varied alone: they came
out whole. The backward's are fitted to the same. Kernels: derived from flash-linear-attention
ops/gated_delta_rule/chunk.py, ChunkGatedDeltaRuleFunction, not seen by a trace.

Mamba-2: counted in the same way of GraniteMoeHybridMambaLayer, mamba2_chunk_scan; every coefficient
came out whole, the largest error 0.02 %. Kernels: derived from mamba_ssm 2.3
ops/triton/ssd_combined.py, MambaSplitConv1dScanCombinedFn, not seen by a trace.

Legend: K and V width of all key and of all value heads, R the keys repeated for every value head,
H value heads, S elements of the state of all heads, e bytes of the compute dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.model import Mamba2, ShortConv

if TYPE_CHECKING:
    from autotune.cost.columns import FloatArray
    from autotune.cost.memory.modelling_code import Mode
    from autotune.domain.model import DeltaNet, Mixer, Model

CHUNK = 64.0  # tokens


def chunked_tokens(model: Model, length: FloatArray) -> FloatArray:
    """[rows, tokens] that a row is padded to where Mamba mixers take it in whole chunks."""
    chunk = max((x.mixer.chunk for x in model.layers if isinstance(x.mixer, Mamba2)), default=1)
    return np.ceil(length / chunk) * chunk if chunk > 1 else length


def _repeated(net: DeltaNet) -> float:
    return float(net.value_heads * net.key_dim)


def _state(net: DeltaNet) -> float:
    return float(net.value_heads * net.key_dim * net.value_dim)


def mixer_kept(net: Mixer, mode: Mode) -> float:
    """[bytes/token] kept between what its projections read and what the last of them reads."""
    if isinstance(net, ShortConv):  # three tensors of one matrix, their product, and its mixture
        return 5.0 * mode.compute * net.width
    if isinstance(net, Mamba2):
        return _mamba_kept(net, mode)
    return _net_kept(net, mode)


# [bytes] of an element of: what all heads mix, what the convolution reads, states read for every
# head, pairs of a chunk for every head, states for every head and chunk, heads.
_Widths = tuple[float, ...]
_CAST, _NARROW, _WIDE = range(3)  # under autocast; 16 bit without it; fp32
_KEPT: tuple[_Widths, ...] = (
    (28, 4, 12, 8, 4, 22),
    (34, 4, 20, 12, 8, 18),
    (28, 12, 20, 12, 8, 24),
)
_KEPT_WITHOUT_NORM: tuple[_Widths, ...] = tuple(
    (width - saved, *others) for (width, *others), saved in zip(_KEPT, (10, 10, 4), strict=True)
)
_FORWARD: tuple[_Widths, ...] = (
    (34, 6, 20, 12, 6.4, 30), (42, 6, 28, 12, 12.8, 29), (40, 12, 28, 12, 12.8, 33),
)  # fmt: skip
# Of the backward: at the norm, at a chunk's pairs, at the gradients of what is read of the states.
_NORM: tuple[_Widths, ...] = (
    (48, 4, 12, 8, 4, 22),
    (54, 4, 20, 12, 8, 18),
    (48, 12, 20, 12, 8, 20),
)
_PAIRS: tuple[_Widths, ...] = (
    (16, 4, 12, 20, 0, 12),
    (32, 4, 16, 16, 0, 12),
    (32, 12, 16, 16, 0, 12),
)
_READS: tuple[_Widths, ...] = (
    (28, 4, 28, 7.4, -8.3, 0), (28.6, 4, 24, 12.3, 12, 0), (28.6, 12, 24, 12.3, 12, 0),
)  # fmt: skip
_SCORING: tuple[_Widths, ...] = (
    (29, 4, 16, 10, 0, 0), (34, 4, 18, 12, 0, 0), (36, 7, 18, 12, 0, 0),
)  # fmt: skip


def _mamba(net: Mamba2, mode: Mode, ways: tuple[_Widths, ...]) -> float:
    """[bytes/token] of one of the tables above."""
    cast = mode.autocast and mode.compute < 4.0
    way = ways[_CAST if cast else _NARROW if mode.compute < 4.0 else _WIDE]
    whole = mode.chunked
    half = (1.0 + whole) / 2.0 * net.width  # of what is as wide as all heads
    widths = (
        half, net.convolved, whole * net.heads * net.state, whole * net.heads * net.chunk,
        whole * net.width * net.state / net.chunk, net.heads,
    )  # fmt: skip
    return sum(each * width for each, width in zip(way, widths, strict=True))


def _kept_ways(net: Mamba2) -> tuple[_Widths, ...]:
    return _KEPT if net.normed else _KEPT_WITHOUT_NORM


def _mamba_kept(net: Mamba2, mode: Mode) -> float:
    """[bytes/token]: with trained weights also what the skip and the norm's scale multiply."""
    if mode.fused_mixer:  # gate, steps and what is convolved, and the scan's output
        return mode.compute * (2.0 * net.width + net.convolved + net.heads) + 4.0 * net.groups
    return _mamba(net, mode, _kept_ways(net)) + 4.0 * (1 + net.normed) * net.width * mode.train_base


def mixer_forward(net: Mixer | None, mode: Mode, *, scoring: bool = False) -> float:
    """[bytes/token] at the fullest moment of its forward, what it has kept by then included.

    0 where its backward holds more anyway. scoring: of a forward without gradients.
    """
    if not isinstance(net, Mamba2) or mode.fused_mixer:
        return 0.0
    if scoring:
        return _mamba(net, mode, _SCORING)
    return _mamba(net, mode, _FORWARD) + 4.0 * net.width * mode.train_base


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


def mixer_transient(net: Mixer, mode: Mode, hidden: float) -> float:
    """[bytes/token] at the fullest moment of its backward, beside what it kept of all but the MLP.

    What its last projection read is gone by then, and what the norm after it kept.
    """
    if isinstance(net, ShortConv):
        return 5.0 * mode.compute * net.width
    if isinstance(net, Mamba2):
        return _mamba_transient(net, mode)
    values, repeated = float(net.values), _repeated(net)
    freed = mode.compute * values * (2.0 if mode.train_base else 0.0)
    stream = (-8.0 if mode.train_base else 0.0) * hidden
    if mode.fused_mixer:
        inner = 8.0 * repeated + 10.0 * values + 4.0 * _state(net) / CHUNK
        return max(inner - freed, 0.0) + stream
    return 4.0 * net.keys + 11.5 * repeated + 5.0 * values - freed + stream


def _mamba_transient(net: Mamba2, mode: Mode) -> float:
    """[bytes/token] of a Mamba-2 mixer, at the fullest moment of its backward.

    What out_proj read and the norm gave is gone by then. Kernels make the convolution and the
    states again, and have gradients of all they read.
    """
    e, width = mode.compute, float(net.width)
    if mode.fused_mixer:
        states = 8.0 * width * net.state / net.chunk
        return e * (4.0 * width + 3.0 * net.convolved) + states
    moments = [_mamba(net, mode, ways) for ways in (_NORM,) * net.normed + (_PAIRS, _READS)]
    freed = (e + 4.0) * width if mode.train_base and net.normed else 0.0
    return max(*moments, kept := _mamba(net, mode, _kept_ways(net))) - kept - freed

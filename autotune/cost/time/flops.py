"""Exact counts of matrix-product FLOP of a training step, per token and per row.

The time of a micro-batch's products follows from them (`effective_flop`): FLOP over the efficiency
of their shape, which a device's dense peak turns into seconds.

Covers: dense and mixture-of-experts decoders; full fine-tuning and LoRA; recomputation; flash and
eager attention; causal attention counted as the half that is computed.
Does not cover: routers' own products; sliding windows shorter than the sequence.

Legend: N_l weights a token passes through in the layers, N_h = V h of the head, P adapter
parameters a token passes through, q width of all query heads, L layers, S sequence length.
"""

from __future__ import annotations

from functools import lru_cache
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.parameters import trains_head
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.cost.columns import FloatArray
    from autotune.cost.time.efficiency import Efficiency
    from autotune.domain.job import Job, Lengths, Method
    from autotune.domain.model import Linear, Model

FLASH_BACKWARD = 2.5  # flash attention recomputes the scores: 5 products against the forward's 2
EAGER_BACKWARD = 2.0


@dataclass(frozen=True, slots=True)
class Product:
    """All projections of one shape in the whole model. Numbers of matrices sum over layers."""

    inputs: int
    outputs: int
    matrices: float  # that exist
    active: float  # that a token passes through
    adapted: float  # active ones that carry an adapter
    kept: float  # active ones that recomputation skips in full fine-tuning

    @property
    def weights(self) -> float:
        """[elements] of one matrix."""
        return float(self.inputs) * self.outputs

    @property
    def share(self) -> float:
        """Share of a micro-batch's tokens that one matrix sees."""
        return self.active / self.matrices


@lru_cache(maxsize=256)
def products(
    model: Model, method: Method, *, without: frozenset[str] = frozenset()
) -> tuple[Product, ...]:
    """Projections in and beside the layers, grouped by shape and by how many tokens they see.

    without: parts that are left out.
    """
    found: dict[tuple[int, int, float], list[float]] = {}
    for layers, linear in model.all_linears:
        if linear.part in without:
            continue
        share = linear.active / linear.count
        sums = found.setdefault(
            (linear.in_features, linear.out_features, share), [0.0, 0.0, 0.0, 0.0]
        )
        active = linear.active * layers
        sums[0] += linear.count * layers
        sums[1] += active
        sums[2] += active if _adapted(linear, method) else 0.0
        sums[3] += active if _ends_layer(linear, model) else 0.0
    return tuple(Product(i, o, *sums) for (i, o, _), sums in found.items())


def _adapted(linear: Linear, method: Method) -> bool:
    return method.is_lora and linear.adaptable and linear.name in method.targets


def _ends_layer(linear: Linear, model: Model) -> bool:
    """Whether the layer's output follows at once, so that recomputation stops before it."""
    last = "per_layer" if model.per_layer_size else "mlp"
    return linear.part == last and linear.out_features == model.hidden_size


def linear_weights(model: Model, method: Method) -> float:
    """[elements] N_l: weights of the layers' projections that a token passes through."""
    return sum(p.weights * p.active for p in products(model, method))


def head_weights(model: Model) -> float:
    """[elements] N_h: weights of the language-model head, tied or not."""
    return float(model.vocab_size) * model.hidden_size


def adapter_weights(model: Model, method: Method) -> float:
    """[elements] P: adapter parameters that a token passes through; 0 for full fine-tuning."""
    return sum(
        method.rank
        * (one.in_features + (one.adapter_out or one.out_features))
        * one.active
        * layers
        for layers, one in model.all_linears
        if _adapted(one, method)
    )


def attention_flop(model: Model, pairs: float) -> float:
    """[FLOP] forward attention of all layers over `pairs` query-key pairs of each head.

    Formula: 2 (q + v) L pairs (QK^T and PV, two FLOP for each multiply-add), v the width of all
    heads' values, q but under latent attention. A causal row has S^2 / 2.
    Source: Dao, "FlashAttention-2" (2023), section 4.1.
    """
    return sum(
        2.0 * pairs * (layer.query_size + layer.output_size) * layer.num_layers
        for layer in model.layers
    )


def useful_flop_per_token(model: Model, method: Method) -> float:
    """[FLOP] a token needs in projections, head and adapters, without recomputation.

    Formula: full 6 (N_l + N_h); LoRA 4 (N_l + N_h) + 6 P: a frozen matrix has no weight gradient,
    and a head that trains whole has its 2 N_h.
    Source: Kaplan et al., "Scaling Laws for Neural Language Models" (2020), section 2.1, for 6 N;
    LoRA: derived, and checked against torch.utils.flop_counter to 0.03 %.
    """
    frozen = 4.0 if method.is_lora else 6.0
    adapters = 6.0 * adapter_weights(model, method)
    head = (6.0 if trains_head(method) else 4.0) * head_weights(model)
    return frozen * linear_weights(model, method) + head + adapters


def recomputed_flop_per_token(model: Model, method: Method) -> float:
    """[FLOP] a token repeats in projections and adapters under activation checkpointing.

    Formula: 2 (N_l + P); full fine-tuning 2 (N_l - N_down): non-reentrant checkpointing stops
    at the last tensor that the backward needs, which lies before the down projection.
    Source: torch.utils.checkpoint (early stop); checked against torch.utils.flop_counter.
    """
    weights = linear_weights(model, method) + adapter_weights(model, method)
    if not method.is_lora:
        weights -= sum(p.weights * p.kept for p in products(model, method))
    return 2.0 * weights


@lru_cache(maxsize=256)
def mean_square_length(lengths: Lengths) -> float:
    """[tokens^2] mean of the squared row length, exact for the piecewise-linear quantiles.

    Formula: the integral of (a + (b - a) u)^2 over a segment is (a^2 + a b + b^2) / 3.
    """
    q = lengths.quantiles
    if len(q) < 2:
        return float(q[0]) ** 2 if q else lengths.mean**2
    parts = [(a * a + a * b + b * b) / 3.0 for a, b in pairwise(q)]
    return sum(parts) / len(parts)


def useful_flop_per_row(job: Job) -> float:
    """[FLOP] of one row of the data set, on its real tokens, forward and backward.

    Formula: tokens x useful_flop_per_token + 3 x forward attention over the causal half.
    """
    attention = 3.0 * attention_flop(job.model, mean_square_length(job.lengths) / 2.0)
    return job.lengths.mean * useful_flop_per_token(job.model, job.method) + attention


ADAPTER_EFFICIENCY = 0.3  # products with an inner size of the rank: assumption


@dataclass(frozen=True, slots=True, eq=False)
class EffectiveFlop:
    """FLOP over efficiency. Shapes: [rows]."""

    forward: FloatArray
    repeated: FloatArray  # what activation checkpointing runs again
    backward: FloatArray
    head: FloatArray  # of the forward, the head's own


def effective_flop(
    model: Model,
    method: Method,
    efficiency: Efficiency,
    device: np.ndarray,
    tokens: FloatArray,
    *,
    repeats_base: bool = False,
) -> EffectiveFlop:
    """[FLOP at peak] of all projections, the head and the adapters over `tokens` tokens.

    Forward C[T, out]; gradient of the input C[T, in]; full fine-tuning also the gradient of the
    weight C[out, in], as has a head that trains whole. An expert sees its share of the tokens.
    repeats_base: DoRA multiplies the adapted matrices a second time, for what dropout left of their
    input.
    """
    rows, full = len(tokens), not method.is_lora
    forward, backward, repeated = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    logits = np.zeros(rows)
    head = Product(model.hidden_size, model.vocab_size, 1.0, 1.0, 0.0, 0.0)
    multiplied = (*products(model, method), head)
    learns = [*(full for _ in multiplied[:-1]), trains_head(method)]  # have a weight gradient
    shapes = []
    for product, learnt in zip(multiplied, learns, strict=True):
        seen = np.maximum(tokens * product.share, 1.0)
        inputs = np.full(rows, float(product.inputs))
        outputs = np.full(rows, float(product.outputs))
        shapes += [(seen, outputs, inputs), (seen, inputs, outputs)]
        if learnt:
            shapes.append((outputs, inputs, seen))
    shares = iter(_gemm_of_all(efficiency, device, shapes))
    for product, learnt in zip(multiplied, learns, strict=True):
        flop = 2.0 * tokens * product.weights * product.active
        once = flop / next(shares)
        forward += once
        if product is not head:
            skipped = product.kept / product.active if full else 0.0
            repeated += once * (1.0 - skipped)
        else:
            logits = once
        back = flop / next(shares)
        backward += back
        if repeats_base:
            again = product.adapted / product.active
            forward, repeated = forward + again * once, repeated + again * once
            backward += again * back
        if learnt:
            backward += flop / next(shares)
    adapters = 2.0 * adapter_weights(model, method) / ADAPTER_EFFICIENCY * tokens
    return EffectiveFlop(forward + adapters, repeated + adapters, backward + 2.0 * adapters, logits)


def _gemm_of_all(
    efficiency: Efficiency,
    device: np.ndarray,
    shapes: Sequence[tuple[FloatArray, FloatArray, FloatArray]],
) -> FloatArray:
    """[shapes, rows] share of the peak of every product, looked up at once."""
    m, n, k = (np.concatenate(side) for side in zip(*shapes, strict=True))
    found = efficiency.gemm(np.tile(device, len(shapes)), m, n, k)
    return found.reshape(len(shapes), len(device))

"""Matrix products of a micro-batch in FLOP at peak: exact FLOP over the efficiency of their shape.

Divided by a device's dense peak they are seconds. Evaluated for many (device, tokens) at once.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.time import flops

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.cost.columns import FloatArray
    from autotune.cost.time.efficiency import Efficiency
    from autotune.domain.job import Method
    from autotune.domain.model import Model

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
    weight C[out, in]. An expert sees its share of the tokens. repeats_base: DoRA multiplies the
    adapted matrices a second time, for what dropout left of their input.
    """
    rows, full = len(tokens), not method.is_lora
    forward, backward, repeated = np.zeros(rows), np.zeros(rows), np.zeros(rows)
    logits = np.zeros(rows)
    head = flops.Product(model.hidden_size, model.vocab_size, 1.0, 1.0, 0.0, 0.0)
    products = (*flops.products(model, method), head)
    shapes = []
    for product in products:
        seen = np.maximum(tokens * product.share, 1.0)
        inputs = np.full(rows, float(product.inputs))
        outputs = np.full(rows, float(product.outputs))
        shapes += [(seen, outputs, inputs), (seen, inputs, outputs)]
        if full:
            shapes.append((outputs, inputs, seen))
    shares = iter(_gemm_of_all(efficiency, device, shapes))
    for product in products:
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
        if full:
            backward += flop / next(shares)
    adapters = 2.0 * flops.adapter_weights(model, method) / ADAPTER_EFFICIENCY * tokens
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

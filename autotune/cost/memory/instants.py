"""The instants at which memory can peak, in words, and what is alive at one, by part.

What each holds: `peak`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.frozen import dataclass

if TYPE_CHECKING:
    from autotune.cost.columns import FloatArray

PARTS = (
    "weights", "adapters", "gradients", "optimizer", "activations", "logits", "workspace",
)  # fmt: skip

# Every instant in words. Forward and backward pass the layers in opposite orders.
INSTANTS: dict[str, tuple[str, str]] = {
    "reference": ("forward", "the reference model's forward pass over both answers"),
    "layer forward": ("forward", "the forward pass of a decoder layer"),
    "adapted forward": ("forward", "the forward pass of the top layer, at DoRA's norm of a weight"),
    "mixer forward": ("forward", "the forward pass of the top layer, inside its Mamba mixer"),
    "head forward": ("forward", "the forward pass of the output head and the loss"),
    "head backward": ("backward", "the backward pass of the loss and its logits"),
    "head gradient": ("backward", "the gradient of the output head"),
    "final norm": ("backward", "the backward pass of the final norm"),
    "first layer": (
        "backward", "the backward pass of the top layer, with what all layers kept still there",
    ),
    "last layer": (
        "backward", "the backward pass of the bottom layer, with the gradients of all others there",
    ),
    "end of backward": ("backward", "the end of the backward pass"),
    "optimizer": ("optimizer", "the optimizer step"),
    "evaluation": ("evaluation", "an evaluation batch"),
    "metrics": ("evaluation", "joining the logits that an evaluation keeps for its metrics"),
    "saving": ("save", "a checkpoint save"),
    "loading": ("load", "loading, before the weights are sharded"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Instant:
    """[bytes] alive at one instant. Shapes [rows]."""

    weights: FloatArray
    adapters: FloatArray
    gradients: FloatArray
    optimizer: FloatArray
    activations: FloatArray
    logits: FloatArray
    workspace: FloatArray

    @property
    def total(self) -> FloatArray:
        """[bytes] sum of the parts."""
        total: FloatArray = np.sum([getattr(self, name) for name in PARTS], axis=0)
        return total


def larger(one: Instant, other: Instant) -> Instant:
    """Of two instants the one with more in each row."""
    first = one.total >= other.total
    return Instant(*(np.where(first, getattr(one, n), getattr(other, n)) for n in PARTS))

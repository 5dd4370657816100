"""Where memory peaks in one candidate: the instant, and the batch that is on the device then.

Covers: the formula's instants. Does not cover: ops inside an instant, which a trace names.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.columns import Component, Outputs, tabulate
from autotune.cost.memory.component import READS
from autotune.cost.memory.constants import memory_constants
from autotune.cost.memory.instants import instants
from autotune.cost.memory.step import Step

if TYPE_CHECKING:
    from autotune.cost.columns import Columns
    from autotune.cost.model import Bill
    from autotune.domain.answer.shortfall import Phase
    from autotune.domain.job import Job

# Every instant in words. Forward and backward pass the layers in opposite orders.
INSTANTS: dict[str, tuple[Phase, str]] = {
    "layer forward": ("forward", "the forward pass of a decoder layer"),
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
    "saving": ("save", "a checkpoint save"),
}  # fmt: skip
_ROWS, _EVALUATION_ROWS, _LENGTH = "micro rows", "evaluation rows", "length"


def peak_of(bill: Bill, index: int) -> tuple[str, int, int]:
    """(instant, rows of the batch on one device, tokens of each row) at the peak."""
    one = bill.candidates.take(np.asarray([index]))
    found = tabulate(Component("peak", READS, _totals), bill.job, one).outputs
    batch = {_ROWS, _EVALUATION_ROWS, _LENGTH}
    totals = {name: float(found[name][0]) for name in found.keys() - batch}
    instant = max(totals, key=lambda name: (totals[name], name))
    rows = found[_EVALUATION_ROWS if instant == "evaluation" else _ROWS][0]
    return instant, max(round(float(rows)), 1), round(float(found[_LENGTH][0]))


def _totals(job: Job, columns: Columns) -> Outputs:
    """[bytes] of every instant, and what its batch is made of."""
    step = Step.of(job, columns)
    own_code = math.exp(memory_constants().offset(job.software, job.model.family).log_factor)
    found: Outputs = {
        name: instant.total + (own_code - 1.0) * (instant.activations + instant.logits)
        for name, instant in instants(step).items()
    }
    found[_ROWS] = columns.number("micro_batch_size")
    found[_EVALUATION_ROWS] = step.evaluation_rows
    found[_LENGTH] = step.length
    return found

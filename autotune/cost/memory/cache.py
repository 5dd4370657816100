"""What torch's allocator holds beside what is in use: freed blocks that later requests do not fit.

    reserved = allocated peak + sum over the terms of (its share x its bytes)

Terms (`Cache`): what is freed in a step and does not come back as what is asked for next: the
blocks of one layer, which are too short for logits; logits in 16 bits, which are too short for
those in 32, or the shifted copy that the backward cannot take; gradients and the optimizer's
temporaries; and, where rows differ in length, blocks that were outgrown. A batch longer than any
before it needs longer blocks for its logits; those of the shorter ones stay, and nothing but whole
segments of a full device is given back. So the sum of the lengths of all records before the
longest, over the longest, says how often the logits are held once more, but for those that lie in
a block of one size that every step makes anyway: a normalised head's. Grouping by length starts
with the longest batch.

Covers: segments of fixed size (the default), and Unsloth's, which grow: those keep about what is in
use. Does not cover: expandable segments of other programs; a trace replays those.
Source: PyTorch c10/cuda/CUDACachingAllocator.cpp, as `trace.allocator` simulates it. The shares'
priors (PRIORS): 57 replays of traced steps of Llama in full, LoRA and nf4, with and without
checkpoints, under three losses and three distributions of lengths; of layers and logits 96 more of
Llama 2 7B, Llama 3.2 3B, Qwen2.5 1.5B and 7B, with 32k to 152k words and 8k to 33k tokens. There
what is cached follows the terms within 15 % (LoRA, nf4), and within a factor 1.6 where the loss
copies its logits or all weights are trained.
Renyi (1962), "Theorie des elements saillants d'une suite d'observations": how often the n-th of
independent draws is a record. transformers trainer_pt_utils.py, get_length_grouped_indices.
"""

from __future__ import annotations

import math
from dataclasses import fields
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost import deepspeed
from autotune.cost.batches import unchanging_lengths
from autotune.cost.columns import distinct
from autotune.cost.memory import logits as head_memory
from autotune.cost.memory.modelling_code import unsloths
from autotune.cost.memory.peak import BETWEEN_BATCHES
from autotune.domain.units import MIB
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.cost.columns import Columns, FloatArray
    from autotune.cost.memory.instants import Instant
    from autotune.cost.memory.step import Step
    from autotune.domain.job import Job, Lengths

# Batches between two emptyings of the cache, on average before the longest one: peft's comparison
# empties it every ten.
BEFORE_LONGEST = 5
FP32_BYTES = 4.0
BLOCK_STEP = 2.0 * MIB  # kRoundLarge of the allocator: blocks of logits grow by that
# Of the logarithm, beside the spread by order: 80 replays of steps like Llama's with 32k and 64k
# words, capped at 512 to 8,192 tokens, lie within 0.15 of a common share of what the records say,
# and that share is known within 0.2 (PRIORS): 0.25 together, against 0.6 for what else is cached.
OUTGROWN_OPEN = 0.4
REUSED = 0.6  # of what a batch makes beside its logits can lie in blocks that held logits
_CELL, _BEYOND = 0.02, 3.0  # of the logarithm of the share of longer batches


@dataclass(frozen=True, slots=True)
class Outgrown:
    """Sum of the records before the longest batch, over the longest: its mean and its spread."""

    mean: float
    sd: float


NOTHING_OUTGROWN = Outgrown(0.0, 0.0)


@lru_cache(maxsize=4096)
def outgrown(
    lengths: Lengths, rows: float, batches: float, covered: float = 0.0, grain: float = 1.0
) -> Outgrown:
    """Of batches whose length is the longest of `rows` rows drawn at random.

    covered: share of the longest batch's bytes that have a block of their own; of a record only
    what is above it counts. grain: [tokens] a block is rounded up to, so that a record within it
    needs no new one.

    Formula: the first draw of a length whose ranks lie in [a, b) is a record among n, and a longer
    one follows, with probability (b - a) (1 - a^n) / (1 - a) - (b^n - a^n).
    """
    if batches <= 1.0 or lengths.quantiles[0] == lengths.quantiles[-1]:
        return NOTHING_OUTGROWN
    shares = np.arange(0.0, np.log(batches) + _BEYOND, _CELL)
    rank = np.append(-np.expm1(-shares), 1.0)
    middle = (rank[1:] + rank[:-1]) / 2.0
    levels = np.linspace(0.0, 1.0, len(lengths.quantiles))
    length = np.interp(middle ** (1.0 / rows), levels, np.asarray(lengths.quantiles, np.float64))
    length, first = np.unique(np.floor(length / grain) * grain, return_index=True)
    lower, upper = rank[first], np.append(rank[first[1:]], 1.0)
    last = upper**batches - lower**batches
    record = (upper - lower) * (1.0 - lower**batches) / (1.0 - lower) - last
    longest = float(np.sum(length * last))
    if longest <= 0.0:  # every row is shorter than a grain: one block holds them all
        return NOTHING_OUTGROWN
    beyond = np.maximum(length - covered * longest, 0.0)
    mean = float(np.sum(beyond * record)) / longest
    variance = float(np.sum(beyond**2 * record * (1.0 - record)))
    return Outgrown(mean, math.sqrt(max(variance, 0.0)) / longest)


@dataclass(frozen=True, slots=True, eq=False)
class Cache:
    """[bytes] that a share of is held beside the peak. Shapes [rows]."""

    layers: FloatArray  # what one layer keeps
    logits: FloatArray  # those that no later request fits, unless outgrown blocks take them
    updates: FloatArray  # gradients and optimizer's temporaries that logits' blocks do not take in
    reduced: FloatArray  # the same of all blocks, where gradients are reduced on another stream
    gathered: FloatArray  # weights gathered from other devices, on a stream of their own
    outgrown_logits: FloatArray
    outgrown_layers: FloatArray

    def held(self, shares: Mapping[str, float]) -> FloatArray:
        """[bytes] beside the peak."""
        own = (shares[item.name] * getattr(self, item.name) for item in fields(self))
        found: FloatArray = np.sum(list(own), axis=0)
        return found

    def uncertain(self, shares: Mapping[str, float]) -> FloatArray:
        """[bytes] of those, outgrown logits as far as the order of lengths leaves them open."""
        logits = shares["outgrown_logits"] * self.outgrown_logits
        found: FloatArray = np.hypot(self.held(shares) - logits, OUTGROWN_OPEN * logits)
        return found


# Of the replays: (share, log sd of it). Those of several devices, which no trace covers, are hand
# estimates: one more of the root and two of the layers' units on their way.
PRIORS = {
    "layers": (0.7, 0.4),
    "logits": (1.0, 0.4),
    "updates": (1.0, 0.4),
    "reduced": (0.5, 0.7),
    "gathered": (1.0, 0.7),
    "outgrown_logits": (1.0, 0.2),
    "outgrown_layers": (0.05, 0.6),
}


def cache_terms(
    job: Job, columns: Columns, step: Step, instants: Mapping[str, Instant]
) -> tuple[Cache, FloatArray]:
    """What may be cached, and [bytes] how much more where one spread more of records falls."""
    within = [item for name, item in instants.items() if name not in BETWEEN_BATCHES]
    beside = [np.maximum(x.workspace - step.gathered_root, 0.0) for x in within]
    made = np.max(
        [x.activations + x.logits + own for x, own in zip(within, beside, strict=True)], axis=0
    )
    logits = np.max([x.logits for x in within], axis=0)
    resting = step.static.gradients * step.static.gradients_here + step.foreach
    ratio, _ = _outgrown(job, columns, np.zeros_like(logits))
    layers = np.maximum(made - logits, 0.0)
    several = np.where(step.static.weight_shards > 1, 1.0, 0.0)
    reduces = np.maximum(several, deepspeed.runs(columns))
    whole = np.maximum(np.minimum(logits, resting) - REUSED * layers, 0.0)
    beyond, spread = _outgrown(job, columns, _covered(step, logits))
    outgrown_logits = np.maximum(beyond * logits - REUSED * layers, 0.0)
    more = np.maximum((beyond + spread) * logits - REUSED * layers, 0.0) - outgrown_logits
    cache = Cache(
        layers=step.kept_layer,
        logits=np.maximum(1.0 - ratio, 0.0) * _unfit_logits(step),
        updates=(1.0 - reduces) * whole,
        reduced=reduces * np.minimum(made, resting),
        gathered=several * (step.gathered_root + step.gathered_layer),
        outgrown_logits=outgrown_logits,
        outgrown_layers=ratio * layers,
    )
    if grows_segments(job):
        nothing = np.zeros_like(logits)
        return Cache(**{item.name: nothing for item in fields(Cache)}), nothing
    return cache, more


# Source: unsloth __init__.py, PYTORCH_CUDA_ALLOC_CONF with expandable_segments:True (commit
# c599ae0f of 17 March 2024); since October 2025 in unsloth_zoo.
UNSLOTH_GROWS_FROM = "2024-04"


def grows_segments(job: Job) -> bool:
    """Whether the program sets its allocator to segments that grow."""
    software = job.software
    return unsloths(job) and software.as_of >= UNSLOTH_GROWS_FROM


def _unfit_logits(step: Step) -> FloatArray:
    """[bytes] of logits whose blocks no later request of the step fits.

    Those in 16 bits are given up when their fp32 copy is there, and are too short for what follows.
    Where the loss keeps them and shifts a copy, the gradient before the shift is one fp32 tensor
    more, which blocks of a layer can hold in part.
    """
    each = step.job.model.vocab_size * step.tokens
    loss = step.job.software.loss
    if loss == "upcast":
        return np.where(step.compute < FP32_BYTES, step.compute, 0.0) * each
    if loss == "upcast_copy":
        return np.maximum(FP32_BYTES * each - REUSED * step.kept_layer, 0.0)
    return np.zeros_like(step.tokens)


def _covered(step: Step, logits: FloatArray) -> FloatArray:
    """[rows] share of the logits that lie in the block in which a head normalises its weight."""
    _, block = head_memory.normalised_head(step.job, step.compute, step.autocast)
    share: FloatArray = np.minimum(np.divide(block, np.maximum(logits, 1.0)), 1.0)
    return share


def _outgrown(job: Job, columns: Columns, covered: FloatArray) -> tuple[FloatArray, FloatArray]:
    """[rows] mean and spread of the sum of records before the longest batch, over the longest."""
    still = unchanging_lengths(job, columns) | columns.equals("length_grouping", "on")
    still = still | (job.padding == "max_length") | np.full(columns.rows, job.steps == 0)
    micro = columns.sequences(job)
    batches = np.maximum(job.steps * columns.accumulation(job), 1.0)
    if job.software.empties_cache:
        batches = np.minimum(batches, BEFORE_LONGEST)
    a_row = BLOCK_STEP / (FP32_BYTES * job.model.vocab_size)
    varying = np.where(still, 0.0, micro), np.round(batches), np.round(covered, 2)
    kinds, own = distinct(list(zip(*(each.tolist() for each in varying), strict=True)))
    found = [
        outgrown(job.lengths, b, n, c, max(a_row / b, 1.0)) if b > 0.0 else NOTHING_OUTGROWN
        for b, n, c in kinds
    ]
    return np.asarray([x.mean for x in found])[own], np.asarray([x.sd for x in found])[own]

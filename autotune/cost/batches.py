"""What a batch looks like: rows, padded tokens and real tokens per micro-batch, and steps per run.

Covers: padding to the longest row of the micro-batch, padding to max_length, packing (rows joined
into full sequences), length grouping (rows of similar length together).
Does not cover: sequence bucketing by a custom sampler.

Legend: F^-1 quantile function of row lengths; b rows in a micro-batch.
"""

from __future__ import annotations

import math
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.config import SHARDED

if TYPE_CHECKING:
    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.domain.job import Evaluation, Job, Lengths

PACKING_FILL = 0.97  # share of a packed sequence that best-fit-decreasing packing fills
GROUP_SPREAD = 50  # transformers groups rows by length inside chunks of 50 batches


@lru_cache(maxsize=4096)
def expected_longest(lengths: Lengths, rows: float) -> float:
    """[tokens] mean length of the longest of `rows` rows drawn at random.

    Formula: E[max] = integral of F^-1(u) b u^(b-1) du over (0, 1), here exactly for a piecewise
    linear F^-1 (by parts: F^-1(1) - integral of u^b dF^-1(u)).
    Source: derived: order statistics.
    """
    quantile = np.asarray(lengths.quantiles, np.float64)
    u = np.linspace(0.0, 1.0, len(quantile))
    slope = np.diff(quantile) / np.diff(u)
    power = u ** (rows + 1.0)
    return float(quantile[-1] - np.sum(slope * np.diff(power)) / (rows + 1.0))


def padded_length(job: Job, columns: Columns) -> FloatArray:
    """[rows, tokens] mean sequence length of a micro-batch, padding included.

    Source: derived: order statistics; length grouping pads as if a batch were drawn from a slice
    of the sorted rows, so the waste falls by the number of batches in a grouping chunk.
    """
    packed = columns.equals("packing", "on")
    if job.padding == "max_length":
        length = np.full(columns.rows, float(job.max_length))
    else:
        length = columns.of_level(
            "micro_batch_size",
            lambda micro: expected_longest(job.lengths, float(micro) * job.work.sequences),
        )
        grouped = columns.equals("length_grouping", "on")
        waste = length - job.lengths.mean
        length = np.where(grouped, job.lengths.mean + waste / GROUP_SPREAD, length)
    return np.where(packed, float(job.max_length), length)


def unchanging_lengths(job: Job, columns: Columns) -> BoolArray:
    """[rows] whether every batch has the same shape: one length, or packing."""
    return job.one_length | columns.equals("packing", "on")


def distinct_lengths(job: Job, columns: Columns) -> FloatArray:
    """[rows] different padded lengths that a device's micro-batches have in the whole run.

    Formula: sum over lengths l of 1 - (1 - p_l)^n, p_l = F(l)^b - F(l - 1)^b, n micro-batches.
    Length grouping brings batches of every row's own length. Source: derived: order statistics.
    """
    steps = optimizer_steps(job, columns) * columns.number("gradient_accumulation_steps")
    changing = ~unchanging_lengths(job, columns) & (job.padding != "max_length") & (steps > 0)
    found = np.ones(columns.rows)
    if not changing.any():
        return found
    grouped = columns.equals("length_grouping", "on")
    drawn = np.where(grouped, 1.0, columns.sequences(job))
    pairs, back = np.unique(np.stack((drawn, steps))[:, changing], axis=1, return_inverse=True)
    each = [_distinct(job.lengths, float(rows), float(batches)) for rows, batches in pairs.T]
    found[changing] = np.asarray(each)[back.ravel()]
    return found


@lru_cache(maxsize=4096)
def _distinct(lengths: Lengths, rows: float, batches: float) -> float:
    """Different longest lengths among so many batches of so many rows."""
    quantile = np.asarray(lengths.quantiles, np.float64)
    whole = np.arange(math.floor(quantile[0]) - 1, math.ceil(quantile[-1]) + 1)
    below = np.interp(whole, quantile, np.linspace(0.0, 1.0, len(quantile)))
    each = np.diff(np.where(whole >= quantile[-1], 1.0, below) ** rows)
    return float(np.sum(-np.expm1(batches * np.log1p(-np.minimum(each, 1.0 - 1e-12)))))


def waited_length(job: Job, columns: Columns) -> FloatArray:
    """[rows] padded length in tokens of the micro-batch that the others wait for.

    FSDP and ZeRO meet in every layer, so the device with the longest rows sets the pace: the
    longest of micro x devices rows. DDP meets once an optimizer step: halfway between.
    Source: derived: order statistics.
    """
    own = padded_length(job, columns)
    count = columns.number("offer.count")
    waits = np.where(columns.equals("sharding", *SHARDED), 1.0, 0.0)
    waits = np.where(columns.equals("sharding", "ddp"), 0.5, waits) * (count > 1)
    waits = np.where(columns.equals("packing", "on"), 0.0, waits)
    if job.padding == "max_length" or not waits.any():
        return own
    waits = np.where(columns.equals("length_grouping", "on"), 0.0, waits)
    together, back = np.unique(columns.sequences(job) * count, return_inverse=True)
    longest = np.asarray([expected_longest(job.lengths, float(b)) for b in together])[back]
    waited: FloatArray = own + waits * np.maximum(longest - own, 0.0)
    return waited


def longest_length(job: Job, columns: Columns) -> FloatArray:
    """[rows, tokens] sequence length of the longest micro-batch of the run: it decides memory."""
    full = columns.equals("packing", "on") | (job.padding == "max_length")
    return np.where(full, float(job.max_length), float(job.lengths.maximum))


def real_tokens_per_row(job: Job, columns: Columns) -> FloatArray:
    """[rows] real tokens in one sequence of a batch (a packed sequence holds several rows)."""
    packed = columns.equals("packing", "on")
    return np.where(packed, job.max_length * PACKING_FILL, job.lengths.mean)


def evaluation_rows(plan: Evaluation, job: Job, columns: Columns) -> FloatArray:
    """[rows] sequences of one evaluation batch on one device."""
    stated = float(plan.batch_size)
    own = np.minimum(columns.number("micro_batch_size"), plan.at_most)
    return np.where(stated > 0, stated, own) * job.work.sequences


def kept_rows(plan: Evaluation, job: Job, columns: Columns) -> FloatArray:
    """[rows] whose logits wait on each device for the metrics; 0 where none do.

    Every device gathers those of all, until they leave it: after so many batches, or at the end.
    Where nobody knows how many rows there are: one batch.
    Source: transformers 5.23 trainer.py, evaluation_loop; its defaults keep them to the end.
    """
    batch = evaluation_rows(plan, job, columns) * np.maximum(columns.number("offer.count"), 1.0)
    known = np.maximum(float(plan.rows * job.work.sequences), batch)
    held = batch * plan.accumulation_steps if plan.accumulation_steps else known
    return np.minimum(held, known) * float(plan.keeps_logits)


def optimizer_steps(job: Job, columns: Columns) -> FloatArray:
    """[rows] optimizer steps of the run; packing needs fewer, because sequences hold more rows."""
    if job.steps == 0:
        return np.zeros(columns.rows)
    sequences = job.rows * job.lengths.mean / (job.max_length * PACKING_FILL)
    packed = math.ceil(job.epochs * math.ceil(max(sequences, 1.0) / job.global_batch_size))
    return np.where(columns.equals("packing", "on"), float(min(packed, job.steps)), job.steps)

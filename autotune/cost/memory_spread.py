"""How far predicted peaks of memory are from measured ones, by kind of configuration.

Covers: the allocated peak, the reserved one, and what a run needs at least.
Does not cover: traced peaks, whose spread the app narrows.

Each number is a standard deviation of log(predicted / measured) over published runs of that kind,
bias included, rounded up; `python -m bench.headroom` prints the runs behind it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.static_memory import QUANTISED

if TYPE_CHECKING:
    from autotune.cost.columns import Columns, FloatArray
    from autotune.domain.job import Job

PLAIN, SHARDED, FUSED, LAYERNORM_QUANTISED, MIXTURE = 0.008, 0.009, 0.016, 0.024, 0.033
OWN_MODEL = 0.21  # litgpt's model code, predicted as the class of transformers
# Priors, from how far formula and trace are apart: families and modes that no published run shows.
SEEN = frozenset({"llama", "mistral", "mixtral", "gpt_bigcode", "granite"})
UNSEEN, INT8, COMPILED = 0.02, 0.06, 0.10
# Of what the allocator cannot give back, relative to the whole need. A simulated allocator that
# never gives anything back has 0.096 (7 % of allocated bytes at the median, 21 % at p90).
SLACK_LOG_SD = 0.06
RESERVED_LOG_SD, RESERVED_RAGGED_LOG_SD, RESERVED_EMPTIED_LOG_SD = 0.10, 0.18, 0.03


def uncertainty(job: Job, columns: Columns) -> FloatArray:
    """[rows] spread of the predicted allocated peak."""
    several = columns.number("offer.count") > 1
    spread = np.where(several & ~columns.equals("sharding", "none"), SHARDED, PLAIN)
    if job.software.kernels != "eager":
        spread = np.maximum(spread, FUSED)
    if job.model.is_moe:
        spread = np.maximum(spread, MIXTURE)
    if job.method.base in QUANTISED and job.model.norm == "layernorm":
        spread = np.maximum(spread, LAYERNORM_QUANTISED)
    if job.method.base == "int8":
        spread = np.maximum(spread, INT8)
    if job.model.family not in SEEN:
        spread = np.maximum(spread, UNSEEN)
    if job.software.own_model:
        spread = np.maximum(spread, OWN_MODEL)
    whole = columns.equals("activation_checkpointing", "none")
    spread = np.where(whole, np.maximum(spread, UNSEEN), spread)
    return np.where(columns.equals("compile", "off"), spread, np.maximum(spread, COMPILED))


def reserved_spread(job: Job, columns: Columns) -> FloatArray:
    """[rows] spread of what the allocator caches, relative to the reserved peak."""
    if job.software.empties_cache:
        return np.full(columns.rows, RESERVED_EMPTIED_LOG_SD)
    lengths = job.lengths.quantiles
    if job.padding != "longest" or lengths[0] == lengths[-1]:
        return np.full(columns.rows, RESERVED_LOG_SD)
    return np.where(columns.equals("packing", "on"), RESERVED_LOG_SD, RESERVED_RAGGED_LOG_SD)

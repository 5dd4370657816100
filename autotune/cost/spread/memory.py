"""How far predicted peaks of memory are from measured ones, by kind of configuration.

Covers: the allocated peak, the reserved one, and what a run needs at least.
Does not cover: traced peaks, whose spread the app narrows.

Sizes: `calibration.toml`, where published runs show the kind; assumptions with their reason below
where none does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.memory import device as device_memory
from autotune.cost.memory.states import QUANTISED

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.cost.columns import Columns, FloatArray
    from autotune.cost.memory.constants import MemoryConstants
    from autotune.domain.job import Job

# Priors, from how far formula and trace are apart: families and modes that no published run shows.
SEEN = frozenset({"llama", "mistral", "mixtral", "gpt_bigcode", "granite"})
UNSEEN, INT8, DORA, COMPILED = 0.02, 0.06, 0.05, 0.10


def by_kind(job: Job, columns: Columns, sizes: Mapping[str, float]) -> FloatArray:
    """[rows] the size that belongs to the kind of every configuration."""
    whole = _kind_of_job(job)
    if whole is not None:
        return np.full(columns.rows, sizes[whole])
    several = columns.number("offer.count") > 1
    sharded = several & ~columns.equals("sharding", "none")
    rest = "quantised" if job.method.base in QUANTISED else "plain"
    return np.where(sharded, sizes["sharded"], sizes[rest])


def _kind_of_job(job: Job) -> str | None:
    if job.software.own_model:
        return "own_model"
    if job.model.is_moe:
        return "experts"
    return "fused" if job.software.kernels != "eager" else None


def uncertainty(
    job: Job, columns: Columns, live_share: FloatArray, model: MemoryConstants
) -> FloatArray:
    """[rows] spread of the predicted allocated peak.

    live_share: of activations and logits in it.
    """
    spread = by_kind(job, columns, model.spreads)
    if job.software.own_model:
        offset = model.offset(job.software, job.model.family)
        spread = live_share * np.hypot(spread, offset.log_sd)
    spread = np.maximum(spread, _unseen(job))
    whole = columns.equals("activation_checkpointing", "none")
    spread = np.where(whole, np.maximum(spread, UNSEEN), spread)
    return np.where(columns.equals("compile", "off"), spread, np.maximum(spread, COMPILED))


def _unseen(job: Job) -> float:
    if job.method.base == "int8":
        return INT8
    if job.method.is_dora:
        return DORA
    return 0.0 if job.model.family in SEEN else UNSEEN


def by_reserved_kind(job: Job, columns: Columns, sizes: Mapping[str, float]) -> FloatArray:
    """[rows] the size that belongs to how batches vary, which decides what the allocator caches."""
    if job.software.empties_cache:
        return np.full(columns.rows, sizes["emptied"])
    return np.where(device_memory.ragged(job, columns), sizes["ragged"], sizes["even"])

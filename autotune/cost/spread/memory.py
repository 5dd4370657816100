"""How far predicted peaks of memory may be off, and how sure a claim that a run fits may be.

    P(fits) = min(P(margin, spread), (n - failures + 1) / (n + 2))

P: `spread.fitting`. n: configurations with a known outcome that predictions without their group
called a fit. Kinds: what the allocator is expected to hold, its cache included, stays within usable
memory (roomy), or does not (crowded): such a run lives on segments being given back, and fewer of
them were seen.

Covers: the allocated peak, the reserved one, and what a run needs at least, by kind of
configuration. Does not cover: traced peaks, whose spread the app narrows; allocators whose segments
grow, which leave fewer pieces: no run with a known outcome tells them apart.

Sizes: `calibration.toml`, where published runs show the kind; assumptions with their reason below
where none does. Source of the bound: Laplace's rule of succession: the mean of a binomial share
under a flat prior; Gelman et al., "Bayesian Data Analysis" (2013), section 2.4.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from autotune.cost.batches import unchanging_lengths
from autotune.cost.constants import CROWDED, ROOMY
from autotune.cost.spread.fitting import HOPELESS
from autotune.cost.spread.uncertainty import is_new_program
from autotune.domain.config import SHARDED
from autotune.domain.outcome import SAME

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.cost.columns import BoolArray, Columns, FloatArray
    from autotune.cost.constants import Claims, MemoryConstants
    from autotune.domain.job import Job

# Priors, from how far formula and trace are apart: families and modes that no published run shows.
SEEN = frozenset({"llama", "mistral", "mixtral", "gpt_bigcode", "granite"})
UNSEEN, INT8, DORA, COMPILED = 0.02, 0.06, 0.05, 0.10
# Of what is live in a compiled model of transformers: what torch's partitioner keeps is derived,
# and no pair of runs is of the Trainer. An assumption: of four published peaks one was as predicted
# within 2 %, one a third less, two a tenth and a fifth more.
COMPILED_LIVE = 0.25
# Between sources, beside the kind's own: nearly all readings of the classes of transformers are one
# source's, which says nothing of how far another's release, dtype or padding lies from what its
# row tells. An assumption, three times that source's own spread.
BETWEEN = 0.03
# A reading of reserved memory or of the driver, beside that and the cache: it also holds what came
# before and between the steps (loading, evaluation, a desktop). Fifteen sources outside the record
# are 0.16 off at the mean square, of which 0.14 nothing else explains (docs/accuracy.md). No run
# needs it, so it is no part of P(fits).
READING = 0.14
# A loop of one's own around the classes of transformers: whether it keeps a copy of the logits,
# fp32 masters or gradients between steps is not known. An assumption: of published figures of such
# programs half were within 7 % and nine in ten within 23 % (docs/accuracy.md).
OTHER_LOOP = 0.10
# Of Unsloth's logits: 2 to 14 bytes of each, by what torch fuses, where 6 are counted; saved
# notebooks do not say which of its losses they ran.
UNSLOTHS_LOSS = 0.5


def by_kind(job: Job, columns: Columns, sizes: Mapping[str, float]) -> FloatArray:
    """[rows] the size that belongs to the kind of every configuration."""
    whole = _kind_of_job(job)
    if whole is not None:
        return np.full(columns.rows, sizes[whole])
    several = columns.number("offer.count") > 1
    sharded = several & ~columns.equals("sharding", "none")
    rest = "quantised" if job.method.is_quantised else "plain"
    return np.where(sharded, sizes["sharded"], sizes[rest])


def _kind_of_job(job: Job) -> str | None:
    if job.software.own_model:
        return "own_model"
    if job.model.is_moe:
        return "experts"
    return "fused" if job.software.kernels != "eager" else None


def uncertainty(
    job: Job,
    columns: Columns,
    live_share: FloatArray,
    unsloths_share: FloatArray,
    model: MemoryConstants,
) -> FloatArray:
    """[rows] spread of the predicted allocated peak.

    live_share: of activations and logits in it; unsloths_share: of logits alone, under Unsloth.
    """
    spread = by_kind(job, columns, model.spreads)
    if job.software.own_model:
        offset = model.offset(job.software, job.model.family)
        spread = live_share * np.hypot(spread, offset.log_sd)
    spread = np.maximum(spread, _unseen(job))
    whole = columns.equals("activation_checkpointing", "none")
    spread = np.where(whole, np.maximum(spread, UNSEEN), spread)
    live = 0.0 if job.software.own_model else COMPILED_LIVE
    compiled = np.maximum(spread, np.maximum(COMPILED, live * live_share))
    spread = np.where(columns.equals("compile", "off"), spread, compiled)
    unpriced = np.hypot(job.uncounted_sd[1], job.work.memory_sd)
    unpriced = np.hypot(unpriced, UNSLOTHS_LOSS * unsloths_share)
    return np.hypot(np.hypot(spread, _between(job, columns, model)), unpriced)


def _between(job: Job, columns: Columns, model: MemoryConstants) -> FloatArray:
    """[rows] spread between sources: of the classes of transformers, and of loops around them."""
    if job.software.own_model:
        return np.full(columns.rows, BETWEEN)
    one = math.hypot(BETWEEN, OTHER_LOOP) if is_new_program(job) else BETWEEN
    shared = (columns.number("offer.count") > 1) & columns.equals("sharding", *SHARDED)
    return np.where(shared, max(one, model.between_shards), one)


def _unseen(job: Job) -> float:
    if job.method.base == "int8":
        return INT8
    if job.method.is_dora:
        return DORA
    return 0.0 if job.model.family in SEEN else UNSEEN


def by_reserved_kind(job: Job, columns: Columns, sizes: Mapping[str, float]) -> FloatArray:
    """[rows] the number that belongs to how batches vary, which decides what is cached."""
    if job.software.empties_cache:
        return np.full(columns.rows, sizes["emptied"])
    return np.where(unchanging_lengths(job, columns), sizes["even"], sizes["ragged"])


def is_certain_oom(
    needed_bytes: FloatArray, capacity_bytes: FloatArray, probability: FloatArray
) -> BoolArray:
    """[n] whether a run fails for sure: it needs more than there is, and no spread makes up for it.

    needed: allocated at the peak, with the context.
    """
    certain: BoolArray = (needed_bytes > capacity_bytes) & (probability < HOPELESS)
    return certain


def is_crowded(held_bytes: FloatArray, usable_bytes: FloatArray) -> BoolArray:
    """[n] whether what the allocator is expected to hold, context included, leaves nothing."""
    crowded: BoolArray = held_bytes >= usable_bytes * (1.0 - SAME)
    return crowded


def surest(*, crowded: bool, claims: Mapping[str, Claims]) -> float:
    """The highest probability that a claim of the kind may have."""
    kind = CROWDED if crowded else ROOMY
    return claims[kind].bears if claims else 1.0


def borne(probability: FloatArray, crowded: BoolArray, claims: Mapping[str, Claims]) -> FloatArray:
    """[n] the probability, no surer than tested claims of its kind; without any: as it is."""
    most = np.where(crowded, surest(crowded=True, claims=claims),
                    surest(crowded=False, claims=claims))  # fmt: skip
    return np.minimum(probability, most)

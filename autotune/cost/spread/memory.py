"""How far predicted peaks of memory may be off, and how sure a claim that a run fits may be.

    P(fits) = min(P(margin, spread), (n - failures + 1) / (n + 2))

P: `spread.fitting`. n: configurations with a known outcome that predictions without their group
called a fit. Kinds: what the allocator is expected to hold, its cache included, stays within usable
memory (roomy), or does not (crowded): such a run lives on segments being given back, and fewer of
them were seen.

What nobody stated of a run (`spread.unsaid`) is priced under every combination of the values that
it may have. P(fits) is the mean over them, and the interval reaches from where a tenth of the
mixture lies below to where a tenth lies above:

    P(fits) = sum of w_i P_i, F(x) = sum of w_i Phi((log x - log m_i) / s_i)

w: probabilities of the combinations, m: bytes, s: spread of each. Facts that are no knobs
(versions, adapted modules, weights in fp32) add bytes to each combination, as much as each adds
alone.

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
from autotune.cost.spread.fitting import HOPELESS, chance_of_fitting, normal_cdf
from autotune.cost.spread.uncertainty import is_new_program
from autotune.cost.spread.unsaid import OF_MEMORY, OF_THE_JOB, combinations, other_jobs
from autotune.domain.config import SHARDED
from autotune.domain.outcome import SAME, Z90
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.cost.columns import BoolArray, Columns, FloatArray, Outputs
    from autotune.cost.constants import Claims, MemoryConstants
    from autotune.domain.config import KnobValue
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
LEAST_LOG_SD = 1e-6  # keeps a certain verdict finite


def by_kind(job: Job, columns: Columns, sizes: Mapping[str, float]) -> FloatArray:
    """[rows] the size that belongs to the kind of every configuration."""
    whole = _kind_of_job(job)
    if whole is not None:
        return np.full(columns.rows, sizes[whole])
    sharded = columns.several & ~columns.equals("sharding", "none")
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
    shared = columns.shared_by(*SHARDED)
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


@dataclass(frozen=True, slots=True, eq=False)
class Mixture:
    """What a run needs by what nobody said of it. Arrays: [combinations, rows], as listed first.

    values: by fact what each combination has of it; None as it is listed.
    """

    values: dict[str, tuple[KnobValue | None, ...]]
    weights: FloatArray
    fits: FloatArray
    total: FloatArray  # bytes that the run needs
    log_allocated: FloatArray
    log_reserved: FloatArray
    log_sd: FloatArray
    reserved_log_sd: FloatArray

    def chance(self, chosen: Sequence[int] | None = None) -> FloatArray:
        """[rows] P(fits) over all combinations, or over the chosen ones.

        Between the least and the most of them: of equal ones it is that one, to the last bit.
        """
        at = slice(None) if chosen is None else list(chosen)
        each, weights = self.fits[at], self.weights[at]
        found: FloatArray = np.average(each, axis=0, weights=weights)
        weighed = weights > 0.0
        least = np.where(weighed, each, np.inf).min(axis=0)
        return np.clip(found, least, np.where(weighed, each, -np.inf).max(axis=0))

    def unlisted(self, at: int, *, but: str) -> int:
        """In how many facts but one a combination is not as listed."""
        return sum(own[at] is not None for fact, own in self.values.items() if fact != but)

    def sides(self) -> dict[str, FloatArray]:
        """[rows] of the interval: its ends as standard deviations from the settings as listed."""
        found: dict[str, FloatArray] = {}
        for name, middle, spread in (
            ("", self.log_allocated, self.log_sd),
            ("reserved_", self.log_reserved, self.reserved_log_sd),
        ):
            ends = (_quantile(self.weights, middle, spread, at) for at in (0.1, 0.9))
            low, high = (np.abs(end - middle[0]) for end in ends)
            found |= {f"{name}less_sd": low / Z90, f"{name}more_sd": high / Z90}
        return found


def _quantile(weights: FloatArray, middle: FloatArray, sd: FloatArray, at: float) -> FloatArray:
    """[rows] where so much of a mixture of normals lies below."""
    low, high = (middle - 4.0 * sd).min(axis=0), (middle + 4.0 * sd).max(axis=0)
    for _ in range(HALVINGS):
        centre = (low + high) / 2.0
        below = np.sum(weights * normal_cdf((centre - middle) / sd), axis=0) < at
        low, high = np.where(below, centre, low), np.where(below, high, centre)
    found: FloatArray = (low + high) / 2.0
    return found


HALVINGS = 30
SIDES = ("less_sd", "more_sd", "reserved_less_sd", "reserved_more_sd")  # of the interval
_last: list[tuple[tuple[object, ...], Mixture]] = []  # of the call before, at most one


def mixture(job: Job, columns: Columns, price: Callable[[Job, Columns], Outputs]) -> Mixture:
    """Under every combination of what nobody said. price: the settings as listed.

    P(fits) and what explains it are asked for one after the other: priced once.
    """
    asked = (job, price, columns.signature())
    if _last and _last[0][0] == asked:
        return _last[0][1]
    _last[:] = [(asked, _mixture(job, columns, price))]
    return _last[0][1]


def _mixture(job: Job, columns: Columns, price: Callable[[Job, Columns], Outputs]) -> Mixture:
    knobs = combinations(job, columns)
    shape = knobs.weights.shape
    found = {name: own.reshape(shape) for name, own in price(job, knobs.columns).items()}
    values, weights = dict(knobs.values), knobs.weights
    more = np.zeros((1, *shape))  # [values of the facts that are no knobs, combinations, rows]
    shares = np.ones((1, *shape))
    labels: list[dict[str, KnobValue | None]] = [{}]
    for fact in (name for name in OF_THE_JOB if name in job.unsaid):
        others = other_jobs(fact, job, knobs.columns)
        if not others:
            continue
        of_each = [np.ones(shape), *(own.weight.reshape(shape) for own in others)]
        bytes_of = [np.zeros(shape)] + [
            price(own.job, own.columns)["total"].reshape(shape) - found["total"] for own in others
        ]
        all_of = np.sum(of_each, axis=0)
        more = np.concatenate([more + own for own in bytes_of])
        shares = np.concatenate([shares * own / all_of for own in of_each])
        names = (None, *(own.value for own in others))
        labels = [{**own, fact: name} for name in names for own in labels]
    size = (len(labels) * shape[0], shape[1])
    for fact in labels[0]:
        values[fact] = tuple(own[fact] for own in labels for _ in range(shape[0]))
    values |= {fact: own * len(labels) for fact, own in knobs.values.items()}
    each = {name: np.broadcast_to(own, more.shape).reshape(size) for name, own in found.items()}
    more, weights = more.reshape(size), (shares * weights).reshape(size)
    return Mixture(
        values=values, weights=weights,
        fits=np.where(more == 0.0, each["fits_probability"], _shifted_chance(each, more)),
        total=each["total"] + more,
        log_allocated=np.log(np.maximum(each["allocated"] + more, 1.0)),
        log_reserved=np.log(np.maximum(each["reserved"] + more, 1.0)),
        log_sd=np.maximum(each["log_sd"], LEAST_LOG_SD),
        reserved_log_sd=np.maximum(each["reserved_log_sd"], LEAST_LOG_SD),
    )  # fmt: skip


def _shifted_chance(each: Outputs, more: FloatArray) -> FloatArray:
    """[n] P(fits) of runs that need so many bytes more than was priced."""
    spread = np.maximum(np.hypot(each["log_sd"], each["slack_log_sd"]), LEAST_LOG_SD)
    margin = np.log(each["capacity"] / np.maximum(each["total"] + more, 1.0))
    return np.minimum(chance_of_fitting(margin, spread), each["surest"])


def with_open_facts(
    price: Callable[[Job, Columns], Outputs],
) -> Callable[[Job, Columns], Outputs]:
    """The component of memory with P(fits) and its interval over what nobody said of the run."""

    def priced(job: Job, columns: Columns) -> Outputs:
        return opened(price(job, columns), job, columns, price)

    return priced


def opened(
    found: Outputs, job: Job, columns: Columns, price: Callable[[Job, Columns], Outputs]
) -> Outputs:
    """What was priced as listed, over what nobody said: P(fits), and both sides of the interval."""
    listed = found["fits_probability"]
    if not any(fact in OF_MEMORY for fact in job.unsaid):
        own, held = found["log_sd"], found["reserved_log_sd"]
        sides = {"less_sd": own, "more_sd": own}
        sides |= {"reserved_less_sd": held, "reserved_more_sd": held}
        return {**found, **sides, "fits_as_listed": listed}
    open_ = mixture(job, columns, price)
    fits = open_.chance()
    certain = is_certain_oom(found["allocated"] + found["context"], found["capacity"], fits)
    changed = {"fits_probability": fits, "certain_oom": certain.astype(np.float64)}
    return {**found, **open_.sides(), **changed, "fits_as_listed": listed}

"""What measured peaks and runs that failed teach of memory: slack, own model code, spreads.

    log(measured) = log(formula, live bytes x exp(stack + family)) + error
    P(runs)       = Phi(log(capacity / (allocated + context + slack x moving)) / spread)

live: activations and logits; moving: what comes and goes in a step. The bytes come from the
function that prices candidates, with no offset and no slack, so what is fitted is what is used. A
run that finished and one that ran out of memory are censored readings of the same sum. Only
trainers with model code of their own have offsets: the others run the classes that the formula
describes.

Slack is learned from sources that report both outcomes: a table of runs that finished says nothing
of how often such runs fail. Of a trainer with own model code, that its runs finished is used too,
and bounds how much more than the formula they can have taken. Spreads that only left-out groups
show: `memory_left_out`.

Source: derived (a probit of the margin); `least_squares` for the method; Gelman & Hill, "Data
Analysis Using Regression" (2007), chapters 6.4 and 12, for censoring by probit and for shrinkage.
"""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.cost.columns import Component, tabulate
from autotune.cost.constants import (
    FAMILY_SD,
    KINDS,
    STACK_SD,
    UNKNOWN_CODE,
    MemoryConstants,
    Offset,
    Slack,
)
from autotune.cost.memory import component as memory
from autotune.cost.memory.cache import PRIORS
from autotune.domain.candidates import by_job
from autotune.evidence.cases import (
    SMALLEST,
    both_outcomes,
    covering_spread,
    equal_weights,
    left_out_key,
)
from autotune.evidence.fit.least_squares import Effects, minimise
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.cost.columns import Columns, FloatArray, Outputs, Table
    from autotune.domain.job import Job
    from autotune.evidence.cases import MeasuredCase


NEUTRAL = MemoryConstants(
    Slack(0.0, 0.0, 0.0),
    {},
    dict.fromkeys(KINDS, 0.0),
    dict.fromkeys(PRIORS, 0.0),
    0.0,
    between_shards=0.0,  # slack is learned from both outcomes of one and the same source
)


@dataclass(frozen=True, slots=True, eq=False)
class MemoryRows:
    """The formula's bytes and features of measured runs. Arrays: [n]."""

    cases: tuple[MeasuredCase, ...]
    allocated: FloatArray  # the formula's peak, own model code as the class of transformers
    live: FloatArray  # activations and logits in it
    moving: FloatArray  # what comes and goes in a step
    context: FloatArray
    capacity: FloatArray
    kind: FloatArray  # index into KINDS
    cache: FloatArray  # [n, terms] what may be cached beside the peak, by the terms of PRIORS
    unseen_sd: FloatArray  # spread that no measured run of the kind shows

    def __len__(self) -> int:
        return len(self.cases)

    def take(self, which: Any) -> MemoryRows:  # noqa: ANN401 - a mask or indices
        """The chosen rows."""
        chosen = np.arange(len(self))[which]
        arrays = {f.name: getattr(self, f.name)[chosen] for f in fields(self) if f.name != "cases"}
        return replace(self, cases=tuple(self.cases[i] for i in chosen), **arrays)


def memory_rows(cases: Sequence[MeasuredCase]) -> MemoryRows:
    """The rows of the cases, cases of one job priced together."""
    component = Component("memory", memory.READS, _features)
    names = [f.name for f in fields(MemoryRows) if f.name not in {"cases", "cache"}]
    arrays = {name: np.empty(len(cases)) for name in names}
    cache = np.empty((len(cases), len(PRIORS)))
    for at, table in tables_of(cases, component):
        for name in names:
            arrays[name][at] = table.gather(name)
        cache[at] = np.stack([table.gather(f"cache {term}") for term in PRIORS], axis=1)
    return MemoryRows(tuple(cases), cache=cache, **arrays)


def tables_of(
    cases: Sequence[MeasuredCase], component: Component
) -> Iterator[tuple[list[int], Table]]:
    """(places, table) of the cases of every job."""
    for places, candidates in by_job(cases):
        yield places, tabulate(component, cases[places[0]].job, candidates)


def _features(job: Job, columns: Columns) -> Outputs:
    model = replace(NEUTRAL, offsets={job.software.stack: replace(UNKNOWN_CODE, log_sd=0.0)})
    peak = memory.DevicePeak.of(job, columns, model)
    found, cache = memory.price_memory(job, columns, model, peak), peak.cache
    resident = found["weights"] + found["adapters"] + found["optimizer"]
    return {
        "allocated": found["allocated"],
        "live": found["activations"] + found["logits"],
        "moving": found["allocated"] - resident,
        "context": found["context"],
        "capacity": found["capacity"],
        "kind": found["kind"],
        **{f"cache {term}": getattr(cache, term) for term in PRIORS},
        "unseen_sd": found["log_sd"],
    }


# Traced steps of Llama and Mistral, replayed through the simulated allocator on smaller and smaller
# cards, need 0.10 of what comes and goes at the median, and 0.02 to 0.35.
SLACK_PRIOR, SLACK_PRIOR_SD = 0.10, 0.7
SEVERAL_PRIOR = 0.20  # a hand estimate: streams that gather and reduce keep pieces of their own
SLACK_SD_PRIOR, SLACK_SD_PRIOR_SD = 0.05, 0.5
WITHIN_SD = 0.10  # of live bytes, runs of one family and trainer around their offset
READING_SD = 0.01  # of an allocated reading beyond that
FORMULA_SD = 0.03  # of an allocated reading where nobody has one: formula against traces
GLOBAL_WORTH = 1.0  # [groups] how much the spread of all kinds weighs in that of one
EXPERTS_WIDER = 2.0  # prior of mixtures: routing decides how many tokens an expert holds
# Where the tensors alone are said to take more than was held, the formula describes another
# run (lengths that nobody stated), and the reading says nothing of a cache.
OTHER_TENSORS = 1.02
CACHE_SD = 0.10  # of what the allocator holds, groups of runs around the terms of the cache
# Of the log of what is cached beside the peak: 96 replays of traced steps lie within 0.46 (rms) of
# the terms, and replays within some 3 % of what cards held, of which a tenth was cached.
CACHED_PRIOR = 0.6
FULL_CARD = 0.97  # of the capacity: what a fuller card caches is cut off by the card
_FIRST = 3  # parameters before the offsets: both slacks and their spread


@dataclass(frozen=True, slots=True, eq=False)
class MemoryFit:
    """Fitted constants, and how many runs with a known outcome teach slack."""

    constants: MemoryConstants
    outcomes: int
    failures: int  # of them, runs that ran out of memory


def measured(rows: MemoryRows) -> FloatArray:
    """[n, bytes] allocated peaks that torch read; NaN where it did not."""
    read = [case.peak_bytes("allocated") for case in rows.cases]
    return np.asarray([math.nan if value is None else value for value in read])


def fit_memory(rows: MemoryRows) -> MemoryFit:
    """The constants on the given rows; own code's and reserved spreads keep their prior."""
    spreads = _spreads(rows)
    informative = rows.take(_informative(rows))
    problem = _Problem.of(informative, spreads)
    found = minimise(Effects(problem.residuals, problem.design, _FIRST), *problem.prior())
    constants = MemoryConstants(
        slack=_slack(found.x),
        offsets=problem.offsets(found.x, found.covariance),
        spreads=spreads,
        cached=_cached(rows),
        cached_sd=CACHED_PRIOR,
    )
    teaching = both_outcomes(rows.cases)
    failures = sum(c.oom and c.group[0] in teaching for c in rows.cases)
    outcomes = sum(c.group[0] in teaching for c in rows.cases)
    return MemoryFit(constants, outcomes, failures)


def _slack(x: FloatArray) -> Slack:
    one, several, sd = np.exp(x[:_FIRST])
    return Slack(float(one), float(several), float(sd))


def _own_code(case: MeasuredCase) -> bool:
    return case.job.software.own_model


def _informative(rows: MemoryRows) -> FloatArray:
    teaching = both_outcomes(rows.cases)
    return np.asarray([_own_code(c) or c.group[0] in teaching for c in rows.cases], np.bool_)


def _spreads(rows: MemoryRows) -> dict[str, float]:
    """Of kinds that run the classes of transformers: half-widths that hold 80 % of their readings.

    Shrunk: the spread of all kinds together counts as `GLOBAL_WORTH` groups of each kind.
    """
    read = measured(rows)
    code = np.asarray([_own_code(case) for case in rows.cases], np.bool_)
    use = np.isfinite(read) & ~code
    error = np.abs(np.log(rows.allocated[use] / read[use]))
    if not use.any():
        found = {k: FORMULA_SD * (EXPERTS_WIDER if k == "experts" else 1.0) for k in KINDS}
        return found | {"own_model": WITHIN_SD}
    own = rows.take(use)
    groups = [left_out_key(case) for case in own.cases]
    everything = max(covering_spread(error, equal_weights(groups)), SMALLEST)
    found = {k: everything * (EXPERTS_WIDER if k == "experts" else 1.0) for k in KINDS}
    for i, kind in enumerate(KINDS):
        of_kind = own.kind == i
        if of_kind.any():
            names = [g for g, yes in zip(groups, of_kind, strict=True) if yes]
            size = max(covering_spread(error[of_kind], equal_weights(names)), SMALLEST)
            worth = float(len(set(names)))
            found[kind] = math.exp(
                (worth * math.log(size) + GLOBAL_WORTH * math.log(found[kind]))
                / (worth + GLOBAL_WORTH)
            )
    found["own_model"] = WITHIN_SD
    return found


def _cached(rows: MemoryRows) -> dict[str, float]:
    """The share of every term that is cached beside the peak; groups count the same."""
    names = list(PRIORS)
    mean, sd = (np.asarray([PRIORS[name][i] for name in names]) for i in range(2))
    mean = np.log(mean)
    read = measured(rows)
    held = np.asarray([_held(case, rows.context[i]) for i, case in enumerate(rows.cases)])
    use = np.isfinite(held) & (held < FULL_CARD * (rows.capacity - rows.context))
    in_use = np.where(np.isfinite(read), read, rows.allocated)
    use &= in_use < OTHER_TENSORS * held
    in_use = in_use[use]
    if use.any():
        groups = [left_out_key(case) for case in rows.take(use).cases]
        weight = np.sqrt(equal_weights(groups)) / CACHE_SD
        room = np.maximum((rows.capacity - rows.context)[use], in_use)

        def residuals(x: FloatArray) -> FloatArray:
            predicted = np.minimum(in_use + rows.cache[use] @ np.exp(x), room)
            own: FloatArray = weight * np.log(predicted / held[use])
            return own

        mean = minimise(residuals, mean, sd).x
    return {name: float(value) for name, value in zip(names, np.exp(mean), strict=True)}


def _held(case: MeasuredCase, context: float) -> float:
    """[bytes] what the allocator held: its own peak, else the driver's reading less the context."""
    reserved, driver = case.peak_bytes("reserved"), case.peak_bytes("nvidia-smi")
    if reserved is not None:
        return reserved
    return math.nan if driver is None else driver - context


@dataclass(frozen=True, slots=True, eq=False)
class _Problem:
    """Readings and outcomes as residuals of slack and offsets. Arrays: [n]."""

    rows: MemoryRows
    read: FloatArray
    failed: FloatArray
    several: FloatArray
    own: FloatArray
    spread: FloatArray  # of the formula, where the run uses the classes of transformers
    weight: FloatArray
    levels: tuple[str, ...]
    design: FloatArray  # [n, levels]

    @classmethod
    def of(cls, rows: MemoryRows, spreads: dict[str, float]) -> _Problem:
        names = [_levels(case) for case in rows.cases]
        levels = tuple(sorted({level for own in names for level in own}))
        design = np.asarray([[float(level in own) for level in levels] for own in names])
        sizes = np.asarray([spreads[kind] for kind in KINDS])
        return cls(
            rows=rows,
            read=measured(rows),
            failed=np.asarray([c.oom for c in rows.cases], np.bool_),
            several=np.asarray([c.offer.count > 1 for c in rows.cases], np.bool_),
            own=np.asarray([_own_code(c) for c in rows.cases], np.bool_),
            spread=np.maximum(sizes[rows.kind.astype(int)], rows.unseen_sd),
            weight=_weights(rows),
            levels=levels,
            design=design.reshape(len(rows), len(levels)),
        )

    def prior(self) -> tuple[FloatArray, FloatArray]:
        """(mean, sd) of the parameters."""
        sds = [STACK_SD if " " not in level else FAMILY_SD for level in self.levels]
        mean = [math.log(x) for x in (SLACK_PRIOR, SEVERAL_PRIOR, SLACK_SD_PRIOR)]
        mean += [0.0] * len(sds)
        return np.asarray(mean), np.asarray([SLACK_PRIOR_SD] * 2 + [SLACK_SD_PRIOR_SD, *sds])

    def residuals(self, x: FloatArray, offset: FloatArray) -> FloatArray:
        """[2 n] readings, and deviances of the outcomes. x: slacks; offset: [n] of every run."""
        rows = self.rows
        grown = rows.live * np.expm1(offset)
        predicted = rows.allocated + grown
        within = WITHIN_SD * rows.live / predicted
        reading = np.log(predicted / self.read) / np.hypot(within, READING_SD)
        reading = np.where(np.isfinite(self.read) & self.own, reading, 0.0)
        known = np.isfinite(self.read)
        allocated = np.where(known, self.read, predicted)
        slack = np.where(self.several, math.exp(x[1]), math.exp(x[0]))
        moving = np.maximum(rows.moving + grown + allocated - predicted, 0.0)
        need = allocated + rows.context + slack * moving
        spread = np.where(known, 0.0, np.where(self.own, within, self.spread))
        margin = np.log(rows.capacity / need)
        z = margin / np.maximum(np.hypot(spread, math.exp(x[2]) * moving / need), SMALLEST)
        outcome = np.sqrt(-2.0 * log_cdf(np.where(self.failed, -z, z)))
        own: FloatArray = np.concatenate((self.weight * reading, self.weight * outcome))
        return own

    def offsets(self, x: FloatArray, covariance: FloatArray) -> dict[str, Offset]:
        """By stack, for families that nobody measured there, and by stack and family."""
        place = {level: _FIRST + i for i, level in enumerate(self.levels)}
        found = {}
        for level, i in place.items():
            stack = level.split(" ", maxsplit=1)[0]
            if stack == level:
                sd = math.hypot(math.sqrt(covariance[i, i]), FAMILY_SD)
                found[level] = Offset(float(x[i]), sd)
            else:
                j = place[stack]
                variance = covariance[i, i] + covariance[j, j] + 2.0 * covariance[i, j]
                found[level] = Offset(float(x[i] + x[j]), math.sqrt(variance))
        return found


def _levels(case: MeasuredCase) -> tuple[str, ...]:
    if not _own_code(case):
        return ()
    stack = case.job.software.stack
    return stack, f"{stack} {case.job.model.family}"


def _weights(rows: MemoryRows) -> FloatArray:
    """[n] weights under which runs of one group that take the same memory count once."""
    need = np.round(np.log(rows.allocated / rows.capacity), 2)
    keys = [
        (left_out_key(case), case.offer.count > 1, case.oom, float(own))
        for case, own in zip(rows.cases, need, strict=True)
    ]
    sizes = Counter(keys)
    return np.asarray([1.0 / math.sqrt(sizes[key]) for key in keys])


FAR = -4.0  # below, the series of the tail is the more exact of the two


def log_cdf(z: FloatArray) -> FloatArray:
    """Logarithm of the normal distribution function.

    Source: Abramowitz and Stegun 1964, formulas 7.1.26 near zero and 26.2.12 in the tail.
    """
    from autotune.cost.spread.fitting import normal_cdf

    near = np.log(np.minimum(normal_cdf(np.maximum(z, FAR)), 1.0 - 1e-12))
    far = np.minimum(z, FAR)
    inverse = 1.0 / far**2
    series = 1.0 - inverse * (1.0 - inverse * (3.0 - 15.0 * inverse))
    tail = -(far**2) / 2.0 - np.log(-far * math.sqrt(2.0 * math.pi)) + np.log(series)
    return np.where(z < FAR, tail, near)


def with_spreads(fit: MemoryFit, own_model: float, cached_sd: float) -> MemoryFit:
    """The fit with spreads that groups left out of it have shown."""
    constants = replace(
        fit.constants,
        spreads={**fit.constants.spreads, "own_model": own_model},
        cached_sd=cached_sd,
    )
    return replace(fit, constants=constants)

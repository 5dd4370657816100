"""What the product says of a run with a fact and without it, beside what was measured."""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.cost.columns import tabulate
from autotune.cost.memory.component import COMPONENT
from autotune.domain.candidates import by_job
from autotune.domain.outcome import Z90
from autotune.evidence.accuracy import OUTPUTS, Prediction, residuals, with_memory
from autotune.evidence.cases import (
    READ_AS,
    equal_weights,
    left_out_key,
    memory_cases,
    source_of,
    weighted_quantile,
)
from autotune.evidence.fit import refit
from autotune.evidence.fit.spreads import nested_spreads, predicted_by
from autotune.evidence.fit.time import fit, measured_steps
from autotune.frozen import dataclass
from bench.unsaid.hidden import EVERYTHING, FACTS, hidden

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.cost.columns import FloatArray
    from autotune.evidence.cases import MeasuredCase
    from autotune.evidence.fit.time import MeasuredSteps

SAME = 0.005  # [log] a step this near is the same step
SURE, HOPELESS = 0.9, 0.1  # P(fits) of runs that are said to fit, and of those that are not


@dataclass(frozen=True, slots=True)
class Cost:
    """What saying nothing of a fact costs; sources weigh the same. Ratios are hidden over stated.

    changed: share of the runs whose step moves. below, inside, above: where the measured step lies
    beside the 80 % interval of the hidden run; before: inside that of the stated one.
    """

    fact: str
    rows: int
    sources: int
    changed: float
    median: float
    p10: float
    p90: float
    log_sd: float  # root mean square of the log of the ratio
    before: float
    below: float
    inside: float
    above: float
    width: float  # median of p90 over p10 of the hidden run's interval
    width_before: float
    hidden_inside: float = math.nan  # of the hidden run, in the interval of the settings as listed


@dataclass(frozen=True, slots=True)
class Sure:
    """Verdicts with a fact hidden: rows that are said to fit with 0.9 and more, and what they did.

    First with the settings as listed, then over what is open. mean: of P(fits); fitted: the share.
    """

    fact: str
    rows: int
    fitted: float
    listed_sure: int
    listed_ran_out: int
    listed_mean: float
    sure: int
    ran_out: int
    mean: float
    hopeless: int  # said to fit with less than 0.1
    hopeless_fitted: int
    listed_hopeless: int
    listed_hopeless_fitted: int


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Runs of left-out sources, and what is said of them. Arrays: [n] of logs."""

    cases: tuple[MeasuredCase, ...]
    log_said: FloatArray
    fast_sd: FloatArray
    slow_sd: FloatArray
    measured: FloatArray
    listed_sd: FloatArray  # of the settings as listed, where a mixture stands for them


def said_of(steps: MeasuredSteps, model: Any, spreads: Any) -> Seen:  # noqa: ANN401 - a fit and its spreads
    """What the fit says of the runs, with the width that what they assume gives it."""
    rows = predicted_by(model, steps, source_of)
    return Seen(
        steps.cases, np.log(rows.predicted_s), rows.log_sd(spreads), rows.slow_log_sd(spreads),
        np.log(steps.seconds), rows.log_sd(spreads),
    )  # fmt: skip


EVERY = (*FACTS, EVERYTHING)


def judged(cases: Sequence[MeasuredCase], facts: Sequence[str] = EVERY) -> dict[str, Cost]:
    """Every fact's cost on the runs that teach, each as a fit without its source has it."""
    whole = refit.refit_cases(cases, digest="")
    steps = whole.steps
    nested = nested_spreads(whole.left_out, whole.left_out, whole.new)
    pairs: dict[str, list[tuple[Seen, Seen]]] = defaultdict(list)
    for source, spreads in nested.items():
        out = np.asarray([source_of(case) == source for case in steps.cases])
        model = fit(steps.take(~out), whole.fit)
        own = [case for case, mine in zip(steps.cases, out, strict=True) if mine]
        for fact in facts:
            both = [(case, less) for case in own if (less := hidden(case, fact)) is not None]
            if both:
                told, untold = zip(*both, strict=True)
                both_sides = (steps.of(told), measured_steps(untold))
                one, other = (said_of(side, model, spreads) for side in both_sides)
                pairs[fact].append((one, other))
    return {fact: _cost(fact, pairs[fact]) for fact in facts if pairs[fact]}


def judged_memory(cases: Sequence[MeasuredCase], facts: Sequence[str] = EVERY) -> dict[str, Cost]:
    """The same of the peak that each source reads.

    Bytes and widths are those of a fit without the source; what hiding the fact moves, which has
    next to nothing of a fit in it, is what the shipped one says.
    """
    rows = [case for case in memory_cases(cases) if case.teaches_memory and case.peak]
    unseen = refit.refit_memory(cases).left_out
    sources: dict[str, list[MeasuredCase]] = defaultdict(list)
    for case in rows:
        sources[case.group[0]].append(case)
    pairs: dict[str, list[tuple[Seen, Seen]]] = defaultdict(list)
    listed: dict[str, Seen] = {}  # what the shipped fit says of a run as it is, by its id
    for own in sources.values():
        for fact in facts:
            both = [(case, less) for case in own if (less := hidden(case, fact)) is not None]
            if both:
                told = _peaks([case for case, _ in both], unseen)
                for case, _ in both:
                    if case.id not in listed:
                        listed[case.id] = _peaks([case], None)
                one = [listed[case.id] for case, _ in both]
                other = [_peaks([less], None) for _, less in both]
                pairs[fact].append((told, _hidden(told, one, other)))
    return {fact: _cost(fact, pairs[fact]) for fact in facts if pairs[fact]}


def _hidden(told: Seen, one: Sequence[Seen], other: Sequence[Seen]) -> Seen:
    """What is said without a fact: the left-out fit's, moved and widened as the shipped one is."""
    of = {name: np.asarray([getattr(x, name)[0] for x in other]) for name in MOVED}
    ratio = of["log_said"] - np.asarray([x.log_said[0] for x in one])
    wider = {
        name: np.sqrt(np.maximum(told.listed_sd**2 + of[name] ** 2 - of["listed_sd"] ** 2, 0.0))
        for name in ("fast_sd", "slow_sd")
    }
    return replace(told, log_said=told.log_said + ratio, **wider)


MOVED = ("log_said", "fast_sd", "slow_sd", "listed_sd")


def remembered(cases: Sequence[MeasuredCase]) -> dict[str, Prediction]:
    """What `predict` says of memory, without pricing the time."""
    found = {}
    for places, candidates in by_job(list(cases)):
        job = cases[places[0]].job
        table = tabulate(COMPONENT, job, candidates)
        values = {name: table.gather(name) for name in (*OUTPUTS, "usable", "fits_probability")}
        for i, place in enumerate(places):
            own = {name: float(each[i]) for name, each in values.items()}
            found[cases[place].id] = with_memory(Prediction(0.0, 0.0), own)
    return found


def _peaks(cases: Sequence[MeasuredCase], unseen: Mapping[str, Any] | None) -> Seen:
    """Peaks as the shipped model says them, or as a fit without the source does."""
    found = remembered(cases)
    if unseen is not None:
        found = {name: with_memory(own, unseen[name]) for name, own in found.items()}
    own = [x for x in residuals(cases, found) if x.observation is x.case.peak]
    less, more = (np.asarray(side) for side in zip(*(x.sides for x in own), strict=True))
    listed = np.asarray([found[x.case.id].listed_sd(READ_AS[x.kind]) for x in own])
    said, read = (np.log([getattr(x, name) for x in own]) for name in ("predicted", "actual"))
    return Seen(tuple(x.case for x in own), said, less, more, read, listed)


def judged_verdicts(cases: Sequence[MeasuredCase], facts: Sequence[str] = EVERY) -> list[Sure]:
    """P(fits) of the runs whose end is known, with each fact hidden."""
    rows = [case for case in memory_cases(cases) if case.teaches_memory]
    found = []
    for fact in facts:
        hid = [less for case in rows if (less := hidden(case, fact)) is not None]
        if not hid:
            continue
        out = np.asarray([case.oom for case in hid])
        of_each = remembered(hid)
        said = [of_each[case.id] for case in hid]
        over, listed = (
            np.asarray([getattr(x, name) for x in said])
            for name in ("fits_probability", "fits_as_listed")
        )
        found.append(
            Sure(
                fact, len(hid), float(np.mean(~out)),
                int(np.sum(listed >= SURE)), int(np.sum(out[listed >= SURE])),
                float(np.mean(listed)),
                int(np.sum(over >= SURE)), int(np.sum(out[over >= SURE])), float(np.mean(over)),
                int(np.sum(over < HOPELESS)), int(np.sum(~out[over < HOPELESS])),
                int(np.sum(listed < HOPELESS)), int(np.sum(~out[listed < HOPELESS])),
            )
        )  # fmt: skip
    return found


def _cost(fact: str, sources: Sequence[tuple[Seen, Seen]]) -> Cost:
    weights = np.concatenate([_weights(told.cases) for told, _ in sources])
    weights /= weights.sum()
    told, untold = (_joined([pair[side] for pair in sources]) for side in (0, 1))
    ratio = untold.log_said - told.log_said

    def mean(values: Any) -> float:  # noqa: ANN401 - an array of numbers or of truths
        return float(np.average(values, weights=weights))

    apart = untold.measured - untold.log_said
    below, above = apart < -Z90 * untold.fast_sd, apart > Z90 * untold.slow_sd
    before = told.measured - told.log_said
    known = (before >= -Z90 * told.fast_sd) & (before <= Z90 * told.slow_sd)
    return Cost(
        fact, len(weights), len(sources), mean(np.abs(ratio) > SAME),
        *(float(np.exp(weighted_quantile(ratio, weights, at))) for at in (0.5, 0.1, 0.9)),
        float(np.sqrt(mean(ratio**2))), mean(known),
        mean(below), mean(~(below | above)), mean(above),
        *(
            float(np.exp(weighted_quantile(Z90 * (own.fast_sd + own.slow_sd), weights, 0.5)))
            for own in (untold, told)
        ),
        mean(np.abs(apart) <= Z90 * untold.listed_sd),
    )  # fmt: skip


def _weights(cases: Sequence[MeasuredCase]) -> FloatArray:
    """[n] of one source: its groups weigh the same, and together 1."""
    own = equal_weights([left_out_key(case) for case in cases])
    shares: FloatArray = own / own.sum()
    return shares


def _joined(parts: Sequence[Seen]) -> Seen:
    return Seen(
        tuple(case for part in parts for case in part.cases),
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("log_said", "fast_sd", "slow_sd", "measured", "listed_sd")
        ),
    )

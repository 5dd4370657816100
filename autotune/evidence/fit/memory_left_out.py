"""Memory predicted by fits that have not seen the source, and what this shows: spreads and claims.

Bytes of a left-out source know nothing of it. The spreads of own model code and of what is cached
are those that the other sources showed when they were left out themselves.

Claims: left-out configurations that were called a fit, and how many of those runs ran out of
memory. A source that reports runs that ran out of memory beside runs that finished is counted run
by run. A source that reports only runs that finished hides how often such runs fail: each of its
groups of source, model and device counts as one run.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.cost.columns import Component
from autotune.cost.constants import CACHED, CLAIM_KINDS, CROWDED, ROOMY, Claims
from autotune.cost.memory import component as memory
from autotune.cost.spread.memory import opened
from autotune.domain.outcome import FEASIBLE_PROBABILITY, Z90
from autotune.evidence.accuracy import OUTPUTS
from autotune.evidence.cases import (
    READ_AS,
    SMALLEST,
    both_outcomes,
    covering_spread,
    equal_weights,
    left_out_key,
    memory_cases,
    source_of,
    student_90,
)
from autotune.evidence.fit.memory import (
    CACHED_PRIOR,
    WITHIN_SD,
    MemoryFit,
    MemoryRows,
    fit_memory,
    memory_rows,
    tables_of,
    with_spreads,
)
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from autotune.cost.columns import Columns, FloatArray, Outputs
    from autotune.cost.constants import MemoryConstants
    from autotune.domain.job import Job
    from autotune.evidence.cases import LeftOutGroup, MeasuredCase, Unit

    Predicted = dict[str, dict[str, float]]  # case id -> output of the memory component -> value

# Crowded claims are rare among measured runs, so replays of traced runs on such cards count too:
# `python -m bench.crowded`, 8 of 8 ran. Each counts half: a replay has one length and three steps.
REPLAYS_WORTH = Claims(4, 0)
CACHED_WORTH = 2.0  # [sources] that the prior of what is cached weighs
LEAST_SHARE = 0.01  # of what is held: no less is cached


@dataclass(frozen=True, slots=True, eq=False)
class MemoryRefit:
    """The fit on everything, and every case as predicted without its group."""

    fit: MemoryFit
    left_out: Predicted
    sources: dict[str, int]  # readings and verdicts by source
    rows: MemoryRows
    peaks: Peaks


class Peaks:
    """Peaks of priced cases: of all that is fitted, only the offset of own code changes one."""

    def __init__(self) -> None:
        """Nothing yet."""
        self._known: dict[tuple[Any, ...], tuple[Job, memory.DevicePeak]] = {}

    def of(self, job: Job, columns: Columns, model: MemoryConstants) -> memory.DevicePeak:
        """Of these rows under the constants. A job is known by its identity, so it is kept."""
        factor = model.offset(job.software, job.model.family).log_factor
        key = (id(job), factor, columns.signature())
        if key not in self._known:
            self._known[key] = job, memory.DevicePeak.of(job, columns, model)
        return self._known[key][1]


def refit_memory(
    cases: Sequence[MeasuredCase],
    unit: Callable[[MeasuredCase], Unit] = source_of,
    before: MemoryRefit | None = None,
) -> MemoryRefit:
    """Fit on all cases, and once without each source.

    unit: what is left out instead, one of `cases.UNITS`. before: of another unit on the same cases.
    """
    teaching = memory_cases(case for case in cases if case.teaches_memory) if not before else ()
    rows = before.rows if before else memory_rows(teaching)
    peaks = before.peaks if before else Peaks()
    of_case = [unit(case) for case in cases]
    groups = sorted(set(of_case))
    of_row = [unit(case) for case in rows.cases]
    fits: dict[Unit, MemoryFit] = {}
    for group in groups:
        kept = np.asarray([own != group for own in of_row], np.bool_)
        fits[group] = fit_memory(rows.take(kept))
    members = {g: [c for c, own in zip(cases, of_case, strict=True) if own == g] for g in groups}
    first: Predicted = {}
    for group, own in members.items():
        first.update(_price(own, fits[group].constants, peaks))
    spreads = _LeftOutSpreads.of(rows.cases, first, unit)
    left_out: Predicted = {}
    for group, own in members.items():
        sized = with_spreads(fits[group], spreads.own_model(group), spreads.cached(group))
        left_out.update(_price(own, sized.constants, peaks))
    said = fit_claims(rows.cases, left_out, unit)
    for group, own in members.items():
        _bound(own, left_out, said.without(group))
    sources: dict[str, int] = {}
    for case in rows.cases:
        if case.oom or case.peak or case.job.software.own_model:
            sources[case.group[0]] = sources.get(case.group[0], 0) + 1
    whole = with_spreads(fit_memory(rows), spreads.own_model(None), spreads.cached(None))
    whole = replace(whole, constants=replace(whole.constants, claims=said.without(None)))
    return MemoryRefit(whole, left_out, dict(sorted(sources.items())), rows, peaks)


def _bound(cases: Sequence[MeasuredCase], predicted: Predicted, claims: dict[str, Claims]) -> None:
    """No claim is surer than those of its kind that other groups tested."""
    for case in cases:
        own = predicted[case.id]
        most = claims[CROWDED if own["crowded"] else ROOMY].bears
        own["fits_probability"] = min(own["fits_probability"], most)


def _price(cases: Sequence[MeasuredCase], model: MemoryConstants, peaks: Peaks) -> Predicted:
    def outputs(job: Job, columns: Columns) -> Outputs:
        found = _outputs(job, columns, model, peaks.of(job, columns, model))
        return opened(found, job, columns, lambda own, rows: memory.price_memory(own, rows, model))

    component = Component("memory", memory.READS, outputs)
    found: Predicted = {}
    for at, table in tables_of(cases, component):
        values = {name: table.gather(name) for name in (*OUTPUTS, *_EXTRA)}
        for place, i in enumerate(at):
            found[cases[i].id] = {name: float(own[place]) for name, own in values.items()}
    return found


_EXTRA = (
    "usable", "fits_probability", "live_share", "offset_sd", "known_sd", "open_share", "crowded",
)  # fmt: skip


def _outputs(
    job: Job, columns: Columns, model: MemoryConstants, peak: memory.DevicePeak
) -> Outputs:
    found = memory.price_memory(job, columns, model, peak)
    offset = model.offset(job.software, job.model.family)
    return {
        **found,
        "live_share": (found["activations"] + found["logits"]) / found["allocated"],
        "known_sd": _beside_cache(found, model.cached_sd * found["open_share"]),
        "offset_sd": np.full(columns.rows, offset.log_sd),
    }


def _beside_cache(found: Outputs, cached: FloatArray) -> FloatArray:
    """[rows] spread of the reserved peak beside that of the cache: of tensors and their order."""
    own: FloatArray = np.sqrt(np.maximum(found["reserved_log_sd"] ** 2 - cached**2, 0.0))
    return own


@dataclass(frozen=True, slots=True, eq=False)
class _Reading:
    """One measured peak beside its left-out prediction."""

    group: LeftOutGroup
    unit: Unit  # what it was left out with
    error: float  # absolute logarithm
    known_sd: float
    scale: float
    kind: str  # "own_model" or "cached"


@dataclass(frozen=True, slots=True, eq=False)
class _LeftOutSpreads:
    """What left-out predictions show of spreads, with or without a unit's own readings."""

    readings: tuple[_Reading, ...]

    @classmethod
    def of(
        cls,
        cases: Iterable[MeasuredCase],
        predicted: Predicted,
        unit: Callable[[MeasuredCase], Unit],
    ) -> _LeftOutSpreads:
        found = (_readings(case, predicted[case.id], unit(case)) for case in cases)
        return cls(tuple(reading for each in found for reading in each))

    def own_model(self, without: Unit | None) -> float:
        """Of live bytes, around the offset of a trainer's own model code.

        No less than between runs of one trainer: another release is other code.
        """
        return max(self._held("own_model", without), WITHIN_SD)

    def cached(self, without: Unit | None) -> float:
        """Of the log of what is cached, shrunk towards the prior and no less.

        One size for all runs: what is known of the cache is a share of what moves in a step, so a
        run that caches little is known better than one that caches half of what it holds. It rests
        on a handful of sources, so it is as much wider as Student's quantile is than the normal.
        """
        worth = float(len({r.group[0] for r in self._of(CACHED, without)}))
        own = self._held(CACHED, without) * student_90(worth - 1.0) / Z90
        logs = worth * np.log(max(own, SMALLEST)) + CACHED_WORTH * np.log(CACHED_PRIOR)
        return max(float(np.exp(logs / (worth + CACHED_WORTH))), CACHED_PRIOR)

    def _of(self, kind: str, without: Unit | None) -> list[_Reading]:
        return [r for r in self.readings if r.kind == kind and r.unit != without]

    def _held(self, kind: str, without: Unit | None) -> float:
        own = self._of(kind, without)
        if not own:
            return 0.0

        def column(name: str) -> FloatArray:
            return np.asarray([getattr(r, name) for r in own])

        weights = equal_weights([r.group for r in own])
        return covering_spread(column("error"), weights, column("known_sd"), column("scale"))


def _readings(case: MeasuredCase, own: dict[str, float], unit: Unit) -> Iterable[_Reading]:
    group = left_out_key(case)
    for seen in case.observations:
        if seen.kind is None:
            continue
        error = abs(float(np.log(own[READ_AS[seen.kind]] / seen.value)))
        if seen.kind != "allocated":
            share = max(own["open_share"], LEAST_SHARE)
            yield _Reading(group, unit, error, own["known_sd"] / share, share, CACHED)
        elif case.job.software.own_model:
            yield _Reading(group, unit, error, own["offset_sd"], own["live_share"], "own_model")


@dataclass(frozen=True, slots=True)
class FitClaim:
    """One configuration that was called a fit by a prediction that has not seen its source."""

    group: LeftOutGroup
    unit: Unit  # what it was left out with
    kind: str
    failed: bool
    run_by_run: bool  # its source reports failures too


@dataclass(frozen=True, slots=True)
class FitClaims:
    """All of them."""

    each: tuple[FitClaim, ...]

    def without(self, unit: Unit | None) -> dict[str, Claims]:
        """The counts by kind, a unit's own claims left aside."""
        kept = [claim for claim in self.each if claim.unit != unit]
        found = {kind: _counted([c for c in kept if c.kind == kind]) for kind in CLAIM_KINDS}
        crowded = found[CROWDED]
        counted = Claims(crowded.n + REPLAYS_WORTH.n, crowded.failures + REPLAYS_WORTH.failures)
        return {**found, CROWDED: counted}


def _counted(claims: Sequence[FitClaim]) -> Claims:
    runs = [claim for claim in claims if claim.run_by_run]
    groups = {claim.group for claim in claims if not claim.run_by_run}
    return Claims(len(runs) + len(groups), sum(claim.failed for claim in runs))


def fit_claims(
    cases: Sequence[MeasuredCase],
    predicted: Mapping[str, Mapping[str, float]],
    unit: Callable[[MeasuredCase], Unit] = source_of,
) -> FitClaims:
    """The claims among left-out predictions. cases: each configuration once."""
    sources = both_outcomes(cases)
    return FitClaims(
        tuple(
            FitClaim(
                left_out_key(case),
                unit(case),
                CROWDED if own["crowded"] else ROOMY,
                case.oom,
                case.group[0] in sources,
            )
            for case in cases
            if _offered(own := predicted[case.id])
        )
    )


def _offered(own: Mapping[str, float]) -> bool:
    room = own["total"] <= own["usable"] and not own["certain_oom"]
    return bool(room and own["fits_probability"] >= FEASIBLE_PROBABILITY)

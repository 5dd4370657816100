"""How far the cost model is from published measurements, as one table.

Weights. Headline figures give every group (source repository, model, GPU) the same weight, so that
a source with five hundred rows counts as much as one with five; inside a group rows are equal.
Replicates (the same configuration measured again by the same source) count once, by the newest.
An absolute percentage error is |predicted / actual - 1|; bias is the median of predicted / actual
minus 1, above zero when the model says too much. Time is the seconds of an optimizer step.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.cost.constants import memory_constants
from autotune.domain.outcome import Z90
from autotune.evidence.accuracy import ALL_ROWS, accuracy_of, predict, residuals
from autotune.evidence.cases import weighted_quantile
from autotune.evidence.validation.verdicts import OomCounts, reliability, verdicts

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterable, Sequence

    from autotune.cost.constants import Claims
    from autotune.evidence.accuracy import Prediction, Residual, Scope, Sweeps
    from autotune.evidence.cases import MeasuredCase, Price, Skipped
    from autotune.evidence.validation.verdicts import ReliabilityBin

SHIPPED = "shipped calibration, no refit"


@dataclass(frozen=True, slots=True)
class Errors:
    """Errors of one kind of figure. None where nothing was compared."""

    n: int
    median_ape: float | None = None
    mape: float | None = None
    p90_ape: float | None = None
    bias: float | None = None


@dataclass(frozen=True, slots=True)
class Coverage:
    """Share of readings inside their 80 % interval; groups weigh the same."""

    n: int
    groups: int
    share: float


@dataclass(frozen=True, slots=True)
class GroupErrors:
    """Errors of one source, model, GPU and task."""

    source_repo: str
    model_id: str
    gpu: str
    task: str
    memory: Errors
    time: Errors


@dataclass(frozen=True, slots=True)
class Validation:
    """The table of `autotune validate`."""

    rows: int
    used: int
    skipped: dict[str, int]
    memory: Errors
    memory_allocated: Errors
    time: Errors
    oom: OomCounts
    coverage: dict[str, float | None]
    groups: tuple[GroupErrors, ...]
    memory_by_kind: dict[str, Errors] = field(default_factory=dict)
    partial: dict[str, int] = field(default_factory=dict)
    assumed: dict[str, int] = field(default_factory=dict)
    basis: str = SHIPPED
    time_scopes: dict[str, Scope] = field(default_factory=dict)
    time_devices: dict[str, Scope] = field(default_factory=dict)
    time_median_over_devices: float | None = None
    sweeps: Sweeps | None = None
    memory_coverage: dict[str, Coverage] = field(default_factory=dict)
    skipped_rows: dict[str, tuple[str, ...]] = field(default_factory=dict)  # ids, by reason
    partial_rows: dict[str, tuple[str, ...]] = field(default_factory=dict)
    fidelity: str = "formula"
    traced: dict[str, int] = field(default_factory=dict)
    reliability: tuple[ReliabilityBin, ...] = ()
    claims: dict[str, Claims] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """Numbers and names only, ready for JSON."""
        return asdict(self)


def validate(
    cases: Sequence[MeasuredCase],
    skipped: Sequence[Skipped],
    price: Price,
    basis: str = SHIPPED,
    steps: Sequence[Residual] | None = None,
    memory_of: Callable[[dict[str, Prediction]], dict[str, Prediction]] | None = None,
) -> Validation:
    """Price every case and compare. price: (job, candidates) -> bill.

    steps: predictions of the steps that replace the bill's own, such as those of left-out groups.
    memory_of: the same for memory, as a function of the bill's predictions by id.
    """
    predictions = predict(cases, price)
    if memory_of is not None:
        predictions = memory_of(predictions)
    counted = _once(residuals(cases, predictions), lambda r: (r.case.replicate_key, r.kind))
    memory = [r for r in counted if r.case.peak and r.kind == r.case.peak.kind]
    time = [r for r in counted if r.kind == "time"] if steps is None else list(steps)
    accuracy = accuracy_of(time)
    kinds = ("allocated", "reserved", "nvidia-smi")
    return Validation(
        rows=len(cases) + len(skipped),
        used=len(cases),
        skipped=_tally(item.reason for item in skipped),
        memory=errors_of(memory),
        memory_allocated=errors_of([r for r in memory if r.kind == "allocated"]),
        time=errors_of(time),
        oom=verdicts(cases, predictions),
        reliability=reliability(cases, predictions),
        claims=dict(memory_constants().claims),
        coverage={
            "p10_p90": _coverage(time),
            "p10_p90_rows": accuracy.scopes[ALL_ROWS].coverage if time else None,
            "memory_p10_p90": _coverage(memory),
        },
        groups=_groups(memory, time),
        memory_by_kind={k: errors_of([r for r in counted if r.kind == k]) for k in kinds},
        partial=_tally(reason for case in cases for reason in case.partial),
        assumed=_tally(reason for case in cases for reason in case.assumed),
        basis=basis,
        time_scopes=accuracy.scopes,
        time_devices=accuracy.devices,
        time_median_over_devices=accuracy.median_over_devices,
        sweeps=accuracy.sweeps,
        memory_coverage=_coverage_by_kind(counted),
        skipped_rows=_named((item.reason, item.id) for item in skipped),
        partial_rows=_named((reason, case.id) for case in cases for reason in case.partial),
    )


def _tally(reasons: Iterable[str]) -> dict[str, int]:
    counts: dict[str, int] = {}
    for reason in reasons:
        counts[reason] = counts.get(reason, 0) + 1
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


def _named(pairs: Iterable[tuple[str, str]]) -> dict[str, tuple[str, ...]]:
    """Rows by reason, in the order of the table."""
    found: dict[str, tuple[str, ...]] = {}
    for reason, name in pairs:
        found[reason] = (*found.get(reason, ()), name)
    return found


def _once(items: list[Residual], key: Callable[[Residual], Hashable]) -> list[Residual]:
    """One residual per replicated configuration: that of the newest snapshot."""
    kept: dict[Hashable, Residual] = {}
    for item in items:
        own = key(item)
        if own not in kept or (kept[own].case.older and not item.case.older):
            kept[own] = item
    return list(kept.values())


def _weights(items: Sequence[Residual]) -> np.ndarray:
    """[n] weights that give every (source, model, GPU) the same share; they sum to 1."""
    sizes: dict[tuple[str, ...], int] = {}
    for item in items:
        sizes[item.case.group[:3]] = sizes.get(item.case.group[:3], 0) + 1
    weights = np.asarray([1.0 / sizes[item.case.group[:3]] for item in items])
    shares: np.ndarray = weights / weights.sum()
    return shares


def errors_of(items: Sequence[Residual]) -> Errors:
    """Errors with every (source, model, GPU) weighted equally."""
    if not items:
        return Errors(0)
    weights = _weights(items)
    error = np.asarray([item.error for item in items])
    ratio = np.asarray([item.ratio for item in items])
    return Errors(
        n=len(items),
        median_ape=weighted_quantile(error, weights, 0.5),
        mape=float((error * weights).sum()),
        p90_ape=weighted_quantile(error, weights, 0.9),
        bias=weighted_quantile(ratio, weights, 0.5) - 1.0,
    )


def _coverage(items: Sequence[Residual]) -> float | None:
    """Share of actual values inside the predicted p10 to p90, groups weighted equally."""
    if not items:
        return None
    inside = [abs(np.log(item.ratio)) <= Z90 * item.log_sd for item in items]
    return float((np.asarray(inside, np.float64) * _weights(items)).sum())


def _coverage_by_kind(items: Sequence[Residual]) -> dict[str, Coverage]:
    """Of every reading of memory: allocated peaks by kind of run, the rest by what was read."""
    kinds: dict[str, list[Residual]] = {}
    for item in items:
        if item.kind != "time":
            kinds.setdefault(f"{item.kind}, {item.band}", []).append(item)
    return {
        kind: Coverage(len(own), len({r.case.group[:3] for r in own}), _coverage(own) or 0.0)
        for kind, own in sorted(kinds.items())
    }


def _groups(memory: Sequence[Residual], time: Sequence[Residual]) -> tuple[GroupErrors, ...]:
    names = dict.fromkeys(item.case.group for item in (*memory, *time))
    return tuple(
        GroupErrors(
            *name,
            memory=errors_of([item for item in memory if item.case.group == name]),
            time=errors_of([item for item in time if item.case.group == name]),
        )
        for name in sorted(names)
    )

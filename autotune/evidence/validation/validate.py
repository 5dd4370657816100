"""How far the cost model is from published measurements, as one table.

Weights: `errors`. What no fit has seen: `left_out`.
Replicates (the same configuration measured again by the same source) count once, by the newest.
An absolute percentage error is |predicted / actual - 1|; bias is the median of predicted / actual
minus 1, above zero when the model says too much. Time is the seconds of an optimizer step.
"""

from __future__ import annotations

from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any

from autotune.cost.constants import memory_constants
from autotune.evidence.accuracy import ALL_ROWS, accuracy_of, predict, residuals
from autotune.evidence.record.refusals import help_for, is_training
from autotune.evidence.validation.errors import Errors, coverage_of, errors_of, once, primary
from autotune.evidence.validation.left_out import bounds_of
from autotune.evidence.validation.verdicts import OomCounts, reliability, verdicts
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from autotune.cost.constants import Claims
    from autotune.evidence.accuracy import Prediction, Residual, Scope, Sweeps
    from autotune.evidence.cases import MeasuredCase, Price, Skipped
    from autotune.evidence.validation.left_out import Bounds, LeftOutErrors
    from autotune.evidence.validation.verdicts import ReliabilityBin

SHIPPED = "shipped calibration, no refit"


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
    trainings: int = 0  # rows that are trainings of a decoder on a GPU, used or not
    left_out: dict[str, LeftOutErrors] = field(default_factory=dict)  # by what was left out
    bounds: dict[str, Bounds] = field(default_factory=dict)
    orientation: dict[str, Errors] = field(default_factory=dict)  # grade C, or a setting guessed
    machines: dict[str, Errors] = field(default_factory=dict)  # runs on several machines
    saved: dict[str, Errors] = field(default_factory=dict)  # that train modules whole
    usable_by: dict[str, str] = field(default_factory=dict)  # what a reason's rows would need

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
    left_out: dict[str, LeftOutErrors] | None = None,
) -> Validation:
    """Price every case and compare. price: (job, candidates) -> bill.

    steps: predictions of the steps that replace the bill's own, such as those of left-out sources.
    memory_of: the same for memory, as a function of the bill's predictions by id. left_out: the
    tables of what else was left out, beside what `steps` left out.
    """
    priced = predict(cases, price)
    predictions = priced if memory_of is None else memory_of(priced)
    every = once(residuals(cases, predictions))
    counted = [r for r in every if exact(r)]
    memory = [r for r in counted if primary(r)]
    time = [r for r in counted if r.kind == "time"] if steps is None else list(steps)
    joined = [r for r in every if r.case.offer.network is not None]
    whole = [r for r in every if r.case.job.method.modules_to_save and not r.case.guessed]
    apart = {r.case.id for r in (*joined, *whole)}
    rough = [r for r in every if not exact(r) and r.case.id not in apart]
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
            "p10_p90": coverage_of(time),
            "p10_p90_rows": accuracy.scopes[ALL_ROWS].coverage if time else None,
            "memory_p10_p90": coverage_of(memory),
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
        trainings=len(cases) + sum(is_training(item.reason) for item in skipped),
        left_out=left_out or {},
        bounds=bounds_of(cases, priced),
        orientation={
            "time": errors_of([r for r in rough if r.kind == "time"]),
            "memory": errors_of([r for r in rough if primary(r)]),
        },
        machines=_on_machines(joined),
        saved={"time": errors_of([r for r in whole if r.kind == "time"])},
        usable_by={
            reason: help_for(reason)
            for reason in dict.fromkeys(
                (*(item.reason for item in skipped), *(p for case in cases for p in case.partial))
            )
        },
    )


def _on_machines(items: Sequence[Residual]) -> dict[str, Errors]:
    """Errors of runs on several machines, no fit of which they are in, by what joins them."""
    found = {}
    for stated in (True, False):
        network = "network stated" if stated else "network not stated"
        own = [r for r in items if r.case.guessed is not stated]
        found[f"time, {network}"] = errors_of([r for r in own if r.kind == "time"])
        found[f"memory, {network}"] = errors_of([r for r in own if primary(r)])
    return found


def exact(item: Residual) -> bool:
    """Whether the figure counts for a headline: exact or usable, and no setting of it guessed."""
    own = item.case
    return own.teaches_time if item.kind == "time" else own.teaches_memory


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


def _coverage_by_kind(items: Sequence[Residual]) -> dict[str, Coverage]:
    """Of every reading of memory: allocated peaks by kind of run, the rest by what was read."""
    kinds: dict[str, list[Residual]] = {}
    for item in items:
        if item.kind != "time":
            kinds.setdefault(f"{item.kind}, {item.band}", []).append(item)
    return {
        kind: Coverage(len(own), len({r.case.group[:3] for r in own}), coverage_of(own) or 0.0)
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

"""How far predictions are from sources, devices and groups that no fit has seen.

The headline leaves whole sources out: a reader's run is a source that nobody fitted. All that is
learned is refitted without the unit: constants, offsets, slack, what the allocator caches. Its
interval is sized on the sources that are left. Every group of source, model and GPU has the same
weight, so "median" is the error that half of that weight is below.

A figure for orientation (grade C, or with a setting that is the trainer's default and not stated)
is compared apart and counts for no headline. A reading that a prediction can only bound has no
error: it is held against the bound.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from autotune.domain.outcome import Z90
from autotune.evidence.cases import READ_AS
from autotune.evidence.validation.errors import (
    Errors,
    coverage_by_source,
    coverage_of,
    errors_of,
    primary,
)
from autotune.evidence.validation.verdicts import verdicts
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.domain.observation import Observation
    from autotune.evidence.accuracy import Prediction, Residual
    from autotune.evidence.cases import MeasuredCase, Unit


@dataclass(frozen=True, slots=True)
class Verdicts:
    """Counts of verdicts; shares with every group of source, model and GPU weighing the same."""

    oom_rows: int
    false_fits: int
    fit_rows: int
    false_ooms: int
    false_fit_share: float | None
    false_oom_share: float | None


@dataclass(frozen=True, slots=True)
class Acquainted:
    """Share inside the 80 % interval, groups weighing the same, and sources weighing the same."""

    rows: int
    sources: int
    share: float | None
    share_of_sources: float | None


@dataclass(frozen=True, slots=True)
class LeftOutErrors:
    """Errors of units that the fit has not seen.

    coverage: share inside the 80 % interval, of time and of memory; None where there is no row.
    acquainted: of time and of memory, by what other units have of a row.
    """

    units: int
    time: Errors
    memory: Errors
    memory_allocated: Errors
    memory_reserved: Errors
    memory_driver: Errors
    coverage: dict[str, float | None]
    acquainted: dict[str, dict[str, Acquainted]]
    oom: Verdicts
    logged: dict[str, Errors]  # figures of grade A from logs of users' own runs


@dataclass(frozen=True, slots=True)
class Bounds:
    """Readings that a prediction can only bound, and how many kept the bound."""

    n: int
    kept: int


def left_out_errors(
    unit: Callable[[MeasuredCase], Unit],
    time: Sequence[Residual],
    memory: Sequence[Residual],
    cases: Sequence[MeasuredCase],
    predictions: dict[str, Prediction],
) -> LeftOutErrors:
    """The table of one kind of unit. time, memory: predicted without their unit, once each."""
    own = [item for item in memory if primary(item)]
    kinds = {kind: [item for item in memory if item.kind == kind] for kind in READ_AS}
    told = verdicts([case for case in cases if case.teaches_memory], predictions)
    everything = [*time, *memory]
    return LeftOutErrors(
        units=len({unit(item.case) for item in everything}),
        time=errors_of(time),
        memory=errors_of(own),
        memory_allocated=errors_of(kinds["allocated"]),
        memory_reserved=errors_of(kinds["reserved"]),
        memory_driver=errors_of(kinds["nvidia-smi"]),
        coverage={
            "p10_p90": coverage_of(time),
            "time": coverage_of(time),
            "memory": coverage_of(own),
        },
        acquainted={"time": acquainted(unit, time), "memory": acquainted(unit, own)},
        oom=Verdicts(
            told.oom_rows, told.false_fits, told.fit_rows, told.false_ooms,
            told.false_fit_share, told.false_oom_share,
        ),
        logged={
            "time": errors_of([i for i in time if i.case.logged and i.case.grades.time == "A"]),
            "memory": errors_of([i for i in own if i.case.logged and i.case.grades.memory == "A"]),
        },
    )  # fmt: skip


def acquainted(
    unit: Callable[[MeasuredCase], Unit], items: Sequence[Residual]
) -> dict[str, Acquainted]:
    """Coverage by what else than the row's own unit has: its program, its device, both, neither."""
    others = {what: _units(level, unit, items) for what, level in _LEVELS.items()}
    kinds: dict[str, list[Residual]] = {name: [] for name in ACQUAINTANCE.values()}
    for item in items:
        program, device = (
            len(others[what][level(item.case)]) > 1 for what, level in _LEVELS.items()
        )
        kinds[ACQUAINTANCE[program, device]].append(item)
    return {
        name: Acquainted(
            len(own), len({i.case.group[0] for i in own}), coverage_of(own), coverage_by_source(own)
        )
        for name, own in kinds.items()
        if own
    }


def _units(
    level: Callable[[MeasuredCase], str],
    unit: Callable[[MeasuredCase], Unit],
    items: Sequence[Residual],
) -> dict[str, set[Unit]]:
    found: dict[str, set[Unit]] = {}
    for item in items:
        found.setdefault(level(item.case), set()).add(unit(item.case))
    return found


_LEVELS: dict[str, Callable[[MeasuredCase], str]] = {
    "program": lambda case: case.job.software.stack,
    "device": lambda case: case.offer.device.name,
}
# Whether another unit has the program, and the device: what such a run is called.
ACQUAINTANCE = {
    (True, True): "known", (False, True): "new program", (True, False): "new device",
    (False, False): "both new",
}  # fmt: skip


def bounds_of(
    cases: Sequence[MeasuredCase], predictions: Mapping[str, Prediction]
) -> dict[str, Bounds]:
    """Readings of runs of which only a bound is known, against the interval at that bound.

    At a cap on lengths nothing is above the interval's high end; at a mean length, with longer rows
    somewhere, no peak is below its low end. A reading of a kind that nobody states is between the
    allocated peak's low end and the driver's high end, as far as the lengths bound it.
    """
    counts: dict[str, list[bool]] = {}
    for case in cases:
        for seen in case.bounded:
            name = "time" if seen.kind is None else "memory"
            counts.setdefault(name, []).append(_is_kept(case, seen, predictions[case.id]))
    return {name: Bounds(len(kept), sum(kept)) for name, kept in sorted(counts.items())}


def _is_kept(case: MeasuredCase, seen: Observation, own: Prediction) -> bool:
    if seen.kind is None:
        slow = own.step_log_sd if own.step_slow_log_sd is None else own.step_slow_log_sd
        return bool(seen.value <= own.step_s * np.exp(Z90 * slow))
    most = READ_AS.get(seen.kind, "driver")
    least = READ_AS.get(seen.kind, "allocated")
    below = own.memory[least] * np.exp(-Z90 * own.memory_sides(least)[0])
    above = own.memory[most] * np.exp(Z90 * own.memory_sides(most)[1])
    if case.longest_known:
        return bool(below <= seen.value <= above)
    return bool(seen.value <= above if case.capped else below <= seen.value)

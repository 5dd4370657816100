"""Measured peaks and verdicts as what the memory fit needs of the formula.

The bytes come from the function that prices candidates, with no offset and no slack, so what is
fitted is what is used.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.cost.columns import Component, tabulate
from autotune.cost.memory import component as memory
from autotune.cost.memory import device as device_memory
from autotune.cost.memory.constants import (
    CACHED_KINDS,
    KINDS,
    RESERVED_KINDS,
    UNKNOWN_CODE,
    MemoryConstants,
    Slack,
)
from autotune.domain.candidates import Candidates

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.cost.columns import Columns, FloatArray, Outputs, Table
    from autotune.domain.job import Job
    from autotune.evidence.record.case import MeasuredCase

NEUTRAL = MemoryConstants(
    Slack(0.0, 0.0, 0.0),
    {},
    dict.fromkeys(KINDS, 0.0),
    dict.fromkeys(CACHED_KINDS, 0.0),
    dict.fromkeys(RESERVED_KINDS, 0.0),
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
    cached_kind: FloatArray  # index into CACHED_KINDS
    unseen_sd: FloatArray  # spread that no measured run of the kind shows

    def __len__(self) -> int:
        return len(self.cases)

    def take(self, which: Any) -> MemoryRows:  # noqa: ANN401 - a mask or indices
        """The chosen rows."""
        chosen = np.arange(len(self))[which]
        arrays = {f.name: getattr(self, f.name)[chosen] for f in fields(self) if f.name != "cases"}
        return replace(self, cases=tuple(self.cases[i] for i in chosen), **arrays)


def once(cases: Iterable[MeasuredCase]) -> list[MeasuredCase]:
    """Runs whose memory can be compared, each configuration once: the newest of a source."""
    kept: dict[str, MeasuredCase] = {}
    for case in cases:
        if not (case.longest_known and (case.oom or case.ran)):
            continue
        own = kept.get(case.replicate_key)
        if own is None or (own.older and not case.older):
            kept[case.replicate_key] = case
    return list(kept.values())


def memory_rows(cases: Sequence[MeasuredCase]) -> MemoryRows:
    """The rows of the cases, cases of one job priced together."""
    component = Component("memory", memory.READS, _features)
    names = [f.name for f in fields(MemoryRows) if f.name != "cases"]
    arrays = {name: np.empty(len(cases)) for name in names}
    for at, table in by_job(cases, component):
        for name in names:
            arrays[name][at] = table.gather(name)
    return MemoryRows(tuple(cases), **arrays)


def by_job(cases: Sequence[MeasuredCase], component: Component) -> Iterable[tuple[Any, Table]]:
    """(positions, table) of the cases of every job."""
    jobs: dict[int, list[int]] = {}
    for i, case in enumerate(cases):
        jobs.setdefault(id(case.job), []).append(i)
    for at in jobs.values():
        own = [(cases[i].offer, cases[i].config) for i in at]
        yield np.asarray(at), tabulate(component, cases[at[0]].job, Candidates.of(own))


def _features(job: Job, columns: Columns) -> Outputs:
    found = memory.price_memory(job, columns, _neutral(job))
    index = {kind: float(i) for i, kind in enumerate(CACHED_KINDS)}
    resident = found["weights"] + found["adapters"] + found["optimizer"]
    return {
        "allocated": found["allocated"],
        "live": found["activations"] + found["logits"],
        "moving": found["allocated"] - resident,
        "context": found["context"],
        "capacity": found["capacity"],
        "kind": found["kind"],
        "cached_kind": device_memory.cached_share(job, columns, index),
        "unseen_sd": found["log_sd"],
    }


def _neutral(job: Job) -> MemoryConstants:
    return replace(NEUTRAL, offsets={job.software.stack: replace(UNKNOWN_CODE, log_sd=0.0)})

"""Tracing candidates whose fit is in doubt: the installed training code instead of the formula.

    auto     the pick and its runner-up, when the pick may not fit (probability under 0.95)
    trace    the pick, its runner-up and the alternatives
    formula  none

A pick that does not fit once traced gives way to the next best. Tracing covers one device; sharded
candidates keep the formula.
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from math import hypot, log
from statistics import NormalDist
from typing import TYPE_CHECKING

from autotune.cost.memory_spread import SLACK_LOG_SD
from autotune.cost.model import CostModel
from autotune.domain.candidates import Candidates
from autotune.domain.outcome import MemoryParts
from autotune.search import selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from autotune.cost.model import Bill
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated
    from autotune.search.selection import Objective, Selection
    from autotune.trace.client import Traced, Tracer

DOUBTFUL_PROBABILITY = 0.95
MOST_PICKS = 6  # picks that tracing may turn down before the formula's word is taken again
TRACED_LOG_SD = 0.04  # allocator and context around exact allocated bytes; assumption
OTHER_VERSIONS = 1.5  # a trace of other versions than the job's widens the spread by this factor
_NORMAL = NormalDist()


@dataclass
class Tracing:
    """Candidates traced so far, and what could not be."""

    bill: Bill
    rows: dict[int, Estimated] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def row(self, index: int) -> Estimated:
        """The candidate, with traced memory where there is a trace."""
        return self.rows.get(index) or self.bill.estimate(index)

    def trace(self, tracer: Tracer, indices: Iterable[int]) -> None:
        """Trace candidates that are not traced yet."""
        from autotune.trace.client import TraceFailed

        for index in indices:
            if index in self.rows:
                continue
            row = self.bill.estimate(index)
            if row.offer.count > 1:
                self._note("the trace covers one device: sharded candidates keep the formula")
                continue
            found = _traced(tracer, self.bill.job, row)
            if isinstance(found, TraceFailed):
                why = f"{found.kind}: {found.message[:160]}"
                name = self.bill.job.model.name
                self._note(f"no trace of {name} ({why}): the formula decided")
                if found.kind in {"missing", "timeout"}:
                    return
                continue
            self.rows[index] = with_trace(self.bill, index, row, found)

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _traced(tracer: Tracer, job: Job, row: Estimated):  # type: ignore[no-untyped-def]  # noqa: ANN202
    from autotune.trace.request import request_for

    full = job.padding == "max_length" or row.config.packing == "on"
    length = job.max_length if full else job.lengths.maximum
    return tracer.trace(request_for(job, row.config, length))


def with_trace(bill: Bill, index: int, row: Estimated, traced: Traced) -> Estimated:
    """The row with traced parts; workspaces, context and allocator overhead stay the formula's.

    Source: derived: the fit probability moves by the log ratio of the totals, and its spread is
    the trace's instead of the formula's.
    """
    formula = row.memory_bytes
    inside = {name: traced.parts.get(name, 0.0) for name in _PARTS}
    inside["workspace"] += formula.workspace
    inside["activations"] *= _compiled_share(bill.job, row)
    before = formula.total - formula.context - formula.fragmentation
    grown = sum(inside.values()) / before if before > 0 else 1.0
    parts = MemoryParts(
        **inside, context=formula.context, fragmentation=formula.fragmentation * grown
    )
    probability = _moved(
        row.fits_probability,
        formula.total / parts.total,
        hypot(bill.at("memory", "log_sd", index), SLACK_LOG_SD),
        hypot(_spread(bill.job, traced), SLACK_LOG_SD),
    )
    changed = replace(
        row,
        memory_bytes=parts,
        fits_probability=probability,
        basis="traced" if row.basis == "modelled" else row.basis,
    )
    if row.verdict == "certain_oom":
        return changed
    return replace(changed, verdict="fits" if changed.feasible else "at_risk")


def _compiled_share(job: Job, row: Estimated) -> float:
    """What compiling leaves of the saved activations: the trace runs the step eagerly."""
    if row.config.compile == "off":
        return 1.0
    eager = row.config.with_knobs(compile="off")
    uncompiled = CostModel(job).price(Candidates.of([(row.offer, eager)])).estimate(0)
    before = uncompiled.memory_bytes.activations
    return min(row.memory_bytes.activations / before, 1.0) if before > 0 else 1.0


_PARTS = [
    item.name for item in fields(MemoryParts) if item.name not in {"context", "fragmentation"}
]


def _moved(probability: float, shrunk: float, before_sd: float, after_sd: float) -> float:
    """P(fits) after the total changed by a factor and its log spread from one value to another."""
    certain = 1e-12
    z = _NORMAL.inv_cdf(min(max(probability, certain), 1.0 - certain))
    return _NORMAL.cdf((z * before_sd + log(shrunk)) / after_sd)


def _spread(job: Job, traced: Traced) -> float:
    installed = traced.versions.get("transformers", "")
    wanted = ".".join(map(str, job.software.transformers[:2]))
    same = installed.startswith(f"{wanted}.") or installed == wanted
    return TRACED_LOG_SD * (1.0 if same else OTHER_VERSIONS)


def choose_traced(
    bill: Bill,
    chosen: Selection,
    objective: Objective,
    fidelity: str,
    among: Iterable[int] | None,
    progress: Callable[[str], None],
) -> tuple[Selection, Tracing]:
    """The choice after tracing what the fidelity asks for."""
    tracing = Tracing(bill)
    pick = chosen.index
    if pick is None or fidelity == "formula":
        return chosen, tracing
    if fidelity == "auto" and bill.fits_probability[pick] >= DOUBTFUL_PROBABILITY:
        return chosen, tracing
    from autotune.trace.client import Tracer

    pool = list(among) if among is not None else list(range(len(bill)))
    with Tracer() as tracer:
        picks = 0
        while pick is not None and picks < MOST_PICKS:
            picks += 1
            progress("tracing the pick through the installed training code")
            near = [pick] + ([chosen.runner_up] if chosen.runner_up is not None else [])
            tracing.trace(tracer, near)
            if pick not in tracing.rows or tracing.rows[pick].feasible:
                break
            pool = [i for i in pool if i != pick]
            tracing.notes.append(_turned_down(tracing.rows[pick]))
            chosen = selection.best_index(bill, objective, bill.job.limits, among=pool)
            pick = chosen.index
        if fidelity == "trace" and pick is not None:
            tracing.trace(tracer, selection.alternatives(bill, pick, objective))
    return chosen, tracing


def _turned_down(row: Estimated) -> str:
    from autotune.domain.units import format_bytes

    what = f"micro-batch {row.config.micro_batch_size} on {row.offer.label}"
    needs = f"{format_bytes(row.memory_bytes.total)} of {format_bytes(row.usable_bytes)}"
    return f"{what} was the formula's pick, but traced it needs {needs}"

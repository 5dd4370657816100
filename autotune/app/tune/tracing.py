"""Tracing candidates whose fit is in doubt: the installed training code instead of the formula.

    auto     the pick and its runner-up, when the pick may not fit (probability under 0.95) or its
             family is not one that the formula describes
    trace    the pick, its runner-up and the alternatives
    formula  none

A pick that does not fit once traced gives way to the next best. Tracing covers one device; sharded
candidates keep the formula. What a trace says of a candidate's memory is in here too; how the
training code is traced is not (`trace`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, fields, replace
from math import hypot
from typing import TYPE_CHECKING

import numpy as np

from autotune.catalog.models.families import FAMILIES
from autotune.cost.constants import memory_constants
from autotune.cost.memory.component import open_facts
from autotune.cost.memory.device import blas_bytes
from autotune.cost.memory.states import beside_bytes
from autotune.cost.spread.fitting import HOPELESS, chance_of_fitting
from autotune.cost.spread.memory import LEAST_LOG_SD, surest
from autotune.domain.outcome import AllocatorRun, AtOp, MemoryParts, MemoryTrace
from autotune.domain.units import format_bytes
from autotune.pricing import Pricing
from autotune.search import alternatives, selection

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from autotune.cost.bill import Bill
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated, Verdict
    from autotune.search.selection import Objective, Selection
    from autotune.trace.answers import Allocator, Moment, Traced
    from autotune.trace.client import TraceFailed, Tracer

DOUBTFUL_PROBABILITY = 0.95
MOST_PICKS = 6  # picks that tracing may turn down before the formula's word is taken again
# Source: fms-acceleration benchmark tables, A100-80GB, one GPU, peak allocated bytes: 18 of 19 rows
# within 1 % of a trace whose loss and dtypes are those of the run.
TRACED_LOG_SD = 0.01
OTHER_VERSIONS = 1.5  # a trace of other versions than the job's widens the spread by this factor
FORMULA_TOLERANCE = 0.03  # what the formula is tested to agree with the trace within
_PARTS = [
    item.name for item in fields(MemoryParts) if item.name not in {"context", "fragmentation"}
]
FOR_ALL = frozenset({"missing", "timeout"})  # what fails once will fail for every candidate


@dataclass
class Tracing:
    """Candidates traced so far, and what could not be."""

    bill: Bill
    trust_remote_code: bool = False
    rows: dict[int, Estimated] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)

    def row(self, index: int) -> Estimated:
        """The candidate, with traced memory where there is a trace."""
        return self.rows.get(index) or self.bill.estimate(index)

    def trace(self, tracer: Tracer, indices: Iterable[int], *, full: bool = False) -> None:
        """Trace candidates that are not traced yet.

        full: every layer and three steps, through a simulated caching allocator.
        """
        from autotune.trace.client import TraceFailed
        from autotune.trace.request import untraceable

        job = self.bill.job
        reason = untraceable(job, trust_remote_code=self.trust_remote_code)
        if reason:
            self._note(f"no trace of {job.model.name}: {reason}; its memory is the formula's")
            return
        for index in indices:
            if index in self.rows:
                continue
            row = self.bill.estimate(index)
            if row.offer.count > 1:
                self._note("the trace covers one device: sharded candidates keep the formula")
                continue
            if row.config.offload != "none":
                self._note("the trace keeps all on the device: what is offloaded has the formula")
                continue
            if row.config.kernels == "liger":
                self._note("the trace runs no Liger kernels: candidates with them keep the formula")
                continue
            found = self._traced(tracer, row, full=full)
            if isinstance(found, TraceFailed):
                self._note(
                    f"no trace of {job.model.name} ({found.kind}: {found.message[:240]}): "
                    "its memory is the formula's"
                )
                if found.kind in FOR_ALL:
                    return
                continue
            self.rows[index] = with_trace(self.bill, index, row, found)
            self._alarm(self.rows[index])

    def _traced(self, tracer: Tracer, row: Estimated, *, full: bool) -> Traced | TraceFailed:
        from autotune.trace.request import request_for

        job = self.bill.job
        whole = job.padding == "max_length" or row.config.packing == "on"
        length = job.max_length if whole else job.lengths.maximum
        request = request_for(job, row.config, length, trust_remote_code=self.trust_remote_code)
        device = row.offer.device
        if full and device.is_cpu:
            self._note("a CPU has no caching allocator: only allocated bytes were traced")
        if not full or device.is_cpu:
            return tracer.trace(request)
        capacity = device.memory_torch_bytes - row.memory_bytes.context
        return tracer.run(request, capacity_bytes=int(capacity), blas_bytes=int(blas_bytes(device)))

    def _alarm(self, row: Estimated) -> None:
        """Say what a reader of a traced row must know."""
        trace = row.traced
        assert trace is not None  # noqa: S101 - `with_trace` made it
        if not trace.same_software:
            self._note(_other_software(self.bill, trace))
        apart = trace.allocated_bytes / trace.formula_bytes - 1.0
        if abs(apart) > FORMULA_TOLERANCE:
            self._note(
                f"for {_what(row)} the trace finds {format_bytes(trace.allocated_bytes)} and the "
                f"formula {format_bytes(trace.formula_bytes)}: {abs(apart):.0%} apart, where "
                f"{FORMULA_TOLERANCE:.0%} is usual. The trace is used"
            )

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _what(row: Estimated) -> str:
    return f"micro-batch {row.config.micro_batch_size} on {row.offer.label}"


def _other_software(bill: Bill, trace: MemoryTrace) -> str:
    software = bill.job.software
    wanted = ", ".join(
        f"{name} {'.'.join(map(str, version))}"
        for name, version in (("transformers", software.transformers), ("peft", software.peft))
    )
    ran = ", ".join(f"{name} {trace.versions.get(name, '?')}" for name in ("transformers", "peft"))
    return (
        f"the trace ran with {ran} and the job will run with {wanted}, so the uncertainty of its "
        f"memory was multiplied by {OTHER_VERSIONS:g}"
    )


def choose_traced(
    bill: Bill,
    chosen: Selection,
    objective: Objective,
    fidelity: str,
    among: Iterable[int] | None,
    progress: Callable[[str], None],
    *,
    trust_remote_code: bool = False,
) -> tuple[Selection, Tracing]:
    """The choice after tracing what the fidelity asks for."""
    tracing = Tracing(bill, trust_remote_code)
    pick = chosen.index
    if pick is None or fidelity == "formula":
        return chosen, tracing
    known = bill.job.model.family in FAMILIES
    if fidelity == "auto" and known and bill.fits_probability[pick] >= DOUBTFUL_PROBABILITY:
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
            tracing.trace(tracer, alternatives.distinct_alternatives(bill, pick, objective))
    return chosen, tracing


def _turned_down(row: Estimated) -> str:
    needs = f"{format_bytes(row.memory_bytes.total)} of {format_bytes(row.usable_bytes)}"
    return f"{_what(row)} was the formula's pick, but by the trace it needs {needs}"


def with_trace(bill: Bill, index: int, row: Estimated, traced: Traced) -> Estimated:
    """The row with traced parts.

    The context stays the formula's, and so does what the allocator cannot give back, unless the
    allocator was simulated.
    Source: derived: the run fits when what it needs is at most what the device has, and the
    logarithm of the former is spread as the trace's validation shows.
    """
    job, formula = bill.job, row.memory_bytes
    inside = {name: traced.parts.get(name, 0.0) for name in _PARTS}
    # A simulated run has the library's workspaces among its allocations.
    unseen = blas_bytes(row.offer.device) if traced.allocator is None else 0.0
    inside["workspace"] += unseen
    inside["activations"] *= _compiled_share(job, row)
    inside["weights"] += beside_bytes(job)  # the text model alone is traced
    allocated = sum(inside.values())
    before = formula.total - formula.context - formula.fragmentation
    slack = formula.fragmentation * (allocated / before if before > 0 else 1.0)
    if traced.allocator is not None:
        slack = max(traced.allocator.needed / traced.peak_bytes - 1.0, 0.0) * allocated
    parts = MemoryParts(**inside, context=formula.context, fragmentation=slack)
    capacity = bill.at("memory", "capacity", index)
    same = _same_software(job, traced)
    spread = hypot(_spread(bill, index, row, same=same), bill.at("memory", "slack_log_sd", index))
    margin = np.log(capacity / parts.total)
    own = float(chance_of_fitting(margin, np.maximum(spread, LEAST_LOG_SD)))
    open_ = open_facts(bill, index)  # a trace is of the settings as listed
    if open_ is not None:
        own = float(open_.chance()[0] + open_.weights[0, 0] * (own - open_.fits[0, 0]))
    changed = replace(
        row,
        memory_bytes=parts,
        reserved_bytes=min(row.reserved_bytes + allocated - before, capacity - parts.context),
        basis="traced" if row.basis == "modelled" else row.basis,
        traced=MemoryTrace(
            allocated_bytes=allocated,
            formula_bytes=before,
            phase=traced.phase,
            op=traced.op,
            phases={
                name: size + (unseen if name != "load" else 0.0)
                for name, size in traced.phases.items()
            },
            layers=traced.depths,
            versions=dict(traced.versions),
            same_software=same,
            allocator=_allocator_run(traced.allocator) if traced.allocator else None,
        ),
    )
    most = surest(crowded=changed.crowded, claims=memory_constants().claims)
    changed = replace(changed, fits_probability=min(own, most))
    return replace(changed, verdict=_verdict(changed, capacity))


def _verdict(row: Estimated, capacity: float) -> Verdict:
    needed = row.memory_bytes.total - row.memory_bytes.fragmentation
    if needed > capacity and row.fits_probability < HOPELESS:
        return "certain_oom"
    return "fits" if row.feasible else "at_risk"


def _spread(bill: Bill, index: int, row: Estimated, *, same: bool) -> float:
    """The spread of the allocated peak; what the trace cannot run keeps the formula's."""
    traced = TRACED_LOG_SD * (1.0 if same else OTHER_VERSIONS)
    stands_in = row.config.compile != "off" or bill.job.method.base == "int8"
    return max(traced, bill.at("memory", "log_sd", index)) if stands_in else traced


def _same_software(job: Job, traced: Traced) -> bool:
    """Whether what was traced has the job's versions, patch releases aside."""
    wanted = {"transformers": job.software.transformers, "peft": job.software.peft}
    return all(
        traced.versions.get(name, "").split(".")[:2] == [str(part) for part in version[:2]]
        for name, version in wanted.items()
    )


def _compiled_share(job: Job, row: Estimated) -> float:
    """What compiling leaves of the saved activations: the trace runs the step eagerly."""
    if row.config.compile == "off":
        return 1.0
    eager = row.config.with_knobs(compile="off")
    uncompiled = Pricing(job).one(row.offer, eager)
    before = uncompiled.memory_bytes.activations
    return min(row.memory_bytes.activations / before, 1.0) if before > 0 else 1.0


def _allocator_run(found: Allocator) -> AllocatorRun:
    return AllocatorRun(
        capacity_bytes=found.capacity,
        reserved_bytes=found.roomy.reserved,
        in_use_bytes=found.roomy.allocated,
        needed_bytes=found.needed,
        largest=_at(found.roomy.at),
        flushes=found.limited.retries,
        out_of_memory=_at(found.limited.out_of_memory) if found.limited.out_of_memory else None,
        expandable_needed_bytes=found.expandable_needed,
        expandable_out_of_memory=(
            _at(found.expandable.out_of_memory) if found.expandable.out_of_memory else None
        ),
    )


def _at(moment: Moment) -> AtOp:
    return AtOp(moment.step, moment.phase, moment.op, moment.size)

"""A priced candidate whose memory is traced: its parts, its verdict, and what the trace says."""

from __future__ import annotations

from dataclasses import fields, replace
from math import hypot, log
from statistics import NormalDist
from typing import TYPE_CHECKING

from autotune.cost.constants import memory_constants
from autotune.cost.memory.device import blas_bytes
from autotune.cost.spread.memory import HOPELESS, surest
from autotune.domain.answer.traced import AllocatorRun, AtOp, MemoryTrace
from autotune.domain.outcome import MemoryParts
from autotune.pricing import Pricing

if TYPE_CHECKING:
    from autotune.cost.bill import Bill
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated, Verdict
    from autotune.trace.answers import Allocator, Traced
    from autotune.trace.simulation import Moment

# Source: fms-acceleration benchmark tables, A100-80GB, one GPU, peak allocated bytes: 18 of 19 rows
# within 1 % of a trace whose loss and dtypes are those of the run.
TRACED_LOG_SD = 0.01
OTHER_VERSIONS = 1.5  # a trace of other versions than the job's widens the spread by this factor
FORMULA_TOLERANCE = 0.03  # what the formula is tested to agree with the trace within
LEAST_LOG_SD = 1e-6
_PARTS = [
    item.name for item in fields(MemoryParts) if item.name not in {"context", "fragmentation"}
]


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
    allocated = sum(inside.values())
    before = formula.total - formula.context - formula.fragmentation
    slack = formula.fragmentation * (allocated / before if before > 0 else 1.0)
    if traced.allocator is not None:
        slack = max(traced.allocator.needed / traced.peak_bytes - 1.0, 0.0) * allocated
    parts = MemoryParts(**inside, context=formula.context, fragmentation=slack)
    capacity = bill.at("memory", "capacity", index)
    same = _same_software(job, traced)
    spread = hypot(_spread(bill, index, row, same=same), bill.at("memory", "slack_log_sd", index))
    own = NormalDist().cdf(log(capacity / parts.total) / max(spread, LEAST_LOG_SD))
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

"""Peaks of measured runs from the trace of the installed training code, in place of the formula's.

Only runs on one device that run the classes of transformers as they are: sharded runs, trainers
with own model code and replaced kernels keep the formula, and are counted by that reason. The
installed versions are traced, whatever the run used; the loss and dtypes are those of the run.
"""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import TYPE_CHECKING

from autotune.cost.constants import memory_constants
from autotune.cost.memory import device as device_memory
from autotune.cost.spread.memory import HOPELESS, surest
from autotune.domain.outcome import FEASIBLE_PROBABILITY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.evidence.accuracy import Prediction
    from autotune.evidence.cases import MeasuredCase
    from autotune.trace.client import Traced, TraceFailed

    Trace = Callable[[MeasuredCase], Traced | TraceFailed]

TRACED = "traced"
SEVERAL = "formula: several devices"
OWN_CODE = "formula: a trainer with model code of its own"
KERNELS = "formula: replaced kernels"
LOSS = "formula: a loss that the trace cannot run"
# From transformers 5 on the experts of a layer are one parameter, which bitsandbytes leaves in 16
# bit. Source: modeling_mixtral.py of 4.57 (a ModuleList of linears) and 5.0 (stacked weights).
EXPERTS = "formula: experts that the installed version keeps otherwise"
STACKED_EXPERTS_FROM = 5
STOPPED = frozenset({"missing", "timeout"})  # what will fail for every row


class TracedMemory:
    """Traces the peaks of cases and counts what was traced and what was not, by reason."""

    def __init__(self, cases: Sequence[MeasuredCase], trace: Trace | None = None) -> None:
        """Keep the cases. trace: another way to trace a case than the installed code."""
        self._cases = {case.id: case for case in cases if case.longest_known}
        self._trace = trace
        self._stopped = ""
        self.counts: dict[str, int] = {}

    def replace(self, predictions: dict[str, Prediction]) -> dict[str, Prediction]:
        """The predictions, with traced peaks where there are any."""
        if self._trace is not None:
            return self._replaced(predictions, self._trace)
        from autotune.trace.client import Tracer
        from autotune.trace.request import request_for

        with Tracer() as tracer:

            def trace(case: MeasuredCase) -> Traced | TraceFailed:
                longest = case.job.lengths.maximum
                return tracer.trace(request_for(case.job, case.config, longest))

            return self._replaced(predictions, trace)

    def _replaced(self, predictions: dict[str, Prediction], trace: Trace) -> dict[str, Prediction]:
        found = dict(predictions)
        for name, case in self._cases.items():
            reason = not_traced(case) or self._stopped
            if not reason:
                answer = trace(case)
                peak = getattr(answer, "peak_bytes", None)
                if peak is not None:
                    reason = TRACED
                    found[name] = with_traced(predictions[name], case, float(peak))
                else:
                    reason = self._failure(answer)
            self.counts[reason] = self.counts.get(reason, 0) + 1
        return found

    def _failure(self, answer: Traced | TraceFailed) -> str:
        kind, message = getattr(answer, "kind", "crash"), getattr(answer, "message", "")
        reason = f"formula: no trace ({kind}: {message[:80]})"
        if kind in STOPPED:
            self._stopped = reason
        return reason


def not_traced(case: MeasuredCase) -> str:
    """Why a run keeps the formula; empty where it can be traced."""
    from autotune.trace.request import LOSSES

    software = case.job.software
    if case.offer.count > 1:
        return SEVERAL
    if software.own_model:
        return OWN_CODE
    if software.kernels != "eager":
        return KERNELS
    if case.job.model.is_moe and software.transformers[0] < STACKED_EXPERTS_FROM:
        return EXPERTS
    return "" if software.loss in LOSSES else LOSS


def with_traced(found: Prediction, case: MeasuredCase, peak_bytes: float) -> Prediction:
    """The prediction around a traced peak: caching, slack and context stay the formula's shares.

    Source: derived: what lies beside the tensors moves with them; the spread stays that of the
    kind of run, since versions are what a trace of another run gets wrong.
    """
    memory = found.memory
    allocated = peak_bytes + device_memory.blas_bytes(case.offer.device)
    context = memory["driver"] - memory["reserved"]
    grown = allocated / memory["allocated"]
    total = context + (memory["total"] - context) * grown
    spread = max(math.hypot(found.memory_log_sd, found.slack_log_sd), 1e-6)
    reserved = min(memory["reserved"] + allocated - memory["allocated"], found.usable_bytes)
    crowded = reserved + context >= found.usable_bytes
    fits = min(
        NormalDist().cdf(math.log(found.usable_bytes / total) / spread),
        surest(crowded=crowded, claims=memory_constants().claims),
    )
    certain = allocated + context > found.usable_bytes and fits < HOPELESS
    return replace(
        found,
        memory={
            "allocated": allocated,
            "reserved": reserved,
            "driver": reserved + context,
            "total": total,
        },
        fits_probability=fits,
        certain_oom=certain,
        accepted=total <= found.usable_bytes and fits >= FEASIBLE_PROBABILITY and not certain,
    )

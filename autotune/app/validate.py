"""The cost model against measured rows; and the time model fitted again on those that are shipped.

Peaks of measured runs come from the formula, or under `--fidelity trace` from tracing the installed
training code: only of runs on one device that run the classes of transformers as they are. Sharded
runs, trainers with own model code and replaced kernels keep the formula, and are counted by that
reason. The installed versions are traced, whatever the run used; the loss and dtypes are the run's.
"""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.catalog.files import write_whole
from autotune.cost.constants import memory_constants
from autotune.cost.memory import device as device_memory
from autotune.cost.spread.fitting import HOPELESS, chance_of_fitting
from autotune.cost.spread.memory import surest
from autotune.domain.errors import InputError, unknown
from autotune.domain.outcome import FEASIBLE_PROBABILITY
from autotune.evidence.accuracy import residuals, with_memory
from autotune.evidence.cases import UNITS
from autotune.evidence.fit.memory_left_out import refit_memory
from autotune.evidence.fit.refit import calibration_text, refit, refit_cases, residuals_of
from autotune.evidence.fit.spreads import leave_out, nested_sd
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases
from autotune.evidence.validation.errors import once
from autotune.evidence.validation.left_out import left_out_errors
from autotune.evidence.validation.validate import Validation, exact, validate
from autotune.frozen import dataclass
from autotune.pricing import plain_bill

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from autotune.evidence.accuracy import Prediction
    from autotune.evidence.cases import MeasuredCase
    from autotune.evidence.fit.refit import Refit
    from autotune.trace.client import Traced, TraceFailed

    Trace = Callable[[MeasuredCase], Traced | TraceFailed]
    from autotune.evidence.accuracy import Residual
    from autotune.evidence.record.table import Table
    from autotune.evidence.validation.left_out import LeftOutErrors

    Predictions = dict[str, Prediction]

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
    spread = np.maximum(np.hypot(found.memory_log_sd, found.slack_log_sd), 1e-6)
    reserved = min(memory["reserved"] + allocated - memory["allocated"], found.usable_bytes)
    crowded = reserved + context >= found.usable_bytes
    fits = min(
        float(chance_of_fitting(np.log(found.usable_bytes / total), spread)),
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


FIDELITIES = ("formula", "trace")
HEADLINE = "source"  # of `cases.UNITS`
BASIS_FILE = "shipped calibration, no refit: rows of the file"
BASIS_SHIPPED = (
    "shipped rows: every source predicted by a fit of time and of memory that has not seen it, "
    "with intervals sized on the other sources"
)


def run_validation(data: Path | None = None, fidelity: str = "formula") -> Validation:
    """Compare the cost model with the rows of a CSV; without one, with the rows that are shipped.

    With a CSV the shipped calibration predicts; without one, whole sources, devices and groups are
    left out, refitted and predicted. fidelity trace: peaks of runs on one device are traced where
    the installed code has them. Raises InputError when the file cannot be read as a table of
    measurements.
    """
    if fidelity not in FIDELITIES:
        raise unknown("fidelity", fidelity, FIDELITIES, "it is formula or trace")  # noqa: EM101
    if data and data.exists() and not data.is_file():
        msg = f"{data} is not a regular file"
        raise InputError(msg, "--data takes a CSV file")
    table = read_cases(data or SHIPPED_ROWS)
    trace = TracedMemory(table.cases) if fidelity == "trace" else None

    def traced(predictions: Predictions) -> Predictions:
        return trace.replace(predictions) if trace else predictions

    if data:
        found = validate(table.cases, table.skipped, plain_bill, BASIS_FILE, memory_of=traced)
    else:
        found = _shipped(table, traced)
    return replace(found, fidelity=fidelity, traced=trace.counts if trace else {})


@dataclass(slots=True)
class _Unseen:
    """Predictions of steps and of memory by fits that have not seen a kind of unit."""

    steps: list[Residual]
    memory: dict[str, dict[str, float]]

    def replaced(self, predictions: Predictions) -> Predictions:
        """The predictions with memory as predicted without the unit."""
        return {name: with_memory(own, self.memory[name]) for name, own in predictions.items()}


def _shipped(table: Table, traced: Callable[[Predictions], Predictions]) -> Validation:
    unseen = _left_out(table)
    own = unseen[HEADLINE]
    tables: dict[str, LeftOutErrors] = {}

    def compared(predictions: Predictions) -> Predictions:
        """The headline's predictions; on the way, the table of every kind of unit."""
        replaced = {name: each.replaced(predictions) for name, each in unseen.items()}
        replaced[HEADLINE] = traced(replaced[HEADLINE])
        for name, theirs in replaced.items():
            every = residuals(table.cases, theirs)
            memory = [item for item in once(every) if item.kind != "time" and exact(item)]
            steps = unseen[name].steps
            tables[name] = left_out_errors(UNITS[name], steps, memory, table.cases, theirs)
        return replaced[HEADLINE]

    found = validate(
        table.cases, table.skipped, plain_bill, BASIS_SHIPPED, own.steps, memory_of=compared
    )
    return replace(found, left_out=tables)


def _left_out(table: Table) -> dict[str, _Unseen]:
    """Every kind of unit, the sources from the refit itself."""
    whole = refit_cases(table.cases, digest="")
    sources = whole.left_out
    found: dict[str, _Unseen] = {}
    for name, unit in UNITS.items():
        if name == HEADLINE:
            left_out, memory = sources, whole.memory.left_out
        else:
            left_out = leave_out(whole.steps, unit, whole.fit)
            memory = refit_memory(table.cases, unit, whole.memory).left_out
        log_sd = nested_sd(sources, left_out, whole.new, unit)
        found[name] = _Unseen(residuals_of(left_out, log_sd), memory)
    return found


OUT_HINT = "--out takes a file in a folder that exists"


@dataclass(frozen=True, slots=True, eq=False)
class Calibrated:
    """A fit, the file's text, where it was written, and how long it took."""

    refit: Refit
    text: str
    written: Path | None
    seconds: float


def run_calibration(out: Path | None = None) -> Calibrated:
    """Fit the constants, offsets and spreads of the time model on the shipped rows.

    out: file to write; None writes nothing. Raises InputError when it cannot be written.
    """
    begun = time.perf_counter()
    if out is not None and not out.parent.is_dir():
        msg = f"{out} cannot be written: there is no folder {out.parent}"
        raise InputError(msg, OUT_HINT)
    found = refit(SHIPPED_ROWS)
    text = calibration_text(found)
    if out is not None:
        try:
            write_whole(out, text)
        except OSError as error:
            msg = f"{out} cannot be written: {error.strerror or error}"
            raise InputError(msg, OUT_HINT) from None
    return Calibrated(found, text, out, time.perf_counter() - begun)

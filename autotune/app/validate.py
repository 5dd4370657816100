"""The cost model against measured rows."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from autotune.domain.errors import InputError, unknown
from autotune.evidence.accuracy import residuals, with_memory
from autotune.evidence.cases import UNITS
from autotune.evidence.fit.memory_left_out import refit_memory
from autotune.evidence.fit.refit import refit_cases, residuals_of
from autotune.evidence.fit.spreads import leave_out, nested_sd
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases
from autotune.evidence.validation.errors import once
from autotune.evidence.validation.left_out import left_out_errors
from autotune.evidence.validation.traced_memory import TracedMemory
from autotune.evidence.validation.validate import Validation, exact, validate
from autotune.pricing import plain_bill

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.evidence.accuracy import Prediction, Residual
    from autotune.evidence.record.table import Table
    from autotune.evidence.validation.left_out import LeftOutErrors

    Predictions = dict[str, Prediction]

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
        msg = f"{data} is no regular file"
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
            memory = [
                item
                for item in once(every, lambda r: (r.case.replicate_key, r.kind))
                if item.kind != "time" and exact(item)
            ]
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
            memory = refit_memory(table.cases, unit).left_out
        found[name] = _Unseen(residuals_of(left_out, nested_sd(sources, left_out)), memory)
    return found

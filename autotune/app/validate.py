"""The cost model against measured rows."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.domain.errors import InputError, unknown
from autotune.evidence.accuracy import with_memory
from autotune.evidence.fit.refit import refit_cases, residuals_of
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases
from autotune.evidence.validation.traced_memory import TracedMemory
from autotune.evidence.validation.validate import Validation, validate
from autotune.pricing import Pricing

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.cost.bill import Bill
    from autotune.domain.candidates import Candidates
    from autotune.domain.job import Job
    from autotune.evidence.accuracy import Prediction

    Predictions = dict[str, Prediction]

FIDELITIES = ("formula", "trace")
BASIS_FILE = "shipped calibration, no refit: rows of the file"
BASIS_SHIPPED = (
    "shipped rows: every group of source, model and device predicted by a fit of time and of "
    "memory that has not seen it"
)


def run_validation(data: Path | None = None, fidelity: str = "formula") -> Validation:
    """Compare the cost model with the rows of a CSV; without one, with the rows that are shipped.

    With a CSV the shipped calibration predicts; without one, whole groups are left out, refitted
    and predicted. fidelity trace: peaks of runs on one device are traced where the installed code
    has them. Raises InputError when the file cannot be read as a table of measurements.
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
        found = validate(table.cases, table.skipped, _price, BASIS_FILE, memory_of=traced)
    else:
        time = refit_cases(table.cases, digest="")
        steps = residuals_of(time.left_out, time.spreads)
        memory = time.memory

        def left_out(predictions: Predictions) -> Predictions:
            unseen = {
                name: with_memory(own, memory.left_out[name]) for name, own in predictions.items()
            }
            return traced(unseen)

        found = validate(
            table.cases, table.skipped, _price, BASIS_SHIPPED, steps, memory_of=left_out
        )
    return replace(found, fidelity=fidelity, traced=trace.counts if trace else {})


def _price(job: Job, candidates: Candidates) -> Bill:
    return Pricing(job).bill(candidates)

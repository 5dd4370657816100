"""The cost model against measured rows."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cost.model import CostModel
from autotune.domain.errors import InputError
from autotune.evidence.public_csv import read_cases
from autotune.evidence.refit import refit_cases, residuals_of
from autotune.evidence.validation import Validation, validate

if TYPE_CHECKING:
    from autotune.cost.model import Bill
    from autotune.domain.candidates import Candidates
    from autotune.domain.job import Job

SHIPPED_ROWS = Path(__file__).parents[1] / "evidence" / "data" / "measured.csv"
BASIS_FILE = "shipped calibration, no refit: rows of the file"
BASIS_SHIPPED = (
    "shipped rows. Time: every group of source, model and device predicted by a fit that has not "
    "seen it. Memory: its formula has no fitted group, so the rows as they are"
)


def run_validation(data: Path | None = None) -> Validation:
    """Compare the cost model with the rows of a CSV; without one, with the rows that are shipped.

    With a CSV the shipped calibration predicts; without one, whole groups are left out, refitted
    and predicted. Raises InputError when the file cannot be read as a table of measurements.
    """
    if data and data.exists() and not data.is_file():
        msg = f"{data} is no regular file"
        raise InputError(msg, "--data takes a CSV file")
    table = read_cases(data or SHIPPED_ROWS)
    if data:
        return validate(table.cases, table.skipped, _price, BASIS_FILE)
    found = refit_cases(table.cases, digest="")
    steps = residuals_of(found.left_out, found.spreads)
    return validate(table.cases, table.skipped, _price, BASIS_SHIPPED, steps)


def _price(job: Job, candidates: Candidates) -> Bill:
    return CostModel(job).price(candidates)

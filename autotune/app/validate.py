"""`autotune validate`: the cost model against published or the user's own measurements."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from autotune.cost.model import CostModel
from autotune.evidence.public_csv import read_cases
from autotune.evidence.validation import Validation, validate

if TYPE_CHECKING:
    from autotune.cost.model import Bill
    from autotune.domain.candidates import Candidates
    from autotune.domain.job import Job

SHIPPED_ROWS = Path(__file__).parents[1] / "evidence" / "data" / "measured.csv"
BASIS_FILE = "shipped calibration, no refit: rows of the file"
BASIS_SHIPPED = (
    "shipped calibration, no refit: the shipped rows, part of which the calibration was made with"
)


def run_validation(data: Path | None = None) -> Validation:
    """Compare the cost model with the rows of a CSV; without one, with the rows that are shipped.

    Raises InputError when the file cannot be read as a table of measurements.
    """
    table = read_cases(data or SHIPPED_ROWS)
    basis = BASIS_FILE if data else BASIS_SHIPPED
    return validate(table.cases, table.skipped, _price, basis)


def _price(job: Job, candidates: Candidates) -> Bill:
    return CostModel(job).price(candidates)

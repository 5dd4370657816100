"""Lets tests import what lies beside them, which importlib mode does not; the tiny job, priced."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_job

if TYPE_CHECKING:
    from autotune.cost.bill import Bill
    from autotune.domain.job import Job

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module")
def job() -> Job:
    """The tiny job on this processor, never compiled."""
    from simulatedmachine import TINY

    return load_job(TINY, set_values={"compile": "off"})


@pytest.fixture(scope="module")
def bill(job: Job) -> Bill:
    """The job of the module, priced."""
    from simulatedmachine import bill_of

    return bill_of(job)

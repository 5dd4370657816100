"""Does what a plan claims hold? Stated figures against arithmetic, devices and the bill.

The checks are loaded only for a job that states or measured something.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.domain.answer.waterfall import WhatIf
    from autotune.domain.job import Job
    from autotune.domain.observation import Calibration


def job_contradictions(
    job: Job, calibration: Calibration, journey: WhatIf | None = None
) -> tuple[str, ...]:
    """Every contradiction, in the order of the file; none where nothing is stated or was measured.

    calibration: what the job's own evidence teaches. journey: from today to the pick, for what
    single changes are credited with.
    """
    if not job.stated and not job.evidence:
        return ()
    from autotune.claims.contradictions import contradictions_of, credited
    from autotune.pricing import Pricing

    found = contradictions_of(job, Pricing(job, calibration).price)
    return (*found, *credited(job, journey)) if journey else found

"""What this user's machines have shown before: verified runs of such a job, and all past runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.evidence.learned.store import is_empty
from autotune.evidence.runs_seen import with_verified
from autotune.pricing import plain_bill

if TYPE_CHECKING:
    from autotune.domain.job import Job


def with_past(job: Job, *, but: str = "") -> Job:
    """The job with what was measured before. but: a training that is left out."""
    job = with_verified(job, but=but)
    if is_empty():
        return job
    from autotune.evidence.learned.applied import with_learned

    return with_learned(job, plain_bill)

"""Rows of unknown length: what the priced configurations take if the rows are short.

An answer for unknown rows counts each at `max_length`, an upper bound. The same configurations,
priced with the lengths of a common data set of short rows, give the other end of the range.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.app.dataset.published_rows import short_rows
from autotune.domain.answer.limits import ShortRows
from autotune.domain.observation import TIMES
from autotune.pricing import Pricing

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.job import Job
    from autotune.domain.observation import Calibration
    from autotune.domain.outcome import Estimated


def on_short_rows(
    job: Job, calibration: Calibration, rows: Sequence[Estimated]
) -> list[ShortRows | None]:
    """Each row as it would be on short rows; nothing where the job's lengths are known.

    What was measured of the job is read anew under the short lengths: the same seconds then speak
    of fewer tokens. A row that was measured itself keeps its scale.
    """
    if job.lengths.known or not job.steps or not rows:
        return [None] * len(rows)
    like, lengths = short_rows(job.model, job.max_length)
    short = replace(job, lengths=lengths)
    pairs = [(row.offer, row.config) for row in rows]
    bills = Pricing.learned(short).of(pairs)
    full = Pricing(job, calibration).of(pairs)
    settled = job.today is not None and any(o.quantity in TIMES for o in job.evidence)
    found: list[ShortRows | None] = []
    for place, row in enumerate(rows):
        bill = bills.estimate(place)
        scale = row.duration_s.p50 / max(float(full.duration_s[place]), 1e-9)
        if row.basis != "measured":
            scale = 1.0
        found.append(
            ShortRows(
                bill.duration_s.times(scale), bill.cost_usd.times(scale), like.name, like.p50,
                like.source, settled,
            )
        )  # fmt: skip
    return found

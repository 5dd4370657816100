"""What a job file says of itself, against arithmetic, the cost model and what the changes give.

Each finding is one sentence. Nothing here changes a figure of the answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.claims.run import ALIKE, seconds_text
from autotune.domain.units import format_seconds
from autotune.pricing import Pricing

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.domain.answer.waterfall import Journey
    from autotune.domain.calibration import Calibration
    from autotune.domain.job import Job
    from autotune.domain.statement import Span

LITTLE = 0.01  # share of a credited saving that is about nothing


def job_contradictions(
    job: Job, calibration: Calibration, journey: Journey | None = None
) -> tuple[str, ...]:
    """Every contradiction, in the order of the file; none where nothing is stated or was measured.

    calibration: what the job's own evidence teaches. journey: from today to the pick, for what
    single changes are credited with.
    """
    if not job.stated and not job.evidence:
        return ()
    from autotune.claims.contradictions import contradictions_of

    return (*contradictions_of(job, Pricing(job, calibration).price), *_credited(job, journey))


def _credited(job: Job, journey: Journey | None) -> Iterator[str]:
    """Savings that a plan credits a change with, where the bill knows the change by that name."""
    if journey is None:
        return
    worth = {each.change: each.duration_s for each in journey.options}
    if journey.waterfall is not None:
        worth |= {each.change: each.duration_s for each in journey.waterfall.steps}
    worth |= {_SPLIT: worth["split"]} if "split" in worth else {}
    for statement in job.stated:
        for name, saving in statement.savings_s.items():
            if name in worth:
                yield from _credit(name, saving, -worth[name])


_SPLIT = "micro_batch_size"  # the waterfall moves micro-batch and accumulation together


def _credit(name: str, stated: Span, worth_s: float) -> Iterator[str]:
    if stated.low / ALIKE <= worth_s <= stated.high * ALIKE:
        return
    given = "about nothing" if abs(worth_s) < LITTLE * stated.low else format_seconds(worth_s)
    if worth_s < 0 and given != "about nothing":
        given = f"a loss of {format_seconds(-worth_s)}"
    yield f"{name} is credited with {seconds_text(stated)}, and the bill gives it {given}"

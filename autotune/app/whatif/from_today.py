"""Today to the pick: the waterfall, options around it, and readings of what was measured."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.app.whatif.data_and_disk import side_options
from autotune.app.whatif.diagnosis import measured_gaps
from autotune.app.whatif.waterfall import RunEdit, State, config_edits, pricer, waterfall_between
from autotune.domain.answer.waterfall import Waterfall, WaterfallStep, WhatIf
from autotune.domain.edit import Edit

if TYPE_CHECKING:
    from autotune.domain.candidates import SearchSpace
    from autotune.domain.job import Job
    from autotune.domain.observation import Calibration
    from autotune.domain.outcome import Estimated

SAME_S, SAME_USD = 1e-3, 1e-5
BATCH_COLUMNS = ("micro_batch_size", "gradient_accumulation_steps")  # what a batch moves


def what_if_of(
    job: Job,
    space: SearchSpace,
    calibration: Calibration,
    today: Estimated | None,
    best: Estimated | None,
) -> WhatIf | None:
    """From today's config to the pick; None where one of them is missing."""
    if today is None or best is None:
        return None
    price = pricer(calibration)
    start, end = State(job.as_today, today.offer, today.config), State(job, best.offer, best.config)
    fall = waterfall_between(start, [*batch_edit(job), *config_edits(start, end)], price)
    if today.basis == "measured":
        fall = starting_at(
            fall, today.duration_s.p50, today.cost_usd.p50, "modelled instead of measured",
            ("measured", "the cost model"),
        )  # fmt: skip
    return WhatIf(
        waterfall=ending_at(fall, best, "measured instead of modelled"),
        options=side_options(end, price, space, calibration),
        gaps=measured_gaps(job, space, best) if _readable(job, best) else (),
    )


def _readable(job: Job, best: Estimated) -> bool:
    """Whether readings of today's time may imply times of the pick.

    Not where it trains at another batch, nor where the pick was measured: that is no reading.
    """
    return job.today_batch is None and best.basis != "measured"


def batch_edit(job: Job) -> tuple[RunEdit, ...]:
    """The change from the global batch that today's config makes to the job's; nothing if none."""
    own = job.today_batch
    if own is None:
        return ()

    def changed(state: State) -> State:
        moved = replace(state.job, global_batch_size=job.global_batch_size, steps=job.steps)
        return replace(state, job=moved)

    before, after = str(own.global_batch_size), str(job.global_batch_size)
    edit = Edit(
        changed, "train.global_batch_size", before=before, value=after, changes="quality",
        columns=BATCH_COLUMNS,
    )  # fmt: skip
    return (edit,)


def ending_at(fall: Waterfall, row: Estimated, why: str) -> Waterfall:
    """The waterfall with a last step to a row that another basis prices otherwise."""
    seconds = row.duration_s.p50 - fall.end_s
    dollars = row.cost_usd.p50 - fall.end_usd
    closed = replace(fall, end_s=row.duration_s.p50, end_usd=row.cost_usd.p50)
    if _tiny(seconds, dollars):
        return replace(closed, steps=_absorbed(fall.steps, seconds, dollars))
    last = WaterfallStep(why, "the cost model", row.basis, seconds, dollars)
    return replace(closed, steps=(*fall.steps, last))


def starting_at(
    fall: Waterfall, seconds: float, dollars: float, why: str,
    bases: tuple[str, str] = ("as recorded", "as answered now"),
) -> Waterfall:  # fmt: skip
    """The waterfall with a first step from what was said before, on another basis."""
    gap_s, gap_usd = fall.start_s - seconds, fall.start_usd - dollars
    opened = replace(fall, start_s=seconds, start_usd=dollars)
    if _tiny(gap_s, gap_usd):
        return replace(opened, steps=_absorbed(fall.steps, gap_s, gap_usd))
    first = WaterfallStep(why, *bases, gap_s, gap_usd)
    return replace(opened, steps=(first, *fall.steps))


def _tiny(seconds: float, dollars: float) -> bool:
    """What only the order of additions makes."""
    return abs(seconds) <= SAME_S and abs(dollars) <= SAME_USD


def _absorbed(
    steps: tuple[WaterfallStep, ...], seconds: float, dollars: float
) -> tuple[WaterfallStep, ...]:
    """The remainder in the largest step, so that the sum stays exact."""
    if not steps:
        return steps
    most = max(range(len(steps)), key=lambda i: abs(steps[i].duration_s))
    own = steps[most]
    whole = replace(own, duration_s=own.duration_s + seconds, cost_usd=own.cost_usd + dollars)
    return (*steps[:most], whole, *steps[most + 1 :])

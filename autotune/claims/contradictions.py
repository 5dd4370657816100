"""What a job file says that does not hold: its plan's statements, and its own measurements.

Each stated fact has its check in `table`; here are measurements against one another, against what
their device can do, and against the job, and savings against what the bill gives the change.

Each finding is one sentence. Nothing here changes a figure of the answer.
"""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import groupby
from typing import TYPE_CHECKING

from autotune.claims.counts import (
    ROUNDED,
    SLOW_WRITE,
    slow_disk,
    steps_text,
)
from autotune.claims.feasibility import IDLE, KILO, SAME, rates_of
from autotune.claims.run import (
    ALIKE,
    Checked,
    PricedRun,
    PricedRuns,
    figures_text,
    percent_text,
    priced,
    seconds_text,
)
from autotune.claims.speed import speeds_of, verdict_text
from autotune.claims.table import findings
from autotune.cost.time import flops
from autotune.domain.config import split_of
from autotune.domain.job import Lengths
from autotune.domain.statement import About, Span
from autotune.domain.units import MB, format_bytes, format_count, format_seconds
from autotune.evidence.calibrate import LARGEST_FACTOR, step_factor
from autotune.evidence.reference import reference_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.domain.answer.waterfall import WhatIf
    from autotune.domain.job import Job
    from autotune.domain.observation import Observation
    from autotune.domain.statement import SpeedName
    from autotune.evidence.cases import Price
    from autotune.evidence.reference import Reference

SPEEDS: dict[str, SpeedName] = {
    "step_time_s": "step_time_s", "tokens_per_s": "tokens_per_s", "duration_s": "duration_s",
}  # fmt: skip
NOTED = 0.05  # share of a run from which its saves on a slow disk are named
UNUSED = 0.2  # share of the peak below which a device waits for something
MOST = 1.5  # times: what of a duration may not be training steps before it is named
LITTLE = 0.01  # share of a credited saving that is about nothing
_SPLIT = "micro_batch_size"  # the waterfall moves micro-batch and accumulation together


def contradictions_of(job: Job, price: Price) -> tuple[str, ...]:
    """Every finding, statements first, in the order of the file."""
    found: list[str] = []
    today = (o for o in job.evidence if o.today and o.quantity == "duration_s")
    measured_s, runs = next((o.value for o in today), None), PricedRuns(job, price)
    for statement in job.stated:
        found += findings(Checked(statement, runs, measured_s))
    own = (each for each in job.evidence if each.id.startswith("evidence["))
    for _, entry in groupby(own, key=lambda each: each.id.partition(".")[0]):
        found += _evidence(runs, list(entry), price)
    found += _saves(runs, measured_s)
    return tuple(dict.fromkeys(found))


def _evidence(runs: PricedRuns, entry: Sequence[Observation], price: Price) -> Iterator[str]:
    """One entry's measurements against one another and against what its device can do."""
    job = runs.job
    known = [reference_of(job, each) for each in entry]
    references = [each for each in known if each is not None]
    if not references:
        return
    yield from _batch(job, entry[0])
    wrong = tuple(_step_count(job, entry[0]))
    yield from wrong
    if wrong:
        references = [  # with the steps that its rows make
            replace(each, job=replace(each.job, steps=job.steps)) for each in references
        ]
    run = priced(references[0], price)
    values = {each.quantity: each.value for each in entry}
    speeds = {SPEEDS[name]: Span(v, v) for name, v in values.items() if name in SPEEDS}
    if run.row.steps:
        yield from _measured(run, speeds)
        if entry[0].today and "duration_s" in values:
            yield from _padding(run, values["duration_s"])
        save_s, whole_s = values.get("checkpoint_save_s"), values.get("duration_s")
        if save_s is not None:
            yield from _saving(run, save_s, whole_s)
    if "memory_bytes" in values:
        yield from _memory(run, values["memory_bytes"])
    for reference in references:
        if reference.elsewhere and reference.observation.quantity == "duration_s":
            yield from _carried(runs, reference, price)


def _batch(job: Job, observation: Observation) -> Iterator[str]:
    """A run of the past whose split makes another batch than the job's."""
    split = split_of(observation.knobs)
    rows = observation.facts.get("global_batch")
    if split is None or observation.today or rows == job.global_batch_size:
        return
    micro, accumulation = split
    yield (
        f"{observation.id}: micro-batch {micro} x accumulation {accumulation} is {rows} rows a "
        f"step, and the job's are {job.global_batch_size}"
    )


def _step_count(job: Job, observation: Observation) -> Iterator[str]:
    """Steps of today's run, or of stated rows and epochs, that these do not make."""
    facts = observation.facts
    taken = set(facts.get("same_as_job") or ())  # type: ignore[call-overload]  # names
    steps, rows, batch, epochs = (
        float(str(facts.get(name))) for name in ("steps", "rows", "global_batch", "epochs")
    )
    whole = epochs * math.ceil(rows / batch)
    known = whole > 0 and (observation.today or not taken & {"rows", "epochs"})
    if known and observation.quantity == "duration_s" and abs(steps / whole - 1.0) > ROUNDED:
        yield f"{observation.id}: {steps_text(job, Span(steps, steps))}"


def _measured(run: PricedRun, speeds: dict[SpeedName, Span]) -> Iterator[str]:
    """Rates against one another; a duration must hold its steps; and the device's ceiling."""
    rates: dict[SpeedName, Span] = {k: v for k, v in speeds.items() if k != "duration_s"}
    yield from speeds_of(run, rates, slow=False) if rates else ()
    whole = speeds.get("duration_s")
    if whole is None:
        return
    if not rates:
        tokens = whole.under(run.tokens_per_step * run.row.steps)
        what = f"the measured {seconds_text(whole)}"
        text = verdict_text(run, what, tokens, slow=False) or _idle(run, what, tokens)
        yield from [text] if text else ()
        return
    name, span = next(iter(rates.items()))
    step_s = span.low if name == "step_time_s" else run.tokens_per_step / span.low
    steps_s = step_s * run.row.steps
    if 1 / MOST <= steps_s / whole.low <= 1 + ROUNDED:
        return
    slip = abs(whole.low / steps_s / KILO - 1.0) <= SAME
    rest = (
        f", not the measured {format_seconds(whole.low)}: kiloseconds were read as hours"
        if slip
        else f", more than the measured {format_seconds(whole.low)}"
        if steps_s > whole.low
        else f": the rest of the measured {format_seconds(whole.low)} is something else than steps"
    )
    yield (
        f"{format_count(run.row.steps)} steps of {format_seconds(step_s)} take "
        f"{format_seconds(steps_s)}{rest}"
    )


def _idle(run: PricedRun, what: str, tokens: Span) -> str:
    """A run so long that its device did next to nothing; empty where it did something."""
    rates = rates_of(run.job, run.row)
    share = tokens.scaled(rates.flop_per_token / rates.peak_flop_per_s)
    if share.high >= IDLE:
        return ""
    return (
        f"{what} are {figures_text(tokens)} tokens/s, {percent_text(share)} of the peak of "
        f"{run.machine}: it was almost idle, where {format_count(run.row.tokens_per_s)} "
        "tokens/s are likely"
    )


def _padding(run: PricedRun, whole_s: float) -> Iterator[str]:
    """A run that leaves its device idle, and would not if its rows were padded to max_length."""
    job = run.job
    longest = replace(
        job, lengths=Lengths((job.max_length,) * 2, job.max_length, job.max_length, known=True)
    )
    rates, rows = rates_of(job, run.row), run.row.steps * job.global_batch_size
    real, padded = (
        rows * flops.useful_flop_per_row(each) / (whole_s * rates.peak_flop_per_s)
        for each in (job, longest)
    )
    most = rates.observed_flop_per_s / rates.peak_flop_per_s
    if job.padding != "longest" or not job.lengths.known or run.config.packing == "on":
        return
    if IDLE < real < UNUSED and MOST * real < padded <= most:
        yield (
            f"the measured {format_seconds(whole_s)} are {100 * real:.0f} % of the peak of "
            f"{run.machine} at {job.lengths.mean:.0f} tokens a row, and {100 * padded:.0f} % if "
            f"every row is padded to {format_count(job.max_length)}: padding may be what takes the "
            "time"
        )


def _saving(run: PricedRun, save_s: float, whole_s: float | None) -> Iterator[str]:
    """Measured saves: the speed that they are, and their share of the run."""
    yield from slow_disk(run.row.checkpoint_bytes, Span(save_s, save_s))
    total = save_s * run.row.checkpoints
    if whole_s is not None and total > NOTED * whole_s:
        share = "more than" if total > whole_s else f"{100 * total / whole_s:.0f} % of"
        yield (
            f"{format_count(run.row.checkpoints)} saves of {format_seconds(save_s)} take "
            f"{format_seconds(total)}, {share} the measured {format_seconds(whole_s)}"
        )


def _memory(run: PricedRun, measured: float) -> Iterator[str]:
    device = run.row.offer.device
    if measured > device.memory_driver_bytes > 0:
        yield (
            f"{format_bytes(measured)} cannot have been in use: {device.name} has "
            f"{format_bytes(device.memory_driver_bytes)}"
        )


def _carried(runs: PricedRuns, reference: Reference, price: Price) -> Iterator[str]:
    """A run of other hardware that is too far from the model to scale it, as a run of this job.

    The ratio of two modelled runs errs less than either: what the model gets wrong of the job is
    in both.
    """
    factor = step_factor(reference, price(reference.job, reference.candidates), {})
    if factor is None or 1 / LARGEST_FACTOR <= factor <= LARGEST_FACTOR:
        return
    there, here = priced(reference, price), runs.of(About())
    if here is None:
        return
    measured = reference.observation.value
    scaled = measured * here.row.duration_s.p50 / there.row.duration_s.p50
    stated = next(
        (s.speeds["duration_s"] for s in runs.job.stated
         if "duration_s" in s.speeds and s.about.gpu in {None, here.row.offer.device.name}),
        None,
    )  # fmt: skip
    instead = ""
    if stated is not None and not stated.low * 0.8 <= scaled <= stated.high * 1.25:
        instead = f", not {seconds_text(stated)}"
    yield (
        f"the {format_seconds(measured)} measured on {there.machine} for "
        f"{format_count(reference.job.rows)} rows are {format_seconds(scaled)} of this job on "
        f"{here.machine} by the ratio of the two modelled runs "
        f"({format_seconds(there.row.duration_s.p50)} there, "
        f"{format_seconds(here.row.duration_s.p50)} here){instead}"
    )


def _saves(runs: PricedRuns, measured_s: float | None) -> Iterator[str]:
    """Saves on a disk that is stated to be slow, where nothing else has spoken of them."""
    job = runs.job
    known = any("checkpoint_save_s" in s.figures for s in job.stated) or any(
        each.quantity == "checkpoint_save_s" for each in job.evidence
    )
    offer = job.today_offer or job.offers[0]
    rate = offer.host.checkpoint_write_bytes_per_s
    assumed = "checkpoint_write_bytes_per_s" in offer.host.assumed
    if known or assumed or job.today is None or measured_s is None or rate >= SLOW_WRITE:
        return
    run = runs.of(About())
    if run is None or run.row.time_s.checkpoint < NOTED * measured_s:
        return
    share = 100.0 * run.row.time_s.checkpoint / measured_s
    yield (
        f"{format_count(run.row.checkpoints)} saves of {format_bytes(run.row.checkpoint_bytes)} at "
        f"{rate / MB:.0f} MB/s take {format_seconds(run.row.time_s.checkpoint)}, {share:.0f} % of "
        f"the measured {format_seconds(measured_s)}: it is the disk for checkpoints that is slow"
    )


def credited(job: Job, journey: WhatIf) -> Iterator[str]:
    """Savings that a plan credits a change with, where the bill knows the change by that name."""
    worth = {each.change: each.duration_s for each in journey.options}
    if journey.waterfall is not None:
        worth |= {each.change: each.duration_s for each in journey.waterfall.steps}
    worth |= {_SPLIT: worth["split"]} if "split" in worth else {}
    for statement in job.stated:
        for name, saving in statement.savings_s.items():
            if name in worth:
                yield from _credit(name, saving, -worth[name])


def _credit(name: str, stated: Span, worth_s: float) -> Iterator[str]:
    if stated.low / ALIKE <= worth_s <= stated.high * ALIKE:
        return
    given = "about nothing" if abs(worth_s) < LITTLE * stated.low else format_seconds(worth_s)
    if worth_s < 0 and given != "about nothing":
        given = f"a loss of {format_seconds(-worth_s)}"
    yield f"{name} is credited with {seconds_text(stated)}, and the bill gives it {given}"

"""What a campaign's document says of itself, against what it lists and what the model expects.

Each finding is one sentence. Nothing here changes a figure of the plan.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.catalog.devices import find_device
from autotune.claims.counts import adapter_counts, batch_text
from autotune.claims.feasibility import rates_of
from autotune.domain.statement import Span
from autotune.domain.units import HOUR_S, format_count, format_range, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.app.campaign.file import Campaign
    from autotune.domain.answer.plan import PlannedRun, RunOnOffer
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated
    from autotune.domain.typed.campaign import StatedSection

HOURS_OFF = 0.01  # relative; less is rounding
NAMED = 3  # devices that get a sentence of their own
UNLIKE = 1.5  # times longer or shorter than the model before anything is said


def contradictions(campaign: Campaign, runs: Sequence[PlannedRun]) -> tuple[str, ...]:
    """Every contradiction, those that matter most first. runs: of the campaign, priced."""
    stated = campaign.file.stated
    found = [*_against_the_model(campaign, runs)]
    if stated is not None:
        found += _speeds(campaign, stated)
    found += _elsewhere(campaign, runs)
    found += _counts(campaign)
    if stated is not None:
        found += _configs(campaign, stated)
        found += _parameters(campaign, stated)
    return tuple(found)


def hours_device(campaign: Campaign) -> str:
    """The device that stated hours are of: stated, or that of the first offer."""
    stated = campaign.file.stated
    if stated is not None and stated.hours_on is not None:
        return find_device(stated.hours_on).name
    return campaign.offers[0].device.name


def _trained(campaign: Campaign) -> list[tuple[PlannedRun, Job]]:
    """Training runs with the job of their first stage."""
    return [
        (run, campaign.jobs[run.pieces[0].job]) for run in campaign.runs if run.pieces and run.steps
    ]


def _against_the_model(campaign: Campaign, runs: Sequence[PlannedRun]) -> Iterator[str]:
    """Stated hours beside the model's, on the device that they are of."""
    name = hours_device(campaign)
    at = next((n for n, o in enumerate(campaign.offers) if o.device.name == name), None)
    both = [
        (run, run.on[at])
        for run in runs
        if at is not None and run.hours is not None and run.on[at].model_s is not None
    ]
    if not both:
        return
    stated = sum((run.stated_s or 0.0) * run.repeat for run, _ in both)
    model = sum((found.model_s or 0.0) * run.repeat for run, found in both)
    if model <= 0 or max(stated / model, model / stated) < UNLIKE:
        return
    steps = sum(run.steps * run.repeat for run, _ in both)
    expected = f"the {_hours(model)} that the model expects of all {format_count(steps)} steps"
    text = (
        f"the stated {_hours(stated)} are {stated / model:.3g} times {expected} on {name}"
        if stated > model
        else f"the stated {_hours(stated)} are too few: {expected} on {name} are "
        f"{model / stated:.3g} times as many"
    )
    speed = _speed(campaign, both)
    yield f"{text}: {speed}" if speed else text


def _hours(seconds: float) -> str:
    hours = seconds / HOUR_S
    return f"{hours:,.1f} h" if hours >= 10.0 else f"{hours:.3g} h"  # noqa: PLR2004 - digits


def _speed(campaign: Campaign, both: Sequence[tuple[PlannedRun, RunOnOffer]]) -> str:
    """The training speed that stated hours imply, and the share of the device that it uses."""
    trained = [(run, row) for run, on in both if run.steps and (row := on.row) is not None]
    tokens = sum(run.tokens * run.repeat for run, _ in trained)
    seconds = sum((run.hours or 0.0) * HOUR_S * run.repeat for run, _ in trained)
    rows = [row for _, row in trained]
    if not tokens or seconds <= 0:
        return ""
    row = max(rows, key=lambda each: each.duration_s.p50)
    implied = tokens / seconds
    if row.tokens_per_s <= 0:
        return ""
    share = row.mfu * implied / row.tokens_per_s
    first, its_row = trained[0]
    possible = _possible(campaign.jobs[first.pieces[0].job], its_row, implied)
    low, high = min(r.tokens_per_s for r in rows), max(r.tokens_per_s for r in rows)
    expected = format_range(low, high, format_count)
    return (
        f"they imply {format_count(implied)} tokens/s, {100 * share:.1f} % of the device's peak"
        f"{possible}, where {expected} tokens/s are expected"
    )


def _possible(job: Job, row: Estimated, implied: float) -> str:
    """What speaks against a speed on its device; empty where nothing does."""
    rates = rates_of(job, row)
    flop_per_s = implied * rates.flop_per_token
    if flop_per_s > rates.ceiling_flop_per_s:
        return ", which is impossible"
    return ", which nothing observed reaches" if flop_per_s > rates.observed_flop_per_s else ""


def _speeds(campaign: Campaign, stated: StatedSection) -> Iterator[str]:
    """Stated tokens a second against stated steps an hour."""
    trained = _trained(campaign)
    if stated.tokens_per_s is None or stated.steps_per_hour is None or not trained:
        return
    job = trained[0][1]
    a_step = job.tokens / job.steps
    low, high = (steps * a_step / HOUR_S for steps in stated.steps_per_hour)
    least, most = stated.tokens_per_s
    if least <= high and low <= most:
        return
    ranges = (stated.tokens_per_s, stated.steps_per_hour, (low, high))
    tokens, hourly, implied = (format_range(*ends, format_count) for ends in ranges)
    yield (
        f"{tokens} tokens/s and {hourly} steps/h disagree: "
        f"at {format_count(a_step)} tokens a step, so many steps are {implied} tokens/s"
    )


def _elsewhere(campaign: Campaign, runs: Sequence[PlannedRun]) -> Iterator[str]:
    """Stated hours of one device priced at the rate of another."""
    if all(run.hours is None for run in runs):
        return
    name = hours_device(campaign)
    by_device: dict[str, int] = {}
    for number, offer in enumerate(campaign.offers):
        by_device.setdefault(offer.device.name, number)
    own = _model_s(runs, by_device[name]) if name in by_device else None
    times: dict[str, float | None] = {}
    for device, number in by_device.items():
        if device != name:
            there = _model_s(runs, number)
            times[device] = there / own if own and there else None
    head = f"the stated hours are of {name}: priced at the rate of"
    if len(times) > NAMED:
        yield f"{head} {len(times)} other devices they say nothing{_extremes(times)}"
        return
    for device, factor in times.items():
        why = f", because the model expects {factor:.1f} times the hours there" if factor else ""
        yield f"{head} {device} they say nothing{why}"


def _extremes(times: dict[str, float | None]) -> str:
    """The devices on which the model expects the fewest and the most hours."""
    known = {device: factor for device, factor in times.items() if factor}
    if not known:
        return ""
    least, most = min(known, key=lambda d: known[d]), max(known, key=lambda d: known[d])
    return (
        f": the model expects {known[least]:.1f} ({least}) to {known[most]:.1f} ({most}) times "
        "the hours there"
    )


def _model_s(runs: Sequence[PlannedRun], number: int) -> float | None:
    """[s] that the model expects of all runs on one offer; None where it cannot say."""
    total = 0.0
    for run in runs:
        seconds = run.on[number].model_s
        if seconds is None:
            return None
        total += seconds * run.repeat
    return total


def _counts(campaign: Campaign) -> Iterator[str]:
    """Numbers of runs and hours that are stated of a group against those that it lists."""
    for (phase, part), stated in campaign.stated.items():
        group = [
            run for run in campaign.runs if phase in {"", run.phase} and part in {"", run.part}
        ]
        name = part or phase or "the campaign"
        listed = sum(run.repeat for run in group)
        if stated.runs is not None and stated.runs != listed:
            yield f"{name} lists {listed} runs, not {stated.runs}"
        if stated.hours is None or any(run.hours is None for run in group):
            continue
        hours = sum((run.hours or 0.0) * run.repeat for run in group)
        rounding = max(HOURS_OFF * hours, 0.05)
        if abs(hours - stated.hours) > rounding:
            yield f"the runs of {name} add up to {hours:,.1f} h, not {stated.hours:,.1f} h"


def _configs(campaign: Campaign, stated: StatedSection) -> Iterator[str]:
    """Settings proposed to save time that train other samples a step."""
    trained = _trained(campaign)
    if not trained:
        return
    batch = trained[0][1].global_batch_size
    for config in stated.configs:
        micro = int(config.get("micro_batch_size", batch))
        accumulation = int(config.get("gradient_accumulation_steps", 1))
        rows = micro * accumulation
        if rows == batch:
            continue
        typed = f"batch {micro} x accumulation {accumulation}"
        yield batch_text(typed, rows, batch, ", so it saves no time")


def _parameters(campaign: Campaign, stated: StatedSection) -> Iterator[str]:
    trained = _trained(campaign)
    if stated.trainable_parameters is not None and trained:
        count = float(stated.trainable_parameters)
        yield from adapter_counts(trained[0][1], Span(count, count))


def resumed_note(durations_s: Sequence[float], hours_per_day: float) -> str:
    """What a day that ends before a run does to it; empty where it does nothing."""
    longer = sum(seconds > hours_per_day * HOUR_S for seconds in durations_s)
    if hours_per_day >= 24.0 or not longer:  # noqa: PLR2004 - hours of a whole day
        return ""
    longest = format_seconds(max(durations_s))
    return (
        f"{longer} runs take longer than the {hours_per_day:g} h of a day (the longest {longest}): "
        "they go on the next day from a checkpoint, whose saving and loading is not counted"
    )

"""Stated speeds and durations: against one another, against physics, against other machines.

A sentence for each thing that does not hold; nothing where it does.
"""

from __future__ import annotations

from itertools import combinations, pairwise
from typing import TYPE_CHECKING

from autotune.claims.feasibility import FAR, KILO, SAME, rates_of
from autotune.claims.run import (
    ALIKE,
    PricedRun,
    PricedRuns,
    apart,
    figures_text,
    percent_text,
    seconds_text,
)
from autotune.domain.statement import Span
from autotune.domain.units import HOUR_S, TERA, format_count, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.claims.run import Checked
    from autotune.domain.statement import SpeedName, StatedDuration, Statement


def speed_findings(checked: Checked) -> Iterator[str]:
    """What the speeds and the duration of one entry contradict."""
    speeds, run, size = checked.statement.speeds, checked.run, checked.statement.about.rows
    if speeds and run is not None:
        head = f"{format_count(size)} rows: " if size is not None else ""
        yield from (f"{head}{text}" for text in speeds_of(run, speeds))


def several_findings(checked: Checked) -> Iterator[str]:
    """What runs that are added up contradict: their total, and their ranks."""
    if checked.statement.runs:
        yield from _added_up(checked.statement)
        yield from _ranks(checked.runs, checked.statement)


def speeds_of(run: PricedRun, speeds: dict[SpeedName, Span], *, slow: bool = True) -> Iterator[str]:
    """Speeds of one run against one another, then the first of them against the devices.

    slow: also where it is far slower than likely.
    """
    tokens = {name: tokens_per_s(run, name, span) for name, span in speeds.items()}
    told = False
    for (one, first), (other, second) in pairwise(tokens.items()):
        if apart(first, second):
            told |= "duration_s" in {one, other}
            yield _disagreement(run, (one, speeds[one], first), (other, speeds[other], second))
    name = next(iter(tokens))
    text = verdict_text(run, speed_text(name, speeds[name]), tokens[name], slow=slow and not told)
    if text:
        yield text


def tokens_per_s(run: PricedRun, name: SpeedName, span: Span) -> Span:
    """[tokens/s] real tokens that a stated speed needs; of a duration as if all were training."""
    if name == "tokens_per_s":
        return span
    if name == "rows_per_s":
        return span.scaled(run.tokens_per_step / run.job.global_batch_size)
    if name == "steps_per_hour":
        return span.scaled(run.tokens_per_step / HOUR_S)
    steps = run.row.steps if name == "duration_s" else 1
    return span.under(run.tokens_per_step * steps)


def speed_text(name: SpeedName, span: Span) -> str:
    """A stated speed in words."""
    if name == "step_time_s":
        return f"{seconds_text(span)} a step"
    if name == "duration_s":
        return seconds_text(span)
    return figures_text(span) + {
        "tokens_per_s": " tokens/s", "rows_per_s": " rows/s", "steps_per_hour": " steps/h",
    }[name]  # fmt: skip


def _disagreement(
    run: PricedRun, one: tuple[SpeedName, Span, Span], other: tuple[SpeedName, Span, Span]
) -> str:
    """Two figures of one run that cannot both be; a duration is worked out from the other."""
    if one[0] == "duration_s":
        one, other = other, one
    if other[0] != "duration_s":
        (_, first, rate), (_, second, against) = one, other
        return (
            f"{speed_text(one[0], first)} and {speed_text(other[0], second)} disagree: the first "
            f"is {figures_text(rate)} tokens/s of this job, the second {figures_text(against)}"
        )
    whole = run.tokens_per_step * run.row.steps
    takes = one[2].under(whole)
    factor = other[1].middle / takes.middle
    slip = abs(factor / KILO - 1.0) <= SAME
    why = ": kiloseconds were read as hours" if slip else f", {factor:.2g} times as long"
    return (
        f"{format_count(whole)} tokens at {speed_text(one[0], one[1])} take {seconds_text(takes)}, "
        f"not {seconds_text(other[1])}{why}"
    )


def verdict_text(run: PricedRun, what: str, tokens: Span, *, slow: bool = True) -> str:
    """Whether the devices can be so fast, judged at the slower end; or why they would be so slow.

    Empty where nothing speaks against it. slow: also what is far slower than likely.
    """
    rates = rates_of(run.job, run.row)
    flop = tokens.scaled(rates.flop_per_token)
    share = flop.scaled(1.0 / rates.peak_flop_per_s)
    if flop.low > rates.observed_flop_per_s:
        rows = flop.under(rates.observed_flop_per_s * run.job.lengths.mean)
        impossible = flop.low > rates.ceiling_flop_per_s
        verdict = "is impossible" if impossible else "is beyond anything observed"
        limit = (
            f"it can do {format_count(rates.ceiling_flop_per_s / TERA)} at most"
            if impossible
            else f"no published step of such a method was above {_tera(rates.observed_flop_per_s)}"
        )
        return (
            f"{what} {verdict} on {run.machine}: {figures_text(tokens)} tokens/s are "
            f"{figures_text(flop.scaled(1.0 / TERA))} TFLOP/s, {_of_peak(share)} its "
            f"dense peak, and {limit}. Rows of {figures_text(rows)} tokens, not "
            f"{run.job.lengths.mean:.0f}, would be as fast as anything observed; "
            f"{format_seconds(run.row.step_time_s)} a step are likely"
        )
    if slow and run.row.tokens_per_s > FAR * tokens.high:
        return (
            f"{what} on {run.machine} is {percent_text(share)} of its peak: "
            f"{format_count(run.row.tokens_per_s)} tokens/s are likely, not "
            f"{figures_text(tokens)}"
        )
    return ""


def _of_peak(share: Span) -> str:
    return f"{figures_text(share)} times" if share.high > 1.0 else f"{percent_text(share)} of"


def _tera(flop_per_s: float) -> str:
    return f"{flop_per_s / TERA:.0f} TFLOP/s"


def _added_up(statement: Statement) -> Iterator[str]:
    """The stated total of several runs against their sum."""
    total = statement.figures.get("total_s")
    if total is None:
        return
    added = Span(
        sum(run.duration_s.low for run in statement.runs),
        sum(run.duration_s.high for run in statement.runs),
    )
    where = f" on {statement.about.gpu}" if statement.about.gpu else ""
    slack = 1.1  # rounded figures
    if added.low > slack * total.high or slack * added.high < total.low or apart(added, total):
        yield (
            f"the {len(statement.runs)} runs{where} add up to {seconds_text(added)}, not "
            f"{seconds_text(total)}"
        )


def _ranks(runs: PricedRuns, statement: Statement) -> Iterator[str]:
    """Runs that differ in nothing but the rank, the most unlike pair of them."""
    worst: tuple[float, str] = (ALIKE, "")
    for one, other in combinations(statement.runs, 2):
        low, high = sorted((one, other), key=lambda run: run.about.rank or 0)
        if not _only_rank(low, high):
            continue
        first, second = (runs.of(run.about) for run in (low, high))
        if first is None or second is None:
            continue
        stated = high.duration_s.middle / low.duration_s.middle
        expected = second.row.duration_s.p50 / first.row.duration_s.p50
        factor = max(stated / expected, expected / stated)
        if factor > worst[0]:
            work = rates_of(second.job, second.row).flop_per_token
            more = work / rates_of(first.job, first.row).flop_per_token - 1.0
            worst = (factor, (
                f"rank {high.about.rank} cannot take {stated:.2g} times as long as rank "
                f"{low.about.rank} on {first.machine}: it adds {100.0 * more:.1f} % to the "
                f"arithmetic, and {expected:.2f} times are expected"
            ))  # fmt: skip
    if worst[1]:
        yield worst[1]


def _only_rank(one: StatedDuration, other: StatedDuration) -> bool:
    left, right = one.about, other.about
    if left.rank is None or right.rank is None or left.rank == right.rank:
        return False
    return (left.kind, left.rows, left.max_length, left.gpu, left.count) == (
        right.kind, right.rows, right.max_length, right.gpu, right.count,
    )  # fmt: skip


def machine_findings(checked: Checked) -> Iterator[str]:
    """A stated duration on other machines against the one measured today, by their peaks."""
    job, measured_s = checked.job, checked.measured_s
    about, stated = checked.statement.about, checked.statement.speeds.get("duration_s")
    home = job.today_offer or job.offers[0]
    same = (about.gpu, about.count) == (home.device.name, home.count)
    if stated is None or measured_s is None or about.gpu is None or same:
        return
    from autotune.catalog.devices import find_device

    precision = job.today.precision if job.today else "bf16"
    device = find_device(about.gpu)
    peak = home.device.peak_flop_per_s(precision) * home.count
    there = (device.peak_flop_per_s(precision) or device.fp16_flop_per_s) * about.count
    if peak <= 0 or there <= 0:
        return
    faster, ratio = stated.under(measured_s), there / peak
    if faster.low <= ratio:
        return
    label = f"{about.count}x {device.name}" if about.count > 1 else device.name
    yield (
        f"{seconds_text(stated)} on {label} would be {figures_text(faster)} times as fast as the "
        f"{format_seconds(measured_s)} measured on {home.label}, and its peak is {ratio:.2f} times "
        f"as high: it would have to use it {figures_text(faster.scaled(1.0 / ratio))} times as well"
    )

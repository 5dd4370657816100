"""What the first steps say of the plan, in a line."""

from __future__ import annotations

import statistics
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.domain.answer.verification import CLOSE
from autotune.domain.units import HOUR_S, format_bytes, format_count, format_seconds, format_usd
from autotune.evidence.log.run_log import BUSY

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.app.verify.plan import Expected
    from autotune.report.schema import Row
    from autotune.training.stopwatch import Step

STALL = 3.0  # times the median work: a compiler, not a step
MOST_WARM_UP = 10  # steps that are not judged, at most a fifth of those there are
CAUSE = 0.5  # of the excess, that makes a part its cause
MANY = 3.0  # times, from which on a share in percent says less
NEAR_FULL = 0.05  # of the device's memory


@dataclass(frozen=True, slots=True)
class Pace:
    """[s] what a step takes on average, by part."""

    step_s: float
    data_wait_s: float
    other_s: float

    @property
    def work_s(self) -> float:
        """[s] forward, backward and optimizer."""
        return self.step_s - self.data_wait_s - self.other_s


def pace_of(steps: Sequence[Step]) -> Pace:
    """The mean step after the warm-up, without steps whose work stalled. There must be a step."""
    warm_up = min(MOST_WARM_UP, len(steps) // 5)
    later = steps[warm_up:]
    most = STALL * statistics.median(step.work_s for step in later)
    kept = [step for step in later if step.work_s <= most]
    return Pace(
        statistics.fmean(step.duration_s for step in kept),
        statistics.fmean(step.data_wait_s for step in kept),
        statistics.fmean(step.other_s for step in kept),
    )


def opening(expected: Expected | None, path: str, why: str) -> str:
    """What is recorded where, and against which plan."""
    if expected is None:
        return f"recording into {path}, without a plan: {why}"
    if expected.row is None:
        return f"recording into {path}, without a prediction: {'; '.join(expected.notes)}"
    row = expected.row
    differs = f" ({'; '.join(expected.notes)})" if expected.notes else ""
    return (
        f"recording into {path}; predicted for {expected.job_name} on {expected.machine}: "
        f"{format_seconds(row.step_time_s)} a step, "
        f"{format_seconds(row.duration_s.p50)} in all{differs}"
    )


def verdict(
    pace: Pace, step: int, steps: int, row: Row | None, memory: Mapping[str, int],
    free: int | None, waiting: float = 0.0,
) -> str:  # fmt: skip
    """The line after `step` of `steps`.

    memory: [bytes] by the keys of a record; free: [bytes]; waiting: share of the threads' time that
    they waited for a processor.
    """
    at = f"step {format_count(step)}: "
    if row is None:
        left = pace.step_s * max(steps - step, 0)
        rest = f"; {format_seconds(left)} of steps remain" if left else ""
        wait = f", {format_seconds(pace.data_wait_s)} of it waiting for data"
        return f"{at}{format_seconds(pace.step_s)} a step{wait}{rest}"
    texts = [_time(pace, steps, row), *_busy(waiting), *_memory(row, memory, free)]
    return at + "; ".join(texts)


def _busy(waiting: float) -> list[str]:
    if waiting < BUSY:
        return []
    share = f"{100 * waiting:.0f} % of their time"
    return [f"the machine is busy with other work: the threads waited {share} for a processor"]


def _time(pace: Pace, steps: int, row: Row) -> str:
    ratio = pace.step_s / row.step_time_s
    actual, predicted = format_seconds(pace.step_s), format_seconds(row.step_time_s)
    if abs(ratio - 1.0) <= CLOSE:
        return f"on plan: {actual} a step, {ratio:.2f} of the predicted {predicted}"
    if ratio > 1:
        share = f"{100 * (ratio - 1):.0f} % slower than"
        much = f"{float(f'{ratio:.2g}'):,g} times as long as" if ratio >= MANY else share
        head = f"{much} predicted: {_cause(pace, steps, row)}"
    else:
        head = f"{100 * (1 - ratio):.0f} % faster than predicted: {actual} a step, not {predicted}"
    return f"{head}; {_outlook(pace, steps, row)}"


def _cause(pace: Pace, steps: int, row: Row) -> str:
    """The part that most of the excess lies in, with its prediction."""
    predicted_wait = row.time_s["data_wait"] / max(steps, 1)
    planned_work = row.step_time_s - predicted_wait
    parts = (
        ("data wait", pace.data_wait_s, predicted_wait),
        ("logging and callbacks", pace.other_s, 0.0),
        ("forward, backward and optimizer", pace.work_s, planned_work),
    )
    excess = pace.step_s - row.step_time_s
    name, own, planned = max(parts, key=lambda part: part[1] - part[2])
    whole = f"{format_seconds(pace.step_s)} a step, not {format_seconds(row.step_time_s)}"
    if own - planned < CAUSE * excess:
        return whole
    return f"{name} {format_seconds(own)} (predicted {format_seconds(planned)}) of {whole}"


def _outlook(pace: Pace, steps: int, row: Row) -> str:
    """The whole run at this pace, all else as predicted, and whether the plan's range holds it."""
    planned = row.duration_s
    seconds = planned.p50 + steps * (pace.step_s - row.step_time_s)
    text = f"at this pace {format_seconds(seconds)}"
    if row.usd_per_hour:
        text += f" and {format_usd(seconds / HOUR_S * row.usd_per_hour)}"
    text += f" in all, planned {format_seconds(planned.p50)}"
    inside = planned.p10 <= seconds <= planned.p90
    return f"{text} ({'within' if inside else 'outside'} its 80 % range)"


def _memory(row: Row, memory: Mapping[str, int], free: int | None) -> list[str]:
    """The peak against the same kind of peak, and what is left where that is little."""
    parts = row.memory_bytes
    predicted = {
        "allocated_bytes": parts["total"] - parts["context"] - parts["fragmentation"],
        "reserved_bytes": row.reserved_bytes,
    }
    kind = next((key for key in predicted if memory.get(key) and predicted[key] > 0), None)
    if kind is None:
        return []
    actual, planned = memory[kind], predicted[kind]
    name = kind.removesuffix("_bytes")
    sizes = f"{format_bytes(actual)} {name}, predicted {format_bytes(planned)}"
    off = actual / planned - 1.0
    text = f"memory {sizes}"
    if off > CLOSE:
        text = f"memory {100 * off:.0f} % above the prediction so far ({sizes})"
    if free is not None and free < NEAR_FULL * (parts["usable"] or 1.0):
        text += f", only {format_bytes(free)} left on the device"
    return [text]

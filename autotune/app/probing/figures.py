"""A probe's record as the search, the bill and the reader want it: its figures, a line of each.

Several probes of one configuration: `several_runs`.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING, Any

from autotune.app.probing.plan import IMPORT_S, depths_of
from autotune.domain.answer.limits import odds
from autotune.domain.errors import InputError, Interrupted, NoLocalDevice
from autotune.domain.observation import value_of
from autotune.domain.units import format_bytes, format_seconds, format_usd
from autotune.probe.outcomes import BROKEN, INTERRUPTED, MAKE_ROOM, NO_ROOM
from autotune.probe.record import ProbeRecord, observations

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from autotune.domain.config import Config
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated
    from autotune.probe.worker.contract import Phase

DEPTH_SD = {"compute": 0.05, "memory": 0.01}  # of the log: a line through two depths
MEANS = ("step_s", "micro_s", "optimizer_s", "data_s")


def probe_step_s(predicted: Estimated, request: dict[str, Any]) -> float:
    """[s] the predicted step at the accumulation that is probed."""
    share: float = (
        request["gradient_accumulation_steps"] / predicted.config.gradient_accumulation_steps
    )
    return predicted.step_time_s * min(share, 1.0)


def figures_of(predicted: Estimated, request: dict[str, Any], probe_s: float) -> dict[str, float]:
    """What the cost model says of a probe, kept beside what it measures."""
    duration, step_s = predicted.duration_s, predicted.step_time_s
    return {
        "step_s": probe_step_s(predicted, request), "whole_step_s": step_s,
        "whole_step_p10_s": step_s * duration.p10 / max(duration.p50, 1e-9),
        "whole_step_p90_s": step_s * duration.p90 / max(duration.p50, 1e-9),
        "memory_bytes": predicted.memory_bytes.total, "probe_s": probe_s,
    }  # fmt: skip


def is_measurement(record: ProbeRecord) -> bool:
    """Whether its figures can be what a device did: a file may have been edited."""
    step, memory = record.result.get("step") or {}, record.result.get("memory") or {}
    values = [step.get(name) for name in MEANS]
    values += [memory.get(f"{kind}_bytes") for kind in ("allocated", "driver", "context")]
    numbers = [v for v in values if isinstance(v, int | float) and math.isfinite(v) and v >= 0]
    return len(numbers) == len(values) and float(step["step_s"]) > 0


def late(job: Job, row: Estimated) -> dict[str, float]:
    """Limits of the run as constraints: at most 0 where kept with the asked probability."""
    found = odds(job.limits, row.duration_s, row.cost_usd)
    return {each.limit: each.excess for each in found}


def parts_of(record: ProbeRecord, row: Estimated) -> dict[str, float]:
    """The measured parts by the names that samplers know. row: the bill with what was measured."""
    seen = observations(record, row.config.gradient_accumulation_steps)
    wait_s = value_of(seen, "data_wait_s") or 0.0
    found = {"compute": max(row.step_time_s - wait_s, 1e-9), "memory": row.memory_bytes.total}
    if row.config.compile != "off":
        found["compile"] = row.time_s.compile
    measured = {"data": value_of(seen, "batch_s"), "save": value_of(seen, "checkpoint_save_s")}
    return found | {part: value for part, value in measured.items() if value is not None}


def noise_of(record: ProbeRecord) -> dict[str, float]:
    """Sd of the log of what this probe could measure less well than is usual."""
    own = record.step_log_sd
    extra = DEPTH_SD if depths_of(record) else {}
    found = {"compute": math.hypot(own, extra.get("compute", 0.0)), **extra}
    return {name: sd for name, sd in found.items() if math.isfinite(sd) and sd > 0}


CALM_SHARE, LEAST_CALM_S = 0.1, 30.0  # of the probe budget, for waiting until others are done


def told_by_a_worker(data: dict[str, Any]) -> ProbeRecord:
    """What another worker recorded. Raises InputError for what is no record of a probe."""
    try:
        return ProbeRecord.of(data)
    except ValueError as error:
        msg = f"a worker reported something that is not a probe: {error}"
        raise InputError(msg, "have all workers run the same autotune") from None


def aside_s(records: Sequence[ProbeRecord], pace: float, *, serving: bool) -> float:
    """[s] of running the pick once more, by the probes so far.

    serving: whether those found their imports made, which that run makes for itself.
    """
    walls = [record.wall_s for record in records if record.ok]
    if not walls:
        return 0.0
    return median(walls) + (IMPORT_S * pace if len(walls) > 1 and serving else 0.0)


def check_ending(record: ProbeRecord, finished: int) -> None:
    """Raise Interrupted, NoLocalDevice without room, or InputError for a row that none trains on.

    finished: how many probes are kept.
    """
    if record.message.startswith(NO_ROOM):
        msg = f"{record.message}; {finished} finished probes are kept"
        raise NoLocalDevice(msg, MAKE_ROOM)
    if record.status == INTERRUPTED:
        msg = f"interrupted; {finished} finished probes are kept"
        raise Interrupted(msg, "--resume continues where it stopped")
    if record.status == "bad_data":
        why = record.message.partition("\n")[0]
        raise InputError(why, "no configuration could train on that row")


def keys_searched(records: Iterable[ProbeRecord]) -> list[str]:
    """Of the configurations that a search has probed, in the order of their first probe."""
    found = (r.key for r in records if r.role == "search" and r.status != INTERRUPTED)
    return list(dict.fromkeys(found))


def pace_of(records: Sequence[ProbeRecord]) -> float:
    """Seconds of a probe over what was expected, so far."""
    ratios = [
        record.wall_s / record.predicted["probe_s"]
        for record in records
        if record.ok and record.predicted.get("probe_s", 0.0) > 0
    ]
    return median(ratios) if ratios else 1.0


def calm_s(records: Iterable[ProbeRecord], budget_s: float, most_s: float) -> float:
    """[s] that the next probe may wait for other programs: within a share of the budget in all."""
    waited = sum(
        float((record.result.get("step") or {}).get("waited_s", 0.0)) for record in records
    )
    return max(min(most_s, max(CALM_SHARE * budget_s, LEAST_CALM_S) - waited), 0.0)


class ProbeProgress:
    """Names probes as a person counts them: configurations, and runs of each."""

    def __init__(self, most: int, status: Callable[[str], None] | None) -> None:
        """most: configurations that may be probed; status: hears what goes on now."""
        self.most, self._status = most, status
        self._what = self._why = ""
        self._expected_s = self._left_s = 0.0

    def begins(self, number: int, run: int, why: str, expected_s: float, left_s: float) -> None:
        """A run of configuration `number` begins. why: what is doubted of those before.

        expected_s: of this run; left_s: of the probe budget.
        """
        self._what, self._why = self.name(number, run), why
        self._expected_s, self._left_s = expected_s, left_s

    def on_phase(self, phase: Phase, since_s: float) -> None:
        """The worker does something."""
        if self._status is None:
            return
        text = f"{self._what}: {phase.name}"
        if phase.of:
            text += f", step {phase.done} of {phase.of}"
        elif phase.done:
            text += f", step {phase.done}"
        more = self._expected_s - since_s
        yet = f"{more:.0f} s more" if more >= 1.0 else "longer than expected"
        left = format_seconds(max(self._left_s - since_s, 0.0))
        parts = [text, f"{since_s:.0f} s, {yet}", f"{left} left at most", self._why]
        self._status(" | ".join(filter(None, parts)))

    def name(self, number: int, run: int) -> str:
        """A run as a person counts: of the configurations that may be probed, and which of it."""
        of = f" of {self.most}" if number <= self.most else ""  # the pick at another depth
        return f"probe {number}{of}" + (f", run {run}" if run > 1 else "")


MOST_WHY = 160  # characters of why a probe broke


def short(config: Config) -> str:
    """A configuration in a few words: what a person would change."""
    words = [f"micro {config.micro_batch_size}", config.precision, config.attention]
    if config.activation_checkpointing != "none":
        words.append("checkpointing")
    if config.compile != "off":
        words.append(f"compile {config.compile}")
    words.append(f"{config.num_dataloader_workers} workers")
    words += [f"{name} {value}" for name, value in config.extra]
    return ", ".join(words)


def probe_line(
    name: str, record: ProbeRecord, predicted: Estimated, best: Estimated | None, left_s: float,
    *, offer: bool = False,
) -> str:  # fmt: skip
    """What, predicted, measured, ratio, memory, best so far, budget left; offer: and on which."""
    place = [predicted.offer.label] if offer else []
    parts = [name, *place, short(predicted.config)]
    expected = predicted.step_time_s
    if record.ok:
        step_s = record.step_s(predicted.config.gradient_accumulation_steps)
        parts.append(
            f"{format_seconds(step_s)}/step ({step_s / max(expected, 1e-12):.2f}x of "
            f"{format_seconds(expected)})"
        )
        parts.append(
            f"{format_bytes(record.needed_bytes)} (of {format_bytes(predicted.usable_bytes)})"
        )
    else:
        needed = format_bytes(predicted.memory_bytes.total)
        parts.append(f"{record.status} (predicted {format_seconds(expected)}/step, {needed})")
        why = record.message.partition("\n")[0]
        if record.status in BROKEN and why:
            parts.append(why[:MOST_WHY])
    depths = depths_of(record)
    if depths:
        parts.append(f"from {depths[0]} and {depths[1]} layers")
    if record.disturbed:
        parts.append(f"disturbed: {record.disturbed[0]}")
    if best is not None:
        parts.append(f"best {format_seconds(best.duration_s.p50)}, {format_usd(best.cost_usd.p50)}")
    rate = predicted.offer.usd_per_s
    parts.append(f"left {format_seconds(left_s)}, {format_usd(left_s * rate)}")
    return " | ".join(parts)

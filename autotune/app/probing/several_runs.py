"""Several probes of one configuration: which are believed, and whether another one is needed.

A measurement that other programs disturbed, or that the cost model finds hard to believe, is made
again before it is taken as a fact; so is one that ended close to the limit of memory.
"""

from __future__ import annotations

import contextlib
import math
from dataclasses import replace
from statistics import median
from typing import TYPE_CHECKING

from autotune.app.probing.figures import MEANS, short
from autotune.domain.outcome import Z90
from autotune.domain.units import format_seconds
from autotune.probe.record import NARROW_RUNS, ProbeRecord, config_of, until_sure
from autotune.search.measured.measurer import StopSearch
from autotune.search.posterior.repeats import Z999, Run, believed

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

MOST_REPEATS = 2  # probes of a configuration beyond its first, while the search goes on
IN_VAIN = 3  # probes in a row that all were disturbed: another one would be as well
HOPELESS = 6  # probes in a row that all were disturbed: nothing more is to be learned here
LEAST_SD = 0.10  # of the log of measured over predicted: nobody's model is better
BETWEEN_SD, BETWEEN_RUNS = 0.25, 2.0  # the same between configurations, before any is known


def accumulation_of(record: ProbeRecord) -> int:
    """Micro-steps of an optimizer step of the configuration that was probed."""
    return int(record.config["gradient_accumulation_steps"])


def run_of(record: ProbeRecord) -> Run:
    """A probe's step as one measurement."""
    step_s = max(record.step_s(accumulation_of(record)), 1e-12)
    return Run(
        math.log(step_s),
        bool(record.disturbed),
        record.step_log_sd,
    )


def believed_of(records: Sequence[ProbeRecord]) -> list[ProbeRecord]:
    """Those of several probes of one configuration whose times count."""
    pairs = [(record, run_of(record)) for record in records]
    kept = believed([run for _, run in pairs])
    return [record for record, run in pairs if run in kept]


def merged(records: list[ProbeRecord]) -> ProbeRecord:
    """One record of all probes of one configuration: mean times of those that are believed.

    The largest memory of all. `seen` of its step: the least and the most seconds that what was seen
    leaves room for. It is disturbed where all of them were.
    """
    kept = believed_of(records)
    last = kept[-1]
    step = dict(last.result["step"])
    for name in MEANS:
        step[name] = sum(float(r.result["step"][name]) for r in kept) / len(kept)
    step["seen"] = _seen(kept, records)
    largest = max(records, key=lambda r: r.needed_bytes).result["memory"]
    return replace(last, result={**last.result, "step": step, "memory": largest})


def _seen(kept: list[ProbeRecord], records: list[ProbeRecord]) -> dict[str, float]:
    """[s] of a step: what was seen and could not be explained by other programs.

    A disturbed step may have been shorter by what disturbed it.
    """
    disturbed = all(record.disturbed for record in records)
    pool = records if disturbed else [record for record in records if not record.disturbed]
    steps = [float(record.result["step"]["step_s"]) for record in pool]
    low = min(float(r.result["step"]["step_s"]) / r.slowdown for r in kept)
    if disturbed:
        steps += [
            float(window["step_s"])
            for record in pool
            for window in record.result["step"].get("windows", ())
        ]
    return {"low_s": min(low, *steps), "high_s": max(steps)}


def looks_of(records: Sequence[ProbeRecord]) -> tuple[int, int]:
    """How often steps were looked at, and how often they were odd and nothing said why.

    A calm probe that a quicker one of the same configuration overturned is one of those.
    """
    windows = [w for r in records for w in r.result["step"].get("windows") or [{}]]
    calm = [record for record in records if not record.disturbed]
    overturned = len(calm) - len(believed_of(calm)) if calm else 0
    return len(windows), sum(bool(w.get("unexplained")) for w in windows) + overturned


def repeats_said(records: Sequence[ProbeRecord]) -> list[str]:
    """What calm probes of one configuration read, where it ran more than once.

    One line for each that differs by more than runs of a machine do, and one for all others.
    """
    groups: dict[str, list[ProbeRecord]] = {}
    for record in records:
        if not record.disturbed:
            groups.setdefault(record.key, []).append(record)
    found, alike = [], []
    for runs in (runs for runs in groups.values() if len(runs) > 1):
        steps = sorted(record.step_s(accumulation_of(record)) for record in runs)
        times = steps[-1] / max(steps[0], 1e-12)
        if len(believed_of(runs)) == len(runs):
            alike.append(times - 1.0)
            continue
        read = ", ".join(format_seconds(step_s) for step_s in steps)
        found.append(
            f"{len(runs)} undisturbed probes of {short(config_of(runs[0]))} read {read} a step, "
            f"{times:.2g} times apart, and nothing says why: those near the quickest count"
        )
    if alike:
        ran = "configuration" if len(alike) == 1 else "configurations"
        found.append(
            f"{len(alike)} {ran} ran more than once undisturbed: steps of the same differed by "
            f"{max(alike):.1%} at most"
        )
    return found


def surprise(record: ProbeRecord, others: Iterable[ProbeRecord]) -> str:
    """Why a probe is further from its prediction than the model errs; empty where it is not.

    others: probes of other configurations that are believed: how far they are off, it may be too.
    """
    predicted = record.predicted.get("whole_step_s", 0.0)
    if predicted <= 0:
        return ""
    ratio, known = _log_ratio(record), [_log_ratio(other) for other in others]
    centre = median(known) if known else 0.0
    if abs(ratio - centre) <= Z999 * _usual(record, known):
        return ""
    what = "what other probes of this search suggest" if known else "the prediction"
    return f"{math.exp(ratio - centre):.2g} times {what}"


def _usual(record: ProbeRecord, known: Sequence[float]) -> float:
    """Sd of log(measured / predicted): the model's own, or what is left of it once others ran.

    Formula: (n0 s0^2 + sum of squared distances from the median) / (n0 + n - 1), as a variance.
    """
    low, high = (record.predicted.get(f"whole_step_{end}_s", 0.0) for end in ("p10", "p90"))
    own = max(math.log(high / low) / (2.0 * Z90) if 0 < low < high else 0.0, LEAST_SD)
    if not known:
        return own
    centre = median(known)
    total = BETWEEN_RUNS * BETWEEN_SD**2 + sum((value - centre) ** 2 for value in known)
    return min(own, max(math.sqrt(total / (BETWEEN_RUNS + len(known) - 1)), LEAST_SD))


def _log_ratio(record: ProbeRecord) -> float:
    predicted = max(record.predicted.get("whole_step_s", 0.0), 1e-12)
    return run_of(record).log_value - math.log(predicted)


def doubted(runs: Sequence[ProbeRecord], others: Sequence[ProbeRecord]) -> str:
    """Why a configuration is to be probed once more; empty when what there is will do.

    runs: its probes so far, the first one first; others: one believed probe of each other one.
    """
    if not runs or len(runs) > MOST_REPEATS:
        return ""
    kept = believed_of(runs)
    if all(record.disturbed for record in runs):
        return runs[-1].disturbed[0]
    if len(kept) > 1:
        return ""
    return surprise(kept[0], others)


def in_vain(records: Sequence[ProbeRecord], count: int = IN_VAIN) -> bool:
    """Whether the last probes that ran were disturbed, all of them."""
    last = [record for record in records if record.ok][-count:]
    return len(last) == count and all(record.disturbed for record in last)


def until_it_fits(
    first: ProbeRecord, runs: Sequence[ProbeRecord], again: Callable[[], ProbeRecord]
) -> ProbeRecord:
    """Repeat a run that ended close to the limit; the answer is one that fitted, if any did.

    runs: what is known of its configuration.
    """
    known = list(runs)
    with contextlib.suppress(StopSearch):  # what is known by then will do
        for record in until_sure(first, again, NARROW_RUNS + 1 - len(runs)):
            known.append(record)  # noqa: PERF402 - what ran before an exception counts
    return next((record for record in known if record.fits), first)

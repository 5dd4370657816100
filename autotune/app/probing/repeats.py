"""Several probes of one configuration: which are believed, and whether another one is needed.

A measurement that other programs disturbed, or that the cost model finds hard to believe, is made
again before it is taken as a fact.
"""

from __future__ import annotations

import math
from statistics import median
from typing import TYPE_CHECKING

from autotune.domain.outcome import Z90
from autotune.search.posterior.repeats import Z999, Run, believed

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from autotune.probe.record import ProbeRecord

MOST_REPEATS = 2  # probes of a configuration beyond its first, while the search goes on
IN_VAIN = 3  # probes in a row that all were disturbed: another one would be as well
HOPELESS = 6  # probes in a row that all were disturbed: nothing more is to be learned here
LEAST_SD = 0.10  # of the log of measured over predicted: nobody's model is better
BETWEEN_SD, BETWEEN_RUNS = 0.25, 2.0  # the same between configurations, before any is known
CALM_SHARE, LEAST_CALM_S = 0.1, 30.0  # of the probe budget, for waiting until others are done


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


def looks_of(records: Sequence[ProbeRecord]) -> tuple[int, int]:
    """How often steps were looked at, and how often they were odd and nothing said why.

    A calm probe that a quicker one of the same configuration overturned is one of those.
    """
    windows = [w for r in records for w in r.result["step"].get("windows") or [{}]]
    calm = [record for record in records if not record.disturbed]
    overturned = len(calm) - len(believed_of(calm)) if calm else 0
    return len(windows), sum(bool(w.get("unexplained")) for w in windows) + overturned


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
    what = "what others of this search suggest" if known else "the prediction"
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


def calm_s(records: Iterable[ProbeRecord], budget_s: float, most_s: float) -> float:
    """[s] that the next probe may wait for other programs: within a share of the budget in all."""
    waited = sum(
        float((record.result.get("step") or {}).get("waited_s", 0.0)) for record in records
    )
    return max(min(most_s, max(CALM_SHARE * budget_s, LEAST_CALM_S) - waited), 0.0)

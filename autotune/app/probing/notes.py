"""What the reader must know of how measured figures came about."""

from __future__ import annotations

from statistics import fmean
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.app.probing.figures import is_measurement, run_of
from autotune.app.probing.plan import depths_of
from autotune.domain.answer.recommendation import Decisive, NoiseSeen
from autotune.probe.two_depth import agreement
from autotune.search.posterior.repeats import repeat_sd

if TYPE_CHECKING:
    from collections.abc import Collection

    from autotune.app.probing.probe import Prober
    from autotune.cost.bill import Bill
    from autotune.probe.record import ProbeRecord
    from autotune.search.measured.study import MeasuredExploration
    from autotune.search.posterior.repeats import Run


def notes_of(prober: Prober, pick: int | None) -> list[str]:
    """Of records that were left out, depths that did not run, and runs that did not fit."""
    found = []
    if prober.memo.stale:
        found.append(
            f"{prober.memo.stale} earlier probes are of other versions or devices: not used"
        )
    if prober.memo.bad:
        found.append(f"{prober.memo.bad} lines among earlier probes are damaged: not used")
    small = [r for r in prober.memo.records if r.ok and depths_of(r)]
    if small:
        low, high = depths_of(small[0])
        text = (
            f"{len(small)} probes ran the model with {low} and {high} of its "
            f"{prober.job.model.num_layers} layers; time and memory of all layers are extrapolated"
        )
        found.append(text + _agreement(prober, pick))
    for row in prober.rows.values():
        runs = [r for r in prober.known(row.record.key) if r.fits is not None]
        if runs and not all(r.fits for r in runs):
            share = f"{sum(bool(r.fits) for r in runs)} of {len(runs)} runs"
            found.append(f"{share} of a configuration that is near the limit fitted")
    return found


def _agreement(prober: Prober, pick: int | None) -> str:
    """How extrapolation and full depth compare where both ran."""
    if pick is None or pick not in prober.rows or depths_of(prober.rows[pick].record):
        return ", and nothing was run at full depth"
    lines = [r for r in prober.known(prober.key_of(pick)) if r.ok and depths_of(r)]
    if not lines:
        return ""
    ratio = agreement(lines[-1], prober.rows[pick].record)
    return (
        f"; where both ran, extrapolation over full depth was {ratio['step_s']:.3f} in time "
        f"and {ratio.get('driver_bytes', 1.0):.3f} in memory"
    )


def noise_of_search(prober: Prober, explored: MeasuredExploration) -> NoiseSeen:
    """What other programs did to a search's measurements."""
    ran = [r for r in prober.own if r.ok and is_measurement(r)]
    windows = [w for r in ran for w in r.result["step"].get("windows") or [_only(r)]]
    seen = [r.result["step"].get("window") or {} for r in ran]
    others = [float(w["others"]) for w in seen if "others" in w]
    groups: dict[str, list[Run]] = {}
    for record in ran:
        groups.setdefault(record.key, []).append(run_of(record))
    return NoiseSeen(
        load=fmean(others) if others else None,
        cores=next((float(w["cores"]) for w in seen if "cores" in w), None),
        windows=len(windows),
        contaminated_windows=sum(bool(w["disturbed"]) for w in windows),
        disturbed_probes=sum(bool(r.disturbed) for r in ran),
        repeat_spread=repeat_sd(groups.values()),
        unnoticed=explored.unnoticed,
        cannot_tell=bool(explored.undecided),
        why=explored.undecided,
    )


def _only(record: ProbeRecord) -> dict[str, Any]:
    """The window of a record from before they were kept one by one."""
    return {"disturbed": record.disturbed}


def notes_of_noise(noise: NoiseSeen, records: list[ProbeRecord]) -> list[str]:
    """What other programs did, where they did something; decisive where there is no answer."""
    found: list[str] = []
    if noise.cannot_tell:
        found.append(
            Decisive(
                f"this machine is too busy to tell which configuration is best: {noise.why}. "
                "Measure again when it is calm"
            )
        )
    if noise.disturbed_probes:
        why = next(record.disturbed[0] for record in reversed(records) if record.disturbed)
        load = ""
        if noise.load is not None and noise.cores is not None:
            load = f"; on average others used {noise.load:.1f} of {noise.cores:.0f} cores"
        found.append(
            f"{noise.disturbed_probes} of {sum(r.ok for r in records)} probes were disturbed to "
            f"the end ({why}){load}: later searches do not learn from them"
        )
    return found


def unproven_levels(bill: Bill, ran: Collection[int], pick: int | None) -> list[str]:
    """Levels of the pick that are not today's and did not run beside today's."""
    found, candidates = [], bill.candidates
    if pick is None:
        return []
    for name in candidates.extra:
        if candidates.codes[name][pick] == 0:
            continue
        same = candidates.codes[name] == 0
        for axis, codes in candidates.codes.items():
            same &= (axis == name) | (codes == codes[pick])
        if not set(np.flatnonzero(same)) & set(ran):
            value, present = candidates.value(name, pick), candidates.levels[name][0]
            found.append(
                f"{name} {value} is the pick's, and the pick did not run with {present} beside "
                "it: what it is worth rests on other configurations"
            )
    return found

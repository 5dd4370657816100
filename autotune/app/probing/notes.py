"""What the reader must know of how measured figures came about.

Earlier runs and days, depths that did not run, other programs, and what was never tried.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import numpy as np

from autotune.app.probing.plan import depths_of
from autotune.app.probing.several_runs import accumulation_of, believed_of
from autotune.domain.answer.recommendation import Decisive, NoiseSeen
from autotune.domain.units import format_seconds
from autotune.probe.two_depth import agreement
from autotune.search.measured.study import FRONT

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from autotune.app.probing.measured_bill import MeasuredRow
    from autotune.app.probing.probe import Prober
    from autotune.cost.bill import Bill
    from autotune.probe.record import ProbeRecord
    from autotune.search.measured.prior import Prior
    from autotune.search.measured.study import MeasuredExploration


def why_it_leads(ranked: Sequence[MeasuredRow], records: Sequence[ProbeRecord]) -> list[str]:
    """Why the first leads although its own undisturbed probes contradict each other."""
    calm = [r for r in records if ranked and r.key == ranked[0].record.key and not r.disturbed]
    kept = believed_of(calm) if calm else []
    if len(kept) == len(calm):
        return []
    steps = sorted(record.step_s(accumulation_of(record)) for record in calm)
    row, rivals = ranked[0].row, [item.row.duration_s.p50 for item in ranked[1:]]
    slowest_s = row.duration_s.p50 + (steps[-1] - row.step_time_s) * row.steps
    said = f"by the slowest it would take {format_seconds(slowest_s)}"
    if rivals:
        then = "still lead" if slowest_s <= min(rivals) else "not lead"
        said += f" and {then} (next: {format_seconds(min(rivals))})"
    read = ", ".join(map(format_seconds, steps))
    text = (
        f"undisturbed probes of the pick read {read} a step, and it leads by the quickest: {said}"
    )
    return [Decisive(f"{text}; nothing says why, and what is unseen makes a step only longer")]


def front_note(explored: MeasuredExploration) -> list[str]:
    """How many probes measured the front of time and cost, where there were any."""
    made = sum(record.sampler == FRONT for record in explored.records)
    text = (
        f"{made} probes after the search measured the time-cost front: its other end and its knee"
    )
    return [text] if made else []


def saving_note(prior: Prior, probes: int, *, ended: bool) -> list[str]:
    """What the prior saved, as far as runs can be compared: those that ended by themselves can."""
    if not prior.count:
        return []
    text = f"the search began with {prior.count} measurements of earlier runs here"
    if prior.runs and ended:
        text += f": it needed {probes} new probes, the first run {prior.runs[0]}"
    elif not ended:
        text += f", and made {probes} new probes before no more were allowed"
    return [text]


def notes_of(prober: Prober, pick: int | None) -> list[str]:
    """Of records that were left out, depths that did not run, and runs that did not fit."""
    found: list[str] = []
    if foreign := prober.memo.foreign:
        found.append(
            Decisive(
                f"{foreign} of the {len(prober.memo.records)} measurements of this run were made "
                "on another device or with other versions, and count as if they were made here. "
                "For this machine alone, start a new run with another --run"
            )
        )
    days = [day for day in map(days_old, prober.own) if day >= 1]
    if days:
        old = f"{len(days)} of the {len(prober.own)} probes of this run are from an earlier day"
        found.append(f"{old} ({max(days)} days ago at most), and count as if they were of today")
    if prober.memo.stale:
        found.append(
            f"{prober.memo.stale} earlier probes are of other versions or devices: not used"
        )
    if prober.memo.bad:
        found.append(f"{prober.memo.bad} lines among earlier probes are damaged: not used")
    if prober.memo.not_shared:
        found.append(f"probes could not be kept for later runs: {prober.memo.not_shared}")
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


def days_old(record: ProbeRecord) -> int:
    """Whole days since a probe; 0 where its record does not say when it was."""
    try:
        when = datetime.fromisoformat(record.when)
    except ValueError:
        return 0
    return (datetime.now(UTC) - when).days if when.tzinfo else 0


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


def notes_of_noise(noise: NoiseSeen, records: list[ProbeRecord]) -> list[str]:
    """What other programs did, where they did something; decisive where there is no answer."""
    found: list[str] = []
    if noise.cannot_tell:
        found.append(
            Decisive(
                f"this machine is too busy to tell which configuration is best: {noise.why}. "
                "Measure again when nothing else runs"
            )
        )
    if noise.disturbed_probes:
        why = next(record.disturbed[0] for record in reversed(records) if record.disturbed)
        load = ""
        if noise.load is not None and noise.cores is not None:
            load = f"; other programs used {noise.load:.1f} of {noise.cores:.0f} cores on average"
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
                f"the pick has {name} {value} and never ran with {present}: what that change is "
                "worth is taken from other configurations"
            )
    return found

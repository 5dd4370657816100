"""What every run of a campaign takes on every machine, priced exactly as `tune` and `compare` do.

A run that stops early takes its share of what grows with the steps; what happens once stays whole.
Ranges are added end to end: runs of one campaign err together, because one model prices them all.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from autotune.app.tune.priced import price
from autotune.app.tune.tracing import choose_traced
from autotune.app.whatif.levers import opened_bills
from autotune.cost.spread.joint import Loadings, loadings
from autotune.domain.answer.limits import odds
from autotune.domain.answer.plan import RunOnOffer
from autotune.domain.outcome import Spread
from autotune.domain.units import HOUR_S
from autotune.frozen import dataclass
from autotune.search import alternatives, selection
from autotune.search.alternatives import bill_of_offer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.app.campaign.file import Campaign
    from autotune.cost.bill import Bill
    from autotune.cost.spread.joint import Key
    from autotune.domain.answer.limits import LimitOdds
    from autotune.domain.answer.plan import Hours, PlannedRun
    from autotune.domain.device import Offer
    from autotune.domain.outcome import Estimated
    from autotune.search.selection import Objective

_NOTHING = Spread(0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class _Best:
    """The best config of a job on one machine."""

    row: Estimated | None
    limits: tuple[LimitOdds, ...]
    busy: float
    reason: str
    unsure: Callable[[], Loadings] = lambda: Loadings({})


def bills_of(
    campaign: Campaign,
    hours: Hours,
    *,
    objective: Objective,
    fidelity: str,
    space: str | None,
    progress: Callable[[str], None],
) -> tuple[tuple[PlannedRun, ...], tuple[str, ...], Callable[[int], Loadings]]:
    """Every run with its bill on every offer, what was said while pricing, and how unsure it is.

    The last is of all runs together on an offer, by its number. Each distinct job is priced once,
    over all offers together.
    """
    best: list[list[_Best]] = []
    warnings: dict[str, None] = {}
    for number, job in enumerate(campaign.jobs):
        progress(f"pricing job {number + 1} of {len(campaign.jobs)}: {job.name}")
        priced = price(job, space, lambda _: None)
        warnings |= dict.fromkeys(priced.warnings)
        row = []
        question = priced.job, priced.space
        opened = opened_bills(question, priced.bill, priced.calibration, len(job.offers))
        for offer in range(len(job.offers)):
            bill = opened[offer] if offer in opened else bill_of_offer(priced.bill, offer)
            found, notes = _best(bill, objective, fidelity, progress)
            warnings |= dict.fromkeys(notes)
            row.append(found)
        best.append(row)
    runs = []
    for run in campaign.runs:
        on = (
            _on_offer(run, [best[piece.job][n] for piece in run.pieces], offer, hours)
            for n, offer in enumerate(campaign.offers)
        )
        runs.append(replace(run, on=tuple(on)))
    return tuple(runs), tuple(warnings), lambda number: _together(runs, best, number)


def _together(runs: Sequence[PlannedRun], best: Sequence[Sequence[_Best]], number: int) -> Loadings:
    """How far all runs together may be off on an offer. Runs with stated hours are not unsure.

    Source: derived: the log of a sum moves with each part by its share of the sum.
    """
    total = sum(run.on[number].duration_s.p50 * run.repeat for run in runs)
    found: dict[Key, float] = {}
    for run in runs:
        on = run.on[number]
        if on.hours != "model" or not run.pieces or total <= 0:
            continue
        share = on.duration_s.p50 * run.repeat / total
        for piece in run.pieces:
            own = best[piece.job][number]
            if own.row is None:
                continue
            weight = share * own.row.duration_s.p50 * piece.times / on.full_s
            for key, value in own.unsure().of.items():
                found[key] = found.get(key, 0.0) + weight * value
    return Loadings(found)


def _best(
    bill: Bill, objective: Objective, fidelity: str, progress: Callable[[str], None]
) -> tuple[_Best, list[str]]:
    chosen = selection.best_index(bill, objective, bill.job.limits)
    notes: list[str] = []
    if chosen.index is not None:
        chosen, tracing = choose_traced(bill, chosen, objective, fidelity, None, progress)
        notes = list(tracing.notes)
        if chosen.index is not None:
            row = tracing.row(chosen.index)
            kept = odds(bill.job.limits, row.duration_s, row.cost_usd)
            unsure = partial(_unsure, bill, chosen.index)
            return _Best(row, kept, _busy(bill, chosen.index, row), "", unsure), notes
    near = alternatives.nearest_misses(bill, 1)
    reason = alternatives.short_of(bill, near[0]) if near else "no config is valid there"
    return _Best(None, (), 1.0, reason), notes


def _unsure(bill: Bill, index: int) -> Loadings:
    return loadings(bill, [index])[0]


def _busy(bill: Bill, index: int, row: Estimated) -> float:
    """Share of a run's time in which it needs the device.

    Formula: inside training steps (compute + bandwidth) / micro-step, everything else whole.
    Source: derived from the terms of the step (`autotune.cost.time.compute`).
    """
    micro = bill.at("compute", "micro_step_s", index)
    if not row.steps or micro <= 0 or row.duration_s.p50 <= 0:
        return 1.0
    device = bill.at("compute", "compute_s", index) + bill.at("compute", "bandwidth_s", index)
    training = row.time_s.train / row.duration_s.p50
    return 1.0 - training + training * min(device / micro, 1.0)


def _on_offer(run: PlannedRun, found: list[_Best], offer: Offer, hours: Hours) -> RunOnOffer:
    """One run there: its stages together, or the hours that are stated."""
    model = _modelled(run, found, offer) if found else None
    if run.hours is None or (model is not None and hours == "model"):
        return model or _refused("nothing says how long it takes")
    if model is not None and model.reason:
        return model
    full = run.hours * HOUR_S
    expected = full * run.expected_fraction
    seconds = Spread(expected, expected, expected)
    return RunOnOffer(
        row=model.row if model else None,
        duration_s=seconds,
        full_s=full,
        cost_usd=seconds.times(offer.usd_per_hour / HOUR_S),
        hours="stated",
        model_s=model.duration_s.p50 if model else None,
        limits=model.limits if model else (),
    )


def _refused(reason: str) -> RunOnOffer:
    return RunOnOffer(None, _NOTHING, 0.0, _NOTHING, "model", reason=reason)


def _modelled(run: PlannedRun, found: list[_Best], offer: Offer) -> RunOnOffer:
    rows: list[tuple[Estimated, int]] = []
    for piece, best in zip(run.pieces, found, strict=True):
        if best.row is None:
            return _refused(best.reason)
        rows.append((best.row, piece.times))
    full = sum(row.duration_s.p50 * times for row, times in rows)
    low, middle, high = (
        sum(getattr(_stopped(row, run.expected_fraction), name) * times for row, times in rows)
        for name in ("p10", "p50", "p90")
    )
    seconds = Spread(low, middle, high)
    longest = max(range(len(rows)), key=lambda i: rows[i][0].duration_s.p50)
    row = rows[longest][0]
    return RunOnOffer(
        row=row,
        duration_s=seconds,
        full_s=full,
        cost_usd=seconds.times(offer.usd_per_hour / HOUR_S),
        hours="model",
        model_s=middle,
        busy=max(best.busy for best in found),
        memory=max(best.row.memory_bytes.total / best.row.usable_bytes
                   for best in found if best.row is not None),
        shareable=all(_may_share(best.row, offer) for best in found if best.row is not None),
        limits=tuple(each for best in found for each in best.limits),
    )  # fmt: skip


def _stopped(row: Estimated, fraction: float) -> Spread:
    """[s] a run that stops after a share of its steps; its range in the same proportion."""
    if fraction >= 1.0:
        return row.duration_s
    once = row.time_s.once
    middle = once + fraction * (row.time_s.total - once)
    return row.duration_s.times(middle / row.duration_s.p50)


def _may_share(row: Estimated, offer: Offer) -> bool:
    """Launch-bound on one device, and the host has a core for each process of two such runs."""
    processes = 1 + row.config.num_dataloader_workers
    return row.bound_by == "launch" and offer.count == 1 and offer.host.cores >= 2 * processes

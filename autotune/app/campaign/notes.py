"""What is said of a plan beside its figures: what does not fit, may be better, was opened."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.app.campaign.claims import resumed_note
from autotune.app.whatif.levers import opened_words
from autotune.app.whatif.moved import opened_means
from autotune.app.whatif.relaxations import OFFLOAD
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.units import HOUR_S, format_usd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.app.campaign.file import Campaign
    from autotune.domain.answer.plan import Plan

MAY_BE_BETTER = 2  # machines that are named


def notes_of(
    found: Plan, campaign: Campaign, durations_s: Sequence[float], machines: int
) -> list[str]:
    """The notes of a plan, and of tasks that take so long each."""
    total = found.offers[found.machine]
    notes = []
    if total.missing:
        why = next(r.on[found.machine].reason for r in found.runs if r.on[found.machine].reason)
        names = ", ".join(total.missing[:4])
        notes.append(
            f"{len(total.missing)} kinds of runs cannot run on any one machine of the campaign; "
            f"on {total.offer.label}: {names} ({why})"
        )
    late = [run.name for run in found.runs if run.here.misses]
    if late:
        notes.append(
            f"{len(late)} kinds of runs are not sure enough to keep a limit of theirs (see each "
            f"run's limits.confidence): {', '.join(late[:4])}"
        )
    notes += _opened_notes(found, campaign)
    notes += [] if found.mixed else _may_be_better(found)
    if machines > 1 and any(run.single for run in found.runs):
        notes.append("you own one machine, so its runs wait for each other")
    elif found.mixed:
        pass
    elif machines > 1 and total.offer.owned:
        notes.append(f"{machines} of your own machines are planned; the file describes one")
    elif machines > 1 and any(other.offer.owned for other in found.offers):
        notes.append("you own one machine, so a plan of several is priced as rented")
    resumed = resumed_note(durations_s, found.hours_per_day) if durations_s else ""
    if resumed:
        notes.append(resumed)
    if any(run.expected_fraction < 1.0 for run in found.runs):
        full = sum(run.here.full_s * run.repeat for run in found.runs)
        notes.append(
            f"with early stopping as expected; if no run stops early they take "
            f"{full / HOUR_S:,.1f} h in all"
        )
    return notes


def _opened_notes(found: Plan, campaign: Campaign) -> list[str]:
    """Runs that fit on the planned machine only with a knob that was opened for them."""
    opened: dict[tuple[str, str, str], list[str]] = {}
    for run in found.runs:
        row = run.here.row
        words = opened_words(row.config) if row is not None else ""
        jobs = [campaign.jobs[piece.job] for piece in run.pieces]
        asked = any(OFFLOAD in {*job.allow, *job.lock} for job in jobs)
        if row is not None and words and not asked:
            key = (found.offers[run.machine].offer.label, words, opened_means(jobs[0], row))
            opened.setdefault(key, []).append(run.name)
    return [
        Decisive(
            f"on {label} nothing fits without it, so {words} was opened: {means} "
            f"({', '.join(names[:4])})"
        )
        for (label, words, means), names in opened.items()
    ]


def _may_be_better(found: Plan) -> list[str]:
    """Machines that are expected to cost less and lead only where their guess is right."""
    planned = found.offers[found.machine]
    better = [
        other
        for number, other in enumerate(found.offers)
        if other.cost_usd.p50 < planned.cost_usd.p50
        and len(other.missing) <= len(planned.missing)
        and any(run.on[number].caution > run.here.caution for run in found.runs)
    ]
    return [
        Decisive(
            f"{other.offer.label} may be better ({format_usd(other.cost_usd.p50)} in all), but no "
            "training step was measured on it"
        )
        for other in better[:MAY_BE_BETTER]
    ]

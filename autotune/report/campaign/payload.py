"""`autotune plan` as a JSON payload, and as CSV: one line for each run on each machine."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from autotune.domain.units import HOUR_S
from autotune.report.layout.csv_rows import rows_csv
from autotune.report.payload import decisive, facts_of, network_of, row_payload
from autotune.report.schema import SCHEMA_VERSION

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.domain.answer.plan import (
        OfferTotal,
        PhaseTotal,
        Placement,
        Plan,
        PlannedRun,
        RunOnOffer,
        Schedule,
        Subset,
    )

Payload = dict[str, Any]
_OF_OFFER = ("usd_per_hour", "price_source", "price_as_of", "price_age_days", "price_marks")
_OF_TOTAL = ("watts", "watts_stated", "energy_kwh", "electricity_usd", "hours_from_elsewhere")
_OF_SCHEDULE = (
    "machines", "makespan_s", "lower_bound_s", "gap", "busy_fraction", "barrier", "shared",
)  # fmt: skip


def plan_payload(found: Plan) -> Payload:
    """The whole answer."""
    return {
        "schema_version": SCHEMA_VERSION,
        "name": found.name,
        "hours_from": _hours_from(found),
        "machine": found.machine,  # of a mixed plan, the one that most of the bill is paid for
        "mixed": found.mixed,
        "one_machine": found.one_machine,  # that all runs would be planned on together
        "tiebreak": found.tiebreak,
        "total": _campaign_total(found),
        "phases": [_phase(phase) for phase in found.phases],
        "runs": [_run(run, found) for run in found.runs],
        "offers": [_offer(total) for total in found.offers],
        "mixed_cost_usd": None if found.apart is None else found.apart.cost_usd,
        "apart": found.apart,
        "schedule": None if found.schedule is None else _schedule(found.schedule, found),
        "scaling": found.scaling,
        "stated_scaling": found.stated_scaling,
        "sharing": _sharing(found),
        "subset": None if found.subset is None else _subset(found.subset, found.budget_probability),
        "deadline": found.deadline,
        "cuts": found.cuts,
        "contradictions": list(found.contradictions),
        "assumed": found.assumed,
        "warnings": list(found.warnings),
        "decisive": decisive(found.warnings),
        "wall_seconds": found.wall_seconds,
    }


def _hours_from(found: Plan) -> str:
    """Whose hours the plan counts: model, stated, or mixed."""
    kinds = {run.here.hours for run in found.runs if not run.here.reason}
    return kinds.pop() if len(kinds) == 1 else "mixed" if kinds else found.hours


def _campaign_total(found: Plan) -> Payload:
    """The campaign on its machines."""
    return {
        "runs": sum(run.repeat for run in found.runs),
        "steps": sum(run.steps * run.repeat for run in found.runs),
        "tokens": sum(run.tokens * run.repeat for run in found.runs),
        **facts_of(found.total, "duration_s", "device_s", "cost_usd", "stated_s"),
    }


def _phase(phase: PhaseTotal) -> Payload:
    return {
        "phase": phase.phase or None,
        "part": phase.part or None,
        **facts_of(phase, "runs", "steps", "duration_s", "cost_usd", "stated_s"),
    }


def _run(run: PlannedRun, found: Plan) -> Payload:
    here = run.here
    kept = run.repeat if found.subset is None else found.subset.kept.get(run.name, 0)
    return {
        "run": run.name,
        "phase": run.phase or None,
        "part": run.part or None,
        "repeat": run.repeat,
        "kept": kept,
        **facts_of(run, "stages", "steps", "tokens", "priority", "expected_fraction"),
        "after": [found.runs[i].name for i in run.after],
        "stated_s": run.stated_s,
        "machine": run.machine,
        **_figures(here),
        "best": row_payload(here.row) if here.row is not None else None,
        "limits": here.limits,
        "misses": here.misses,
        "on": [_figures(each) for each in run.on],
    }


def _figures(on: RunOnOffer) -> Payload:
    """One run on one machine, in the order of `offers`."""
    able = not on.reason
    return {
        "fits": able,
        "reason": on.reason,
        "hours_from": on.hours if able else None,
        "duration_s": on.duration_s if able else None,
        "unstopped_s": on.full_s if able else None,
        "model_s": on.model_s,
        "cost_usd": on.cost_usd if able else None,
    }


def _offer(total: OfferTotal) -> Payload:
    offer = total.offer
    return {
        "device": offer.device.name,
        "device_count": offer.count,
        "instance": offer.instance or None,
        **facts_of(offer, *_OF_OFFER),
        "price_scaled_from": offer.price_scaled_from or None,
        "spot": offer.spot,
        **network_of(offer),
        **facts_of(total, "runs", "missing", "duration_s", "device_s", "cost_usd"),
        "full_cost_usd": total.full_usd,
        **facts_of(total, *_OF_TOTAL),
        "stated": None
        if total.stated_s is None
        else {
            "duration_s": total.stated_s,
            "cost_usd": total.stated_usd,
            "energy_kwh": total.stated_kwh,
            "electricity_usd": None
            if offer.usd_per_kwh is None or total.stated_kwh is None
            else total.stated_kwh * offer.usd_per_kwh,
        },
    }


def _sharing(found: Plan) -> Payload:
    """Whether two runs to a card pay; rented: while at least one run is on a card."""
    shared = found.sharing.schedule
    rented = _rented(shared, found) if shared else None
    return {
        "pays": shared is not None,
        "launch_bound": list(found.sharing.launch_bound),
        "makespan_s": shared.makespan_s if shared else None,
        "rented_s": rented[0] if rented else None,
        "rented_usd": rented[1] if rented else None,
        "reason": found.sharing.reason,
    }


def _rented(shared: Schedule, found: Plan) -> tuple[float, float]:
    """[s], [USD] of machines while at least one run is on them."""
    by_kind: dict[int, list[Placement]] = {}
    for placed in shared.placements:
        kind = found.runs[found.task_runs[placed.task]].machine
        by_kind.setdefault(kind, []).append(placed)
    seconds = {kind: replace(shared, placements=tuple(own)).busy_s for kind, own in by_kind.items()}
    rates = {kind: found.offers[kind].offer.usd_per_hour / HOUR_S for kind in seconds}
    return sum(seconds.values()), sum(own * rates[kind] for kind, own in seconds.items())


def _schedule(schedule: Schedule, found: Plan) -> Payload:
    return {
        **facts_of(schedule, *_OF_SCHEDULE),
        "other_barrier_makespan_s": found.barrier_s,
        **facts_of(found, "enough_machines", "longest_chain_s", "hours_per_day", "days"),
        "placements": [
            {
                "task": found.tasks[placed.task],
                "run": found.runs[found.task_runs[placed.task]].name,
                "phase": found.runs[found.task_runs[placed.task]].phase or None,
                "offer": found.runs[found.task_runs[placed.task]].machine,
                **facts_of(placed, "machine", "start_s", "end_s"),
            }
            for placed in sorted(schedule.placements, key=lambda p: (p.machine, p.start_s, p.task))
        ],
    }


def _subset(subset: Subset, probability: float | None) -> Payload:
    return {
        "probability": probability,  # that the runs kept stay within the budget
        **facts_of(subset, "confidence", "budget_usd", "budget_device_s", "kept", "left_out"),
        "runs": sum(subset.kept.values()),
        **facts_of(subset, "priority", "of_priority", "cost_usd", "device_s"),
    }


def plan_csv(payload: Payload) -> str:
    """One line for each run on each machine."""
    return rows_csv(list(_lines(payload)))


def _lines(payload: Payload) -> Iterator[Payload]:
    own = ("run", "phase", "part", "repeat", "kept", "stages", "steps", "tokens", "priority",
           "expected_fraction", "after", "stated_s")  # fmt: skip
    for run in payload["runs"]:
        pairs = zip(payload["offers"], run["on"], strict=True)
        for number, (offer, on) in enumerate(pairs):
            yield {
                **{key: run[key] for key in own},
                "planned": number == run["machine"],
                **{key: offer[key] for key in ("device", "device_count", "usd_per_hour")},
                "fits": on["fits"],
                "hours_from": on["hours_from"],
                **{f"duration_s.{q}": (on["duration_s"] or {}).get(q) for q in _QUANTILES},
                **{f"cost_usd.{q}": (on["cost_usd"] or {}).get(q) for q in _QUANTILES},
            }


_QUANTILES = ("p10", "p50", "p90")

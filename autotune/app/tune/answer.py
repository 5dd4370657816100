"""What `tune` answers from a priced question: the pick, what stands around it, what was refused.

Not here: what only the end of a run knows, as the way from today and the files (`kept_answer`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.app.whatif import explain
from autotune.app.whatif.levers import opened_note
from autotune.app.whatif.moved import moved_notes
from autotune.app.whatif.relaxations import relaxations
from autotune.app.whatif.shortfall import shortfall_of
from autotune.cost.spread.variance import narrowest_input, narrowings, never_measured_note
from autotune.domain.answer.recommendation import Recommendation, Rejected, SearchRecord
from autotune.pricing import Pricing
from autotune.search import alternatives
from autotune.search.alternatives import best_of_each_offer
from autotune.search.differences import differences, too_close
from autotune.search.study.samplers import CALIBRATED

if TYPE_CHECKING:
    from autotune.app.tune.priced import Options, Priced
    from autotune.app.tune.tracing import Tracing
    from autotune.cost.bill import Bill
    from autotune.domain.answer.recommendation import Sensitivity, WorthProbe
    from autotune.domain.outcome import Estimated
    from autotune.search.selection import Objective, Selection
    from autotune.search.study.study import Exploration

MISSES_SHOWN = 3
FRONT_SHOWN = 25
BEYOND_SHOWN = 12


def answer_of(
    priced: Priced, options: Options, explored: Exploration, chosen: Selection, tracing: Tracing
) -> Recommendation:
    """The recommendation around what was chosen, before its run is finished."""
    bill, pick = priced.bill, chosen.index
    among = _among(options, explored)
    machines = _machines(priced, tracing, options.objective, among)
    front = alternatives.pareto_front(bill, among)[:FRONT_SHOWN]
    others = _others(bill, chosen, options.objective, among)
    found = () if pick is None else differences(bill, pick, others, options.objective)
    ties = too_close(found)
    rejected = _rejected(priced, pick, options.objective)
    return Recommendation(
        job=priced.job,
        best=tracing.row(pick) if pick is not None else None,
        today=_today(priced),
        alternatives=tuple(tracing.row(i) for i in others),
        pareto=tuple(tracing.row(i) for i in front),
        machines=machines,
        beyond=tuple(tracing.row(i) for i in alternatives.beyond_front(bill)[:BEYOND_SHOWN]),
        tie=bool(ties),
        ties=ties,
        differences=found,
        rejected=rejected,
        search=SearchRecord(
            score=options.score,
            sampler=options.sampler,
            fidelity="trace" if tracing.rows else "formula",
            space_size=priced.found.space_size,
            priced=len(bill),
            traced=len(tracing.rows),
            probes=0,
            probe_seconds=0.0,
            wall_seconds=0.0,
            stopped_because=explored.stopped_because,
            objective=options.objective,
        ),
        reasons=explain.reasons(bill, pick) if pick is not None else {},
        narrowest=narrowest_input(bill, pick) if pick is not None else "",
        narrowings=narrowings(bill, pick) if pick is not None else (),
        warnings=(
            *_opened(priced, rejected, pick),
            *moved_notes(priced.job, None if pick is None else bill.candidates.config(pick)),
            *priced.warnings,
            *_unseen(bill, pick),
            *_disk(bill, pick),
            *tracing.notes,
        ),
        sensitivities=_sensitivities(priced, tracing, pick),
        worth_a_probe=_worth_a_probe(priced, tracing, pick, machines, options.objective),
    )


def _among(options: Options, explored: Exploration) -> tuple[int, ...] | None:
    """What an answer is chosen from: with a stock sampler what it tried, else everything."""
    measured = options.score == "probe"
    return None if measured or options.sampler == CALIBRATED else tuple(explored.tried)


def _others(
    bill: Bill, chosen: Selection, objective: Objective, among: tuple[int, ...] | None
) -> list[int]:
    """The alternatives, with the best that trains differently where it is too close to call."""
    if chosen.index is None:
        return []
    found = alternatives.distinct_alternatives(bill, chosen.index, objective, among=among)
    return alternatives.with_runner_up(bill, chosen, found, objective)


def _machines(
    priced: Priced, tracing: Tracing, objective: Objective, among: tuple[int, ...] | None
) -> tuple[Estimated, ...]:
    """The best of each offer, where there are several."""
    if len(priced.job.offers) == 1:
        return ()
    return tuple(tracing.row(i) for i in best_of_each_offer(priced.bill, objective, among))


def _sensitivities(priced: Priced, tracing: Tracing, pick: int | None) -> tuple[Sensitivity, ...]:
    """What closed knobs and the user's own choices would be worth on the pick's machine."""
    from autotune.app.whatif.sensitivities import sensitivities

    row = None if pick is None else tracing.row(pick)
    return sensitivities(priced.job, priced.space, priced.calibration, row)


def _worth_a_probe(
    priced: Priced,
    tracing: Tracing,
    pick: int | None,
    machines: tuple[Estimated, ...],
    objective: Objective,
) -> tuple[WorthProbe, ...]:
    """Machines that nobody measured and may be better, then such changes of the pick."""
    if pick is None:
        return ()
    from autotune.app.whatif.worth_a_probe import machines_worth_a_probe, worth_a_probe

    best = tracing.row(pick)
    return (
        *machines_worth_a_probe(priced.job, best, machines, objective),
        *worth_a_probe(priced.job, priced.calibration, best),
    )


def _disk(bill: Bill, pick: int | None) -> tuple[str, ...]:
    """What to say of the pick's checkpoints, and of what is offloaded, beside an unstated host."""
    if pick is None:
        return ()
    return (*explain.disk_note(bill, pick), *explain.ram_note(bill, pick))


def _opened(priced: Priced, rejected: Rejected, pick: int | None) -> tuple[str, ...]:
    """What to say of a knob that was opened because nothing fitted without it."""
    if pick is None or priced.job is priced.asked:
        return ()
    return (opened_note(priced.asked, priced.bill.estimate(pick), rejected.relaxations),)


def _unseen(bill: Bill, pick: int | None) -> tuple[str, ...]:
    """What to say when no measured training step speaks of the pick's device."""
    if pick is None or bill.basis != "modelled":
        return ()
    device = bill.candidates.offer(pick).device
    note = None if device.rates else never_measured_note(device.name)
    return (note,) if note else ()


def _today(priced: Priced) -> Estimated | None:
    """The config the user runs now, on its own offer, under the same calibration."""
    job = priced.job
    if job.today is None:
        return None
    offer = job.today_offer or job.offers[0]
    return Pricing(job.as_today, priced.calibration).one(offer, job.today)


def _rejected(priced: Priced, pick: int | None, objective: Objective) -> Rejected:
    bill = priced.bill
    near = alternatives.nearest_misses(bill, MISSES_SHOWN, pick=pick, objective=objective)
    late = None if pick is None else alternatives.late_rival(bill, pick, objective)
    near = near if late is None else [*near[: MISSES_SHOWN - 1], late]
    infeasible = int((~bill.feasible).sum())
    by_reason = dict(priced.found.rejected)
    if infeasible:
        by_reason["does not fit in memory or on the disk"] = infeasible
    lost = pick is None
    opened = priced.job is not priced.asked
    question = priced.asked, priced.space, priced.calibration
    relaxed = relaxations(*question, objective) if lost or opened else ()
    return Rejected(
        count=sum(by_reason.values()),
        by_reason=by_reason,
        nearest=tuple(alternatives.as_infeasible(bill, i) for i in near),
        relaxations=relaxed,
        shortfall=shortfall_of(bill, near[0]) if lost and near else None,
    )

"""What `tune` answers from a priced question: the pick, what stands around it, what was refused.

Not here: what only the end of a run knows, as the way from today and the files (`kept_answer`).

A device that no training step was measured on, and an optimisation that was never measured on the
job's training stack, carry no pick by themselves (`Bill.caution`); they are offered with what they
may be worth, for a probe to decide.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.app.whatif import explain
from autotune.app.whatif.late import keeping_the_limits
from autotune.app.whatif.levers import opened_notes
from autotune.app.whatif.moved import moved_notes, packed_note
from autotune.app.whatif.relaxations import relaxations
from autotune.app.whatif.sensitivities import sensitivities
from autotune.app.whatif.shortfall import shortfall_of
from autotune.app.whatif.waterfall import State, knobs_edit
from autotune.catalog.device_notes import device_notes
from autotune.cost.spread.variance import (
    narrowest_input,
    narrowings,
    never_measured_note,
    new_program_note,
)
from autotune.domain.answer.contract import copied
from autotune.domain.answer.limits import odds
from autotune.domain.answer.recommendation import (
    Decisive,
    Nearest,
    Recommendation,
    Rejected,
    SearchRecord,
    WorthProbe,
)
from autotune.domain.answer.tiebreak import Tiebreak
from autotune.pricing import Pricing
from autotune.search import alternatives
from autotune.search.alternatives import best_of_each_offer, differences, too_close
from autotune.search.selection import TIE
from autotune.search.study.samplers import CALIBRATED
from autotune.space.rules import violations

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.app.tune.priced import Options, Priced
    from autotune.app.tune.tracing import Tracing
    from autotune.app.whatif.waterfall import RunEdit
    from autotune.cost.bill import Bill
    from autotune.domain.answer.recommendation import Relaxation
    from autotune.domain.config import Config
    from autotune.domain.job import Job, Limits
    from autotune.domain.observation import Calibration
    from autotune.domain.outcome import Estimated, Infeasible
    from autotune.search.selection import Objective, Selection
    from autotune.search.study.study import Exploration

LEAST_SHARE = 0.01  # of the pick's bill: less is not worth a probe
MOST_MACHINES = 5
KEEPS_NOTHING = (
    "no setting, no priced machine with up to 8 cards, no shorter rows and no fewer steps that "
    "were tried would keep the limits"
)
MACHINE = "machine"  # the knob of a change that is another machine
WHY_COMPILE = (
    "nobody has published a pair of the Trainer's runs with and without torch.compile; of other "
    "trainers, torchtitan gained 16 % (Llama 3.1 8B in full, 8 H100, blocks compiled)"
)
WHY_LIGER = (
    "of the Trainer's runs with and without Liger, published pairs gained 0 to 5 %, of other "
    "models, lengths and devices"
)
MASKED = "; compiled whole, sdpa gets an explicit mask and loses its flash kernel"


def machines_worth_a_probe(
    job: Job, pick: Estimated, machines: Sequence[Estimated], objective: Objective
) -> tuple[WorthProbe, ...]:
    """Machines that are expected to beat the pick, on whose device nobody measured a step.

    Each would lose at the slow end of its interval, or it would be the pick. Those that keep the
    job's limits only; the most promising first.
    """
    by_cost = objective == "cost" and pick.cost_usd.p50 > 0

    def score(row: Estimated) -> float:
        return row.cost_usd.p50 if by_cost else row.duration_s.p50

    better = [
        row
        for row in machines
        if row.caution > 1.0
        and row.offer != pick.offer
        and row.feasible
        and score(row) < score(pick) * (1.0 - LEAST_SHARE)
        and score(row) * row.caution >= score(pick) * pick.caution * (1.0 - TIE)  # else: a limit
        and (_keeps(job.limits, row) or not _keeps(job.limits, pick))
    ]
    found = [
        WorthProbe(
            change=row.offer.label,
            knob=MACHINE,
            expected_saving_s=pick.duration_s.p50 - row.duration_s.p50,
            expected_saving_usd=pick.cost_usd.p50 - row.cost_usd.p50,
            p10=pick.cost_usd.p50 - row.cost_usd.p50 * row.caution,
            p90=pick.cost_usd.p50 - row.cost_usd.p50 / row.caution,
            why=f"no step measured on {row.offer.device.name} went into the model",
        )
        for row in sorted(better, key=score)
    ]
    return tuple(found[:MOST_MACHINES])


def _keeps(limits: Limits, row: Estimated) -> bool:
    seconds, usd = row.duration_s.p50, row.cost_usd.p50
    pairs = ((limits.deadline_s, seconds), (limits.max_session_s, seconds),
             (limits.budget_usd, usd))  # fmt: skip
    return all(limit is None or value <= limit for limit, value in pairs)


def worth_a_probe(job: Job, calibration: Calibration, pick: Estimated) -> tuple[WorthProbe, ...]:
    """One entry for each knob whose unmeasured change may save most, the largest saving first.

    Saving: expected, and between no gain and twice the gain. Source: derived: the prior of
    `cost.uncertainty.COMPILED`, between nothing and twice as much as assumed.
    """
    if not job.steps:
        return ()
    start = State(job, pick.offer, pick.config)
    changed = [(edit, edit.apply(start)) for edit in _edits(job, pick.config)]
    tried = [(edit, run) for edit, run in changed if not violations(job, run.offer, run.config)]
    if not tried:
        return ()
    bill = Pricing(job, calibration).of([(run.offer, run.config) for _, run in tried])
    best: dict[str, WorthProbe] = {}
    for index, (edit, _) in enumerate(tried):
        gain = bill.at("compute", "unmeasured_gain", index)
        if gain <= 1.0 or not bill.feasible[index]:
            continue
        row = bill.estimate(index)
        rate = pick.offer.usd_per_s
        train = row.steps * row.step_time_s
        expected = pick.duration_s.p50 - row.duration_s.p50
        knob = edit.columns[0]
        found = WorthProbe(
            change=edit.typed.replace("--set ", "").replace(" ", ", "),
            knob=knob,
            expected_saving_s=expected,
            expected_saving_usd=expected * rate,
            p10=(expected - train * (gain - 1.0)) * rate,
            p90=(expected + train * (1.0 - 1.0 / gain)) * rate,
            why=_why(row.config),
        )
        worth = expected > LEAST_SHARE * pick.duration_s.p50
        if worth and (knob not in best or expected > best[knob].expected_saving_s):
            best[knob] = found
    return tuple(sorted(best.values(), key=lambda each: -each.expected_saving_s))


def _edits(job: Job, config: Config) -> Iterator[RunEdit]:
    """Each unmeasured change of a configuration that may be tried, and the two together."""
    if config.compile == "off":
        if config.kernels == "none" and "kernels" in job.allow:
            yield knobs_edit(config, {"kernels": "liger"})
        yield knobs_edit(config, {"compile": "default"})
        yield knobs_edit(config, {"compile": "default", "compile_scope": "regional"})


def _why(config: Config) -> str:
    if config.kernels != "none":
        return WHY_LIGER
    whole = config.compile_scope == "model" and config.attention == "sdpa"
    return WHY_COMPILE + (MASKED if whole else "")


MISSES_SHOWN = 3
FRONT_SHOWN = 25
BEYOND_SHOWN = 12


def answer_of(
    priced: Priced, options: Options, explored: Exploration, chosen: Selection, tracing: Tracing
) -> Recommendation:
    """The recommendation around what was chosen, before its run is finished."""
    bill, job = priced.bill, priced.job
    among = _among(options, explored)
    each = best_of_each_offer(bill, options.objective, among) if len(job.offers) > 1 else ()
    pick = None if chosen.index is None else tracing.row(chosen.index)
    found = Recommendation(
        job=job,
        best=pick,
        today=_today(priced),
        alternatives=(),
        pareto=tuple(map(tracing.row, alternatives.pareto_front(bill, among)[:FRONT_SHOWN])),
        machines=tuple(map(tracing.row, each)),
        beyond=tuple(map(tracing.row, alternatives.beyond_front(bill)[:BEYOND_SHOWN])),
        tie=False,
        rejected=_rejected(priced, chosen.index, options.objective),
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
        warnings=(*priced.warnings, *tracing.notes),
        sensitivities=sensitivities(job, priced.space, priced.calibration, pick),
    )
    if chosen.index is None or pick is None:
        return found
    passed = None if chosen.over is None else tracing.row(chosen.over)
    if passed is not None:
        broken = Tiebreak.of(passed.offer, options.objective, passed.duration_s, passed.cost_usd)
        found = replace(found, tiebreak=broken)
    return _around(found, pick, chosen.index, priced, tracing, options.objective,
                   _others(bill, chosen, options.objective, among))  # fmt: skip


def _around(
    found: Recommendation, best: Estimated, pick: int, priced: Priced, tracing: Tracing,
    objective: Objective, others: Sequence[int],
) -> Recommendation:  # fmt: skip
    """The answer with what only a pick has around it. best: its row; pick: its place in the bill.

    others: the alternatives' places.
    """
    bill, job = priced.bill, priced.job
    apart = differences(bill, pick, others, objective)
    ties = too_close(apart)
    modelled = bill.estimate(pick)
    keeping, late = _keeping(priced, modelled, objective)
    return replace(
        found,
        keeping=keeping,
        alternatives=tuple(map(tracing.row, others)),
        tie=bool(ties),
        ties=ties,
        differences=apart,
        reasons=explain.reasons(bill, pick),
        narrowest=narrowest_input(bill, pick),
        narrowings=narrowings(bill, pick),
        warnings=(
            *_opened(priced, modelled, found.rejected),
            *late,
            *moved_notes(job, modelled.config),
            *packed_note(job, modelled),
            *priced.warnings,
            *_unseen(bill, modelled),
            *explain.disk_note(bill, pick),
            *explain.ram_note(bill, pick),
            *tracing.notes,
        ),
        worth_a_probe=(
            *machines_worth_a_probe(job, best, found.machines, objective),
            *worth_a_probe(job, priced.calibration, best),
        ),
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


def _opened(priced: Priced, best: Estimated, rejected: Rejected) -> tuple[str, ...]:
    """What to say of a knob that was opened because nothing fitted without it."""
    if priced.job is priced.asked:
        return ()
    return opened_notes(priced.asked, best, rejected.relaxations)


def _keeping(
    priced: Priced, best: Estimated, objective: Objective
) -> tuple[tuple[Relaxation, ...], tuple[str, ...]]:
    """Where the pick misses a limit: what would keep all of them, or that nothing tried would."""
    job = priced.job
    if all(each.kept for each in odds(job.limits, best.duration_s, best.cost_usd)):
        return (), ()
    found = keeping_the_limits(job, priced.space, priced.calibration, objective, best)
    return found, () if found else (Decisive(KEEPS_NOTHING),)


def _unseen(bill: Bill, best: Estimated) -> list[str]:
    """What to know of the pick's device, and that no measured step speaks of it or the program."""
    notes: list[str | None] = [*device_notes(best.offer, bill.job.software.torch)]
    if bill.basis == "modelled":
        notes += [never_measured_note(best.offer.device), new_program_note(bill.job)]
    return [note for note in notes if note]


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
        nearest=tuple(_nearest(alternatives.as_infeasible(bill, i)) for i in near),
        relaxations=relaxed,
        shortfall=shortfall_of(bill, near[0]) if lost and near else None,
    )


def _nearest(miss: Infeasible) -> Nearest:
    return copied(
        Nearest,
        miss,
        config=miss.config.as_record(),
        device=miss.offer.device.name,
        device_count=miss.offer.count,
    )

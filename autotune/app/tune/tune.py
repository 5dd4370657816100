"""The main job: every candidate priced, the finalists tried and recorded, one recommended.

job + offers + space -> candidates -> bill -> study -> recommendation -> run folder.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.app.choices import check_choices
from autotune.app.job.adapter_variant import variant_note
from autotune.app.job.base_storage import unquantised_note
from autotune.app.runs import folder as runs
from autotune.app.runs.export import (
    check_exports,
)
from autotune.app.runs.find import to_resume
from autotune.app.tune.kept_answer import finish, persist
from autotune.app.tune.price_notes import price_notes
from autotune.app.tune.tracing import Tracing, choose_traced
from autotune.app.whatif import explain
from autotune.app.whatif.last_resort import last_resort, opened_note
from autotune.app.whatif.moved import moved_notes
from autotune.app.whatif.relaxations import relaxations
from autotune.app.whatif.shortfall import shortfall_of
from autotune.cost.columns import reusing_tables
from autotune.cost.spread.variance import narrowest_input, never_measured_note
from autotune.domain.answer.recommendation import Recommendation, Rejected, SearchRecord
from autotune.domain.paths import whole
from autotune.domain.units import format_count
from autotune.pricing import Pricing
from autotune.search import near_misses, selection
from autotune.search.by_offer import best_of_each_offer
from autotune.search.study.samplers import CALIBRATED, check_sampler

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.app.probing.plan import ProbeOptions
    from autotune.cost.bill import Bill
    from autotune.domain.answer.recommendation import Asked, Sensitivity, WorthProbe
    from autotune.domain.calibration import Calibration
    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated
    from autotune.domain.space import SearchSpace
    from autotune.search.selection import Objective, Selection
    from autotune.search.study.study import Exploration
    from autotune.space.enumerate import Enumeration

MISSES_SHOWN = 3
FRONT_SHOWN = 25
BEYOND_SHOWN = 12


@dataclass(frozen=True, slots=True)
class Options:
    """How to tune: what is minimised, who proposes, where the run is kept."""

    space: str | None = None
    objective: Objective = "cost"
    sampler: str = "calibrated"
    trials: int = 100
    seed: int = 0
    run_dir: Path | None = None
    resume: bool = False
    storage: str | None = None
    exports: tuple[str, ...] = ()
    fidelity: str = "auto"
    trust_remote_code: bool = False
    score: str = "model"
    dry_run: bool = False
    probing: ProbeOptions | None = None  # with score probe: how much may be probed, and where
    present: tuple[tuple[str, KnobValue], ...] = ()  # levels of own knobs, where not the first
    asked: Asked | None = None  # the command line, to name what to type next


@dataclass(frozen=True, slots=True)
class _Priced:
    """Everything the answer is made of, before it is made."""

    job: Job
    space: SearchSpace
    found: Enumeration
    bill: Bill
    calibration: Calibration
    warnings: tuple[str, ...]
    asked: Job  # the job before anything was opened because nothing fitted


@reusing_tables()
def tune(
    job: Job, options: Options | None = None, progress: Callable[[str], None] = lambda _: None
) -> Recommendation:
    """The recommendation for a job, with its run folder written unless `dry_run`.

    Raises InputError for bad input; an answer without `best` is no error.
    """
    begun = time.perf_counter()
    options = _placed(options or Options())
    check_choices(objective=options.objective, fidelity=options.fidelity, score=options.score)
    check_sampler(options.sampler)
    check_exports(job, options.exports)
    if options.score == "probe":
        from autotune.app.probing.tune import tune_by_probes

        return tune_by_probes(job, options, progress, begun)
    priced = _price(job, options, progress)
    if options.dry_run:
        return _tuned(priced, options, None, progress, begun)
    asked = asked_of(priced, options)
    run_dir = run_dir_of(asked, options)
    made = runs.open_run(asked, run_dir, resume=options.resume)
    with runs.working_in(run_dir, made=made):
        answer = _tuned(priced, options, run_dir, progress, begun)
        persist(answer, run_dir)
    return answer


def _tuned(
    priced: _Priced, options: Options, run_dir: Path | None, progress: Callable[[str], None],
    begun: float,
) -> Recommendation:  # fmt: skip
    explored = _explore(priced, options, run_dir, progress)
    chosen, tracing = choose_traced(
        priced.bill,
        _choose(priced, options, explored),
        options.objective,
        options.fidelity,
        None if options.sampler == CALIBRATED else explored.tried,
        progress,
        trust_remote_code=options.trust_remote_code,
    )
    answer = _answer(priced, options, explored, chosen, tracing)
    return finish(answer, priced, options, explored, run_dir, begun)


def _placed(options: Options) -> Options:
    """The options with whole paths: what is recorded is read again from other folders."""
    from autotune.search.study.storage import whole_url
    from autotune.space.file import whole_name

    return replace(
        options,
        run_dir=None if options.run_dir is None else whole(options.run_dir),
        space=None if options.space is None else whole_name(options.space),
        storage=None if options.storage is None else whole_url(options.storage),
    )


def _price(job: Job, options: Options, progress: Callable[[str], None]) -> _Priced:
    from autotune.space.enumerate import enumerate_candidates
    from autotune.space.extra import with_present
    from autotune.space.file import load_space

    space = with_present(load_space(options.space), dict(options.present))
    found = enumerate_candidates(job, space)
    progress(f"pricing {format_count(len(found.candidates))} candidates")
    pricing = Pricing.learned(job)
    calibration = pricing.calibration
    bill = pricing.bill(found.candidates)
    asked = job
    opened = None if bill.feasible.any() else last_resort((job, space), calibration)
    if opened is not None:
        job, _ = opened
        found = enumerate_candidates(job, space)
        bill = pricing.variant(job).bill(found.candidates)
    notes = [
        *found.warnings,
        *pricing.warnings,
        *price_notes(job),
        *unquantised_note(job),
        *variant_note(job),
        *_notes(job, options, space, found),
    ]
    return _Priced(job, space, found, bill, calibration, tuple(notes), asked)


def _notes(job: Job, options: Options, space: SearchSpace, found: Enumeration) -> list[str]:
    notes = []
    if options.space is not None:
        notes += [
            f"{name} {', '.join(map(str, values))} is in the space, but needs --allow {name}"
            for name, values in found.opt_in_ignored.items()
        ]
    if space.extra and options.score != "probe":
        levels = ((name, str(values[0])) for name, values in space.extra.items())
        present = ", ".join(f"{name} {level}" for name, level in levels)
        notes.append(
            "extra knobs are unknown to the cost model, which prices their levels alike: each "
            f"stays as it is today ({present}); --score probe measures the others"
        )
    if not job.lengths.known:
        notes.append(
            "no row lengths are known: every row is counted at max_length, an upper bound for time"
        )
    return notes


def asked_of(priced: _Priced, options: Options, *how: str) -> runs.Identity:
    """The job with the question that a run folder answers. how: it is scored, if not priced."""
    own = options.space is not None and Path(options.space).is_absolute()
    space = repr((priced.space.values, priced.space.extra)) if own else ""
    return runs.Identity(priced.job, (options.space or "", options.objective, *how), space)


def run_dir_of(asked: runs.Identity, options: Options) -> Path:
    """The folder of this run: the stated one, that of the run to go on with, or a new one."""
    if options.run_dir is not None:
        return options.run_dir
    return to_resume(asked) if options.resume else runs.new_run_dir(asked.job)


def _explore(
    priced: _Priced, options: Options, run_dir: Path | None, progress: Callable[[str], None]
) -> Exploration:
    from autotune.search.study.study import explore

    tried = 0

    def count(_: object) -> None:
        nonlocal tried
        tried += 1
        if tried % 10 == 0:
            progress(f"{tried} trials")

    return explore(
        priced.bill,
        objective=options.objective,
        sampler=options.sampler,
        trials=options.trials,
        seed=options.seed,
        run_dir=run_dir,
        storage=options.storage,
        study_name=run_dir.name if run_dir else priced.job.name,
        job_key=asked_of(priced, options).key,
        resume=options.resume,
        on_trial=count,
    )


def _choose(priced: _Priced, options: Options, explored: Exploration) -> Selection:
    """The exact choice over all candidates; with a stock sampler, over what it tried."""
    limits = priced.job.limits
    if options.sampler == CALIBRATED:
        return selection.best_index(priced.bill, options.objective, limits)
    return selection.best_index(priced.bill, options.objective, limits, among=explored.tried)


def _answer(
    priced: _Priced, options: Options, explored: Exploration, chosen: Selection, tracing: Tracing
) -> Recommendation:
    bill, pick = priced.bill, chosen.index
    among = _among(options, explored)
    machines = _machines(priced, tracing, options.objective, among)
    front = selection.pareto_front(bill, among)[:FRONT_SHOWN]
    others, ties = _others(bill, chosen, options.objective, among)
    rejected = _rejected(priced, pick, options.objective)
    return Recommendation(
        job=priced.job,
        best=tracing.row(pick) if pick is not None else None,
        today=_today(priced),
        alternatives=tuple(tracing.row(i) for i in others),
        pareto=tuple(tracing.row(i) for i in front),
        machines=machines,
        beyond=tuple(tracing.row(i) for i in selection.beyond_front(bill)[:BEYOND_SHOWN]),
        tie=bool(ties),
        ties=ties,
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
) -> tuple[list[int], tuple[int, ...]]:
    """The alternatives, and which of them tie with the pick."""
    if chosen.index is None:
        return [], ()
    found = selection.alternatives(bill, chosen.index, objective, among=among)
    return selection.with_runner_up(bill, chosen, found, objective)


def _machines(
    priced: _Priced, tracing: Tracing, objective: Objective, among: tuple[int, ...] | None
) -> tuple[Estimated, ...]:
    """The best of each offer, where there are several."""
    if len(priced.job.offers) == 1:
        return ()
    return tuple(tracing.row(i) for i in best_of_each_offer(priced.bill, objective, among))


def _sensitivities(priced: _Priced, tracing: Tracing, pick: int | None) -> tuple[Sensitivity, ...]:
    """What closed knobs and the user's own choices would be worth on the pick's machine."""
    from autotune.app.whatif.sensitivities import sensitivities

    row = None if pick is None else tracing.row(pick)
    return sensitivities(priced.job, priced.space, priced.calibration, row)


def _worth_a_probe(
    priced: _Priced,
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


def _opened(priced: _Priced, rejected: Rejected, pick: int | None) -> tuple[str, ...]:
    """What to say of a knob that was opened because nothing fitted without it."""
    if pick is None or priced.job is priced.asked:
        return ()
    return (opened_note(priced.bill.estimate(pick), rejected.relaxations),)


def _unseen(bill: Bill, pick: int | None) -> tuple[str, ...]:
    """What to say when no measured training step speaks of the pick's device."""
    if pick is None or bill.basis != "modelled":
        return ()
    note = never_measured_note(bill.candidates.offer(pick).device.name)
    return (note,) if note else ()


def _today(priced: _Priced) -> Estimated | None:
    """The config the user runs now, on its own offer, under the same calibration."""
    job = priced.job
    if job.today is None:
        return None
    offer = job.today_offer or job.offers[0]
    return Pricing(job.as_today, priced.calibration).one(offer, job.today)


def _rejected(priced: _Priced, pick: int | None, objective: Objective) -> Rejected:
    bill = priced.bill
    near = near_misses.nearest_misses(bill, MISSES_SHOWN, pick=pick, objective=objective)
    late = None if pick is None else near_misses.late_rival(bill, pick, objective)
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
        nearest=tuple(near_misses.as_infeasible(bill, i) for i in near),
        relaxations=relaxed,
        shortfall=shortfall_of(bill, near[0]) if lost and near else None,
    )

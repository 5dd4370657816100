"""The main job scored by probes: price, probe, choose among what ran, answer as `tune` does."""

from __future__ import annotations

import math
import time
from contextlib import ExitStack
from dataclasses import replace
from shlex import join
from typing import TYPE_CHECKING

from autotune.app.probing.measured_bill import (
    as_measured,
    narrowest_measured,
    same_steps,
    told_apart,
    transferred,
)
from autotune.app.probing.plan import (
    Ground,
    ProbeOptions,
    groups_here,
    local_bill,
    local_for,
    offers_here,
    plan_probe,
    remote_for,
    without_limits,
)
from autotune.app.probing.study import StudySettings, check_affordable, probe_candidates
from autotune.app.runs.folder import is_run, load_record
from autotune.app.runs.ownership import working_in
from autotune.app.tune.answer import answer_of
from autotune.app.tune.kept_answer import finish as finish_answer
from autotune.app.tune.kept_answer import persist
from autotune.app.tune.priced import as_begun, asked_of, price, run_dir_of
from autotune.app.tune.tracing import Tracing
from autotune.app.whatif import explain
from autotune.app.whatif.moved import moved_notes
from autotune.domain.answer.limits import odds, worst_excess
from autotune.domain.answer.recommendation import Decisive, ProbedRun, SearchBound
from autotune.domain.config import DERIVED, Config
from autotune.domain.errors import Interrupted
from autotune.domain.paths import near
from autotune.domain.units import HOUR_S, format_seconds, format_usd
from autotune.pricing import Pricing
from autotune.probe.lease import seated
from autotune.probe.outcomes import check_arguments
from autotune.probe.record import config_of
from autotune.probe.together import Meeting, gathered
from autotune.search import selection
from autotune.search.alternatives import proposal_order
from autotune.search.posterior.bound import PROBABILITY
from autotune.space.enumerate import enumerate_candidates

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.app.probing.measured_bill import MeasuredRow
    from autotune.app.probing.study import Probed
    from autotune.app.tune.priced import Options, Priced
    from autotune.cost.bill import Bill
    from autotune.domain.answer.recommendation import Recommendation, Sensitivity
    from autotune.domain.device import Offer
    from autotune.domain.job import Job, Limits
    from autotune.domain.observation import Calibration
    from autotune.domain.outcome import Estimated
    from autotune.probe.device import LocalDevice
    from autotune.probe.memo import Unsupported
    from autotune.search.posterior.stopping import Remaining
    from autotune.search.study.study import Exploration

ALTERNATIVES = 5


def tune_by_probes(
    job: Job, options: Options, progress: Callable[[str], None], begun: float
) -> Recommendation:
    """The recommendation for a job, by running its candidates.

    Raises NoLocalDevice (exit 5) when no device here is one of the job's, or nothing could run;
    Interrupted (130) on Ctrl-C, with every finished probe kept.
    """
    probing = options.probing or ProbeOptions()
    elsewhere = probing.executor != "local" or probing.workers == 0
    if elsewhere and probing.workers is not None:
        local, offer = remote_for(job, probing.on)
    else:
        local, offer = local_for(job, probing.on, together=bool(probing.rendezvous))
    if probing.rendezvous:
        probing = replace(probing, meeting=Meeting.of(probing.rendezvous, offer))
    present = dict(options.present)
    priced = price(job, options.space, progress, present=present, measured=True)
    check_arguments(priced.space.extra)
    exact = offer in job.offers
    probed_job = job if exact else replace(job, offers=(offer,))
    offers = offers_here(job, offer)
    if (elsewhere or offer.network) and exact:
        same = (offer.device, offer.count, offer.network)
        offers = tuple(o for o in job.offers if (o.device, o.count, o.network) == same)
    candidates = priced.found.candidates
    if not exact:
        candidates = enumerate_candidates(probed_job, priced.space).candidates
    bill = local_bill(probed_job, candidates, priced.space, priced.calibration, offers)
    if not exact:
        held = float(bill.usable_bytes.min(initial=offer.device.memory_torch_bytes))
        probing, bill = replace(probing, held_bytes=held), without_limits(bill)
    if probing.meeting is not None and not options.dry_run:
        probing.meeting.check_place()
    asked = asked_of(priced, options, "probe", probing.on or "")
    folder = run_dir_of(asked, options)
    asked, priced, options = as_begun(asked, priced, options, folder)
    if options.resume and folder is not None and is_run(folder):
        probing = probing.within(load_record(folder).limits)
    asked = replace(asked, limits=probing.limits)
    check_affordable(probed_job, bill, probing, options.objective)
    if options.dry_run:
        return _planned(priced, options, probing, bill, offer)
    with working_in(asked, folder, resume=options.resume) as run_dir:
        try:
            found = _probed(
                Ground(probed_job, priced.space, priced.calibration, offer, offers, exact, bill,
                       probing.held_bytes),
                local, replace(options, probing=probing), run_dir, asked.key, progress,
            )  # fmt: skip
        except (KeyboardInterrupt, Interrupted) as stopped:
            others = ", and the workers that joined go on" if probing.workers == 0 else ""
            msg = getattr(stopped, "message", f"interrupted; every finished probe is kept{others}")
            raise Interrupted(msg, f"continue with: {_resumed(options, run_dir)}") from None
        carried = transferred(found.rows, bill, offer, priced.bill, priced.calibration)
        taught = _taught(priced, carried.calibration)
        answer = (
            _measured_answer(taught, options, found)
            if exact
            else _transferred_answer(taught, options, found, carried.note)
        )
        return _finish(answer, taught, replace(options, probing=probing), found, run_dir, begun)


def _probed(
    ground: Ground, local: LocalDevice, options: Options, run_dir: Path, key: str,
    progress: Callable[[str], None],
) -> Probed:  # fmt: skip
    """The probes of a search: by this process, or by workers."""
    probing = options.probing or ProbeOptions()
    study = StudySettings(
        run_dir, key, options.objective, options.sampler, options.seed, options.storage,
        options.resume,
    )  # fmt: skip
    if probing.workers is not None:
        from autotune.app.workers.lead import probe_by_workers

        return probe_by_workers(ground, local, probing, study, progress)
    count = max(offer.per_node for offer in ground.offers)
    groups = groups_here(ground.offer, local, count)
    with ExitStack() as held:
        group = held.enter_context(seated(groups, progress, f"({near(run_dir)})"))
        if probing.meeting is not None:
            from autotune.app.workers.terms import together_terms

            terms = together_terms(ground.offer.device.name)
            held.enter_context(gathered(run_dir, probing.meeting, terms, progress))
        return probe_candidates(ground.bill, group[0], probing, study, progress)


def _resumed(options: Options, run_dir: Path) -> str:
    """The command that goes on where this one stopped."""
    from autotune.report.sections.how_to_run import again
    from autotune.search.study.backends import url_to_type

    url = url_to_type(options.storage) if options.storage else None
    on = ["--run", near(run_dir), "--resume", *(["--storage", url] if url else [])]
    told = again(options.asked, "tune", join(on))
    if url == options.storage:
        return told
    told = told.replace(f" --storage {url}", "")
    return told.replace("autotune", f"AUTOTUNE_STORAGE={url} autotune", 1)


def _planned(
    priced: Priced, options: Options, probing: ProbeOptions, bill: Bill, offer: Offer
) -> Recommendation:
    """--dry-run: what would be probed, for how long and how much, beside the model's answer."""
    answer = _modelled(priced, options, _nothing(options))
    seconds, usd, count = 0.0, 0.0, 0
    for index in proposal_order(bill, options.objective):
        row = bill.estimate(index)
        expected = plan_probe(bill.job, row, probing.effort).seconds(first=not count)
        if count == probing.most or seconds + expected > probing.seconds:
            break
        seconds, count = seconds + expected, count + 1
        usd += expected / HOUR_S * row.offer.usd_per_hour
    note = Decisive(
        f"dry run: at most {count} configurations would be probed on {offer.label}, in about "
        f"{format_seconds(seconds)} and for {format_usd(usd)}, and the pick once more; nothing was "
        "run"
    )
    search = replace(answer.search, stopped_because="dry run")
    return replace(answer, search=search, warnings=(*answer.warnings, note))


def _modelled(priced: Priced, options: Options, explored: Exploration) -> Recommendation:
    """The answer of the bill as it is, before what was measured is put into it."""
    chosen = selection.best_index(priced.bill, options.objective, priced.job.limits)
    return answer_of(priced, options, explored, chosen, Tracing(priced.bill))


def _nothing(options: Options) -> Exploration:
    from autotune.search.study.study import Exploration

    return Exploration(None, (), (), 0, options.objective, options.sampler, "dry run")


def _taught(priced: Priced, calibration: Calibration) -> Priced:
    """The same candidates under what the probes showed, so that both can stand side by side."""
    bill = Pricing(priced.job, calibration).bill(priced.found.candidates)
    return replace(priced, bill=bill, calibration=calibration)


def _measured_answer(priced: Priced, options: Options, found: Probed) -> Recommendation:
    """The best that ran, within the limits; the model that the probes taught fills in the rest."""
    rows = list(found.rows)
    best = _within_limits(rows, priced.job.limits)
    base = _modelled(priced, options, found.explored)
    if best is None:
        return replace(
            base,
            best=None,
            tie=False,
            ties=(),
            differences=(),
            narrowings=(),
            reasons={},
            alternatives=(),
            pareto=(),
            machines=(),
            beyond=(),
            sensitivities=(),
            worth_a_probe=(),
        )
    others = [item for item in rows if item is not best]
    tied = set(found.ties) if best.index == found.explored.pick else set()
    shown = others[:ALTERNATIVES]
    ties = tuple(
        place
        for place, item in enumerate(shown)
        if item.index in tied and not told_apart(best.row, item.row)
    )
    modelled = Pricing(priced.job, priced.calibration).bill(found.bill.candidates)
    return replace(
        base,
        best=best.row,
        today=_today(base.today, rows),
        alternatives=tuple(item.row for item in shown),
        pareto=_front(rows),
        machines=_machines(base.machines, rows),
        tie=bool(ties),
        ties=ties,
        differences=(),  # measured ones are told apart by their own intervals
        narrowings=(),
        reasons=_reasons(modelled, best, others, found.unsupported),
        narrowest=narrowest_measured(best),
        warnings=(*moved_notes(priced.job, best.row.config), *priced.warnings),
        beyond=(),  # modelled, and nothing says that it would beat what was measured
        sensitivities=_sensitivities(
            priced, modelled.estimate(best.index), best.row, found.unsupported
        ),
        worth_a_probe=(),
    )


def _today(modelled: Estimated | None, rows: list[MeasuredRow]) -> Estimated | None:
    """Today's config as it was measured; where it was not, by the model that the probes taught."""
    if modelled is None:
        return None
    same = (r.row for r in rows if r.row.offer == modelled.offer and same_steps(r.row, modelled))
    measured = next(same, None)
    return as_measured(modelled, measured) if measured else modelled


def _sensitivities(
    priced: Priced, modelled: Estimated, measured: Estimated, unsupported: Unsupported
) -> tuple[Sensitivity, ...]:
    """What the user's own choices would be worth beside the measured pick, where they run."""
    from autotune.app.whatif.sensitivities import sensitivities

    found = sensitivities(priced.job, priced.space, priced.calibration, measured, modelled)
    return tuple(s for s in found if not s.config or not unsupported.reason(Config.of(s.config)))


def _front(rows: list[MeasuredRow]) -> tuple[Estimated, ...]:
    """Measured rows that no other beats in both time and cost."""
    kept: list[Estimated] = []
    for item in sorted(rows, key=lambda r: (r.row.duration_s.p50, r.row.cost_usd.p50)):
        if not kept or item.row.cost_usd.p50 < kept[-1].cost_usd.p50:
            kept.append(item.row)
    return tuple(kept)


def _machines(modelled: tuple[Estimated, ...], rows: list[MeasuredRow]) -> tuple[Estimated, ...]:
    """The best that ran on each offer; the model's where nothing did."""
    measured = {item.row.offer: item.row for item in reversed(rows)}
    return tuple(measured.get(row.offer, row) for row in modelled)


def _within_limits(rows: list[MeasuredRow], limits: Limits) -> MeasuredRow | None:
    """The best row that keeps deadline and budget with the asked probability, else the nearest.

    `rows` are in order of preference.
    """

    def excess(item: MeasuredRow) -> float:
        return max(worst_excess(odds(limits, item.row.duration_s, item.row.cost_usd)), 0.0)

    return min(rows, key=excess, default=None)


def _reasons(
    bill: Bill, best: MeasuredRow, others: list[MeasuredRow], unsupported: Unsupported
) -> dict[str, str]:
    """For each knob that was varied: what the best run with another value took longer.

    For the others what the cost model says, marked as such; closed forms by what was measured.
    """
    found = {
        name: text if text in explain.UNSEARCHED else f"{text} (modelled)"
        for name, text in explain.reasons(bill, best.index, unsupported.reason).items()
    }
    found |= explain.derived_reasons(bill.job, best.row)
    for name, own in best.row.config.as_record().items():
        rivals = [o for o in others if o.row.config.as_record().get(name) != own]
        if name in DERIVED or not rivals:
            continue
        rival = min(rivals, key=lambda r: r.row.duration_s.p50)
        gap = rival.row.duration_s.p50 - best.row.duration_s.p50
        value = rival.row.config.as_record()[name]
        longer = "longer" if gap >= 0 else "less"
        found[name] = f"best run with {value}: {format_seconds(abs(gap))} {longer}, measured"
    return found


def _transferred_answer(
    priced: Priced, options: Options, found: Probed, note: str
) -> Recommendation:
    """The job's own offers under what probes on another device showed of each component."""
    answer = _modelled(priced, options, found.explored)
    return replace(answer, warnings=(*answer.warnings, note))


def _runs(found: Probed) -> tuple[ProbedRun, ...]:
    """Every probe as the report shows it."""
    return tuple(
        ProbedRun(
            config=config_of(record).as_record(), status=record.status, role=record.role,
            reused=record.reused, predicted_step_s=record.predicted.get("whole_step_s"),
            step_time_s=record.step_s(accumulation) if record.ok else None,
            memory_bytes=record.needed_bytes or None, wall_s=record.wall_s,
            predicted_p10_s=record.predicted.get("whole_step_p10_s"),
            predicted_p90_s=record.predicted.get("whole_step_p90_s"),
            disturbed=tuple(record.disturbed),
        )
        for record in found.records
        for accumulation in [int(record.config["gradient_accumulation_steps"])]
    )  # fmt: skip


def _finish(
    answer: Recommendation, priced: Priced, options: Options, found: Probed,
    run_dir: Path, begun: float,
) -> Recommendation:  # fmt: skip
    run = [record for record in found.records if not record.reused]
    search = replace(
        answer.search,
        score="probe",
        fidelity="probe",
        probes=len({record.key for record in run if record.role == "search"}),
        probe_runs=len(run),
        noise=found.noise,
        bound=_bound(found.explored.left),
        probe_seconds=sum(record.wall_s for record in run),
        stopped_because=found.stopped_because,
        probe_budget_s=(options.probing or ProbeOptions()).seconds,
    )
    answer = replace(
        answer, probed=_runs(found), search=search, warnings=(*answer.warnings, *found.notes)
    )
    answer = finish_answer(answer, priced, options, found.explored, run_dir, begun)
    answer = replace(
        answer, search=replace(answer.search, wall_seconds=time.perf_counter() - begun)
    )
    persist(answer, run_dir)
    return answer


def _bound(left: Remaining | None) -> SearchBound | None:
    """What is said of all configurations together, once something that fits was measured."""
    if left is None or not math.isfinite(left.saving):
        return None
    return SearchBound(PROBABILITY, left.bound)

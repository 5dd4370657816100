"""A probed search: what earlier runs here taught, its probes, and what later runs remember."""

from __future__ import annotations

import time
from contextlib import closing
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

from autotune.app.probing.figures import is_measurement
from autotune.app.probing.notes import (
    front_note,
    notes_of,
    notes_of_noise,
    saving_note,
    unproven_levels,
    why_it_leads,
)
from autotune.app.probing.plan import plan_probe
from autotune.app.probing.probe import Prober
from autotune.app.probing.several_runs import repeats_said, run_of
from autotune.domain.answer.recommendation import NoiseSeen
from autotune.domain.errors import NoLocalDevice
from autotune.domain.units import format_bytes
from autotune.frozen import dataclass, identity
from autotune.probe.outcomes import hint_for
from autotune.probe.record import PROBES_FILE, SharedProbeLog
from autotune.search.alternatives import proposal_order
from autotune.search.measured.prior import (
    Prior,
    PriorKey,
    load_prior,
    load_residuals,
    save_prior,
    save_residuals,
)
from autotune.search.measured.study import explore_measured
from autotune.search.posterior.repeats import repeat_sd
from autotune.search.posterior.stopping import ProbeBudget, check_budget, described
from autotune.search.study.record import WORKERS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.app.probing.measured_bill import MeasuredRow
    from autotune.app.probing.plan import ProbeOptions
    from autotune.cost.bill import Bill
    from autotune.domain.job import Job
    from autotune.probe.device import LocalDevice
    from autotune.probe.memo import Unsupported
    from autotune.probe.record import ProbeRecord
    from autotune.search.measured.study import MeasuredExploration
    from autotune.search.posterior.repeats import Run
    from autotune.search.selection import Objective

    Explore = Callable[[Prober, Prior], MeasuredExploration]


@dataclass(frozen=True, slots=True)
class Probed:
    """What probing found. rows: every candidate that ran and fits, the pick first."""

    bill: Bill
    explored: MeasuredExploration
    rows: tuple[MeasuredRow, ...]
    records: tuple[ProbeRecord, ...]
    ties: tuple[int, ...]
    wall_s: float
    stopped_because: str
    notes: tuple[str, ...]
    noise: NoiseSeen
    unsupported: Unsupported


def check_affordable(job: Job, bill: Bill, options: ProbeOptions, objective: Objective) -> None:
    """Raise InputError for a budget that is smaller than the first probe."""
    first = next(proposal_order(bill, objective), None)
    if first is not None:
        plan = plan_probe(job, bill.estimate(first), options.effort)
        check_budget(ProbeBudget(plan.seconds(), 0.0, options.seconds, "s"))


@dataclass(frozen=True, slots=True)
class StudySettings:
    """How a probed search goes, and where it is kept."""

    run_dir: Path
    job_key: str
    objective: Objective = "cost"
    sampler: str = "calibrated"
    seed: int = 0
    storage: str | None = None
    resume: bool = False


def probe_candidates(
    bill: Bill, local: LocalDevice, options: ProbeOptions, study: StudySettings,
    announce: Callable[[str], None], explore: Explore | None = None,
) -> Probed:  # fmt: skip
    """Probe candidates of a bill whose offers all are the local device.

    explore: how, with what is known; None: this process asks and measures alone.
    """
    begun = time.perf_counter()
    study.run_dir.mkdir(parents=True, exist_ok=True)
    prober = Prober(bill.job, bill, local, options, study.objective, study.run_dir, announce)
    key = prior_key(bill.job, local, prober.fingerprint, prober.memo.versions)
    prior = _prior_for(bill, study, key, reuse=options.reuse)
    with closing(prober.runner):
        explored = (explore or partial(_explore_alone, study, local))(prober, prior)
    return _probed_of(prober, explored, key, prior, begun)


def _explore_alone(
    study: StudySettings, local: LocalDevice, prober: Prober, prior: Prior
) -> MeasuredExploration:
    bill, run_dir = prober.bill, study.run_dir
    if study.resume:
        prober.leads = True
        gather_probes(prober, run_dir)
    tell_held(prober, local)
    known = len(prober.memo.records)
    explored = explore_measured(
        bill, prober, objective=study.objective, sampler=study.sampler, trials=len(bill),
        seed=study.seed, run_dir=run_dir, storage=study.storage, study_name=run_dir.name,
        job_key=study.job_key, resume=study.resume, prior=prior.observed,
    )  # fmt: skip
    if study.resume and len(prober.memo.records) == known:
        prober.announce(f"nothing more was probed: {explored.stopped_because}")
    return explored


def _probed_of(
    prober: Prober, explored: MeasuredExploration, key: PriorKey, prior: Prior, begun: float
) -> Probed:
    """What a search found, as it is told; later searches learn from it."""
    bill, options = prober.bill, prober.options
    _check_ran(prober)
    probes = prober.searched
    ended = explored.ended
    mixed = prober.memo.foreign  # of two devices: later searches on this one must not learn it
    late = learn_from(explored, key, probes if ended else 0) if options.reuse and not mixed else []
    noise = noise_of_search(prober, explored)
    measured = [r for r in prober.own if r.ok and is_measurement(r)]
    ranked = prober.ranked(explored.pick)
    leads = why_it_leads(ranked, measured)
    others = [r for r in measured if not leads or r.key != ranked[0].record.key]
    notes = (
        *notes_of_noise(noise, prober.own), *leads, *repeats_said(others),
        *prior.warnings, *saving_note(prior, probes, ended=ended), *notes_of(prober, explored.pick),
        *front_note(explored), *unproven_levels(bill, prober.rows, explored.pick), *late,
    )  # fmt: skip
    return Probed(
        bill=bill, explored=explored, rows=tuple(ranked),
        records=tuple(prober.memo.records), ties=explored.ties,
        wall_s=time.perf_counter() - begun, stopped_because=_why(prober, explored), notes=notes,
        noise=noise, unsupported=prober.unsupported,
    )  # fmt: skip


def _why(prober: Prober, explored: MeasuredExploration) -> str:
    """Why the search ended, and what stays uncertain."""
    why = explored.stopped_because
    if explored.undecided:
        return f"{why}; which one is best is not clear: {explored.undecided}"
    if explored.left is None or explored.pick is None:
        return why
    said = "expected to save $" in why
    return f"{why}; {described(explored.left, prober.budget(explored.pick), saving=not said)}"


def _check_ran(prober: Prober) -> None:
    """Raise NoLocalDevice when not one probe said anything about a configuration."""
    records = prober.memo.records
    if prober.rows or any(record.fits is not None for record in records):
        return
    if not records:
        msg = "no probe was run"
        raise NoLocalDevice(msg, "`autotune doctor` checks this machine")
    status, message = records[-1].status, records[-1].message
    msg = f"no probe could run: {status}, {message}"
    raise NoLocalDevice(msg, hint_for(status, message))


def gather_probes(prober: Prober, run_dir: Path) -> None:
    """What workers on this disk have recorded, also those that died before they told it."""
    for record in probes_of_workers(run_dir):
        prober.take(record)


def probes_of_workers(run_dir: Path) -> list[ProbeRecord]:
    """What workers on this disk have recorded; a line that is half written is passed over."""
    paths = sorted(run_dir.glob(f"{WORKERS_FOLDER}/*/{PROBES_FILE}"))
    return [record for path in paths for record in SharedProbeLog(path).records]


def tell_held(prober: Prober, local: LocalDevice) -> None:
    """Memory that somebody else holds is said before it is mistaken for the job's own."""
    if local.is_cpu or not local.processes:
        return
    prober.announce(
        f"{format_bytes(local.used_bytes)} of {local.name} are held by {len(local.processes)} "
        "other process(es); probes measure what is left"
    )


def prior_key(job: Job, local: LocalDevice, fingerprint: str, versions: dict[str, str]) -> PriorKey:
    """What must be the same for measurements to carry over."""
    device = f"{local.name}-{fingerprint}" if local.is_cpu else local.name
    work = identity((job.method, job.max_length, job.padding, job.lengths.quantiles))
    return PriorKey.of(device, job.model, work, versions)


def _prior_for(bill: Bill, study: StudySettings, key: PriorKey, *, reuse: bool) -> Prior:
    """The prior of a run: what it began with when it is resumed, else what is known now."""
    from autotune.search.axes import ParameterSpace
    from autotune.search.billed import BilledCandidates

    priced = BilledCandidates(bill, ParameterSpace(bill.candidates), study.objective)
    if study.resume:
        return load_prior(priced, study.run_dir)
    found = load_residuals(priced, key) if reuse else Prior({})
    if found.count:
        save_prior(priced, found, study.run_dir)
    return found


def learn_from(explored: MeasuredExploration, key: PriorKey, probes: int) -> list[str]:
    """Remember a finished search. A home that cannot be written costs the next run its start."""
    posterior = explored.posterior
    if posterior is None or not posterior.history.observed:
        return []
    try:
        _, note = save_residuals(posterior.priced, posterior.history, key, probes=probes)
    except OSError as error:
        return [f"what was learned could not be kept for later runs: {error}"]
    return [note] if note else []


def noise_of_search(prober: Prober, explored: MeasuredExploration) -> NoiseSeen:
    """What other programs did to a search's measurements."""
    ran = [r for r in prober.own if r.ok and is_measurement(r)]
    windows = [  # of a record from before they were kept one by one, its only one
        w for r in ran for w in r.result["step"].get("windows") or [{"disturbed": r.disturbed}]
    ]
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

"""A probed search: what earlier runs here taught, its probes, and what later runs remember.

And what the reader must know of how measured figures came about.
"""

from __future__ import annotations

import time
from contextlib import closing
from datetime import UTC, datetime
from functools import partial
from statistics import fmean
from typing import TYPE_CHECKING

import numpy as np

from autotune.app.probing.figures import is_measurement
from autotune.app.probing.plan import depths_of, plan_probe
from autotune.app.probing.probe import Prober
from autotune.app.probing.several_runs import accumulation_of, believed_of, repeats_said, run_of
from autotune.domain.answer.recommendation import Decisive, NoiseSeen
from autotune.domain.errors import NoLocalDevice
from autotune.domain.units import format_bytes, format_seconds
from autotune.frozen import dataclass, identity
from autotune.probe.outcomes import hint_for
from autotune.probe.record import PROBES_FILE, SharedProbeLog
from autotune.probe.two_depth import agreement
from autotune.search.alternatives import proposal_order
from autotune.search.measured.prior import (
    Prior,
    PriorKey,
    load_prior,
    load_residuals,
    save_prior,
    save_residuals,
)
from autotune.search.measured.study import FRONT, explore_measured
from autotune.search.posterior.repeats import repeat_sd
from autotune.search.posterior.stopping import ProbeBudget, check_budget, described
from autotune.search.study.record import WORKERS_FOLDER

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Sequence
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
        *_front_note(explored), *unproven_levels(bill, prober.rows, explored.pick), *late,
    )  # fmt: skip
    return Probed(
        bill=bill, explored=explored, rows=tuple(ranked),
        records=tuple(prober.memo.records), ties=explored.ties,
        wall_s=time.perf_counter() - begun, stopped_because=_why(prober, explored), notes=notes,
        noise=noise, unsupported=prober.unsupported,
    )  # fmt: skip


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


def _front_note(explored: MeasuredExploration) -> list[str]:
    made = sum(record.sampler == FRONT for record in explored.records)
    text = (
        f"{made} probes after the search measured the time-cost front: its other end and its knee"
    )
    return [text] if made else []


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

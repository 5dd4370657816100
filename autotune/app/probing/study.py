"""A probed search: what earlier runs here taught, its probes, and what later runs remember."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from autotune.app.probing.notes import noise_of_search, notes_of, notes_of_noise, unproven_levels
from autotune.app.probing.plan import plan_probe
from autotune.app.probing.probe import Probed, Prober
from autotune.domain.errors import NoLocalDevice
from autotune.domain.identity import identity
from autotune.domain.units import format_bytes
from autotune.probe.outcomes import hint_for
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
from autotune.search.posterior.stopping import ProbeBudget, check_budget, described

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from autotune.app.probing.plan import ProbeOptions
    from autotune.cost.bill import Bill
    from autotune.domain.job import Job
    from autotune.probe.device import LocalDevice
    from autotune.search.measured.study import MeasuredExploration
    from autotune.search.selection import Objective


def check_affordable(job: Job, bill: Bill, options: ProbeOptions, objective: Objective) -> None:
    """Raise InputError for a budget that is smaller than the first probe."""
    first = next(proposal_order(bill, objective), None)
    if first is not None:
        plan = plan_probe(job, bill.estimate(first), options.effort)
        check_budget(ProbeBudget(plan.expected_s, 0.0, options.seconds, "s"))


def probe_candidates(  # noqa: PLR0913 - what a probed search is, each named
    job: Job, bill: Bill, local: LocalDevice, options: ProbeOptions, *, objective: Objective,
    sampler: str, seed: int, run_dir: Path, storage: str | None, job_key: str, resume: bool,
    announce: Callable[[str], None],
) -> Probed:  # fmt: skip
    """Probe candidates of a bill whose offers all are the local device."""
    begun = time.perf_counter()
    run_dir.mkdir(parents=True, exist_ok=True)
    prober = Prober(job, bill, local, options, objective, run_dir, announce)
    _tell_held(prober, local)
    key = prior_key(job, local, prober.fingerprint, prober.memo.versions)
    prior = prior_for(bill, objective, key, run_dir, reuse=options.reuse, resume=resume)
    explored = explore_measured(
        bill, prober, objective=objective, sampler=sampler, trials=len(bill), seed=seed,
        run_dir=run_dir, storage=storage, study_name=run_dir.name, job_key=job_key, resume=resume,
        prior=prior.observed,
    )  # fmt: skip
    _check_ran(prober)
    probes = prober.searched
    ended = explored.ended
    late = learn_from(explored, key, probes if ended else 0) if options.reuse else []
    noise = noise_of_search(prober, explored)
    notes = (
        *notes_of_noise(noise, prober.own),
        *prior.warnings, *saving_note(prior, probes, ended=ended), *notes_of(prober, explored.pick),
        *_front_note(explored), *unproven_levels(bill, prober.rows, explored.pick), *late,
    )  # fmt: skip
    return Probed(
        bill=bill, explored=explored, rows=tuple(prober.ranked(explored.pick)),
        records=tuple(prober.memo.records), ties=explored.ties,
        wall_s=time.perf_counter() - begun, stopped_because=_why(prober, explored), notes=notes,
        noise=noise,
    )  # fmt: skip


def _front_note(explored: MeasuredExploration) -> list[str]:
    made = sum(record.sampler == FRONT for record in explored.records)
    text = f"{made} probes behind the search were of the front's other corner and its knee"
    return [text] if made else []


def _why(prober: Prober, explored: MeasuredExploration) -> str:
    """Why the search ended, and what stays uncertain."""
    why = explored.stopped_because
    if explored.undecided:
        return f"{why}; it cannot be told which is best: {explored.undecided}"
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


def _tell_held(prober: Prober, local: LocalDevice) -> None:
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


def prior_for(
    bill: Bill, objective: Objective, key: PriorKey, run_dir: Path, *, reuse: bool, resume: bool
) -> Prior:
    """The prior of a run: what it began with when it is resumed, else what is known now."""
    from autotune.search.axes import ParameterSpace
    from autotune.search.billed import BilledCandidates

    priced = BilledCandidates(bill, ParameterSpace(bill.candidates), objective)
    if resume:
        return load_prior(priced, run_dir)
    found = load_residuals(priced, key) if reuse else Prior({})
    if found.count:
        save_prior(priced, found, run_dir)
    return found


def learn_from(explored: MeasuredExploration, key: PriorKey, probes: int) -> list[str]:
    """Remember a finished search. A home that cannot be written costs the next run its start."""
    posterior = explored.posterior
    if posterior is None or not posterior.history.observed:
        return []
    try:
        save_residuals(posterior.priced, posterior.history, key, probes=probes)
    except OSError as error:
        return [f"what was learned could not be kept for later runs: {error}"]
    return []


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

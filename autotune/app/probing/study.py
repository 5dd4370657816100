"""A probed search from its first probe to what later runs remember of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from autotune.app.probing.notes import noise_of_search, notes_of, notes_of_noise, unproven_levels
from autotune.app.probing.plan import plan_probe
from autotune.app.probing.prior import learn_from, prior_for, prior_key, saving_note
from autotune.app.probing.probe import Probed, Prober
from autotune.domain.errors import NoLocalDevice
from autotune.domain.units import format_bytes
from autotune.probe.outcomes import hint_for
from autotune.search.alternatives import proposal_order
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

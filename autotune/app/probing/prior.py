"""What earlier runs on this machine taught, before a probed search and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.identity import identity
from autotune.search.measured.prior import (
    Prior,
    PriorKey,
    load_prior,
    load_residuals,
    save_prior,
    save_residuals,
)

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.cost.bill import Bill
    from autotune.domain.job import Job
    from autotune.probe.device import LocalDevice
    from autotune.search.measured.study import MeasuredExploration
    from autotune.search.selection import Objective


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

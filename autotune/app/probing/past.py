"""What earlier runs on this machine taught, before a probed search and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.identity import identity
from autotune.search.measured.past import Past, PastKey, keep_prior, kept_prior, recall, remember

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.cost.bill import Bill
    from autotune.domain.job import Job
    from autotune.probe.device import LocalDevice
    from autotune.search.measured.study import MeasuredExploration
    from autotune.search.selection import Objective


def past_key(job: Job, local: LocalDevice, fingerprint: str, versions: dict[str, str]) -> PastKey:
    """What must be the same for measurements to carry over."""
    device = f"{local.name}-{fingerprint}" if local.is_cpu else local.name
    work = identity((job.method, job.max_length, job.padding, job.lengths.quantiles))
    return PastKey.of(device, job.model, work, versions)


def prior_for(
    bill: Bill, objective: Objective, key: PastKey, run_dir: Path, *, reuse: bool, resume: bool
) -> Past:
    """The prior of a run: what it began with when it is resumed, else what is known now."""
    from autotune.search.billed import BilledCandidates
    from autotune.search.study.axes import ParameterSpace

    priced = BilledCandidates(bill, ParameterSpace(bill.candidates), objective)
    if resume:
        return kept_prior(priced, run_dir)
    found = recall(priced, key) if reuse else Past({})
    if found.count:
        keep_prior(priced, found, run_dir)
    return found


def learn_from(explored: MeasuredExploration, key: PastKey, probes: int) -> list[str]:
    """Remember a finished search. A home that cannot be written costs the next run its start."""
    outlook = explored.outlook
    if outlook is None or not outlook.history.observed:
        return []
    try:
        remember(outlook.priced, outlook.history, key, probes=probes)
    except OSError as error:
        return [f"what was learned could not be kept for later runs: {error}"]
    return []


def saving_note(past: Past, probes: int, *, ended: bool) -> list[str]:
    """What the prior saved, as far as runs can be compared: those that ended by themselves can."""
    if not past.count:
        return []
    text = f"the search began with {past.count} measurements of earlier runs here"
    if past.runs and ended:
        text += f": it needed {probes} new probes, the first run {past.runs[0]}"
    elif not ended:
        text += f", and made {probes} new probes before no more were allowed"
    return [text]

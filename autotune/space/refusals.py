"""Why locked values leave no candidate, and the nearest that would: an error before any search."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.catalog.software import INSTALLABLE
from autotune.domain.config import KNOBS, as_typed
from autotune.domain.errors import InputError
from autotune.space.host_rules import host_options
from autotune.space.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job

    # The values of a knob that some valid candidate of a job has; none where there is no candidate.
    Valid = Callable[[Job, str], tuple[KnobValue, ...]]


def refuse_impossible(job: Job, rejected: Mapping[str, int], valid: Valid) -> None:
    """Raise when locked values, or the global batch, are what leaves no candidate.

    rejected: settings by the reason of the rule that rejected them.
    """
    devices = ", ".join(dict.fromkeys(offer.label for offer in job.offers))
    able = {name: valid(without_lock(job, name), name) for name in job.lock}
    alone = {name: values for name, values in able.items() if values}
    if alone:
        raise _impossible(job, devices, rejected, alone, valid)
    batch_reasons = [rule.reason for rule in RULES if rule.reads == ("micro_batch_size",)]
    if rejected and set(rejected) <= set(batch_reasons):
        sizes = sorted({offer.count for offer in job.offers})
        msg = f"no split makes a global batch of {job.global_batch_size} on {devices}"
        hint = f"it must be a multiple of the devices of an offer ({', '.join(map(str, sizes))})"
        raise InputError(msg, hint)
    if job.lock and valid(replace(job, lock={}), "micro_batch_size"):
        locks = ", ".join(f"{name} {as_typed(value)}" for name, value in job.lock.items())
        msg = f"{locks}: locked together, not possible on {devices}: "
        raise InputError(msg + _reasons(rejected), "leave some of them out of lock")


def without_lock(job: Job, name: str) -> Job:
    """The job with one locked knob open."""
    lock = {other: value for other, value in job.lock.items() if other != name}
    return replace(job, lock=lock, allow=(*job.allow, name))


def _impossible(
    job: Job,
    devices: str,
    rejected: Mapping[str, int],
    able: Mapping[str, tuple[KnobValue, ...]],
    valid: Valid,
) -> InputError:
    """One lock that cannot be, or several of which one must give way.

    able: locks without which there are candidates, with the values that those have.
    """
    names = [f"{name} {as_typed(job.lock[name])}" for name in able]
    what = f"{' and '.join(names)} are locked together, and" if len(able) > 1 else ""
    what = what or f"{names[0]} is locked but"
    msg = f"{what} not possible on {devices}: {_reasons(rejected, of_knobs=set(able))}"
    options = [f"{name} {', '.join(map(as_typed, values))}" for name, values in able.items()]
    rest = "with the rest" if len(able) > 1 else "here"
    hint = f"{' or '.join(options)} can run {rest}"
    more = [host_options(job, job.offers[0], rejected), _package(job, valid)]
    typed = " or ".join(option for option in more if option)
    if typed:
        return InputError(msg, f"{hint}; to keep what is locked: {typed}")
    return InputError(msg, f"{hint}; or change the hardware or software of the job")


def _package(job: Job, valid: Valid) -> str:
    """The missing package with which the locks can run; empty where none would do."""
    any_knob = next(iter(KNOBS))
    for package, version in INSTALLABLE.items():
        if getattr(job.software, package) is not None:
            continue
        installed = replace(job.software, **{package: version})  # type: ignore[arg-type]
        if valid(replace(job, software=installed), any_knob):
            return f"--set software.{package}={'.'.join(map(str, version))}"
    return ""


def _reasons(rejected: Mapping[str, int], of_knobs: set[str] | None = None) -> str:
    """The rules that rejected; those that read the knobs when there are any."""
    about = {rule.reason for rule in RULES if (of_knobs or set()) & set(rule.reads)}
    named = [reason for reason in rejected if reason in about]
    return "; ".join(named or rejected)

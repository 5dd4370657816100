"""What no offer of a job can do is an error before any search: a batch or a lock.

An offer that cannot, beside one that can, stays: the search space drops its candidates and counts
them by reason.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING

from autotune.app.whatif.levers import (
    closed_values,
    lever_changes,
    missing_packages,
    package_change,
    unlocked,
)
from autotune.catalog.software import installing
from autotune.domain.config import KNOBS
from autotune.domain.device import FLASH_CAPABILITY, FP8_CAPABILITY
from autotune.domain.errors import InputError
from autotune.domain.job import NOT_KEPT, Assumption
from autotune.space.enumerate import PLAIN, why_closed, without
from autotune.space.file import load_space
from autotune.space.rules import RULES

if TYPE_CHECKING:
    from autotune.domain.config import KnobValue
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.domain.typed.job import JobFile
    from autotune.pricing import Question
    from autotune.space.rules import Rule

# Rules of the job's own method and data: a knob that they leave without effect is no mistake.
OF_THE_JOB = frozenset({"adapters_exist", "grouping_saves_padding"})
CHECKED = ("precision", "attention")  # what is refused before any enumeration
FLASH_MISSING = "is not in the software profile"
MOST_REASONS = 3  # in an error


_KEPT = {
    "save_total_limit": "how many checkpoints there are to choose among",
    "attention": "another kernel rounds otherwise",
    **{name: KNOBS[name].effect for name in ("packing", "length_grouping", "adapter_dtype")},
    **{name: KNOBS[name].effect for name in ("kernels", "optimizer")},
}
_WITHOUT_CHOICE = {"optimizer": ("adamw_torch", "adamw_torch_fused")}  # what moves for free


def locks_of(jobfile: JobFile, assumed: list[Assumption]) -> dict[str, KnobValue]:
    """What the job pins, and what today's run states of the user's own choices.

    A trainer's file says by itself what it states: its locks are in the job already.
    """
    kept: dict[str, KnobValue] = {}
    for name, what in _KEPT.items():
        stated = [e.config[name] for e in jobfile.evidence if e.today and name in e.config]
        opened = name in jobfile.allow or name in jobfile.lock
        own = jobfile.origin is not None and name != "save_total_limit"
        free = stated[:1] and stated[0] in _WITHOUT_CHOICE.get(name, (PLAIN.get(name),))
        if stated and not opened and not own and not free:
            kept[name] = stated[0]
            why = f"as today's run has it: {what}; --set {name}=VALUE changes it"
            assumed.append(Assumption(f"lock.{name}", str(stated[0]), why))
    return {**kept, **jobfile.lock}


def without_impossible(job: Job, assumed: list[Assumption]) -> Job:
    """The job without what today's run states of its own choices and no offer of it can run.

    A lock of the user's stays, and is refused where it is impossible.
    """
    stated = json.loads(job.spec or "{}").get("lock") or {}
    own = job.origin.knobs if job.origin is not None else {}
    kept = [name for name in job.lock if name not in stated or own.get(name) == job.lock[name]]
    for name in kept:
        broken = _never_runs(job, name)
        if broken:
            value, label = job.lock[name], job.offers[0].label
            rest = ", and no other offer can" if len(job.offers) > 1 else ""
            why = f"{broken[0].reason}: {label} cannot run it{rest}"
            assumed[:] = [item for item in assumed if item.key != f"lock.{name}"]
            assumed.append(Assumption(f"lock.{name}", f"{value} {NOT_KEPT}", why))
            job = replace(job, lock=without(job.lock, name))
    return job


def _never_runs(job: Job, name: str) -> list[Rule]:
    """Rules of one knob alone that keep its locked value from every offer; empty: it runs."""
    rules = [rule for rule in RULES if rule.reads == (name,)]
    against = [
        [rule for rule in rules if not rule.allows(job, offer, job.lock[name])]
        for offer in job.offers
    ]
    return against[0] if all(against) else []


def check_batch(job: Job) -> None:
    """Some offer's devices divide the global batch, also with the locked part of the split."""
    batch, counts = job.global_batch_size, sorted({offer.count for offer in job.offers})
    able = [count for count in counts if batch % count == 0]
    if not able:
        devices = " or ".join(str(count) for count in counts)
        near = counts[0] * max(1, round(batch / counts[0]))
        msg = f"train.global_batch_size {batch} cannot be split evenly over {devices} devices"
        raise InputError(msg, f"{near} can; or change the number of devices")
    micro = int(job.lock.get("micro_batch_size", 1))
    accumulation = int(job.lock.get("gradient_accumulation_steps", 1))
    whole = {"micro_batch_size", "gradient_accumulation_steps"} <= set(job.lock)
    part = micro * accumulation
    fits = [n for n in able if (batch == part * n if whole else batch % (part * n) == 0)]
    if not fits:
        locked = " x ".join(
            f"{name} {job.lock[name]}"
            for name in ("micro_batch_size", "gradient_accumulation_steps")
            if name in job.lock
        )
        made = f" = {part}" if whole else ""
        msg = f"lock: {locked}{made} cannot make the global batch of {batch} on any offer"
        splits = ", ".join(str(n) for n in range(1, min(batch, 512) + 1) if batch % n == 0)
        raise InputError(msg, f"numbers that divide {batch}: {splits}")


def check_locks(job: Job) -> None:
    """Every locked value is possible on some offer, and all of them together on one."""
    reasons = [reasons_against(job, offer) for offer in job.offers]
    if all(reasons):
        listed = "; ".join(dict.fromkeys(reason for found in reasons for reason in found))
        msg = f"lock: {listed}"
        able = [f"{name} {', '.join(_able(job, name))}" for name in CHECKED if name in job.lock]
        hint = f"{' and '.join(able)} can run here; or name other hardware"
        if any(FLASH_MISSING in reason for reason in reasons[0]):
            hint += f"; to keep what is locked: {installing('flash_attn')}"
        raise InputError(msg, hint)


def _able(job: Job, name: str) -> list[str]:
    """Values of a knob that no rule of its own keeps from every offer."""
    tried = (replace(job, lock={**job.lock, name: value}) for value in KNOBS[name].choices)
    return [str(each.lock[name]) for each in tried if not _never_runs(each, name)]


def check_opened(job: Job) -> tuple[Assumption, ...]:
    """Every knob that the job opens has a value that some offer runs, beside what is locked.

    One that only the job's own method leaves without effect is no error; it is noted. Raises
    InputError with what would make it run.
    """
    if not job.allow:
        return ()
    question = job, load_space()
    notes = []
    for name in job.allow:
        against = rules_against(question, name)
        if not against or _opens_a_kept(job, name):
            continue
        why = "; ".join(list(dict.fromkeys(rule.reason for rule in against))[:MOST_REASONS])
        if any(rule.name in OF_THE_JOB for rule in against):
            notes.append(Assumption(f"allow.{name}", "opens nothing", why))
            continue
        devices = ", ".join(dict.fromkeys(offer.label for offer in job.offers))
        msg = f"allow: {name} has nothing to open on {devices}: {why}"
        raise InputError(msg, _what_would_open(question, name))
    return tuple(notes)


def _opens_a_kept(job: Job, name: str) -> bool:
    """Whether it is what the trainer's own file states, and would be kept without this."""
    return name not in job.lock and job.origin is not None and name in job.origin.knobs


def rules_against(question: Question, name: str) -> list[Rule]:
    """Rules that keep every closed value of a knob from every offer; empty where one can run."""
    job, space = question
    shut = replace(job, allow=tuple(other for other in job.allow if other != name))
    found: list[Rule] = []
    for offer in job.offers:
        for value in closed_values((replace(shut, offers=(offer,)), space), name):
            against = why_closed(shut, space, offer, name, value)
            if not against:
                return []
            found += against
    return found


def _what_would_open(question: Question, name: str) -> str:
    """The nearest that works: a package, a lock to leave out, or knobs that do open."""
    job, _ = question
    single = [*map(package_change, missing_packages(job)), *map(unlocked, job.lock)]
    pairs = (one.then(two) for one, two in combinations(single, 2))
    for change in (*single, *pairs):
        if not rules_against(change.apply(question), name):
            typed = f": add {change.typed}" if change.typed else ""
            return f"{name} opens {change.label}{typed}"
    able = [change.key for change in lever_changes(question) if not change.note]
    return f"leave {name} out of allow; here --allow opens {', '.join(able) or 'nothing'}"


def reasons_against(job: Job, offer: Offer) -> list[str]:
    """Why an offer cannot run the locked values; empty when it can."""
    device = offer.device
    found = []
    precision = str(job.lock.get("precision", ""))
    if precision and device.peak_flop_per_s(precision) <= 0 and not device.is_cpu:
        able = [p for p in ("fp32", "tf32", "fp16", "bf16", "fp8") if device.peak_flop_per_s(p) > 0]
        reason = f"is not native on {device.name}, which has {', '.join(able)}"
        if precision == "fp8" and device.fp8_flop_per_s > 0:
            reason = (
                f"is priced on NVIDIA GPUs from {FP8_CAPABILITY} on alone, not on {device.name}"
            )
        found.append(f"precision {precision} {reason}")
    if job.lock.get("attention") == "flash_attention_2":
        if device.compute_capability < FLASH_CAPABILITY:
            found.append(
                "attention flash_attention_2 needs compute capability "
                f"{FLASH_CAPABILITY}, {device.name} has {device.compute_capability}"
            )
        elif not job.software.has_flash_attention:
            found.append(f"attention flash_attention_2 {FLASH_MISSING} {job.software.name}")
    return found

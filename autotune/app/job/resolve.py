"""A checked job file -> Job: every name looked up, and completed by what was not stated.

All that nobody stated is listed in `Job.assumed`. What a machine, a method or the data is completed
with stands in `hardware/offers`, `method` and `defaults`; this is their order.

What no offer of a job can do is an error before any search: a batch or a lock. An offer that
cannot, beside one that can, stays: the search space drops its candidates and counts them by reason.
"""

from __future__ import annotations

import json
from dataclasses import replace
from itertools import combinations
from typing import TYPE_CHECKING, Any

from autotune.app.hardware.machines import as_devices
from autotune.app.hardware.offers import distinct, offer_of
from autotune.app.hardware.this_machine import (
    as_measured_here,
    as_started_here,
    as_the_driver_leaves,
)
from autotune.app.job.defaults import (
    data_of,
    evaluation_of,
    limits_of,
    objective_of,
    refuse_odd_pairs,
    training_of,
)
from autotune.app.job.method import (
    as_stated,
    check_adapters,
    fp32_needed,
    method_of,
    zero_of,
)
from autotune.app.whatif.levers import (
    closed_values,
    lever_changes,
    missing_packages,
    package_change,
    unlocked,
)
from autotune.catalog.devices import find_device, find_machine, known_device
from autotune.catalog.models.models import find_model
from autotune.catalog.software import find_software, installing, of_pairs, unkernelled
from autotune.domain.config import KNOBS, PLAIN, SPLIT
from autotune.domain.device import FLASH_CAPABILITY, FP8_CAPABILITY
from autotune.domain.errors import InputError
from autotune.domain.job import NOT_KEPT, Assumption, Job
from autotune.domain.objective import PAIRED
from autotune.domain.paths import whole
from autotune.domain.typed.machine import machine_entry
from autotune.space.enumerate import why_closed, without
from autotune.space.file import load_space
from autotune.space.rules import RULES

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from autotune.domain.config import KnobValue
    from autotune.domain.device import Offer
    from autotune.domain.statement import Statement
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


def resolve(jobfile: JobFile, base_dir: Path | str, *, measured: bool = True) -> Job:
    """Look up every name of a checked job file and complete what was not stated.

    Args:
        jobfile: The checked job file.
        base_dir: The folder that its relative paths start from.
        measured: Whether anything may have been measured of this machine.

    Raises:
        InputError: A name is unknown, or what is stated cannot be.
    """
    folder = whole(base_dir)
    trainers = jobfile.origin
    assumed = list(trainers.assumed()) if trainers else []
    spoken_of = _stated_machines(jobfile.stated)
    storage = jobfile.data.storage or "local"
    found = [find_machine(each.gpu, each.per_node, storage) for each in jobfile.hardware]
    machines = distinct(jobfile.hardware, found)
    if len(machines) < len(jobfile.hardware):
        more = len(jobfile.hardware) - len(machines)
        why = "the same machine on the same terms is priced once"
        assumed.append(Assumption("hardware", f"{more} of the entries left out", why))
        jobfile = jobfile.model_copy(update={"hardware": tuple(stated for stated, _ in machines)})
    terms: list[Assumption] = []  # of the machines, and what is told behind them
    offers = as_the_driver_leaves(
        [
            offer_of(stated, index, machine, terms)
            for index, (stated, machine) in enumerate(machines)
        ],
        terms,
    )
    if measured:
        offers = as_started_here(as_measured_here(offers, terms), terms)
    model = find_model(jobfile.model, folder)
    model = as_stated(jobfile.method, jobfile.model, model, assumed)
    zero = zero_of(jobfile.deepspeed, model)
    wide = (
        ""
        if jobfile.method.base
        else fp32_needed(jobfile, model, [device for _, (device, _) in machines])
    )
    method = method_of(
        jobfile.method, model, assumed, zero, wide, alone=all(own.count == 1 for own in offers)
    )
    data = data_of(jobfile, model, folder, assumed)
    epochs, steps, batch = training_of(jobfile, data.rows, assumed)
    evaluation = evaluation_of(jobfile, data.held_out, terms)
    limits, objective = limits_of(jobfile.limits, terms), objective_of(jobfile, terms)
    software = find_software(jobfile.software).over(method.base)
    if objective in PAIRED:
        by = jobfile.origin.trainer if jobfile.origin else ""
        software = of_pairs(software, objective, jobfile.software, ours=not by, by=by)
    model = software.as_coded(model)
    if jobfile.software == "default":
        why = f"not stated; the profile of {software.as_of}"
        assumed.append(Assumption("software", software.name, why))
    assumed += [*unkernelled(model, method, software), *terms]
    stated: tuple[Statement, ...] = ()
    if jobfile.stated:
        from autotune.claims.table import statements_of

        stated = statements_of(jobfile.stated, spoken_of)
    job = Job(
        name=jobfile.name or "job",
        model=model,
        method=method,
        rows=data.rows,
        held_out=data.held_out,
        max_length=data.max_length,
        lengths=data.lengths,
        padding=data.padding,
        pretokenized=data.pretokenized,
        storage=data.storage,
        epochs=epochs,
        steps=steps,
        global_batch_size=batch,
        evaluation=evaluation,
        limits=limits,
        zero=zero,
        objective=objective,
        software=software,
        offers=offers,
        stated=stated,
        lock=locks_of(jobfile, assumed),
        allow=jobfile.allow,
        dataset_path=data.dataset_path,
        row_bytes=data.row_bytes,
        origin=trainers.as_read(jobfile.software) if trainers else None,
        spec=json.dumps(jobfile.model_dump(mode="json", exclude_unset=True)),
        base_dir=str(folder),
    )
    if method.variant != "none" or method.modules_to_save:
        check_adapters(job)
    if job.objective in PAIRED:
        refuse_odd_pairs(job)
    job = without_impossible(job, assumed)
    check_batch(job)
    check_locks(job)
    assumed += check_opened(job)
    if not jobfile.evidence:
        return replace(job, assumed=tuple(assumed))
    from autotune.app.job.evidence import with_evidence

    return with_evidence(job, jobfile, assumed)


def _stated_machines(entries: Sequence[Any]) -> dict[str | None, tuple[str | None, int]]:
    """Device and count of each machine that a plan names; of none where it names none.

    Raises InputError for one that nobody knows.
    """
    machines: dict[str | None, tuple[str | None, int]] = {None: (None, 1)}
    for index, entry in enumerate(entries):
        if entry.hardware in machines:
            continue
        stated = machine_entry(entry.hardware)
        try:
            name = known_device(str(stated["gpu"]))
            if name is None:  # the name of an instance, or nobody's
                stated = as_devices(stated)
                name = find_device(str(stated["gpu"])).name
        except InputError as error:
            msg = f"stated[{index}].hardware: {error.message}"
            raise InputError(msg, error.hint) from None
        machines[entry.hardware] = (name, int(stated.get("count", 1)))
    return machines


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
    stated = job.stated_lock
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
    whole = set(SPLIT) <= job.lock.keys()
    part = micro * accumulation
    fits = [n for n in able if (batch == part * n if whole else batch % (part * n) == 0)]
    if not fits:
        locked = " x ".join(f"{name} {job.lock[name]}" for name in SPLIT if name in job.lock)
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

"""Exactly this configuration, no search."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from autotune.app.hardware.price_notes import price_notes
from autotune.app.tune.method_notes import method_notes
from autotune.app.tune.tracing import Tracing
from autotune.app.whatif.levers import last_resort
from autotune.app.whatif.moved import uncounted_notes
from autotune.app.whatif.relaxations import relaxations, relaxations_of
from autotune.app.whatif.shortfall import shortfall_of
from autotune.app.whatif.unknown_lengths import on_short_rows
from autotune.catalog.device_notes import device_notes
from autotune.claims import job_contradictions
from autotune.claims.feasibility import check_claim
from autotune.cost.memory.component import open_facts
from autotune.cost.outputs import reusing_tables
from autotune.cost.spread.unsaid import (
    BASE,
    CHOICES,
    PADDING,
    SCRIPTS,
    SHARDING,
    SOFTWARE,
    follows_release,
    loads_by_itself,
)
from autotune.cost.spread.variance import (
    STATED,
    narrowings,
    never_measured_note,
    new_program_note,
)
from autotune.domain.answer.recommendation import Decisive, FitsIf, open_facts_of
from autotune.domain.candidates import CLOSED_FORM
from autotune.domain.config import ACCUMULATION, CLOSED_FORMS, KNOBS, SPLIT
from autotune.domain.errors import NOTHING_FEASIBLE, InputError
from autotune.domain.job import Assumption
from autotune.domain.units import format_bytes, format_seconds
from autotune.frozen import dataclass
from autotune.pricing import Pricing, bills_of
from autotune.report.phrases import chance
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space
from autotune.space.requirements import host_doubts
from autotune.space.rules import RULES, host_options, violations

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.claims.feasibility import Claim
    from autotune.cost.bill import Bill
    from autotune.domain.answer.limits import ShortRows
    from autotune.domain.answer.recommendation import Relaxation, Shortfall
    from autotune.domain.config import Config, KnobValue
    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.domain.observation import Calibration
    from autotune.domain.outcome import Estimated


@dataclass(frozen=True, slots=True)
class Estimate:
    """One priced configuration with the job it is for."""

    job: Job
    row: Estimated
    warnings: tuple[str, ...]
    claim: Claim | None = None
    shortfall: Shortfall | None = None  # why it does not fit, where it does not
    relaxations: tuple[Relaxation, ...] = ()  # and after which changes it would
    search: tuple[Relaxation, ...] | None = None  # where `tune` finds nothing: what would help it
    contradictions: tuple[str, ...] = ()  # what the job file says that does not hold
    short_rows: ShortRows | None = None  # where nobody stated how long the rows are
    fits_if: tuple[FitsIf, ...] = ()  # how P(fits) turns on what nobody said
    fits_as_listed: float | None = None  # and what it is with the settings as listed


@reusing_tables()
def estimate(
    job: Job,
    *,
    fidelity: str = "auto",
    claim: str | None = None,
    full_trace: bool = False,
    trust_remote_code: bool = False,
) -> Estimate:
    """Price the config the job states (its `today` with locks applied) on its first offer.

    `fidelity` "trace" reads memory from the installed training code; `full_trace` does so for every
    layer and three steps, through a simulated caching allocator. `trust_remote_code` lets a model's
    own code run for it. Without a stated config: the trainer's defaults, completed by the locks.
    claim: a stated speed to check against it. Raises InputError when a locked value is impossible
    on the offer, or the claim cannot be read.
    """
    offer = job.offers[0]
    config = stated_config(job)
    job = with_unsaid(job.as_it_stands, config)
    doubts = check_config(job, offer, config)
    pricing = Pricing.learned(job)
    calibration = pricing.calibration
    bill = pricing.of([(offer, config)])
    notes = [*_moved_note(job, config), *uncounted_notes(job), *doubts, *pricing.warnings]
    notes += [*price_notes(replace(job, offers=(offer,))), *method_notes(job)]
    notes += device_notes(offer, job.software.torch)
    if "compute" not in calibration.factors:
        notes += filter(None, (never_measured_note(offer.device), new_program_note(job)))
    tracing = Tracing(bill, trust_remote_code)
    if fidelity == "trace" or full_trace:
        from autotune.trace.client import Tracer

        with Tracer() as tracer:
            tracing.trace(tracer, [0], full=full_trace)
        notes += tracing.notes
    if len(job.offers) > 1:
        notes.append(f"{len(job.offers)} offers given: this is {offer.label}, the first")
    row = tracing.row(0)
    fits_if = conditions(bill, row)
    listed = bill.at("memory", "fits_as_listed", 0)
    doubt = [] if row.feasible else _turns_on(job, fits_if, listed)
    notes = [*doubt, *notes, *_costliest_unsaid(bill)]
    found = Estimate(
        job, row, (), check_claim(job, row, claim) if claim else None,
        contradictions=job_contradictions(job, calibration), fits_if=fits_if,
        fits_as_listed=listed if fits_if else None,
    )  # fmt: skip
    missing = shortfall_of(bill, 0, row)
    if missing is None:
        (short,) = on_short_rows(job, calibration, [row])
        return replace(found, warnings=tuple(notes), short_rows=short)
    said = replace(job, unsaid=())  # a change is of the settings as listed
    if missing.resource == "memory":
        notes = [*_assumed_micro_batch(said, pricing.variant(said), config), *notes]
    changes: tuple[Relaxation, ...] = ()
    if not missing.of_words(listed):
        disk = missing.resource == "disk"
        open_ = () if disk else _open_settings(said)
        changes = relaxations_of(said, config, calibration, disk=disk, assumed=open_)
    needs = _needs_of_a_search(said, calibration)
    return replace(
        found, warnings=tuple(notes), shortfall=missing, relaxations=changes, search=needs
    )


def conditions(bill: Bill, row: Estimated) -> tuple[FitsIf, ...]:
    """P(fits) under each value of each fact that nobody said, over what the others may be."""
    open_ = open_facts(bill, 0)
    if open_ is None:
        return ()
    found = []
    for fact, values in open_.values.items():
        for value in dict.fromkeys(values):
            own = [i for i, each in enumerate(values) if each == value and open_.weights[i, 0] > 0]
            if not own:
                continue  # it goes with nothing else
            alone = min(own, key=lambda i: open_.unlisted(i, but=fact))
            shown = listed_value(bill.job, row.config, fact) if value is None else str(value)
            sure, needed = float(open_.chance(own)[0]), float(open_.total[alone, 0])
            found.append(FitsIf(fact, shown, sure, needed, value is None))
    return tuple(found)


def listed_value(job: Job, config: Config, fact: str) -> str:
    """What a fact is taken as."""
    if fact in KNOBS:
        return str(getattr(config, fact))
    if fact == BASE:
        return job.method.base
    return job.software.name if fact == "software" else ",".join(job.method.targets)


def _turns_on(job: Job, fits_if: Sequence[FitsIf], listed: float) -> list[str]:
    """Where it turns on what nobody said whether the run fits: on which facts, and what it says."""
    facts = open_facts_of(fits_if)
    if not facts:
        return []
    what = " and ".join(STATED[fact].partition(":")[0] for fact in facts[:2])
    said = f"whether it fits turns on {what}, which nobody said: {chance(listed)}"
    if facts[0] != SOFTWARE:
        return [Decisive(f"{said} with the settings as listed")]
    said = f"whether it fits turns on the releases: {chance(listed)}"
    older = (each for each in fits_if if each.fact == SOFTWARE and not each.assumed)
    worst = min(older, key=lambda each: each.fits_probability)
    other = f"{chance(worst.fits_probability)} ({format_bytes(worst.required_bytes)})"
    told = f"{other} by `--set software={worst.value}`"
    return [Decisive(f"{said} with {_releases(job)}, {told}")]


def _releases(job: Job) -> str:
    """Those that decide what nobody said."""
    own = job.software
    named = (("TRL", own.trl if follows_release(job) else None), ("transformers", own.transformers))
    return " and ".join(f"{name} {'.'.join(map(str, its))}" for name, its in named if its)


def _costliest_unsaid(bill: Bill) -> list[str]:
    """Of what nobody said of the run, which would narrow the range most if it were said."""
    best = next((x for x in narrowings(bill, 0) if x.fact in {PADDING, *bill.job.unsaid}), None)
    if best is None:
        return []
    ends = f"{format_seconds(best.p10)} to {format_seconds(best.p90)}"
    return [Decisive(f"the range would be {ends} if one more thing were said: {best.what}")]


def _open_settings(job: Job) -> tuple[str, ...]:
    """The settings that say how large a micro-batch may be, where nobody stated one."""
    if job.today_here is not None or {*SPLIT} & job.lock.keys() or _kept_elsewhere(job):
        return ()
    return tuple(name for name in (*SPLIT, CHECKPOINTING) if name not in job.lock)


def _assumed_micro_batch(job: Job, pricing: Pricing, config: Config) -> list[str]:
    """Which micro-batch was assumed where nobody stated one, and the largest that would fit."""
    open_ = _open_settings(job)
    if not open_:
        return []
    offer, micro = job.offers[0], config.micro_batch_size
    per_device = micro * config.gradient_accumulation_steps
    smaller = [n for n in range(micro - 1, 0, -1) if per_device % n == 0]
    said = f"the micro-batch of {micro} was assumed, as none is stated"
    host = False  # whether a smaller one is held by the device, and not by its host
    for more in ({}, {CHECKPOINTING: "full"}) if CHECKPOINTING in open_ else ({},):
        split = ({SPLIT[0]: n, ACCUMULATION: per_device // n} for n in smaller)
        tried = [config.with_knobs(**knobs, **more) for knobs in split]
        if not tried:
            break
        bill = pricing.of([(offer, each) for each in tried])
        host |= bool((bill.memory_violation <= 0).any())
        largest = next((own for own, fit in zip(tried, bill.feasible, strict=True) if fit), None)
        if largest is not None:
            typed = f"--set {SPLIT[0]}={largest.micro_batch_size}"
            typed += "".join(f" --set {name}={value}" for name, value in more.items())
            also = " with gradient_checkpointing" if more else ""
            words = f"{said}; the largest that fits{also} is {largest.micro_batch_size}"
            return [Decisive(f"{words}: add `{typed}`")]
    if host:
        return [Decisive(f"{said}; a smaller one fits the device, but its host has too little")]
    nor = ", nor with gradient_checkpointing" if CHECKPOINTING in open_ else ""
    return [Decisive(f"{said}; no smaller one fits either{nor}")]


def _needs_of_a_search(job: Job, calibration: Calibration) -> tuple[Relaxation, ...] | None:
    """After which changes a search of the job finds something; None where it does as it is."""
    free = replace(job, lock={name: own for name, own in job.lock.items() if name not in KNOBS})
    question = free, load_space()
    (bill,) = bills_of([question], calibration)
    if bill is None or bill.feasible.any() or last_resort(question, calibration):
        return None
    return relaxations(*question, calibration)


CHECKPOINTING = "activation_checkpointing"


def with_unsaid(job: Job, config: Config) -> Job:
    """The job with the settings that nobody stated: a run that stands as it is may have others.

    A trainer's file says all of them, with the trainer's defaults, and today's run did; but what a
    script of the user's loads the weights in, arguments cannot say, and much of what TRL's leave
    out follows its release. What a search picks is as it was picked.
    """
    if not job.steps:
        return job
    assumed = {item.key for item in job.assumed}
    loads = [BASE] if BASE in assumed and loads_by_itself(job) else []
    if job.origin is not None:
        follows = follows_release(job) or job.origin.silent
        runs = [SOFTWARE] if follows and not job.stated_releases else []
        return replace(job, unsaid=(*loads, *runs) if job.trainer in SCRIPTS else ())
    if job.today is not None:
        return job
    knobs = [name for name in CHOICES if name in KNOBS and name not in job.lock]
    if {*SPLIT} & job.lock.keys():
        knobs = [name for name in knobs if name not in SPLIT]
    if job.offers[0].count == 1 or job.stated_file.get("deepspeed"):
        knobs = [name for name in knobs if name != SHARDING]
    why = "not stated; the Trainer's default"
    listed = [Assumption(f"lock.{name}", str(getattr(config, name)), why) for name in knobs]
    other = [name for name in CHOICES if name in assumed and (name != BASE or loads)]
    return replace(job, unsaid=(*knobs, *other), assumed=(*job.assumed, *listed))


def exit_status(found: Estimate) -> int:
    """As `tune`: 0 an answer, 3 where the device does not hold it, or the disk its checkpoints."""
    short = found.shortfall
    held = short is None or short.of_words(found.fits_as_listed)
    return 0 if held else NOTHING_FEASIBLE


def stated_config(job: Job) -> Config:
    """The config the job states: `today`, else defaults, with locked knobs applied.

    Raises InputError when the split cannot make the global batch.
    """
    from autotune.app.job.evidence import default_config

    offer = job.offers[0]
    kept = _kept_elsewhere(job)
    config = job.today_here or _moved(default_config(job, offer), kept, job)
    locked = {name: value for name, value in job.lock.items() if name in KNOBS}
    per_device, rest = divmod(job.global_batch_size, offer.count)
    if rest:
        msg = (
            f"global_batch_size {job.global_batch_size} cannot be split over {offer.count} devices"
        )
        raise InputError(msg, f"choose a multiple of {offer.count}")
    config = config.with_knobs(**locked)
    if "micro_batch_size" in locked and "gradient_accumulation_steps" not in locked:
        config = config.with_knobs(
            gradient_accumulation_steps=max(per_device // config.micro_batch_size, 1)
        )
    elif "gradient_accumulation_steps" in locked and "micro_batch_size" not in locked:
        config = config.with_knobs(
            micro_batch_size=max(per_device // config.gradient_accumulation_steps, 1)
        )
    made = config.micro_batch_size * config.gradient_accumulation_steps * offer.count
    if made != job.global_batch_size:
        split = f"{config.micro_batch_size} x {config.gradient_accumulation_steps} x {offer.count}"
        msg = f"micro x accumulation x devices is {split} = {made}, not {job.global_batch_size}"
        raise InputError(
            msg, "the global batch is the job's contract: choose a split that makes it"
        )
    open_ = () if kept or job.today_here is not None else CLOSED_FORMS
    closed = [name for name in open_ if name not in locked]
    return config.with_knobs(**dict.fromkeys(closed, CLOSED_FORM))


def _kept_elsewhere(job: Job) -> dict[str, KnobValue]:
    """Knobs of a trainer's file that runs on another number of devices than is asked for."""
    if job.origin is None or job.today_here is not None:
        return {}
    entries = job.stated_file.get("evidence") or ()
    return next((dict(each["config"]) for each in entries if each.get("today")), {})


def _moved(config: Config, kept: dict[str, KnobValue], job: Job) -> Config:
    """The defaults on a machine, with what a file says of its run on another one.

    Its batch of all devices is split anew, in micro-batches that are no larger than its own.
    """
    if not kept:
        return config
    count = job.offers[0].count
    per_device = max(job.global_batch_size // count, 1)
    micro = int(kept.get("micro_batch_size", config.micro_batch_size))
    micro = max(n for n in range(1, micro + 1) if per_device % n == 0)
    alone = {*SPLIT, SHARDING} if count == 1 or kept.get(SHARDING) == "none" else {*SPLIT}
    same = {name: value for name, value in kept.items() if name in KNOBS and name not in alone}
    return config.with_knobs(**same, **dict(zip(SPLIT, (micro, per_device // micro), strict=True)))


def _moved_note(job: Job, config: Config) -> list[str]:
    """That the batch of a file is split otherwise than on the devices that it runs on."""
    kept, count = _kept_elsewhere(job), job.offers[0].count
    here = config.micro_batch_size, config.gradient_accumulation_steps
    own = tuple(int(kept.get(name, 1)) for name in SPLIT)
    if not kept or own == here:
        return []
    said = f"the file runs on another number of devices than {count}: the {job.global_batch_size} "
    said += f"rows of its step are split {here[0]} x {here[1]} on each, not {own[0]} x {own[1]}"
    keep = f"`--set train.global_batch_size={own[0] * own[1] * count}` keeps what a device takes"
    return [Decisive(f"{said}; {keep}")]


def check_config(job: Job, offer: Offer, config: Config) -> list[str]:
    """What is not valid in a stated configuration, beside its locked knobs.

    Raises InputError for a locked value that cannot run on the offer. A value that the search
    would only pass over, such as fp16 beside bf16, is the user's to state.
    """
    stated = replace(job, lock=config.as_dict())
    broken = violations(stated, offer, config)
    reads = {rule.reason: rule.reads for rule in RULES}
    locked = [reason for reason in broken if set(reads.get(reason, ())) & set(job.lock)]
    if locked:
        names = {name for reason in locked for name in reads[reason] if name in job.lock}
        values = ", ".join(f"{name} {job.lock[name]}" for name in job.lock if name in names)
        msg = f"{values} is not possible on {offer.label}: {'; '.join(locked)}"
        enumerate_candidates(replace(job, offers=(offer,)), load_space())  # says what would run
        raise InputError(msg, _beside(stated, offer, config, locked))
    unsure = host_doubts(job, offer, config.as_dict())
    return unsure + [f"this configuration cannot run as it stands: {reason}" for reason in broken]


def _beside(stated: Job, offer: Offer, config: Config, locked: list[str]) -> str:
    """What to change beside a lock that other settings of the configuration exclude."""
    reads = {name for rule in RULES if rule.reason in locked for name in rule.reads}
    for name in KNOBS:
        if name not in reads:
            continue
        for value in KNOBS[name].choices:
            changed = config.with_knobs(**{name: value})
            if not violations(replace(stated, lock=changed.as_dict()), offer, changed):
                return f"with {name} {value} it can run: add --set {name}={value}"
    typed = host_options(stated, offer, dict.fromkeys(locked, 1))
    return f"to keep it: {typed}" if typed else "change the value, or the hardware or software"

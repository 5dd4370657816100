"""What one change of the pick would be worth: closed knobs opened, and the user's own choices.

None is ever applied. Each is priced as the job that its option would make, at its own best config
on the pick's machine, so that typing the option gives the figure that is told. The user's schedules
of saves and of evaluations change nothing that is trained, and are not applied either: checkpoints
to choose among and points on the curve of an evaluation are the user's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

import numpy as np

from autotune.app.whatif.changes import (
    SHORTEST,
    base_edit,
    epochs_edit,
    length_edit,
    rank_edit,
    saved_edit,
)
from autotune.app.whatif.levers import lever_changes, package_change
from autotune.app.whatif.moved import moved_by
from autotune.catalog.software import INSTALLABLE
from autotune.cost.time.attention import may_plan
from autotune.domain.answer.recommendation import Sensitivity
from autotune.domain.config import KNOBS, PLAIN
from autotune.domain.edit import Edit
from autotune.domain.software import WITHOUT_CUDNN
from autotune.domain.units import HOUR_S, format_bytes, format_count
from autotune.pricing import bills_under, on_job
from autotune.search.alternatives import nearest_misses
from autotune.search.selection import best_index
from autotune.space.enumerate import without

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.cost.bill import Bill
    from autotune.domain.candidates import SearchSpace
    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job
    from autotune.domain.observation import Calibration
    from autotune.domain.outcome import Estimated
    from autotune.pricing import Question, QuestionEdit


SAME = 0.02  # relative; a duration closer than this is "no time"
MEASURED_SHARE = 0.5  # of a saving that must be left at the pessimistic end
ON_LENGTHS = ("packing", "length_grouping")  # what they save is padding: nothing else
NO_LENGTHS = "it saves padding; how much cannot be told, as no row lengths are known"
SAVES, EVALUATIONS = "checkpoint_every_steps", "evaluation.every_steps"
PLANS = "software.cudnn_attention"  # cuDNN builds them for every new length of a batch
BEST = "load_best_model_at_end"  # saves must then meet the evaluations
IN_FILE = "change it in your own file as well"
WORTH = 0.01  # of the pick's time: less is no reason to change a schedule


def sensitivities(
    job: Job, space: SearchSpace, calibration: Calibration, pick: Estimated | None,
    modelled: Estimated | None = None,
) -> tuple[Sensitivity, ...]:  # fmt: skip
    """One entry for each value of a closed knob and each choice; those that do not fit say so.

    pick: None where nothing fits; then closed knobs alone, on any of the job's machines.
    modelled: the model's bill of a pick that was measured; every change then stands beside the
    measured one.
    """
    if not job.steps:
        return ()
    here: Question = (job if pick is None else replace(job, offers=(pick.offer,)), space)
    changes = list(lever_changes(here))
    if pick is not None:
        gains = (_may_gain(change, here[0]) for change in changes)
        changes = [*(change for change in gains if change), *_kept_from_today(here[0], pick)]
        changes += [*_rounded_products(here[0]), *_missing_kernels(here[0])]
        changes += _without_plans(here[0], pick)
        changes += [*schedule_changes(here[0], pick.steps), *_choices(here[0])]
    bills = bills_under(here, changes, calibration)
    beside = _Beside(pick, modelled)
    found: list[Sensitivity] = []
    for change, bill in zip(changes, bills, strict=True):
        if bill is not None and change.closed:
            found += _lever(change, bill, beside)
        elif bill is not None and change.key in {SAVES, EVALUATIONS, PLANS}:
            found += _schedule(change, bill, beside)
        elif bill is not None:
            found.append(_told(change, change.value, bill, _best(bill), beside))
    return tuple(found)


def _may_gain(change: QuestionEdit, job: Job) -> QuestionEdit | None:
    """A closed knob that can save time. One that is neutral only makes room, and is slower.

    Where today's run has it so, leaving it may be what is faster.
    """
    if KNOBS[change.key].knob_class != "neutral":
        return change
    kept = job.lock.get(change.key, PLAIN[change.key]) != PLAIN[change.key]
    return replace(change, closed=(PLAIN[change.key],)) if kept else None


def _kept_from_today(job: Job, pick: Estimated) -> Iterator[QuestionEdit]:
    """What today's run states of a numeric knob and the pick moves, kept as it is."""
    for name, value in moved_by(job, pick.config).items():
        yield Edit(
            on_job(partial(replace, lock={**job.lock, name: value})), key=name, value=str(value),
            typed=f"--set {name}={value}", changes=KNOBS[name].knob_class, columns=(name,),
            note="as today's run has it",
        )  # fmt: skip


def _rounded_products(job: Job) -> Iterator[QuestionEdit]:
    """tf32 where fp32 is pinned: everything stays fp32 but the inputs of matrix products.

    Source: torch.set_float32_matmul_precision: TensorFloat32 keeps 10 of 23 bits; off by default.
    """
    if job.lock.get("precision") == "fp32":
        yield Edit(
            on_job(partial(replace, lock={**job.lock, "precision": "tf32"})), key="precision",
            value="tf32", typed="--set precision=tf32", changes="numeric", columns=("precision",),
            note="weights, gradients and sums stay fp32; inputs of matrix products keep 10 of 23 "
            "bits",
        )  # fmt: skip


def _missing_kernels(job: Job) -> Iterator[QuestionEdit]:
    """The package whose kernels the model's mixers run in, where it is not installed."""
    package = job.mixer_kernels
    if not package or job.fuses_mixers:
        return
    value = ".".join(map(str, INSTALLABLE[package]))
    yield replace(
        package_change(package), key=f"software.{package}", value=value, changes="numeric"
    )


def _without_plans(job: Job, pick: Estimated) -> Iterator[QuestionEdit]:
    """CuDNN's attention left alone, where it builds plans for lengths that go on changing."""
    if job.software.cudnn_attention and may_plan(job, pick.offer.device):
        yield Edit(
            on_job(partial(replace, software=replace(job.software, cudnn_attention=False))),
            key=PLANS, value="false", changes="numeric", typed=f"--set {PLANS}=false",
            note=f"{WITHOUT_CUDNN}=1 where it runs: cuDNN builds a plan for every new length of a "
            "batch",
        )  # fmt: skip


def _schedule(change: QuestionEdit, bill: Bill, beside: _Beside) -> Iterator[Sensitivity]:
    """A schedule of the user's, or what torch does by itself, that costs something."""
    index = _best(bill)
    if index is None or beside.pick is None:
        return
    every = str(bill.estimate(index).config.checkpoint_every_steps)
    if change.key == SAVES:
        change = replace(change, value=every, typed=f"--set {SAVES}={every}")
    told = _told(change, change.value, bill, index, beside)
    if (told.saved_s or 0.0) >= WORTH * beside.pick.duration_s.p50:
        yield told


class _Beside:
    """What every change stands beside: the pick, as it was modelled or measured."""

    def __init__(self, pick: Estimated | None, modelled: Estimated | None) -> None:
        self.pick, self.modelled = pick, modelled

    def figures(self, row: Estimated) -> tuple[float, float]:
        """[s], [bytes] of a row beside what was measured of the pick.

        Formula: every part of the bill in the proportion of measured to modelled, a part that the
        model does not see as measured; memory by the difference.
        Source: derived: the changes run the pick's code on the pick's machine.
        """
        if self.pick is None or self.modelled is None:
            return row.duration_s.p50, row.memory_bytes.total
        own, before, after = (
            each.time_s.as_dict() for each in (row, self.modelled, self.pick)
        )  # fmt: skip
        duration_s = sum(
            own[name] * after[name] / before[name] if before[name] > 0 else after[name]
            for name in own
        )
        more = self.pick.memory_bytes.total - self.modelled.memory_bytes.total
        return duration_s, max(row.memory_bytes.total + more, 0.0)


def _best(bill: Bill, among: np.ndarray | None = None) -> int | None:
    return best_index(bill, "time", bill.job.limits, among=among).index


def _lever(change: QuestionEdit, bill: Bill, beside: _Beside) -> Iterator[Sensitivity]:
    """Each value that opening the knob adds, where it is valid."""
    levels, codes = bill.candidates.levels[change.key], bill.candidates.codes[change.key]
    free = _best(bill)
    for value in change.closed:
        if value not in levels:
            continue
        among = np.flatnonzero(codes == levels.index(value))
        if not len(among):
            continue
        index = _best(bill, among)
        told_apart = free is not None and _known(bill.job, change.key)
        alone = index == free if told_apart else len(change.closed) == 1
        pinned = change.typed.replace(f"--allow {change.key}", f"--set {change.key}={value}")
        told = change if alone else replace(change, typed=pinned)
        if index is None:
            own = bill.take(among, bill.job)
            yield _told(told, value, own, None, beside)
        else:
            yield _told(told, value, bill, index, beside)


def _told(
    change: QuestionEdit, value: KnobValue, bill: Bill, index: int | None, beside: _Beside
) -> Sensitivity:
    fits = index is not None
    if index is None:
        near = nearest_misses(bill, 1)
        index = near[0] if near else int(np.argmin(bill.memory_violation))
    row, pick = bill.estimate(index), beside.pick
    duration_s, needed = beside.figures(row)
    cost_usd = duration_s / HOUR_S * row.offer.usd_per_hour
    saved_s = pick.duration_s.p50 - duration_s if pick is not None else None
    known = _known(bill.job, change.key)
    notes = [change.note, "" if known else NO_LENGTHS]
    if pick is not None and change.key in KNOBS and row.steps != pick.steps:
        steps, before = format_count(row.steps), format_count(pick.steps)
        notes.append(f"{steps} optimizer steps of more rows each, not {before}")
    if not fits:
        usable = format_bytes(row.usable_bytes)
        notes.append(f"does not fit: {format_bytes(needed)} of {usable} usable")
    elif known and pick is not None and saved_s is not None:
        notes.append(_of_memory(pick, saved_s, needed))
    told = fits and known
    return Sensitivity(
        key=change.key,
        value=str(value),
        class_=change.changes,
        opens=change.typed,
        duration_s=duration_s if told else None,
        cost_usd=cost_usd if told else None,
        saved_s=saved_s if told else None,
        saved_usd=pick.cost_usd.p50 - cost_usd if told and pick is not None else None,
        memory_bytes=needed,
        fits=fits,
        unmeasured=told and _unmeasured(bill, index, row, pick),
        basis=row.basis if beside.modelled is None else "calibrated",
        note="; ".join(part for part in notes if part),
        device=row.offer.device.name,
        device_count=row.offer.count,
        config=row.config.as_record(),
    )


def _known(job: Job, key: str) -> bool:
    """Whether the model can tell what a change gives."""
    return job.lengths.known or key not in ON_LENGTHS


def _unmeasured(bill: Bill, index: int, row: Estimated, pick: Estimated | None) -> bool:
    """Whether most of what it saves, or of what it takes, rests on what nobody measured here."""
    if pick is None:
        return bill.at("compute", "unmeasured_gain", index) > 1.0 + SAME
    saved_s = pick.duration_s.p50 - row.duration_s.p50
    sure_s = pick.duration_s.p50 * pick.caution - row.duration_s.p50 * row.caution
    return saved_s > 0 and sure_s < MEASURED_SHARE * saved_s


def _of_memory(pick: Estimated, saved_s: float, needed: float) -> str:
    """Said where a change buys memory and no time, as a quantised base often does."""
    saved_bytes = pick.memory_bytes.total - needed
    no_time = saved_s <= SAME * pick.duration_s.p50
    if no_time and saved_bytes > 0:
        return f"saves {format_bytes(saved_bytes)} of memory, not time"
    return ""


def _choices(job: Job) -> Iterator[QuestionEdit]:
    """What changes the training itself: length, base, rank, epochs."""
    method, half = job.method, job.max_length // 2
    if half >= SHORTEST:
        yield length_edit(job, half)
    if method.is_lora and method.base != "nf4" and job.software.bitsandbytes:
        yield base_edit("nf4")
    if method.is_lora and method.base != "16bit":
        yield base_edit("16bit")
    if method.is_lora and method.rank > 1:
        yield rank_edit(method, method.rank // 2)
    if method.modules_to_save:
        yield saved_edit(method)
    if not method.is_lora and method.base == "16bit":
        yield base_edit("32bit", note="fp32 weights and states under bf16 compute")
    if job.epochs > 1:  # one pass less, of those that make more than one
        yield epochs_edit(math.ceil(job.epochs) - 1)


def schedule_changes(job: Job, steps: int) -> Iterator[QuestionEdit]:
    """Saves at the interval that costs least, and evaluations once an epoch, or once.

    steps: optimizer steps of the run, fewer than the job's where rows are packed.
    """
    if steps and saves_are_kept(job):
        yield Edit(
            on_job(partial(replace, lock=without(job.lock, SAVES))), key=SAVES, columns=(SAVES,),
            note="other checkpoints to choose among: as your file has it, they are by the epoch",
        )  # fmt: skip
    plan = job.timed_evaluation
    fewer = _rarer(job, steps)
    if fewer and plan is not None:
        note = f"{steps // fewer} evaluations, not {steps // plan.every_steps}"
        note += f"; {IN_FILE}" if job.origin is not None else ""
        yield Edit(
            on_job(partial(replace, evaluation=replace(plan, every_steps=fewer))),
            key=EVALUATIONS, value=str(fewer),
            typed=f"--set {EVALUATIONS}={fewer}", note=note,
        )  # fmt: skip


def saves_are_kept(job: Job) -> bool:
    """Whether the schedule of saves is what the trainer's own file says, and free to be moved."""
    origin = job.origin
    best = any(item.key == BEST for item in job.assumed)  # the best is loaded at the end
    if origin is None or SAVES not in job.lock or best:
        return False
    return job.lock[SAVES] == job.stated_lock.get(SAVES) == origin.knobs.get(SAVES)


def _rarer(job: Job, steps: int) -> int:
    """[steps] between evaluations that are rarer than stated: an epoch's, or all; 0: none is."""
    plan = job.timed_evaluation
    if plan is None or not plan.every_steps or not steps:
        return 0
    an_epoch = int(steps / max(job.epochs, 1.0))
    return next((every for every in (an_epoch, steps) if every > plan.every_steps), 0)

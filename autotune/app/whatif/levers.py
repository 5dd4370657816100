"""Settings that the search may not touch: closed knobs, locks, values left out of the space.

Each is a change that opens it, as `--allow`, `--set` or a package that is installed does. One that
changes nothing but the speed is opened without asking where nothing else fits, the last resort; one
that changes rounding or batches is the user's to open, so where one of those would do, and sooner,
it stays the answer (`relaxations`), and nothing is opened. What each is worth is not here
(`sensitivities`).
"""

from __future__ import annotations

import math
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from autotune.app.whatif.changes import base_edit
from autotune.app.whatif.moved import opened_means
from autotune.catalog.software import INSTALLABLE, OF_MIXERS, installing
from autotune.cost.memory.experts import FUSED_AT_ONCE, experts_fused, experts_quantised
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.candidates import OFFER
from autotune.domain.config import ACCUMULATION, KNOBS, PLAIN, SPLIT
from autotune.domain.edit import Edit, most_of
from autotune.domain.units import format_seconds, format_usd
from autotune.pricing import bills_under, on_job
from autotune.report.phrases import marked_name
from autotune.search.alternatives import bill_of_offer
from autotune.search.selection import choosable
from autotune.space.enumerate import knob_levels, why_closed, with_open, without

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.cost.bill import Bill
    from autotune.domain.answer.recommendation import Relaxation
    from autotune.domain.candidates import SearchSpace
    from autotune.domain.config import Config, KnobValue
    from autotune.domain.job import Job
    from autotune.domain.observation import Calibration
    from autotune.domain.outcome import Estimated
    from autotune.pricing import Change, Question, QuestionEdit

EVALUATION_BATCH, KEEPS_LOGITS = "evaluation.batch_size", "evaluation.keeps_logits"
UNFUSED_LAST = (4, 57, 1)  # of transformers, before experts became one parameter
# Knobs of the search that move memory, the usual first resort first.
MEMORY_KNOBS = (
    "micro_batch_size", "activation_checkpointing", "attention", "precision", "sharding", "compile",
)  # fmt: skip


def setting_changes(question: Question, wide: SearchSpace, pinned: set[str]) -> list[QuestionEdit]:
    """Knobs that are locked, closed, or left out of the space, each opened alone.

    pinned: knobs that the user locked, whatever else the question holds fixed.
    """
    job, space = question
    locked = (name for name in job.lock if name in pinned)
    names = dict.fromkeys((*(name for name in PLAIN if name in job.lock), *MEMORY_KNOBS, *locked))
    found = [*lever_changes(question), *_unfused_experts(job)]
    found += [*_smaller_evaluations(job), *_thinner_metrics(job)]
    for name in names:
        if name == ACCUMULATION and SPLIT[0] in names:
            continue
        together = SPLIT if name in SPLIT else (name,)
        if _is_shut(job, space, wide, name, together):
            of: Literal["lock", "setting"] = "lock" if pinned & set(together) else "setting"
            changes = most_of(*(KNOBS[part].knob_class for part in together))
            found.append(Edit(_opener(together, wide), changes=changes, of=of, columns=together))
    return found


def lever_changes(question: Question) -> list[QuestionEdit]:
    """Every knob that stays closed until the user opens it, opened alone.

    With a package that is missing, where a value needs one: it is then installed as well.
    """
    job, space = question
    found = []
    for name in space.values:
        shut = closed_values(question, name)
        able = tuple(value for value in shut if _runs(question, name, value))
        if able:
            found.append(_lever(name, able))
        for package in missing_packages(job):
            installed = _installed(package)(question)
            more = tuple(v for v in shut if v not in able and _runs(installed, name, v))
            if more:
                found.append(_lever(name, more).then(package_change(package)))
    return found


def _lever(name: str, closed: tuple[KnobValue, ...]) -> QuestionEdit:
    return Edit(
        _opened(name), key=name, typed=f"--allow {name}", changes=KNOBS[name].knob_class,
        columns=(name,), closed=closed,
    )  # fmt: skip


def missing_packages(job: Job) -> list[str]:
    """Optional packages that the job's software lacks and that open levers."""
    missing = [name for name in INSTALLABLE if getattr(job.software, name) is None]
    return [name for name in missing if name not in OF_MIXERS or name == job.mixer_kernels]


def package_change(package: str) -> QuestionEdit:
    """The same job with one more package installed."""
    word = package.replace("_", "-")
    return Edit(
        _installed(package),
        f"with {word} installed",
        typed=installing(package),
        note=f"needs {word}, which is not installed",
    )


def _unfused_experts(job: Job) -> list[QuestionEdit]:
    """An older transformers, where experts are linear layers that a quantised base holds."""
    held = experts_quantised(job) or job.model.family in FUSED_AT_ONCE
    if held or not job.method.is_quantised or not experts_fused(job):
        return []
    version = ".".join(map(str, UNFUSED_LAST))

    def older(own: Job) -> Job:
        return replace(own, software=replace(own.software, transformers=UNFUSED_LAST))

    return [
        Edit(
            on_job(older),
            f"transformers {version}, not {'.'.join(map(str, job.software.transformers))}",
            typed=f"--set software.transformers={version}",
        )
    ]


def _smaller_evaluations(job: Job) -> list[QuestionEdit]:
    """Evaluation batches of as many rows as are trained on at a time, or of one."""
    plan, micro = job.evaluation, int(job.lock.get(SPLIT[0], 1))
    if plan is None or plan.batch_size <= 1:
        return []
    rows = micro if micro < plan.batch_size else 1
    smaller = replace(plan, batch_size=rows)
    return [
        Edit(
            on_job(partial(replace, evaluation=smaller)), key=EVALUATION_BATCH, value=str(rows),
            label=f"evaluation batches of {rows}, not {plan.batch_size}",
            typed=f"--set {EVALUATION_BATCH}={rows}",
        )
    ]  # fmt: skip


def _thinner_metrics(job: Job) -> list[QuestionEdit]:
    """Metrics of the predicted tokens alone, not of all logits."""
    plan = job.evaluation
    if plan is None or not plan.keeps_logits:
        return []
    thin = replace(plan, keeps_logits=False)
    return [
        Edit(
            on_job(partial(replace, evaluation=thin)), key=KEEPS_LOGITS, value="false",
            label="preprocess_logits_for_metrics that returns logits.argmax(-1)",
            typed=f"--set {KEEPS_LOGITS}=false",
        )
    ]  # fmt: skip


def unlocked(name: str) -> QuestionEdit:
    """The same job without one lock."""
    edited = on_job(lambda job: replace(job, lock=without(job.lock, name)))
    return Edit(edited, f"without the lock of {name}", of="lock", columns=(name,))


def _installed(package: str) -> Change:
    fields: dict[str, Any] = {package: INSTALLABLE[package]}
    return on_job(lambda job: replace(job, software=replace(job.software, **fields)))


def _runs(question: Question, name: str, value: KnobValue) -> bool:
    """Whether some offer runs a closed value."""
    job, space = question
    return any(not why_closed(job, space, offer, name, value) for offer in job.offers)


def closed_values(question: Question, name: str) -> tuple[KnobValue, ...]:
    """Values of a knob that the search would try on some offer, were the knob opened.

    What the user locked is no closed knob; what is kept because today's run has it so is: what a
    trainer's own file states of an opt-in knob or of attention, and today's kernel of a job file.
    """
    job, space = question
    if name in job.lock and not _kept_as_it_runs(job, name):
        return ()
    opened, _ = _opened(name)(question)
    found: dict[KnobValue, None] = {}
    for offer in job.offers:
        tried = knob_levels(job, space, offer, name)
        found |= dict.fromkeys(v for v in knob_levels(opened, space, offer, name) if v not in tried)
    return tuple(found)


def _kept_as_it_runs(job: Job, name: str) -> bool:
    """Whether a lock is none of the user's: today's run states it, and nothing else."""
    if job.origin is not None and name in PLAIN:
        return True
    if job.origin is not None:
        return name == "attention" and job.origin.knobs.get(name) == job.lock[name]
    return name == "attention" and name not in job.stated_lock


def _opened(name: str) -> Change:
    return on_job(lambda job: with_open(job, name))


def _is_shut(
    job: Job, space: SearchSpace, wide: SearchSpace, name: str, together: tuple[str, ...]
) -> bool:
    """Whether freeing the knob adds values that could run."""
    if any(part in job.lock for part in together):
        return True
    listed = space.values[name]
    return bool(listed) and not set(wide.values[name]) <= set(listed)


def _opener(names: tuple[str, ...], wide: SearchSpace) -> Change:
    def opened(question: Question) -> Question:
        job, space = question
        lock = {name: value for name, value in job.lock.items() if name not in names}
        consent = [name for name in names if name in PLAIN]
        values = {name: wide.values[name] for name in names if name in wide.values}
        return (
            replace(job, lock=lock, allow=(*job.allow, *consent)),
            replace(space, values={**space.values, **values}),
        )

    return opened


def all_settings(changes: list[QuestionEdit]) -> QuestionEdit:
    """Every setting opened and every lock dropped."""
    together = changes[0]
    for change in changes[1:]:
        together = together.then(change)
    return together


def last_resort(question: Question, calibration: Calibration) -> Question | None:
    """The question with the knob opened under which something fits; None where none is."""
    changes, bills = _levers(question, calibration)
    resort = _resort([(c, b) for c, b in zip(changes, bills, strict=True) if b is not None])
    return resort and resort[0].apply(question)


def opened_bills(
    question: Question, bill: Bill, calibration: Calibration, offers: int
) -> dict[int, Bill]:
    """The bill of each of the first `offers` on which nothing fits until a neutral knob is opened.

    bill: of the question as it is.
    """
    job, space = question
    fitting = set(bill.candidates.codes[OFFER][choosable(bill)].tolist())
    unfit = [number for number in range(offers) if number not in fitting]
    if not unfit:
        return {}
    alone = replace(job, offers=tuple(job.offers[number] for number in unfit))
    found = _last_resorts((alone, space), calibration)
    return {unfit[number]: opened for number, opened in found}


def _last_resorts(question: Question, calibration: Calibration) -> Iterator[tuple[int, Bill]]:
    """The same for each offer of a job by itself: its number, and its bill with the knob opened."""
    changes, bills = _levers(question, calibration)
    for number in range(len(question[0].offers)):
        resort = _resort(
            [
                (change, bill_of_offer(bill, number))
                for change, bill in zip(changes, bills, strict=True)
                if bill is not None
            ]
        )
        if resort is not None:
            yield number, resort[1]


def _resort(levers: Sequence[tuple[QuestionEdit, Bill]]) -> tuple[QuestionEdit, Bill] | None:
    """The first that costs only time and fits; none where a lever that costs more is sooner."""
    soonest_s: dict[bool, float] = {}
    first: tuple[QuestionEdit, Bill] | None = None
    for change, bill in levers:
        able = choosable(bill)
        if not able.any():
            continue
        neutral, own_s = change.changes == "neutral", float(bill.duration_s[able].min())
        soonest_s[neutral] = min(own_s, soonest_s.get(neutral, math.inf))
        first = first or ((change, bill) if neutral else None)
    return first if soonest_s.get(True, math.inf) <= soonest_s.get(False, math.inf) else None


def opened_words(config: Config) -> str:
    """The knobs of a configuration that are opened where nothing else fits: "offload all"."""
    values = config.as_dict()
    return ", ".join(
        f"{name} {values[name]}"
        for name, knob in KNOBS.items()
        if knob.opt_in and knob.knob_class == "neutral" and values[name] != knob.choices[0]
    )


def opened_notes(job: Job, best: Estimated, others: Sequence[Relaxation]) -> tuple[str, ...]:
    """That a knob was opened, and what does without it: another result, or another machine.

    The change of the result only where it is sooner and cheaper than the pick; rows are cut only
    where no machine trains the same for less.
    """
    opened = opened_words(best.config)
    text = f"nothing fits without it, so {opened} was opened: {opened_means(job, best)}"
    told = [text]
    machine = next((each for each in others if each.kind == "machine"), None)
    if machine is not None:
        told.append(f"it fits without {opened} {machine.change}: {_figures(machine)}")
    better = [
        each for each in others
        if each.kind == "quality"
        and each.duration_s < best.duration_s.p50 and each.cost_usd < best.cost_usd.p50
        and (
            "data.max_length" not in each.apply
            or machine is None or each.cost_usd < machine.cost_usd
        )
    ]  # fmt: skip
    mildest = next((each for each in better if each.apply == base_edit("16bit").typed), None)
    for each in [mildest or better[0]] if better else []:
        does = f"`{each.apply}` changes the result and fits without {opened}, sooner and cheaper"
        told.append(f"{does}: {_figures(each)} ({each.change})")
    return tuple(Decisive(each) for each in told)


def _figures(each: Relaxation) -> str:
    return marked_name(f"{format_seconds(each.duration_s)}, {format_usd(each.cost_usd)}", each)


def _levers(
    question: Question, calibration: Calibration
) -> tuple[list[QuestionEdit], list[Bill | None]]:  # fmt: skip
    changes = lever_changes(question)
    return changes, bills_under(question, changes, calibration)

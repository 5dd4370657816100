"""The same job on other hardware, prices or versions, beside what was recommended before."""

from __future__ import annotations

import copy
import time
from dataclasses import field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.app.job.load import jobs_of_spec
from autotune.app.job.trainer_file import refuse_flags, started_from, started_from_line
from autotune.app.job.variants import forget_measured
from autotune.app.recompute.diff import (
    add_measured,
    carried_observations,
    differences_of,
    limits_changed,
    recommends_another,
)
from autotune.app.runs import folder as runs
from autotune.app.runs.find import last_answered
from autotune.app.runs.folder import check_row, config_of_row
from autotune.app.tune.priced import check_choices
from autotune.app.tune.tune import Options, tune
from autotune.app.whatif.from_today import ending_at, starting_at
from autotune.app.whatif.waterfall import RunEdit, State, config_edits, pricer, waterfall_between
from autotune.cost.outputs import reusing_tables
from autotune.domain.answer.recompute import Recomputation, Recomputed
from autotune.domain.device import OLD_DAYS
from autotune.domain.edit import Edit
from autotune.domain.errors import ANSWER_CHANGED, LIMIT_MISSED, NOTHING_FEASIBLE, InputError
from autotune.domain.typed.overrides import Overrides
from autotune.domain.units import format_age
from autotune.frozen import dataclass
from autotune.pricing import Pricing
from autotune.report.payload import row_payload
from autotune.report.recorded import recorded_payload

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from autotune.domain.answer.recommendation import Recommendation
    from autotune.domain.answer.waterfall import Waterfall
    from autotune.domain.config import KnobClass
    from autotune.domain.device import Offer
    from autotune.domain.job import Job, NamedJob

DRIFT = "the same question asked again"
# Fields of the job by what a change of them is called, and what it does to the training.
JOB_PARTS: dict[str, tuple[tuple[str, ...], KnobClass]] = {
    "model": (("model",), "quality"),
    "method": (("method", "zero"), "quality"),
    "data": (
        ("max_length", "lengths", "padding", "pretokenized", "storage", "row_bytes"), "quality",
    ),
    "train": (("rows", "epochs", "steps", "global_batch_size"), "quality"),
    "evaluation": (("evaluation",), "neutral"),
    "software": (("software",), "neutral"),
    "limits": (("limits",), "neutral"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class RecomputeOptions:
    """What is otherwise now. vary: variants beside the job, as `variants:` has them."""

    overrides: Overrides = field(default_factory=Overrides)
    software: str | Mapping[str, str] | None = None
    vary: Sequence[Mapping[str, Any]] = ()
    space: str | None = None
    objective: str | None = None
    fidelity: str = "auto"
    run_dir: Path | None = None


@dataclass(frozen=True, slots=True)
class _Source:
    """What is recomputed. recorded: the answer of a run; None where it is a job file."""

    name: str
    spec: dict[str, Any]
    base_dir: Path
    question: tuple[str, ...]
    recorded: Mapping[str, Any] | None
    age_days: int

    @property
    def document(self) -> str:
        """What errors call the job."""
        return self.name if self.recorded is None else f"the job of {self.name}"


@reusing_tables()
def recompute(
    source: Path | None, options: RecomputeOptions, progress: Callable[[str], None] = lambda _: None
) -> Recomputation:
    """Recompute a run folder (the last one if None), or a file from its first machine.

    A trainer's own file names none, nor does a job in one line (None, with a model stated in the
    overrides): there it is the first of the overrides' GPUs.

    Raises InputError for no run, a damaged one or one of another version, and for bad changes.
    """
    begun = time.perf_counter()
    check_choices(objective=options.objective, fidelity=options.fidelity)
    read, overrides = _source(source, options.overrides)
    options = replace(options, overrides=overrides)
    asked = _asked(read, options)
    news = _changed_jobs(read, options)
    if options.run_dir is not None and len(news) > 1:
        msg = f"{len(news)} variants, and a run folder holds one job"
        raise InputError(msg, "leave --run or --vary out")
    found = _old_jobs(read, options)
    olds = {named.variant: named for named in found}
    parts = []
    for named in news:
        progress(f"recomputing {named.variant or named.job.name}")
        parts.append(
            _part(read, olds.get(named.variant, found[0]), named, options, asked, progress)
        )
    return Recomputation(read.name, tuple(parts), time.perf_counter() - begun)


def software_of(text: str) -> str | dict[str, str]:
    """A profile's name, or versions: "transformers=5.23.0,torch=2.9". Raises InputError."""
    if "=" not in text:
        return text.strip()
    return _pairs("--software", text, "transformers=5.23.0,torch=2.9")


def vary_of(text: str) -> dict[str, str]:
    """A variant: "rank=8" or "name=long,max_length=1024". Raises InputError."""
    return _pairs("--vary", text, "rank=8, or name=long,data.max_length=1024")


def _pairs(option: str, text: str, example: str) -> dict[str, str]:
    found: dict[str, str] = {}
    for part in text.split(","):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not equals or not key or not value or key in found:
            msg = f"{option} {text[:80]!r} must be KEY=VALUE, and each key once"
            raise InputError(msg, f"for example {option} {example}")
        found[key] = value
    return found


def _source(path: Path | None, overrides: Overrides) -> tuple[_Source, Overrides]:
    if path is None and "model" in overrides.stated:
        values, overrides = started_from_line(overrides)
        return _Source("the command line", values, Path(), (), None, 0), overrides
    path = path or last_answered()
    if path.is_file():
        values, overrides = started_from(path, overrides)
        values.setdefault("name", path.stem)
        return _Source(str(path), values, path.parent, (), None, 0), overrides
    refuse_flags(overrides, str(path))
    record = runs.load_record(path)
    answer = recorded_payload(runs.load_recommendation_payload(path), str(path))
    if answer.best is not None:
        check_row(answer.best, str(path))
    read = _Source(
        str(path), record.spec, record.base_dir, record.question, answer, record.age_days
    )
    return read, overrides


def _asked(read: _Source, options: RecomputeOptions) -> Options:
    """How to tune: as the run did, unless stated otherwise."""
    space = options.space or (read.question[0] if read.question else "") or None
    stated = read.question[1] if len(read.question) > 1 else "cost"
    objective = options.objective or stated
    best = read.recorded.get("best") if read.recorded else None
    return Options(
        space=space,
        objective="time" if objective == "time" else "cost",
        present=config_of_row(best).extra if best else (),
        fidelity=options.fidelity,
        trials=1,
        dry_run=True,
    )


def _changed_jobs(read: _Source, options: RecomputeOptions) -> list[NamedJob]:
    spec = copy.deepcopy(read.spec)
    best = read.recorded.get("best") if read.recorded else None
    if best and best.get("measured"):
        add_measured(spec, best, read.name)
    forget_measured(spec, options.overrides.set_values)
    _vary(spec, options.vary)
    if options.software is not None:
        spec["software"] = options.software
    return jobs_of_spec(spec, read.base_dir, options.overrides, read.document)


def _old_jobs(read: _Source, options: RecomputeOptions) -> list[NamedJob]:
    """The jobs as they were: of a job file, on its first machine."""
    spec = copy.deepcopy(read.spec)
    if read.recorded is None:
        stated = spec.get("hardware")
        spec["hardware"] = stated[:1] if isinstance(stated, list) else stated
    _vary(spec, options.vary)
    return jobs_of_spec(spec, read.base_dir, Overrides(), read.document)


def _vary(spec: dict[str, Any], vary: Sequence[Mapping[str, Any]]) -> None:
    """The job itself and its variants, as `variants:` has them."""
    if not vary:
        return
    if spec.get("variants"):
        msg = "the job has variants of its own"
        raise InputError(msg, "leave --vary out")
    spec["variants"] = [{"name": AS_IT_IS}, *map(dict, vary)]


FOLLOWING = ("lengths", "steps", "row_bytes")  # from the other fields of their part
NUMBERS = ("max_length", "padding", "pretokenized", "storage", "rows", "epochs", "steps",
           "global_batch_size")  # fmt: skip
AS_IT_IS = "as it is"


def _part(
    read: _Source,
    old: NamedJob,
    new: NamedJob,
    options: RecomputeOptions,
    asked: Options,
    progress: Callable[[str], None],
) -> Recomputed:
    kept = options.run_dir
    new = replace(new, job=replace(new.job, seen_on=old.job.offers))
    if kept is not None:
        asked = replace(asked, run_dir=kept, dry_run=False, trials=Options().trials)
    after = tune(new.job, asked, progress)
    recorded = read.recorded if new.variant in {"", AS_IT_IS} else None
    before, missed = _before(old.job, recorded, asked, progress)
    now = row_payload(after.best) if after.best else None
    changes, unchanged = differences_of(old.job, new.job, before, now, after)
    changes += limits_changed(missed, sorted(miss.limit for miss in after.misses))
    return Recomputed(
        variant=new.variant,
        before=before,
        after=after,
        changes=changes,
        unchanged=unchanged,
        changed=recommends_another(before, now),
        waterfall=_waterfall(old.job, new.job, before, after),
        observations=carried_observations(old.job, new.job),
        warnings=(*_age_notes(read, before), *_score_notes(read), *after.warnings),
    )


def _before(
    job: Job,
    recorded: Mapping[str, Any] | None,
    asked: Options,
    progress: Callable[[str], None],
) -> tuple[Mapping[str, Any] | None, list[str]]:
    """The recorded pick and the limits it missed; where nothing is recorded, as answered now."""
    if recorded is not None:
        return recorded["best"], sorted(miss["limit"] for miss in recorded["misses"])
    found = tune(job, replace(asked, run_dir=None, dry_run=True, trials=1), progress)
    row = row_payload(found.best) if found.best else None
    return row, sorted(miss.limit for miss in found.misses)


def _score_notes(read: _Source) -> Iterator[str]:
    """Nothing is probed here."""
    if "probe" in read.question[2:]:
        yield (
            "the run was scored by probes; this answer is the cost model's, with what they "
            "measured as evidence: tune again with --score probe to measure"
        )


def _age_notes(read: _Source, before: Mapping[str, Any] | None) -> Iterator[str]:
    """A price of last year is no price of today."""
    if before is None or read.recorded is None:
        return
    from autotune.catalog.prices.prices import age_days

    as_of = before.get("price_as_of")
    name = f"{before['device_count']}x {before['device']}"
    try:
        days = age_days(as_of) if as_of else read.age_days
    except ValueError:
        yield f"the run records the price of {name} with the date {as_of!r}, which is no date"
        return
    if days > OLD_DAYS and before["usd_per_hour"] > 0:
        since = f"is of {as_of}" if as_of else "was stated without a date"
        yield (
            f"the price of {name} in the run {since}, {format_age(days)} ago: what it cost before "
            "is in the money of then; --price states today's"
        )


def _waterfall(
    old: Job, new: Job, before: Mapping[str, Any] | None, after: Recommendation
) -> Waterfall | None:
    """What each change is worth given the others, from the old answer to the new one."""
    best = after.best
    offer = _old_offer(old, before)
    if before is None or best is None or offer is None:
        return None
    calibration = Pricing.learned(new).calibration
    # The old evidence and locks decide nothing here; what is priced is the contract.
    start = State(replace(old, lock={}, today=None), offer, config_of_row(before))
    end = State(replace(new, lock={}, today=None), best.offer, best.config)
    edits = [*_job_edits(old, new), *config_edits(start, end)]
    fall = waterfall_between(start, edits, pricer(calibration))
    fall = starting_at(fall, before["duration_s"]["p50"], before["cost_usd"]["p50"], DRIFT)
    return ending_at(fall, best, "measured or traced instead of modelled")


def _old_offer(old: Job, before: Mapping[str, Any] | None) -> Offer | None:
    """The recorded machine, at the recorded price."""
    if before is None:
        return None
    offer = old.offer_of(before)
    return replace(offer, usd_per_hour=before["usd_per_hour"]) if offer else None


def _job_edits(old: Job, new: Job) -> Iterator[RunEdit]:
    """The changed parts of the contract, each one change."""
    for name, (fields, changes) in JOB_PARTS.items():
        changed = [part for part in fields if getattr(old, part) != getattr(new, part)]
        if not changed:
            continue
        shown = [part for part in changed if part not in FOLLOWING] or changed
        one = len(shown) == 1 and shown[0] in NUMBERS
        yield Edit(
            _moved(new, tuple(changed)),
            f"{name}.{shown[0]}" if one else name,
            before=_part_text(old, shown),
            value=_part_text(new, shown),
            changes=changes,
        )


def _moved(new: Job, fields: tuple[str, ...]) -> Callable[[State], State]:
    values = {name: getattr(new, name) for name in fields}
    return lambda state: replace(state, job=replace(state.job, **values))


def _part_text(job: Job, fields: Sequence[str]) -> str:
    if len(fields) == 1 and fields[0] in NUMBERS:
        return str(getattr(job, fields[0]))
    return ", ".join(_field_text(job, name) for name in fields)


def _field_text(job: Job, name: str) -> str:
    from autotune.report.payload import describe_method

    value = getattr(job, name)
    if name == "method":
        return describe_method(value)
    if name in {"model", "software"}:
        return str(value.name)
    if name in NUMBERS:
        return f"{name} {value}"
    return f"{name} as stated" if name in {"limits", "evaluation"} else name


def exit_status(found: Recomputation, *, fail_on_change: bool) -> int:
    """6 where a change was to be told by the exit code; else as `tune`: 0, 3 or 4."""
    if fail_on_change and found.changed:
        return ANSWER_CHANGED
    if any(part.after.best is None for part in found.parts):
        return NOTHING_FEASIBLE
    return LIMIT_MISSED if any(part.after.misses for part in found.parts) else 0

"""What not saying a fact of a run costs, on the record: hide and seek.

`python -m bench.unsaid --format text|json`. Of every run of the record whose step is timed, one
stated fact at a time is hidden (how long its rows are, its versions, attention, checkpointing, ...)
and taken as the product takes it where nobody says it. A fit that has not seen the run's source
predicts the run with the fact and without it. What the two predictions differ by is what saying
nothing costs: its median, whether the default leans to one side; its ends, how far off one may be.
The interval is the product's: sized on the other sources, and as wide as what is then assumed makes
it (`cost.spread.unsaid`). Of memory, the same of peaks, whose interval is that of a mixture; last
what the interval of the settings as listed would hold. Then runs whose end is known: of those that
are said to fit with 0.9 and more, how many ran out, with the settings as listed and over what is
open; and the mean of P(fits), which is right where as many fitted.

A fact is hidden of each run that states it, also where the default is what ran. Sources weigh the
same in every column, and within one its groups of model and device: what strangers leave out
follows people, not rows.

What `estimate` prices is a run that stands as it is: all of these are facts of it. `tune` decides
the micro-batch, checkpointing, attention, precision, optimizer and sharing, and writes them down:
of its answers they are never open.

Does not cover: facts that no run of the record states (the host's processor, limits of power), and
how often people leave out a fact where it is not what they expect.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections import defaultdict
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from autotune.app.dataset.lengths import all_at_maximum
from autotune.app.job.evidence import complete_config
from autotune.app.job.method import RANK
from autotune.catalog.software import INSTALLABLE, find_software, loss_kind
from autotune.cost.columns import tabulate
from autotune.cost.memory.component import COMPONENT
from autotune.cost.parameters import resolve_targets
from autotune.domain.candidates import by_job
from autotune.domain.errors import InputError
from autotune.domain.job import Assumption
from autotune.domain.outcome import Z90
from autotune.evidence.accuracy import OUTPUTS, Prediction, residuals, with_memory
from autotune.evidence.cases import (
    READ_AS,
    equal_weights,
    left_out_key,
    memory_cases,
    source_of,
    weighted_quantile,
)
from autotune.evidence.fit import refit
from autotune.evidence.fit.spreads import nested_spreads, predicted_by
from autotune.evidence.fit.time import fit, measured_steps
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases
from autotune.evidence.record.training import CHECKPOINTING_TRAINERS
from autotune.frozen import dataclass
from autotune.trainers.hf.read import HF_DEFAULTS, TRL_DEFAULTS, TRL_MAX_LENGTH

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.cost.columns import FloatArray
    from autotune.evidence.cases import MeasuredCase

EVERYTHING = "all of these"
SAME = 0.005  # [log] a step this near is the same step
SURE, HOPELESS = 0.9, 0.1  # P(fits) of runs that are said to fit, and of those that are not


@dataclass(frozen=True, slots=True)
class Cost:
    """What saying nothing of a fact costs; sources weigh the same. Ratios are hidden over stated.

    changed: share of the runs whose step moves. below, inside, above: where the measured step lies
    beside the 80 % interval of the hidden run; before: inside that of the stated one.
    """

    fact: str
    rows: int
    sources: int
    changed: float
    median: float
    p10: float
    p90: float
    log_sd: float  # root mean square of the log of the ratio
    before: float
    below: float
    inside: float
    above: float
    width: float  # median of p90 over p10 of the hidden run's interval
    width_before: float
    hidden_inside: float = math.nan  # of the hidden run, in the interval of the settings as listed


@dataclass(frozen=True, slots=True)
class Sure:
    """Verdicts with a fact hidden: rows that are said to fit with 0.9 and more, and what they did.

    First with the settings as listed, then over what is open. mean: of P(fits); fitted: the share.
    """

    fact: str
    rows: int
    fitted: float
    listed_sure: int
    listed_ran_out: int
    listed_mean: float
    sure: int
    ran_out: int
    mean: float
    hopeless: int  # said to fit with less than 0.1
    hopeless_fitted: int
    listed_hopeless: int
    listed_hopeless_fitted: int


def _assuming(case: MeasuredCase, key: str, why: str = "not stated", **job: Any) -> MeasuredCase:  # noqa: ANN401 - fields of a job
    """The run with other facts of its job, of which one is now assumed."""
    said = (*case.job.assumed, Assumption(key, "", why))
    return replace(case, job=replace(case.job, assumed=said, **job))


def _with_knob(case: MeasuredCase, name: str, value: Any) -> MeasuredCase:  # noqa: ANN401 - any knob's value
    job = replace(case.job, unsaid=(*case.job.unsaid, name))
    return replace(case, job=job, config=case.config.with_knobs(**{name: value}))


def without_lengths(case: MeasuredCase) -> MeasuredCase | None:
    """Every row as long as where rows are cut; where nobody says that either, at TRL's default."""
    job = case.job
    if job.max_length > job.lengths.mean:
        return _assuming(case, "data.lengths", lengths=all_at_maximum(job.max_length))
    if job.lengths.known or case.config.packing == "on":  # every row is full
        return None
    most = max(TRL_MAX_LENGTH, job.max_length)
    hidden = _assuming(case, "data.lengths", lengths=all_at_maximum(most), max_length=most)
    return _assuming(hidden, "data.max_length")


def without_versions(case: MeasuredCase) -> MeasuredCase | None:
    """The default profile's versions, with the trainer, its code and its kernels as stated."""
    own, default = case.job.software, find_software(None)
    changed = replace(
        own, torch=default.torch, transformers=default.transformers, peft=default.peft,
        trl=own.trl and default.trl, accelerate=default.accelerate,
        bitsandbytes=default.bitsandbytes, flash_attn=own.flash_attn and INSTALLABLE["flash_attn"],
    )  # fmt: skip
    if own.loss in {"upcast", "upcast_copy"}:
        changed = replace(changed, loss=loss_kind(changed, own.trainer))
    return _assuming(case, "software", software=changed, unsaid=(*case.job.unsaid, "software"))


def without_trainer(case: MeasuredCase) -> MeasuredCase | None:
    """The Trainer of transformers, which a job file that names none has."""
    if case.job.software.stack == "hf":
        return None
    own = replace(
        case.job.software, stack="hf", own_model=False, autocast=True, trainer="",
        loss="upcast",
    )  # fmt: skip
    return _assuming(case, "software.trainer", software=own)


def without_attention(case: MeasuredCase) -> MeasuredCase | None:
    """The default of the trainer; a bias on every score leaves one kernel."""
    if case.job.model.position == "alibi" or any("attention" in text for text in case.assumed):
        return None
    return _with_knob(case, "attention", complete_config({}, case.job, case.offer).attention)


def without_checkpointing(case: MeasuredCase) -> MeasuredCase:
    """The default of the trainer."""
    own = case.job.software.trainer
    found = TRL_DEFAULTS if own == "trl" else HF_DEFAULTS
    value = "full" if own in CHECKPOINTING_TRAINERS else found["activation_checkpointing"]
    return _with_knob(case, "activation_checkpointing", value)


def without_split(case: MeasuredCase) -> MeasuredCase | None:
    """The Trainer's micro-batch, or the largest below that makes the global batch."""
    config = complete_config({}, case.job, case.offer)
    changed = _with_knob(case, "micro_batch_size", config.micro_batch_size)
    more = {"gradient_accumulation_steps": config.gradient_accumulation_steps}
    return replace(changed, config=changed.config.with_knobs(**more))


def without_precision(case: MeasuredCase) -> MeasuredCase | None:
    """The device's native 16-bit dtype."""
    return _with_knob(case, "precision", complete_config({}, case.job, case.offer).precision)


def without_optimizer(case: MeasuredCase) -> MeasuredCase | None:
    """The Trainer's."""
    return _with_knob(case, "optimizer", HF_DEFAULTS["optimizer"])


def without_sharing(case: MeasuredCase) -> MeasuredCase | None:
    """The batch alone is shared."""
    if case.offer.count == 1:
        return None
    return _with_knob(case, "sharding", complete_config({}, case.job, case.offer).sharding)


def without_kernels(case: MeasuredCase) -> MeasuredCase | None:
    """No fused kernels, and the loss that the versions have."""
    own = case.job.software
    if own.own_model:
        return None
    plain = replace(own, kernels="eager")
    return _assuming(case, "lock.kernels", software=replace(plain, loss=loss_kind(plain)))


def without_base(case: MeasuredCase) -> MeasuredCase | None:
    """Weights in 16 bit; who quantises says so."""
    if case.job.method.is_quantised:
        return None
    own, unsaid = replace(case.job.method, base="16bit"), (*case.job.unsaid, "method.base")
    return _assuming(case, "method.base", method=own, unsaid=unsaid)


def without_adapters(case: MeasuredCase) -> MeasuredCase | None:
    """The rank and the targets that a job has which states none."""
    if not case.job.method.is_lora or any("LoRA on" in text for text in case.assumed):
        return None
    targets = resolve_targets(case.job.model, ("all-linear",))
    own = replace(case.job.method, rank=RANK, targets=targets)
    unsaid = (*case.job.unsaid, "method.targets")
    return _assuming(case, "method.targets", method=own, unsaid=unsaid)


def without_padding(case: MeasuredCase) -> MeasuredCase | None:
    """To the longest of a batch."""
    if case.job.one_length or case.job.max_length <= case.job.lengths.mean:
        return None
    return _assuming(case, "data.padding")


FACTS: dict[str, Callable[[MeasuredCase], MeasuredCase | None]] = {
    "row lengths": without_lengths,
    "padding": without_padding,
    "versions": without_versions,
    "trainer": without_trainer,
    "attention kernel": without_attention,
    "activation checkpointing": without_checkpointing,
    "micro-batch": without_split,
    "precision": without_precision,
    "optimizer": without_optimizer,
    "sharding": without_sharing,
    "fused kernels": without_kernels,
    "dtype of the weights": without_base,
    "rank and targets": without_adapters,
}


def hidden(case: MeasuredCase, fact: str) -> MeasuredCase | None:
    """The run as the product has it where nobody says the fact; None where it states none."""
    if fact != EVERYTHING:
        try:
            return FACTS[fact](case)
        except InputError:  # no split of the global batch
            return None
    found = case
    for each in FACTS:
        found = hidden(found, each) or found
    return found


@dataclass(frozen=True, slots=True, eq=False)
class Seen:
    """Runs of left-out sources, and what is said of them. Arrays: [n] of logs."""

    cases: tuple[MeasuredCase, ...]
    log_said: FloatArray
    fast_sd: FloatArray
    slow_sd: FloatArray
    measured: FloatArray
    listed_sd: FloatArray  # of the settings as listed, where a mixture stands for them


def said_of(cases: Sequence[MeasuredCase], model: Any, spreads: Any) -> Seen:  # noqa: ANN401 - a fit and its spreads
    """What the fit says of the runs, with the width that what they assume gives it."""
    steps = measured_steps(cases)
    rows = predicted_by(model, steps, source_of)
    return Seen(
        tuple(cases), np.log(rows.predicted_s), rows.log_sd(spreads), rows.slow_log_sd(spreads),
        np.log(steps.seconds), rows.log_sd(spreads),
    )  # fmt: skip


EVERY = (*FACTS, EVERYTHING)


def judged(cases: Sequence[MeasuredCase], facts: Sequence[str] = EVERY) -> dict[str, Cost]:
    """Every fact's cost on the runs that teach, each as a fit without its source has it."""
    whole = refit.refit_cases(cases, digest="")
    steps = whole.steps
    nested = nested_spreads(whole.left_out, whole.left_out, whole.new)
    pairs: dict[str, list[tuple[Seen, Seen]]] = defaultdict(list)
    for source, spreads in nested.items():
        out = np.asarray([source_of(case) == source for case in steps.cases])
        model = fit(steps.take(~out), whole.fit)
        own = [case for case, mine in zip(steps.cases, out, strict=True) if mine]
        for fact in facts:
            both = [(case, less) for case in own if (less := hidden(case, fact)) is not None]
            if both:
                told, untold = zip(*both, strict=True)
                pairs[fact].append((said_of(told, model, spreads), said_of(untold, model, spreads)))
    return {fact: _cost(fact, pairs[fact]) for fact in facts if pairs[fact]}


def judged_memory(cases: Sequence[MeasuredCase], facts: Sequence[str] = EVERY) -> dict[str, Cost]:
    """The same of the peak that each source reads.

    Bytes and widths are those of a fit without the source; what hiding the fact moves, which has
    next to nothing of a fit in it, is what the shipped one says.
    """
    rows = [case for case in memory_cases(cases) if case.teaches_memory and case.peak]
    unseen = refit.refit_memory(cases).left_out
    sources: dict[str, list[MeasuredCase]] = defaultdict(list)
    for case in rows:
        sources[case.group[0]].append(case)
    pairs: dict[str, list[tuple[Seen, Seen]]] = defaultdict(list)
    for own in sources.values():
        for fact in facts:
            both = [(case, less) for case in own if (less := hidden(case, fact)) is not None]
            if both:
                told = _peaks([case for case, _ in both], unseen)
                one, other = ([_peaks([pair[side]], None) for pair in both] for side in (0, 1))
                pairs[fact].append((told, _hidden(told, one, other)))
    return {fact: _cost(fact, pairs[fact]) for fact in facts if pairs[fact]}


def _hidden(told: Seen, one: Sequence[Seen], other: Sequence[Seen]) -> Seen:
    """What is said without a fact: the left-out fit's, moved and widened as the shipped one is."""
    of = {name: np.asarray([getattr(x, name)[0] for x in other]) for name in MOVED}
    ratio = of["log_said"] - np.asarray([x.log_said[0] for x in one])
    wider = {
        name: np.sqrt(np.maximum(told.listed_sd**2 + of[name] ** 2 - of["listed_sd"] ** 2, 0.0))
        for name in ("fast_sd", "slow_sd")
    }
    return replace(told, log_said=told.log_said + ratio, **wider)


MOVED = ("log_said", "fast_sd", "slow_sd", "listed_sd")


def remembered(cases: Sequence[MeasuredCase]) -> dict[str, Prediction]:
    """What `predict` says of memory, without pricing the time."""
    found = {}
    for places, candidates in by_job(list(cases)):
        job = cases[places[0]].job
        table = tabulate(COMPONENT, job, candidates)
        values = {name: table.gather(name) for name in (*OUTPUTS, "usable", "fits_probability")}
        for i, place in enumerate(places):
            own = {name: float(each[i]) for name, each in values.items()}
            found[cases[place].id] = with_memory(Prediction(0.0, 0.0), own)
    return found


def _peaks(cases: Sequence[MeasuredCase], unseen: Mapping[str, Any] | None) -> Seen:
    """Peaks as the shipped model says them, or as a fit without the source does."""
    found = remembered(cases)
    if unseen is not None:
        found = {name: with_memory(own, unseen[name]) for name, own in found.items()}
    own = [x for x in residuals(cases, found) if x.observation is x.case.peak]
    less, more = (np.asarray(side) for side in zip(*(x.sides for x in own), strict=True))
    listed = np.asarray([found[x.case.id].listed_sd(READ_AS[x.kind]) for x in own])
    said, read = (np.log([getattr(x, name) for x in own]) for name in ("predicted", "actual"))
    return Seen(tuple(x.case for x in own), said, less, more, read, listed)


def judged_verdicts(cases: Sequence[MeasuredCase], facts: Sequence[str] = EVERY) -> list[Sure]:
    """P(fits) of the runs whose end is known, with each fact hidden."""
    rows = [case for case in memory_cases(cases) if case.teaches_memory]
    found = []
    for fact in facts:
        hid = [less for case in rows if (less := hidden(case, fact)) is not None]
        if not hid:
            continue
        out = np.asarray([case.oom for case in hid])
        of_each = remembered(hid)
        said = [of_each[case.id] for case in hid]
        over, listed = (
            np.asarray([getattr(x, name) for x in said])
            for name in ("fits_probability", "fits_as_listed")
        )
        found.append(
            Sure(
                fact, len(hid), float(np.mean(~out)),
                int(np.sum(listed >= SURE)), int(np.sum(out[listed >= SURE])),
                float(np.mean(listed)),
                int(np.sum(over >= SURE)), int(np.sum(out[over >= SURE])), float(np.mean(over)),
                int(np.sum(over < HOPELESS)), int(np.sum(~out[over < HOPELESS])),
                int(np.sum(listed < HOPELESS)), int(np.sum(~out[listed < HOPELESS])),
            )
        )  # fmt: skip
    return found


def _cost(fact: str, sources: Sequence[tuple[Seen, Seen]]) -> Cost:
    weights = np.concatenate([_weights(told.cases) for told, _ in sources])
    weights /= weights.sum()
    told, untold = (_joined([pair[side] for pair in sources]) for side in (0, 1))
    ratio = untold.log_said - told.log_said

    def mean(values: Any) -> float:  # noqa: ANN401 - an array of numbers or of truths
        return float(np.average(values, weights=weights))

    apart = untold.measured - untold.log_said
    below, above = apart < -Z90 * untold.fast_sd, apart > Z90 * untold.slow_sd
    before = told.measured - told.log_said
    known = (before >= -Z90 * told.fast_sd) & (before <= Z90 * told.slow_sd)
    return Cost(
        fact, len(weights), len(sources), mean(np.abs(ratio) > SAME),
        *(float(np.exp(weighted_quantile(ratio, weights, at))) for at in (0.5, 0.1, 0.9)),
        float(np.sqrt(mean(ratio**2))), mean(known),
        mean(below), mean(~(below | above)), mean(above),
        *(
            float(np.exp(weighted_quantile(Z90 * (own.fast_sd + own.slow_sd), weights, 0.5)))
            for own in (untold, told)
        ),
        mean(np.abs(apart) <= Z90 * untold.listed_sd),
    )  # fmt: skip


def _weights(cases: Sequence[MeasuredCase]) -> FloatArray:
    """[n] of one source: its groups weigh the same, and together 1."""
    own = equal_weights([left_out_key(case) for case in cases])
    shares: FloatArray = own / own.sum()
    return shares


def _joined(parts: Sequence[Seen]) -> Seen:
    return Seen(
        tuple(case for part in parts for case in part.cases),
        *(
            np.concatenate([getattr(part, name) for part in parts])
            for name in ("log_said", "fast_sd", "slow_sd", "measured", "listed_sd")
        ),
    )


TITLES = (
    "hidden", "rows", "sources", "moved", "median", "p10", "p90", "width", "inside", "below",
    "above", "inside, said", "inside, as listed",
)  # fmt: skip


def _cells(own: Cost) -> tuple[str, ...]:
    return (
        own.fact, str(own.rows), str(own.sources), f"{own.changed:.0%}", f"{own.median:.2f}",
        f"{own.p10:.2f}", f"{own.p90:.2f}", f"{own.width:.2f}", f"{own.inside:.0%}",
        f"{own.below:.0%}", f"{own.above:.0%}", f"{own.before:.0%}",
        f"{own.hidden_inside:.0%}",
    )  # fmt: skip


def table(found: Sequence[Cost]) -> str:
    """The facts as a table of Markdown."""
    rows = [f"| {' | '.join(TITLES)} |", f"|---|{'---:|' * (len(TITLES) - 1)}"]
    return "\n".join([*rows, *(f"| {' | '.join(_cells(own))} |" for own in found)])


VERDICTS = (
    "hidden", "runs", "fitted", "P, as listed", "sure, as listed", "ran out", "P", "sure",
    "ran out", "under 0.1, as listed", "fitted", "under 0.1", "fitted",
)  # fmt: skip


def verdict_table(found: Sequence[Sure]) -> str:
    """The verdicts as a table of Markdown."""
    rows = [f"| {' | '.join(VERDICTS)} |", f"|---|{'---:|' * (len(VERDICTS) - 1)}"]
    for own in found:
        cells = (
            own.fact, str(own.rows), f"{own.fitted:.2f}", f"{own.listed_mean:.2f}",
            str(own.listed_sure), str(own.listed_ran_out), f"{own.mean:.2f}", str(own.sure),
            str(own.ran_out), str(own.listed_hopeless), str(own.listed_hopeless_fitted),
            str(own.hopeless), str(own.hopeless_fitted),
        )  # fmt: skip
        rows.append(f"| {' | '.join(cells)} |")
    return "\n".join(rows)


def main() -> None:
    """Print what each fact costs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--format", choices=("text", "json"), default="text")
    parser.add_argument("--only", choices=("memory",), help="leave out time, which takes longer")
    arguments = parser.parse_args()
    begun = time.perf_counter()
    cases = read_cases(SHIPPED_ROWS).cases
    found = {"memory": judged_memory(cases)}
    if arguments.only is None:
        found = {"time": judged(cases), **found}
    verdicts = judged_verdicts(cases)
    seconds = time.perf_counter() - begun
    if arguments.format == "json":
        facts = {what: [asdict(own) for own in each.values()] for what, each in found.items()}
        sure = [asdict(own) for own in verdicts]
        print(json.dumps({**facts, "verdicts": sure, "seconds": seconds}))
        return
    for what, each in found.items():
        print(f"{what}\n\n{table(list(each.values()))}\n")
    print(f"verdicts\n\n{verdict_table(verdicts)}\n")
    print(f"{seconds:.1f} s")


if __name__ == "__main__":
    main()

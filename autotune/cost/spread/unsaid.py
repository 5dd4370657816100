"""How far a step or a peak of memory may be off by facts of the run that nobody stated.

What nobody stated is taken at its default and could as well have one of a few other values. Each is
priced, so that a kernel of attention counts on long rows and a micro-batch where the step waits for
the host. With the default they are equally likely, but for releases, where newer ones are likelier:

    faster^2 = sum over values with t_i < t of log(t_i / t)^2 / n, and slower^2 of the others

t: seconds of the step at the default, t_i at another value, n: values, the default among them.
Rows of unknown length count at max_length, so that side is a bound, and the other value is rows as
short as those of the common instruction set that has the shortest.

A peak of memory has no such sides: with and without checkpointing it is two figures far apart, and
a run fits or not. So it is priced under every combination of values (`combinations`), and
`spread.memory` takes the mean of P(fits) and the ends of the mixture.

Covers: lengths that nobody stated or that are estimated, padding, attention, checkpointing, the
micro-batch, adapted modules, versions; of memory how devices share the work and weights in fp32 as
well, and neither attention nor lengths. Does not cover: what the links between devices add at
another value; precision and optimizer, which move next to nothing where they are hidden, nor does
attention move a peak (`python -m bench.unsaid`); fused kernels and offloading, which somebody
switches on and says; of memory rows shorter than max_length, since one of that length decides.

Source: derived: the second moment of a discrete distribution about a value that it may have.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from autotune.catalog.datasets import SHORT_ROWS, published
from autotune.catalog.software import (
    LOADS_AS_STORED_FROM,
    REQUIRED,
    TRL_MIXED_FROM,
    TRL_RECOMPUTES_FROM,
    load_software,
    parsed_version,
    with_its_loss,
)
from autotune.cost.batches import padded_length
from autotune.cost.columns import Columns
from autotune.cost.constants import constants
from autotune.cost.parameters import ALL_LINEAR, ATTENTION, resolve_targets
from autotune.cost.row_lengths import OTHER_SPREADS, lengths_below
from autotune.cost.spread.gradient import TINY
from autotune.cost.time.optimizer import optimizer_terms
from autotune.cost.time.step_terms import step_terms
from autotune.domain.config import ZERO_STAGE
from autotune.domain.device import FLASH_CAPABILITY
from autotune.domain.job import Lengths
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job
    from autotune.domain.software import Software

PADDED_AFTER_ALL = 0.15  # probability that rows are padded to max_length though nobody said so
LENGTHS, PADDING = "lengths", "padding"
OLDER = 0.5  # of dated profiles each is so likely beside the next newer one: an assumption
MICRO_BATCHES = (1, 2, 4, 8, 16)
SHARDINGS = ("ddp", "zero2", "zero3", "fsdp")
TARGETS = ((ALL_LINEAR,), (ATTENTION,), ("q_proj", "v_proj"))
BASE, SHARDING = "method.base", "sharding"
MEMORY_ALONE = frozenset({BASE, SHARDING})  # facts of which a step's range takes no notice
TIME_ALONE = frozenset({"attention"})  # and the chance of fitting
SOFTWARE = "software"
SCRIPTS = frozenset({"hf", "trl"})  # files and commands of programs that users write themselves
LOADS_BY_ITSELF = frozenset({"", "trl"})  # what drives the Trainer and leaves loading to its user


@dataclass(frozen=True, slots=True, eq=False)
class Other:
    """A run with another value of a fact. weight: [rows] of it, where that of the default is 1."""

    value: KnobValue
    job: Job
    columns: Columns
    weight: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """[rows] variance of log(step) on the side of faster runs, and of slower ones."""

    faster: FloatArray
    slower: FloatArray


_last: list[tuple[tuple[object, ...], dict[str, Sides]]] = []  # of the call before, at most one


def unsaid(job: Job, columns: Columns) -> dict[str, Sides]:
    """What each fact leaves open that the job does not state. Facts that it states are absent.

    Both sides of a step and its causes are asked for one after the other: priced once.
    """
    asked = (job, columns, constants())
    if _last and all(one is other for one, other in zip(_last[0][0], asked, strict=True)):
        return _last[0][1]
    _last[:] = [(asked, _unsaid(job, columns))]
    return _last[0][1]


def _unsaid(job: Job, columns: Columns) -> dict[str, Sides]:
    said = {LENGTHS: _estimated_lengths(job, columns), PADDING: _padding(job, columns)}
    lengths = _other_spreads(job, columns) or _rows_as_short(job, columns)
    others = {LENGTHS: lengths} if lengths else {}
    open_ = [fact for fact in job.unsaid if fact in CHOICES and fact not in MEMORY_ALONE]
    others |= {fact: _others(fact, job, columns) for fact in open_}
    found = said | _among(job, columns, others)
    return {fact: sides for fact, sides in found.items() if sides is not None}


def total(job: Job, columns: Columns) -> Sides:
    """All of them together."""
    own = list(unsaid(job, columns).values())
    nothing = np.zeros(columns.rows)
    return Sides(sum((x.faster for x in own), nothing), sum((x.slower for x in own), nothing))


def _estimated_lengths(job: Job, columns: Columns) -> Sides | None:
    """Lengths that were estimated. They decide nothing in full batches."""
    if job.lengths.log_sd <= 0:
        return None
    follows = (job.padding == "longest") | columns.equals("packing", "on")
    either = np.where(follows, job.lengths.log_sd**2, 0.0)  # packed rows follow their tokens too
    return Sides(either, either)


def _other_spreads(job: Job, columns: Columns) -> list[Other]:
    """Rows of which the mean alone is stated, more alike and less: what padding takes follows."""
    if job.lengths.basis != "mean":
        return []
    mean, longest, each = job.lengths.mean, job.lengths.maximum, np.ones(columns.rows)
    spreads = ((f"{sd:g}", lengths_below(mean, longest, sd)) for sd in OTHER_SPREADS)
    return [Other(sd, replace(job, lengths=own), columns, each) for sd, own in spreads]


def _rows_as_short(job: Job, columns: Columns) -> list[Other]:
    """Rows of lengths that nobody knows, as short as those of the set that has the shortest."""
    assumed = any(item.key == "data.lengths" for item in job.assumed)
    if job.lengths.log_sd > 0 or job.lengths.known or not assumed:
        return []
    follows = (job.padding == "longest") & ~columns.equals("packing", "on")
    short = published(SHORT_ROWS, job.model.vocab_size)
    most = min(int(short.p95), job.max_length) if short else job.max_length
    rows = Lengths((float(most),) * 2, float(most), most, known=True)
    return [Other(most, replace(job, lengths=rows), columns, follows.astype(np.float64))]


def _padding(job: Job, columns: Columns) -> Sides | None:
    """Batches that are padded to max_length though nobody said so: it can only take longer."""
    if not job.lengths.known or not any(item.key == "data.padding" for item in job.assumed):
        return None
    follows = (job.padding == "longest") & ~columns.equals("packing", "on")
    gap = np.log(np.maximum(job.max_length / padded_length(job, columns), 1.0))
    return Sides(np.zeros(columns.rows), np.where(follows, PADDED_AFTER_ALL * gap**2, 0.0))


def _among(job: Job, columns: Columns, others: dict[str, list[Other]]) -> dict[str, Sides]:
    """By fact: values as likely as the default, or by their weight."""
    if not others:
        return {}
    asked = [(job, columns), *((x.job, x.columns) for each in others.values() for x in each)]
    usual, *steps = _steps_s(asked)
    found, left = {}, iter(steps)
    for fact, each in others.items():
        values, faster, slower = np.ones(columns.rows), *np.zeros((2, columns.rows))
        for other in each:
            apart = np.where(other.weight > 0.0, np.log(next(left) / usual), 0.0)
            faster = faster + other.weight * np.minimum(apart, 0) ** 2
            slower = slower + other.weight * np.maximum(apart, 0) ** 2
            values = values + other.weight
        found[fact] = Sides(faster / values, slower / values)
    return found


def _others(fact: str, job: Job, columns: Columns) -> list[Other]:
    """The run with each other value of a fact."""
    if fact in OF_THE_JOB:
        return other_jobs(fact, job, columns)
    return [
        Other(value, job, columns.holding(fact, value), can.astype(np.float64))
        for value, can in OPEN_KNOBS[fact](job, columns)
    ]


@dataclass(frozen=True, slots=True, eq=False)
class Combinations:
    """Every combination of what the knobs that nobody stated may be, the one as listed first.

    columns: theirs, one after the other, each of all rows. weights: [combinations, rows], which sum
    to 1. values: by knob the value of each, None where it is as listed.
    """

    columns: Columns
    weights: FloatArray
    values: dict[str, tuple[KnobValue | None, ...]]


def combinations(job: Job, columns: Columns) -> Combinations:
    """Of the knobs among `job.unsaid`; those that no row can have are left out."""
    names = [name for name in job.unsaid if name in OPEN_KNOBS and name not in TIME_ALONE]
    listed = np.ones(columns.rows)
    each = []
    for name in names:
        others = [(value, can * 1.0) for value, can in OPEN_KNOBS[name](job, columns)]
        weights = [(None, listed), *((value, can) for value, can in others if can.any())]
        total = sum(own for _, own in weights)
        each.append([(value, own / total) for value, own in weights])
    found = []
    for chosen in product(*each):
        weight = np.prod([own for _, own in chosen], axis=0) if chosen else listed
        if np.any(weight > 0.0):
            found.append((tuple(value for value, _ in chosen), weight))
    each_of = []
    for own, _ in found:
        rows = columns
        for name, value in zip(names, own, strict=True):
            rows = rows if value is None else rows.holding(name, value)
        each_of.append(rows)
    values = {name: tuple(own[i] for own, _ in found) for i, name in enumerate(names)}
    return Combinations(Columns.stacked(each_of), np.stack([own for _, own in found]), values)


def other_jobs(fact: str, job: Job, columns: Columns) -> list[Other]:
    """The job with each other value of a fact that is no knob."""
    found = []
    for value, own, weight in OF_THE_JOB[fact](job, columns):
        rows = as_released(own, columns) if fact == SOFTWARE else columns
        found.append(Other(value, own, rows, weight * np.ones(columns.rows)))
    return [own for own in found if own.weight.any()]


def _steps_s(asked: Sequence[tuple[Job, Columns]]) -> list[FloatArray]:
    """[rows, s] of each: an optimizer step on one device, by itself. Those of one job in one go."""
    c = constants()
    found: dict[int, FloatArray] = {}
    for job in {id(job): job for job, _ in asked}.values():
        at = [place for place, (own, _) in enumerate(asked) if own is job]
        rows = Columns.stacked([asked[place][1] for place in at])
        micro = step_terms(job, rows).seconds(c)["micro_step_s"]
        once = optimizer_terms(job, rows).seconds(c)
        step = np.maximum(micro * rows.accumulation(job) + once, TINY)
        found |= zip(at, np.split(step, len(at)), strict=True)
    return [found[place] for place in range(len(asked))]


def _attention(job: Job, columns: Columns) -> Iterator[Value]:
    flash = columns.device("compute_capability") >= FLASH_CAPABILITY
    sdpa = job.software.has_sdpa(job.model.family)
    for value, can in (("eager", True), ("sdpa", sdpa), ("flash_attention_2", flash)):
        yield value, can & ~columns.equals("attention", value)


def _checkpointing(job: Job, columns: Columns) -> Iterator[Value]:  # noqa: ARG001 - one signature
    for value in ("none", "full"):
        yield value, ~columns.equals("activation_checkpointing", value)


def _micro_batch(job: Job, columns: Columns) -> Iterator[Value]:
    own = columns.number("micro_batch_size")
    of_device = job.global_batch_size / columns.number("offer.count")
    for value in MICRO_BATCHES:
        yield value, (of_device % value == 0) & (own != value)


def _sharding(job: Job, columns: Columns) -> Iterator[Value]:  # noqa: ARG001 - one signature
    several = columns.several
    for value in SHARDINGS:
        yield value, several & ~columns.equals(SHARDING, value)


def _targets(job: Job, columns: Columns) -> Iterator[OtherJob]:  # noqa: ARG001 - one signature
    if not job.method.is_lora:
        return
    known = {ALL_LINEAR, ATTENTION, *(linear.name for linear in job.model.matrices)}
    for names in TARGETS:
        found = resolve_targets(job.model, names) if known.issuperset(names) else ()
        if found and found != job.method.targets:
            own = replace(job, method=replace(job.method, targets=found))
            yield ",".join(names), own, 1.0


def _versions(job: Job, columns: Columns) -> Iterator[OtherJob]:
    """The catalogue's dated profiles, with the job's trainer, its code and its kernels.

    Left out are releases without the model's class, or older than the arguments of the file. Before
    transformers 5 a script that does not say loads fp32, which DeepSpeed casts.
    """
    own, ours = job.software, job.origin is None
    silent = follows_release(job) and BASE in job.unsaid
    silent |= job.origin is not None and job.origin.silent
    cast = bool(columns.equals(SHARDING, *ZERO_STAGE).any())
    for older, each in enumerate(load_software().values()):
        if not _runs_under(each, job):
            continue
        versions = {
            name: getattr(each, name) for name in (*REQUIRED, "bitsandbytes", "flash_attn", "trl")
            if getattr(own, name) is not None and getattr(each, name) is not None
        }  # fmt: skip
        changed = with_its_loss(replace(own, **versions), own, job.objective, ours=ours)
        wide = silent and not cast and changed.transformers < LOADS_AS_STORED_FROM
        method = replace(job.method, base="32bit") if wide else job.method
        if changed != own:
            yield each.name, replace(job, software=changed, method=method), OLDER**older


def _runs_under(software: Software, job: Job) -> bool:
    """Whether the releases have the model's class and take every argument of the user's file."""
    lacking = job.origin.lacking if job.origin is not None else {}
    for package, text in lacking.items():
        own = getattr(software, package, None)
        if own is not None and own <= parsed_version(text):
            return False
    return software.has_class(job.model.family)


def follows_release(job: Job) -> bool:
    """Whether the user's own script calls TRL's trainers, whose defaults follow their release."""
    return job.trainer == "trl"


def as_released(job: Job, columns: Columns) -> Columns:
    """The knobs of a script as the job's release of TRL, and of the Trainer below, leaves them."""
    own, origin = job.software, job.origin
    if origin is None or not (origin.silent or (follows_release(job) and own.trl is not None)):
        return columns
    left: dict[str, KnobValue] = {"optimizer": own.usual_optimizer}
    trl = own.trl if follows_release(job) else None
    if trl is not None and trl < TRL_RECOMPUTES_FROM:
        left["activation_checkpointing"] = "none"
    if (trl is None or trl < TRL_MIXED_FROM) and job.method.base == "32bit":
        left["precision"] = "fp32"
    for knob, value in left.items():
        columns = columns if knob in origin.knobs else columns.holding(knob, value)
    return columns


def _wide_weights(job: Job, columns: Columns) -> Iterator[OtherJob]:
    """Weights in fp32 where 16 bit is counted, and only whoever loads them knows.

    As likely as not under a transformers that loads fp32 by itself, and in full by FSDP under mixed
    precision, which makes fp32 of what is trained however it was loaded (`widens_shards`). Where
    the version is assumed as well, it is one of the things that one run in ten holds
    (`spread.fitting`).
    """
    if job.method.base != "16bit" or not loads_by_itself(job):
        return
    old = job.software.transformers < LOADS_AS_STORED_FROM
    several = columns.shared_by("fsdp")
    mixed = job.software.widens_shards and not job.method.is_lora
    widened = several & columns.equals("precision", "bf16", "fp16") & mixed
    wide = replace(job, method=replace(job.method, base="32bit"))
    yield "32bit", wide, (widened | old).astype(np.float64)


def loads_by_itself(job: Job) -> bool:
    """Whether the weights' dtype is the user's own code's to say, and else the library's."""
    own = job.software
    plain = own.stack == "hf" and not own.own_model and own.kernels != "unsloth"
    return plain and own.trainer in LOADS_BY_ITSELF


Value = tuple["KnobValue", "BoolArray"]  # another value, and where it can be
OtherJob = tuple[str, "Job", "FloatArray | float"]  # what it is called, and its weight
# By what `Job.unsaid` calls a fact: the values that it may have beside the one that is priced.
OPEN_KNOBS: dict[str, Callable[[Job, Columns], Iterator[Value]]] = {
    "attention": _attention,
    "activation_checkpointing": _checkpointing,
    "micro_batch_size": _micro_batch,
    SHARDING: _sharding,
}
OF_THE_JOB: dict[str, Callable[[Job, Columns], Iterator[OtherJob]]] = {
    "method.targets": _targets,
    SOFTWARE: _versions,
    BASE: _wide_weights,
}
CHOICES = (*OPEN_KNOBS, *OF_THE_JOB)
OF_MEMORY = frozenset(CHOICES) - TIME_ALONE

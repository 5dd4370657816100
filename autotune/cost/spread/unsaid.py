"""How far a step may be off by facts of the run that nobody stated, on each side for itself.

What nobody stated is taken at its default and could as well have one of a few other values. Each is
priced, so that a kernel of attention counts on long rows and a micro-batch where the step waits for
the host. With the default they are equally likely:

    faster^2 = sum over values with t_i < t of log(t_i / t)^2 / n, and slower^2 of the others

t: seconds of the step at the default, t_i at another value, n: values, the default among them.
Rows of unknown length count at max_length, so that side is a bound, and the other value is rows as
short as those of the common instruction set that has the shortest.

Covers: lengths that nobody stated or that are estimated, padding, attention, checkpointing, the
micro-batch, adapted modules, versions. Does not cover: what the links between devices add at
another value; how the devices share the work; precision and optimizer, which move next to nothing
where they are hidden (`python -m bench.unsaid`).

Source: derived: the second moment of a discrete distribution about a value that it may have.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from autotune.catalog.datasets import SHORT_ROWS, published
from autotune.catalog.software import REQUIRED, load_software, loss_kind
from autotune.cost.batches import padded_length
from autotune.cost.columns import Columns
from autotune.cost.constants import constants
from autotune.cost.parameters import ALL_LINEAR, ATTENTION, resolve_targets
from autotune.cost.spread.gradient import TINY
from autotune.cost.time.optimizer import optimizer_terms
from autotune.cost.time.step_terms import step_terms
from autotune.domain.device import FLASH_CAPABILITY
from autotune.domain.job import Lengths
from autotune.frozen import dataclass

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from autotune.cost.columns import BoolArray, FloatArray
    from autotune.domain.job import Job

PADDED_AFTER_ALL = 0.15  # probability that rows are padded to max_length though nobody said so
LENGTHS, PADDING = "lengths", "padding"
MICRO_BATCHES = (1, 2, 4, 8, 16)
FOLLOWS_VERSIONS = frozenset({"upcast", "upcast_copy"})  # losses that a release decides
TARGETS = ((ALL_LINEAR,), (ATTENTION,), ("q_proj", "v_proj"))
Other = tuple["Job", "Columns", "BoolArray"]  # with another value, and where it can be


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
    short = _rows_as_short(job, columns)
    others = {LENGTHS: short} if short else {}
    others |= {f: list(CHOICES[f](job, columns)) for f in job.unsaid if f in CHOICES}
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


def _rows_as_short(job: Job, columns: Columns) -> list[Other]:
    """Rows of lengths that nobody knows, as short as those of the set that has the shortest."""
    assumed = any(item.key == "data.lengths" for item in job.assumed)
    if job.lengths.log_sd > 0 or job.lengths.known or not assumed:
        return []
    follows = (job.padding == "longest") & ~columns.equals("packing", "on")
    short = published(SHORT_ROWS, job.model.vocab_size)
    most = min(int(short.p95), job.max_length) if short else job.max_length
    rows = Lengths((float(most),) * 2, float(most), most, known=True)
    return [(replace(job, lengths=rows), columns, follows)]


def _padding(job: Job, columns: Columns) -> Sides | None:
    """Batches that are padded to max_length though nobody said so: it can only take longer."""
    if not job.lengths.known or not any(item.key == "data.padding" for item in job.assumed):
        return None
    follows = (job.padding == "longest") & ~columns.equals("packing", "on")
    gap = np.log(np.maximum(job.max_length / padded_length(job, columns), 1.0))
    return Sides(np.zeros(columns.rows), np.where(follows, PADDED_AFTER_ALL * gap**2, 0.0))


def _among(job: Job, columns: Columns, others: dict[str, list[Other]]) -> dict[str, Sides]:
    """By fact: values as likely as the default."""
    if not others:
        return {}
    asked = [(job, columns), *(own[:2] for each in others.values() for own in each)]
    usual, *steps = _steps_s(asked)
    found, left = {}, iter(steps)
    for fact, each in others.items():
        values, faster, slower = np.ones(columns.rows), *np.zeros((2, columns.rows))
        for _, _, can in each:
            apart = np.where(can, np.log(next(left) / usual), 0.0)
            faster, slower = faster + np.minimum(apart, 0) ** 2, slower + np.maximum(apart, 0) ** 2
            values = values + can
        found[fact] = Sides(faster / values, slower / values)
    return found


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


def _attention(job: Job, columns: Columns) -> Iterator[Other]:
    flash = columns.device("compute_capability") >= FLASH_CAPABILITY
    for value, can in (("eager", True), ("sdpa", True), ("flash_attention_2", flash)):
        yield job, columns.holding("attention", value), can & ~columns.equals("attention", value)


def _checkpointing(job: Job, columns: Columns) -> Iterator[Other]:
    for value in ("none", "full"):
        own = columns.equals("activation_checkpointing", value)
        yield job, columns.holding("activation_checkpointing", value), ~own


def _micro_batch(job: Job, columns: Columns) -> Iterator[Other]:
    own = columns.number("micro_batch_size")
    of_device = job.global_batch_size / columns.number("offer.count")
    for value in MICRO_BATCHES:
        can = (of_device % value == 0) & (own != value)
        yield job, columns.holding("micro_batch_size", value), can


def _targets(job: Job, columns: Columns) -> Iterator[Other]:
    if not job.method.is_lora:
        return
    known = {ALL_LINEAR, ATTENTION, *(linear.name for linear in job.model.linears)}
    for names in TARGETS:
        found = resolve_targets(job.model, names) if known.issuperset(names) else ()
        if found and found != job.method.targets:
            own = replace(job, method=replace(job.method, targets=found))
            yield own, columns, np.ones(columns.rows, np.bool_)


def _versions(job: Job, columns: Columns) -> Iterator[Other]:
    """The catalogue's dated profiles, with the job's trainer, its code and its kernels."""
    own = job.software
    for each in load_software().values():
        versions = {
            name: getattr(each, name) for name in (*REQUIRED, "bitsandbytes", "flash_attn", "trl")
            if getattr(own, name) is not None and getattr(each, name) is not None
        }  # fmt: skip
        changed = replace(own, **versions)
        if own.loss in FOLLOWS_VERSIONS:
            changed = replace(changed, loss=loss_kind(changed, own.trainer))
        if changed != own:
            yield replace(job, software=changed), columns, np.ones(columns.rows, np.bool_)


# By what `Job.unsaid` calls a fact: the values that it may have beside the one that is priced.
CHOICES: dict[str, Callable[[Job, Columns], Iterator[Other]]] = {
    "attention": _attention,
    "activation_checkpointing": _checkpointing,
    "micro_batch_size": _micro_batch,
    "method.targets": _targets,
    "software": _versions,
}

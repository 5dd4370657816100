"""Stated counts against a job's arithmetic: steps, saves, batches, parameters, warm-up, savings."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.catalog.local import LOCAL_READ_BYTES_PER_S
from autotune.claims.run import (
    ALIKE,
    figures_text,
    percent_text,
    seconds_text,
    stated_batch,
)
from autotune.cost.parameters import trainable_parameters
from autotune.domain.config import SPLIT
from autotune.domain.statement import Span
from autotune.domain.units import MB, format_bytes, format_count, format_range, format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.claims.run import Checked
    from autotune.domain.job import Job
    from autotune.domain.statement import Statement

ROUNDED = 0.02  # relative; less is rounding
UNTOLD_S = 1.0  # [s] of a save that say nothing of the disk: its files, a busy processor
SLOW_WRITE = 0.1 * LOCAL_READ_BYTES_PER_S  # a tenth of a local disk


def _off(stated: Span, real: float, slack: float = ROUNDED) -> bool:
    return not stated.low * (1 - slack) <= real <= stated.high * (1 + slack)


def step_findings(checked: Checked) -> Iterator[str]:
    """Whether what is stated makes a run of this job at all, its steps, and its batch."""
    run, stated = checked.run, checked.statement.figures.get("steps")
    if run is None:
        if checked.job.steps:
            yield (
                f"{checked.statement.where} is not checked: it speaks of no run that this job can "
                "make"
            )
        return
    if stated is not None and _off(stated, run.row.steps):
        yield steps_text(run.job, stated)
    yield from _batch(checked.job, checked.statement)


def steps_text(job: Job, stated: Span) -> str:
    """The batch or the epochs that a wrong number of steps belongs to."""
    rows = job.steps * job.global_batch_size
    head = f"{figures_text(stated)} steps"
    real = (
        f"{format_count(rows)} rows / {job.global_batch_size} are {format_count(job.steps)} steps"
    )
    if job.epochs > 1 and not _off(stated, job.steps / job.epochs):
        return f"{head} are one epoch: {real}"
    if stated.middle <= 0:
        return f"{head} are not this job's: {real}"
    batch = rows / stated.middle
    whole = round(batch)
    if whole == 1 and not _off(stated, rows):
        return f"{head} count rows, not steps: {real}"
    if whole >= 1 and not _off(stated, rows / whole):
        return f"{head} fit a global batch of {format_count(whole)}: {real}"
    return f"{head} are not this job's: {real}"


def _batch(job: Job, statement: Statement) -> Iterator[str]:
    about, batch = statement.about, job.global_batch_size
    rows = stated_batch(about, about.count)
    if rows is None or rows == batch:
        return
    micro, accumulation = (about.knobs[name] for name in SPLIT)
    times = f" x {about.count}" if about.count > 1 else ""
    yield batch_text(f"micro-batch {micro} x accumulation {accumulation}{times}", rows, batch)


def batch_text(typed: str, rows: int, batch: int, so: str = "") -> str:
    """What settings do that train `rows` a step where the job trains `batch`."""
    return (
        f"{typed} is {rows} rows a step, not {batch}: at the same steps {rows / batch:.3g} times "
        f"the samples{so}; a change of the global batch is the user's decision"
    )


def backward_findings(checked: Checked) -> Iterator[str]:
    """Backward passes of an optimizer step: as many as it accumulates."""
    run, statement = checked.run, checked.statement
    stated = statement.figures.get("backward_passes")
    if run is None:
        return
    real = int(
        statement.about.knobs.get("gradient_accumulation_steps")
        or run.config.gradient_accumulation_steps
    )
    if stated is not None and _off(stated, real):
        passes = "pass" if stated.high == 1 else "passes"
        yield (
            f"accumulation {real} is {real} forward and {real} backward passes a step, not "
            f"{figures_text(stated)} backward {passes}: only the optimizer waits for the last of "
            "them"
        )


def checkpoint_findings(checked: Checked) -> Iterator[str]:
    """How many checkpoints there are, what one takes, what all of them take."""
    run, statement, run_s = checked.run, checked.statement, checked.run_s
    if run is None:
        return
    count, saves = statement.figures.get("checkpoints"), run.row.checkpoints
    every = run.config.checkpoint_every_steps
    wrong = count is not None and not count.low - 1 <= saves <= count.high + 1
    if count is not None and wrong:
        yield (
            f"{figures_text(count)} checkpoints are not this job's: one each "
            f"{format_count(every)} of {format_count(run.row.steps)} steps are "
            f"{format_count(saves)}"
        )
    save = statement.figures.get("checkpoint_save_s")
    whole = statement.figures.get("checkpoint_time_s")
    each = save or Span(*([run.row.time_s.checkpoint / max(saves, 1)] * 2))
    takes = each.scaled(saves)
    if saves and ((whole is not None and _off(whole, takes.middle, 0.25)) or (wrong and save)):
        instead = f", not {seconds_text(whole)}" if whole is not None else ""
        yield (
            f"{format_count(saves)} saves of {seconds_text(each)} take {seconds_text(takes)}"
            f"{instead}: {percent_text(takes.scaled(1.0 / run_s))} of the "
            f"{format_seconds(run_s)} run"
        )
    if save is not None:
        yield from slow_disk(run.row.checkpoint_bytes, save)


def slow_disk(size: float, save: Span) -> Iterator[str]:
    """A save so long, beside what every save takes, that the disk under it is slow."""
    rate = save.under(size)
    if size > 0 and (save.low - UNTOLD_S) * SLOW_WRITE > size:
        yield (
            f"a checkpoint of {format_bytes(size)} in {seconds_text(save)} is "
            f"{figures_text(rate.scaled(1.0 / MB))} MB/s: it is the disk for checkpoints that is "
            "slow"
        )


def parameter_findings(checked: Checked) -> Iterator[str]:
    """Trainable parameters of the adapters."""
    stated, run = checked.statement.figures.get("trainable_parameters"), checked.run
    if stated is not None and run is not None:
        yield from adapter_counts(run.job, stated)


def adapter_counts(job: Job, stated: Span) -> Iterator[str]:
    """Trainable parameters of a job's adapters that are not what was stated, if so."""
    real = trainable_parameters(job) if job.method.is_lora else None
    if real is not None and _off(stated, real, 0.05):
        modules = ", ".join((*job.method.targets, *job.method.modules_to_save))
        yield (
            f"rank {job.method.rank} on {modules} trains "
            f"{real / 1e6:.1f} million parameters, not {figures_text(stated.scaled(1e-6))}"
        )


def warmup_findings(checked: Checked) -> Iterator[str]:
    """Warm-up steps against the rows that they are said to be."""
    figures, run = checked.statement.figures, checked.run
    steps, rows = figures.get("warmup_steps"), figures.get("warmup_rows")
    if steps is None or rows is None or run is None:
        return
    job = run.job
    real = steps.scaled(job.global_batch_size)
    if _off(rows, real.middle):
        yield (
            f"{figures_text(steps)} warm-up steps are {_counts(real)} rows at "
            f"{job.global_batch_size} a step, not {_counts(rows)}"
        )


def _counts(span: Span) -> str:
    return format_range(span.low, span.high, format_count)


def learning_rate_findings(checked: Checked) -> Iterator[str]:
    """The linear and the square-root rule of the batch; the choice stays the user's.

    Source: Goyal et al., "Accurate, Large Minibatch SGD" (2017); Krizhevsky, "One weird trick"
    (2014), for the square root.
    """
    job, stated = checked.job, checked.statement.learning_rate
    if stated is None or checked.run is None:
        return
    before, after, batch = stated
    ratio = job.global_batch_size / batch
    factor = after / before
    if any(abs(factor / rule - 1.0) <= ROUNDED for rule in (ratio, math.sqrt(ratio))):
        return
    rules = "1" if ratio == 1 else f"{math.sqrt(ratio):.3g} and {ratio:.3g}"
    yield (
        f"from a global batch of {batch} to {job.global_batch_size} the square-root and the linear "
        f"rule give {rules}, so they do not make {before:g} into {after:g} ({factor:.3g} times): "
        "the learning rate changes the result, and is the user's"
    )


def saving_findings(checked: Checked) -> Iterator[str]:
    """Savings that were added, where the run they are of is known."""
    if checked.run is not None:
        yield from compounded(checked.statement, checked.run_s)


def compounded(statement: Statement, run_s: float) -> Iterator[str]:
    """Savings that were added: each is a share of what the others leave, so they compound."""
    savings = list(statement.savings_s.values())
    if len(savings) < 2:  # noqa: PLR2004 - one saving compounds with nothing
        return
    added = Span(sum(s.low for s in savings), sum(s.high for s in savings))
    left = Span(*(
        run_s * math.prod(max(1.0 - end / run_s, 0.0) for end in ends)
        for ends in ([s.high for s in savings], [s.low for s in savings])
    ))  # fmt: skip
    compound = Span(run_s - left.high, max(run_s - left.low, run_s - left.high))
    saved = statement.figures.get("saved_s")
    wrong = added.high > run_s or compound.high * ALIKE < added.high
    if saved is not None:
        wrong = wrong or _off(saved, compound.middle, 0.1)
    if not wrong:
        return
    total = f" and not to the stated {seconds_text(saved)}" if saved is not None else ""
    yield (
        f"the savings add up to {seconds_text(added)} of {format_seconds(run_s)}{total}, but each "
        f"is a share of what the others leave: together they would save {seconds_text(compound)} "
        f"({percent_text(compound.scaled(1.0 / run_s))})"
    )

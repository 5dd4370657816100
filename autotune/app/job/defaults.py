"""The parts of a Job that a job file states, completed: data, training, evaluation, limits.

Every value that nobody stated is appended to `assumed` with the reason for it.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING

from autotune.app.dataset import lengths as length_rules
from autotune.app.dataset.lengths import check_lengths
from autotune.app.dataset.published_rows import (
    published_lengths,
    published_rows,
    rows_are_full,
    with_published_count,
)
from autotune.catalog.text_tokens import BYTES_PER_TOKEN
from autotune.cost.row_lengths import ASSUMED_SPREAD, REACHED_MEANS
from autotune.cost.time.checkpoint import MAX_LOST_WORK_S, SAVING_SHARE
from autotune.domain.errors import InputError
from autotune.domain.job import (
    CONFIDENCE,
    EVALUATION_ROWS,
    Assumption,
    Evaluation,
    Limits,
)
from autotune.domain.objective import PAIRED
from autotune.domain.paths import stated_in
from autotune.domain.typed.job import TrainSection
from autotune.domain.units import parse_seconds, parse_usd
from autotune.frozen import dataclass
from autotune.trainers.hf.read import TRL_MAX_LENGTH

if TYPE_CHECKING:
    from typing import Literal

    from autotune.app.dataset.count import Count
    from autotune.app.dataset.published_rows import Published
    from autotune.domain.answer.dataset import Histogram
    from autotune.domain.job import Job, Lengths
    from autotune.domain.model import Model
    from autotune.domain.objective import Objective
    from autotune.domain.typed.job import (
        DataSection,
        JobFile,
        LimitsSection,
    )

    Assumed = list[Assumption]

EPOCHS = 1.0
GLOBAL_BATCH = 16
VRAM_HEADROOM = (
    0.03  # from runs that failed and finished: `python -m bench.headroom` prints the curve
)


def held_out_of(stated: float, rows: int) -> int:
    """[rows] of that many that evaluate and are not trained on; below 1 a share is stated.

    Source: datasets 4 `train_test_split`: a share is rounded up, and the rest trains.
    """
    return math.ceil(stated * rows) if stated < 1.0 else int(stated)


@dataclass(frozen=True, slots=True)
class Data:
    """How much there is to train on."""

    rows: int
    held_out: int  # rows beside them that are not trained on
    max_length: int
    lengths: Lengths
    padding: Literal["longest", "max_length"]
    pretokenized: bool
    storage: Literal["local", "network"]
    row_bytes: float
    dataset_path: str | None


def data_of(jobfile: JobFile, model: Model, base_dir: Path, assumed: Assumed) -> Data:
    """Rows and their lengths: counted, read from a histogram, stated, or assumed."""
    section = jobfile.data
    known = published_rows(section, model, base_dir) if section.dataset is not None else ()
    if section.dataset is not None and not known:
        jobfile = with_published_count(jobfile, base_dir, assumed)
        section = jobfile.data
    count = None if known else _count(jobfile, model, base_dir, assumed)
    histogram = count.histogram if count else _stated_histogram(section, base_dir)
    every = _rows(jobfile, histogram, known, assumed)
    held_out = _held_out(section, every, assumed) if every is not None else 0
    rows = _unsized(jobfile, assumed) if every is None else every - held_out
    max_length = _max_length(section, histogram, known, model, assumed)
    padding = section.padding or "longest"
    if known:
        found = published_lengths(known, section, max_length, assumed)
    elif histogram is None and section.lengths is None and rows_are_full(jobfile):
        found = length_rules.all_full(max_length)
    else:
        found = _lengths(section, histogram, max_length, assumed)
    check_lengths(section, found)
    if section.padding is None:
        why = "not stated; what transformers' collators do with padding=True"
        _assume(assumed, "data.padding", padding, why)
    if section.pretokenized is None:
        _assume(assumed, "data.pretokenized", "false", "not stated; workers tokenize every row")
    if section.storage is None:
        _assume(assumed, "data.storage", "local", "not stated; a disk inside the machine")
    row_bytes = histogram.row_bytes if histogram else 0.0
    if row_bytes <= 0:
        row_bytes = BYTES_PER_TOKEN * found.mean
        why = f"not known; {BYTES_PER_TOKEN:g} bytes a token"
        _assume(assumed, "data.row_bytes", f"{row_bytes:.0f}", why)
    return Data(
        rows, held_out, max_length, found, padding, bool(section.pretokenized),
        section.storage or "local", row_bytes,
        str(count.path) if count else None,
    )  # fmt: skip


def _stated_histogram(section: DataSection, base_dir: Path) -> Histogram | None:
    if section.lengths is None or section.lengths.histogram is None:
        return None
    return length_rules.read_histogram(stated_in(base_dir, section.lengths.histogram))


def _count(jobfile: JobFile, model: Model, base_dir: Path, assumed: Assumed) -> Count | None:
    """The data set's rows and tokens, with what has to be known of how they were found."""
    section = jobfile.data
    if section.dataset is None:
        return None
    path = stated_in(base_dir, section.dataset)
    from autotune.app.dataset.columns import LONGER, PAIR, column_for
    from autotune.app.dataset.count import count_dataset
    from autotune.app.dataset.report import notes_of

    column = section.column
    if column is None:
        column = column_for(objective_of(jobfile, []))
        if column is not None and jobfile.origin is not None:
            column = LONGER  # a trainer's own file may name columns of its own
    if column in {PAIR, LONGER} and section.column is None:
        why = "not stated; both are padded to the longest of a batch"
        _assume(assumed, "data.column", "of chosen and rejected the longer", why)
    count = count_dataset(path, section.tokenizer, base_dir, model=model, column=column)
    for note in notes_of(count, stated=section.tokenizer is not None):
        _assume(assumed, *note)
    return count


def _rows(
    jobfile: JobFile, histogram: Histogram | None, known: Published, assumed: Assumed
) -> int | None:
    """[rows] of the data: stated, counted or published; None where nothing says."""
    stated = jobfile.data.rows
    if known and stated is None:
        return sum(each.rows for each in known)
    if histogram is not None:
        if stated is not None and stated != histogram.rows:
            why = f"measured on the {histogram.rows} rows of {Path(histogram.source).name}"
            _assume(assumed, "data.lengths", f"of {stated} rows", why)
        return stated or histogram.rows
    return stated


def _unsized(jobfile: JobFile, assumed: Assumed) -> int:
    """[rows] that the stated steps read, or an evaluation does."""
    if isinstance(jobfile.train, TrainSection):
        rows = (jobfile.train.steps or 1) * (jobfile.train.global_batch_size or GLOBAL_BATCH)
        _assume(assumed, "data.rows", rows, "not stated; as many as the steps read, each once")
        return rows
    return (jobfile.evaluation.rows if jobfile.evaluation else None) or 1


def _held_out(section: DataSection, rows: int, assumed: Assumed) -> int:
    """[rows] of the data that evaluate and are not trained on."""
    found = held_out_of(section.held_out or 0.0, rows)
    if not found:
        return 0
    if found >= rows:
        msg = f"data.held_out takes {found:,} of {rows:,} rows, and none is left to train on"
        raise InputError(msg, "state a share below 1, or fewer rows")
    why = f"{found:,} of {rows:,} are held out for evaluation"
    _assume(assumed, "data.rows", f"{rows - found:,}", why)
    return found


def _max_length(
    section: DataSection, histogram: Histogram | None, known: Published, model: Model,
    assumed: Assumed,
) -> int:  # fmt: skip
    """[tokens] where rows are cut."""
    positions = model.max_position_embeddings
    found = section.max_length
    if found is None:
        stated = section.lengths.max if section.lengths else None
        if histogram is not None:
            found, why = length_rules.longest_to_keep(histogram)
        elif known:
            found = length_rules.longest_published(known)
            why = "not stated; the longest row as published, and more for another tokenizer"
        elif stated is not None:
            found, why = stated, "not stated; the stated lengths' maximum"
        else:
            found, why = TRL_MAX_LENGTH, "not stated; TRL's default"
            if section.lengths and (section.lengths.p95 or 0) > found:
                found, why = math.ceil(section.lengths.p95 or 0), "not stated; the lengths' p95"
            elif section.lengths and REACHED_MEANS * (section.lengths.mean or 0) > found:
                found = math.ceil(REACHED_MEANS * (section.lengths.mean or 0))
                why = f"not stated; {REACHED_MEANS:g} times the mean, which some row may reach"
        if found > positions:
            found, why = positions, "not stated; the model has no more positions"
        _assume(assumed, "data.max_length", found, why)
    elif found > positions and model.position == "learned":
        msg = f"data.max_length {found} is above the {positions} positions that {model.name} has"
        raise InputError(msg, f"set data.max_length to {positions} or less")
    elif found > positions:
        why = f"stated, but {model.name} was made for {positions} positions; memory still holds"
        _assume(assumed, "data.max_length", found, why)
    return found


def _lengths(
    section: DataSection, histogram: Histogram | None, max_length: int, assumed: Assumed
) -> Lengths:
    stated = section.lengths
    if histogram is not None:
        found = length_rules.from_counts(histogram, max_length)
        if found.truncated_rows:
            cut = f"{found.truncated_rows} of {histogram.rows} rows cut to {max_length} tokens"
            _assume(assumed, "data.lengths", cut, "counted; those rows are longer than max_length")
        return found
    if stated is None:
        why = "not stated; an upper bound: state data.lengths, or data.dataset and data.tokenizer"
        _assume(assumed, "data.lengths", f"every row counts as {max_length} tokens", why)
        return length_rules.all_at_maximum(max_length)
    maximum = stated.max
    if maximum is None:
        maximum = max_length
        why = "not stated; a row of max_length may come, and the longest batch decides memory"
        _assume(assumed, "data.lengths.max", maximum, why)
    if stated.p50 is None or stated.p95 is None:
        why = "only their mean is stated; as in common instruction sets"
        spread = f"standard deviation {ASSUMED_SPREAD:g} times the mean"
        _assume(assumed, "data.lengths.p50 and p95", spread, why)
        return length_rules.from_mean(stated.mean or maximum, maximum)
    return length_rules.from_quantiles(stated.p50, stated.p95, maximum, stated.mean)


def objective_of(jobfile: JobFile, assumed: Assumed) -> Objective:
    """What is trained, and for preferences what a row of it takes, which nobody has measured.

    A trainer's own file says it by itself, unless it is to be priced as supervised fine-tuning.
    """
    train, origin = jobfile.train, jobfile.origin
    found: Objective = "sft"
    if isinstance(train, TrainSection) and train.objective is not None:
        found = train.objective
    elif origin is not None and not any(key == "objective" for key, *_ in origin.uncounted):
        found = origin.objective
    if found in PAIRED:
        why = f"{PAIRED[found]}; lengths are of one sequence; no measured run narrows its range yet"
        _assume(assumed, "train.objective", found, why)
    return found


def refuse_odd_pairs(job: Job) -> None:
    """Raise InputError where preferences are to be packed, or KTO to learn from single rows."""
    if job.lock.get("packing") == "on" or "packing" in job.allow:
        msg = f"packing joins rows, and the rows of {job.objective} stay apart"
        raise InputError(msg, "leave packing out: padding_free of TRL changes no batch")
    least = 2 * min(offer.count for offer in job.offers)
    if job.objective == "kto" and job.origin is None and job.global_batch_size < least:
        msg = "kto scores a row beside another of its micro-batch, and the global batch has no two"
        raise InputError(msg, f"set the global batch to {least} or more")


def training_of(jobfile: JobFile, rows: int, assumed: Assumed) -> tuple[float, int, int]:
    """Epochs, optimizer steps and global batch.

    Formula: steps = ceil(epochs x ceil(rows / global batch)).
    Source: transformers Trainer (the last batch of an epoch may be short).
    """
    train = jobfile.train
    if not isinstance(train, TrainSection):
        batch = jobfile.evaluation.batch_size if jobfile.evaluation else None
        return 0.0, 0, batch or EVALUATION_ROWS
    batch = train.global_batch_size or _default_batch(jobfile, assumed)
    per_epoch = math.ceil(rows / batch)
    if train.steps is not None:
        return train.steps / per_epoch, train.steps, batch
    epochs = train.epochs
    if epochs is None:
        epochs = EPOCHS
        _assume(assumed, "train.epochs", f"{epochs:g}", "not stated; one pass over the rows")
    return epochs, math.ceil(epochs * per_epoch), batch


def _default_batch(jobfile: JobFile, assumed: Assumed) -> int:
    """16, or the next number that every offer's devices and the locked batches divide."""
    locked = [
        jobfile.lock.get(name) for name in ("micro_batch_size", "gradient_accumulation_steps")
    ]
    each = math.prod(own for own in locked if isinstance(own, int) and own > 0)
    devices = math.lcm(*(machine.count for machine in jobfile.hardware))
    step = each * (1 if devices > GLOBAL_BATCH**2 else devices)
    batch = step * math.ceil(GLOBAL_BATCH / step)
    _assume(assumed, "train.global_batch_size", batch, "not stated; usual in published recipes")
    return batch


def evaluation_of(jobfile: JobFile, held_out: int, assumed: Assumed) -> Evaluation | None:
    """Evaluations, of the rows that are held out unless others are stated; None without any."""
    section, origin = jobfile.evaluation, jobfile.origin
    if section is None:
        return None
    rows = section.rows or held_out
    if not rows and origin is None:
        return None
    if section.every_steps is None:
        _assume(assumed, "evaluation.every_steps", "once, at the end", "not stated")
    own = origin.evaluation_rows if origin is not None else 0
    at_most = own or EVALUATION_ROWS
    if section.batch_size is None:
        value, why = f"the micro-batch, at most {at_most}", "not stated; never decides what fits"
        if own:
            value = f"{own} as the file stands, of what is picked {value}"
            why = "not in the file; the trainer's default, unless the key is written"
        _assume(assumed, "evaluation.batch_size", value, why)
    return Evaluation(
        rows=rows,
        every_steps=section.every_steps or 0,
        generate_tokens=section.generate_tokens or 0,
        batch_size=section.batch_size or 0,
        at_start=bool(section.at_start),
        at_most=at_most,
        keeps_logits=bool(section.keeps_logits),
        accumulation_steps=section.accumulation_steps or 0,
    )


def limits_of(section: LimitsSection, assumed: Assumed) -> Limits:
    """What the answer must respect."""
    headroom = section.vram_headroom
    if headroom is None:
        headroom = VRAM_HEADROOM
        why = "not stated; the share of a device's memory that is kept free"
        _assume(assumed, "limits.vram_headroom", headroom, why)
    if section.max_lost_work is None:
        why = (
            "not stated; the work that an interruption may cost at most, or as long as "
            f"{1 / SAVING_SHARE:.0f} saves take where that is longer"
        )
        _assume(assumed, "limits.max_lost_work", f"{MAX_LOST_WORK_S / 60:.0f}min", why)
    return Limits(
        vram_headroom=headroom,
        max_lost_work_s=parse_seconds(section.max_lost_work) if section.max_lost_work else None,
        deadline_s=parse_seconds(section.deadline) if section.deadline else None,
        budget_usd=parse_usd(section.budget) if section.budget else None,
        max_session_s=parse_seconds(section.max_session) if section.max_session else None,
        confidence=_confidence(section, assumed),
    )


def _confidence(section: LimitsSection, assumed: Assumed) -> float:
    """How sure the limits must be kept; assumed only where there is one."""
    if section.confidence is not None:
        return section.confidence
    if section.deadline or section.budget or section.max_session:
        why = "not stated; the probability with which a deadline and a budget must be kept"
        _assume(assumed, "limits.confidence", CONFIDENCE, why)
    return CONFIDENCE


def _assume(assumed: Assumed, key: str, value: object, why: str) -> None:
    assumed.append(Assumption(key, str(value), why))

"""`autotune dataset FILE`: the lengths of a data set, and what they say of padding and packing.

With it what a job must say of such a count: which tokenizer, an estimate, a sample.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from autotune.app.dataset.count import count_dataset
from autotune.app.dataset.lengths import KIND, SCHEMA_VERSION, from_counts, longest_to_keep
from autotune.catalog.files import write_whole
from autotune.catalog.models.models import find_model
from autotune.domain.answer.dataset import DatasetReport
from autotune.domain.errors import InputError
from autotune.domain.outcome import Z90
from autotune.domain.units import format_count

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.app.dataset.count import Count
    from autotune.domain.job import Lengths

WASTE_BATCH = 8  # rows padded together when the caller states no micro-batch
Note = tuple[str, str, str]  # key of the job, value, why
PROBABILITIES = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 0.99, 1.0)


def dataset_histogram(
    path: Path | str,
    tokenizer: str | None = None,
    max_length: int | None = None,
    *,
    batch_size: int = WASTE_BATCH,
    model: str | None = None,
    column: str | None = None,
) -> DatasetReport:
    """Count the tokens of every row of a data set. Raises InputError naming file and line.

    `tokenizer` is `bytes`, a `tokenizer.json`, a folder that holds one or a name on the hub; None:
    that of `model`, or an estimate. `max_length` None: the longest row.
    """
    if batch_size < 1 or (max_length is not None and max_length < 1):
        msg = f"batch size {batch_size} and max length {max_length} must be at least 1"
        raise InputError(msg)
    known = find_model(model, Path()) if model else None
    count = count_dataset(Path(path), tokenizer, Path(), model=known, column=column)
    return report_of(count, max_length, batch_size, model=model, column=column)


def report_of(
    count: Count, max_length: int | None, batch_size: int, *, model: str | None, column: str | None
) -> DatasetReport:
    """What a count says at a length and a batch."""
    histogram = count.histogram
    limit = max_length or histogram.longest
    lengths = from_counts(histogram, limit)
    kept = from_counts(histogram, max_length or longest_to_keep(histogram)[0])  # as a job has it
    raw = np.array(sorted(histogram.counts), np.int64)
    rows = np.array([histogram.counts[int(value)] for value in raw], np.int64)
    cut = np.minimum(raw, limit)
    tokens = int(cut @ rows)
    scale = histogram.rows / int(rows.sum())
    padded_tokens = _padded_tokens(cut, rows, batch_size)
    packed_tokens = math.ceil(tokens / limit) * limit
    grid = np.linspace(0.0, 1.0, len(lengths.quantiles))
    table = tuple((p, float(np.interp(p, grid, lengths.quantiles))) for p in PROBABILITIES)
    at = dict(table)
    spread = math.exp(Z90 * kept.log_sd)
    return DatasetReport(
        path=histogram.source, tokenizer=count.tokenizer.label, basis=histogram.basis,
        reason=count.tokenizer.reason, template=count.template, files=len(count.files),
        rows_counted=int(rows.sum()), max_length=limit, rows=histogram.rows,
        tokens=round(tokens * scale), tokens_p10=tokens * scale / spread,
        tokens_p90=tokens * scale * spread, quantiles=table, mean=lengths.mean,
        p50=at[0.5], p95=at[0.95], maximum=lengths.maximum, longest_row=histogram.longest,
        truncated_rows=lengths.truncated_rows,
        truncated_tokens=round((int(raw @ rows) - tokens) * scale),
        batch_size=batch_size,
        padding_waste=1 - tokens / padded_tokens,
        padding_waste_max_length=1 - tokens / (int(rows.sum()) * limit),
        packing_gain=max(0.0, 1 - packed_tokens / padded_tokens),
        grouping_gain=max(0.0, 1 - _grouped_tokens(cut, rows, batch_size) / padded_tokens),
        job_lines=_job_lines(count, at, kept, max_length, model, column),
        lengths=lengths, histogram=histogram,
    )  # fmt: skip


def _job_lines(
    count: Count, at: dict[float, float], lengths: Lengths, max_length: int | None,
    model: str | None, column: str | None,
) -> tuple[tuple[str, str], ...]:  # fmt: skip
    """The data section of a job file: the data set itself, and what was found in it, without it."""
    named = f", column: {column}" if column else ""
    cut = f", max_length: {max_length}" if max_length else ""
    first = f"data: {{dataset: {count.histogram.source}{named}{cut}}}"
    counted = model or "the job's model"
    rest = f"tokens are counted with the tokenizer of {counted}"
    p50, p95 = max(round(at[0.5]), 1), max(round(at[0.95]), 1)
    top = max(lengths.maximum, p95)
    found = f"{{p50: {p50}, p95: {p95}, max: {top}, mean: {lengths.mean:.1f}}}"
    sized = f"data: {{rows: {count.histogram.rows}, max_length: {top}, lengths: {found}}}"
    return ((first, rest), (sized, "what was found here, without the file"))


def _padded_tokens(lengths: NDArray[np.int64], rows: NDArray[np.int64], batch_size: int) -> float:
    """[tokens] of an epoch when random rows are padded to the longest of their batch; expected.

    Formula: rows x E[longest of b], where P(longest <= x) = P(length <= x)^b.
    Source: derived; exact for draws with replacement, so nothing is sampled.
    """
    below = np.cumsum(rows) / rows.sum()
    of_longest = np.diff(np.concatenate([[0.0], below**batch_size]))
    return float(rows.sum()) * float(lengths @ of_longest)


def _grouped_tokens(lengths: NDArray[np.int64], rows: NDArray[np.int64], batch_size: int) -> float:
    """[tokens] of an epoch when rows are batched in order of length: the least padding there is."""
    last = np.cumsum(rows)
    total = int(last[-1])
    ends = np.arange(batch_size, total + batch_size, batch_size)
    sizes = np.minimum(ends, total) - (ends - batch_size)
    longest = lengths[np.searchsorted(last, np.minimum(ends, total))]
    return float(longest @ sizes)


def write_histogram(report: DatasetReport, path: Path) -> None:
    """Write the lengths as JSON that `lengths: {histogram: FILE}` reads.

    Keys: schema_version (1), kind ("autotune.lengths"), source and tokenizer (text), rows,
    basis (counted, sampled or estimated), log_sd (how far all lengths may be off), row_bytes (mean
    bytes of a row in its file), lengths (tokens before truncation, rising) and counts (rows of each
    length, of those that were counted). Raises InputError when the file cannot be written.
    """
    counts = dict(sorted(report.histogram.counts.items()))
    content = {
        "schema_version": SCHEMA_VERSION,
        "kind": KIND,
        "source": Path(report.path).name,
        "tokenizer": report.tokenizer,
        "rows": report.rows,
        "basis": report.basis,
        "log_sd": report.histogram.log_sd,
        "row_bytes": report.histogram.row_bytes,
        "lengths": list(counts),
        "counts": list(counts.values()),
    }
    try:
        write_whole(path, json.dumps(content) + "\n")
    except OSError as error:
        msg = f"{path} cannot be written: {error.strerror}"
        raise InputError(msg) from None


def notes_of(count: Count, *, stated: bool) -> list[Note]:
    """Assumptions of a count, as they stand beside a job. stated: the tokenizer was named."""
    histogram, found = count.histogram, []
    if count.tokenizer.estimates:
        found.append(("data.lengths", _estimate(count), _why(count)))
    elif not stated:
        found.append(("data.tokenizer", count.tokenizer.label, "not stated; the model's own"))
    if histogram.all_rows:
        counted = sum(histogram.counts.values())
        value = f"about {format_count(histogram.rows)}"
        why = f"a sample: {format_count(counted)} of its rows were read, and the rest is like them"
        found.append(("data.rows", value, why))
    if len(count.files) > 1:
        names = ", ".join(path.name for path in count.files[:3])
        more = f" and {len(count.files) - 3} more" if len(count.files) > 3 else ""  # noqa: PLR2004
        found.append(("data.dataset", f"{len(count.files)} files", f"in the folder: {names}{more}"))
    if count.template:
        found.append(("data.template", count.template, "not stated; what the model's users do"))
    return found


def _estimate(count: Count) -> str:
    histogram = count.histogram
    tokens = sum(length * rows for length, rows in histogram.counts.items())
    mean = tokens / sum(histogram.counts.values())
    low, high = (mean * math.exp(sign * Z90 * histogram.log_sd) for sign in (-1.0, 1.0))
    return f"estimated from bytes: about {mean:.0f} tokens a row ({low:.0f} to {high:.0f})"


def _why(count: Count) -> str:
    return (
        f"{count.tokenizer.reason}; characters by script, {count.tokenizer.label}. To count: "
        "data.tokenizer names a folder with tokenizer.json"
    )

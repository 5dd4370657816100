"""What a job must say of the count of its data: which tokenizer, an estimate, a sample."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.domain.outcome import Z90
from autotune.domain.units import format_count

if TYPE_CHECKING:
    from autotune.app.dataset.count import Count

Note = tuple[str, str, str]  # key of the job, value, why


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

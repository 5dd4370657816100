"""Rows of unknown length in words: a range instead of a figure, and the line that settles it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.units import format_count, format_range, format_seconds, format_usd
from autotune.report.layout.blocks import Paragraph
from autotune.report.sections.limits import stated_limits

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.answer.limits import ShortRows
    from autotune.report.layout.blocks import Block
    from autotune.report.schema import JobPayload, Row

NO_SAVING = "How much that saves depends on the row lengths."
AVERAGE = "--set data.lengths.mean=N"
AT_MAXIMUM = "counting every row at max_length"


def lengths_open(job: JobPayload) -> bool:
    """Whether nobody stated how long the rows are, and the time depends on it."""
    return not job.lengths_known and job.steps > 0


def range_phrase(row: Row, short: ShortRows | None, job: JobPayload) -> str:
    """Both ends: between 2.1 h ($5.30) if rows are short and 24.1 h ($60) if all are full."""
    full = f"with rows of {format_count(job.max_length)} tokens"
    if short is None:
        return f"at most {_figures(row)} {AT_MAXIMUM}"
    like = f"{short.like} (half under {format_count(round(short.p50_tokens))} tokens)"
    least = _figures(short, paid=bool(row.usd_per_hour))
    ends = [f"{least} with rows as short as in {like}", f"{_figures(row)} {full}"]
    if short.duration_s.p50 > row.duration_s.p50:
        ends.reverse()
    return f"between {' and '.join(ends)}"


def range_cell(row: Mapping[str, Any], short: ShortRows | None, what: str) -> str:
    """Both ends of one figure: "2.1 h to 24.1 h"; what: duration_s or cost_usd."""
    show = format_seconds if what == "duration_s" else format_usd
    most = row[what]["p50"]
    return format_range(short[what]["p50"] if short else most, most, show)


def settling(job: JobPayload, short: ShortRows | None) -> str:
    """What would settle it, in a sentence."""
    scale = ""
    if short is not None and short.settled:
        scale = " Both figures are scaled to your measured run."
    limited = stated_limits(job.limits)
    limit = " Limits are checked as if every row were full." if limited else ""
    return f"Row lengths are unknown: add `--data FILE`, or `{AVERAGE}`.{scale}{limit}"


def open_blocks(payload: Mapping[str, Any]) -> list[Block]:
    """That the lengths are open, and what settles it; nothing where they are known."""
    job: JobPayload = payload["job"]
    if not lengths_open(job):
        return []
    return [Paragraph(settling(job, payload.get("short_rows")), "warn")]


def _figures(of: Mapping[str, Any], *, paid: bool | None = None) -> str:
    hours = format_seconds(of["duration_s"]["p50"])
    costs = bool(of["usd_per_hour"]) if paid is None else paid
    return f"{hours} ({format_usd(of['cost_usd']['p50'])})" if costs else hours

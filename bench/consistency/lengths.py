"""Whether an answer for rows of unknown length says so: a range, what settles it, and no saving."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from autotune.domain.units import format_seconds

if TYPE_CHECKING:
    from collections.abc import Iterator

Payload = dict[str, Any]
RAGGED = 0.1  # relative: batches of unlike rows carry a mask, which full ones do not
SAVING = re.compile(
    r"(?:sooner|later) and \$|\b(?:cheaper|dearer) than|\bmay save\b|\bsaves \$"
    r"|[+-](?:[\d.,]+ (?:ms|s|min|h|d)|\$[\d.,]+\d) \([+-]\d+%\)"
)


def lengths_agree(payload: Payload) -> Iterator[str]:
    """Known or not is told once; the other end is there where they are not, and is no longer."""
    job, row = payload["job"], payload.get("row") or payload.get("best")
    if payload["lengths_known"] != job["lengths_known"]:
        yield f"lengths_known is {payload['lengths_known']}, and of the job {job['lengths_known']}"
    short = payload["short_rows"]
    if short is None:
        return
    if job["lengths_known"] or row is None:
        yield "row lengths are known or nothing fits, and there is a bill for short rows"
        return
    # Rows of many lengths cost a compiled model its fixed shapes: short ones may then take longer.
    held = not short["settled"] and row["config"]["compile"] == "off"
    for figure in ("duration_s", "cost_usd"):
        if held and short[figure]["p50"] > row[figure]["p50"] * (1 + RAGGED):
            yield f"short rows take more than full ones: {figure} {short[figure]['p50']}"
        ends = [short[figure][name] for name in ("p10", "p50", "p90")]
        if ends != sorted(ends):
            yield f"the interval of short rows is out of order: {figure} {ends}"


def lengths_told(payload: Payload, row: Payload, text: str) -> Iterator[str]:
    """Of a report: both ends, the line that settles it, and no figure of what is saved."""
    job = payload["job"]
    if job["lengths_known"] or not job["steps"]:
        return
    if "`--data FILE`" not in text and "--data FILE" not in text:
        yield "row lengths are unknown, and nothing says what settles it"
    saved = SAVING.search(text)
    if saved:
        yield f"row lengths are unknown, and a saving is told: {saved[0]!r}"
    short = payload.get("short_rows")
    if short is not None and format_seconds(short["duration_s"]["p50"]) not in text:
        yield "what short rows take is not told"
    if re.search(r"It takes [\d.,]+ (?:s|min|h|d) \(", text):
        yield "row lengths are unknown, and one figure is the headline"
    if row["usd_per_hour"] and re.search(r"and costs \$", text):
        yield "row lengths are unknown, and one cost is the headline"

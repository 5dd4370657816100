"""The first screen of `estimate`: one configuration, whether it fits, and where its time goes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.report.layout.bars import MEMORY_LABELS, TIME_LABELS
from autotune.report.layout.blocks import Paragraph, Section
from autotune.report.phrases import seconds_span, usd_span
from autotune.report.screens.infeasible import relaxed_sections, why_section
from autotune.report.screens.screen import (
    MOST_ASSUMED,
    basis_phrase,
    closing_section,
    decisive_blocks,
    fewer,
    grounds_section,
    machine_phrase,
    next_section,
    screen_text,
    shortened,
    shows,
)
from autotune.report.screens.tune import bound_phrase, opening_blocks
from autotune.report.sections.limits import claim_section
from autotune.report.sections.memory import open_section
from autotune.report.sections.unknown_lengths import lengths_open, range_phrase

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.report.layout.blocks import Block
    from autotune.report.schema import EstimatePayload, Row

NAME, PARTS, FACTS = 48, 4, 3
WORTH = 0.01  # of the whole: a part that is named


def estimate_screen(payload: EstimatePayload, *, width: int = 80, colour: bool = False) -> str:
    """The answer of `estimate` as one screen."""
    return screen_text(lambda tight: _sections(payload, tight), width=width, colour=colour)


def _sections(payload: EstimatePayload, tight: int) -> list[Section]:
    row, asked = payload.row, payload.asked
    missing = payload.shortfall
    sections = [
        Section("", tuple(_opening(payload, row, tight))),
        open_section(payload.fits_if, fewer(FACTS, tight, 4, 8)),
    ]
    if missing is not None and not missing.of_words(payload.fits_as_listed):
        sections.append(why_section(missing, tight, nearest=False))
        changes = payload.relaxations or ()
        sections += relaxed_sections(changes, asked, "estimate", tight)
    most = fewer(MOST_ASSUMED, tight, 6)
    rests = f"Based on {basis_phrase(row, payload.job, payload.assumed)}"
    return [
        *sections,
        claim_section(payload.claim),
        Section("", tuple(_parts(row)) if shows(tight, until=7) else ()),
        grounds_section(payload.job, payload.assumed, most, rests),
        next_section(payload.next),
        closing_section(payload),
    ]


def _opening(payload: EstimatePayload, row: Row, tight: int) -> list[Block]:
    name = shortened(payload.job.name, NAME)
    takes = seconds_span(row.duration_s)
    takes += f" and {usd_span(row.cost_usd)}" if row.usd_per_hour else ""
    if lengths_open(payload.job):
        takes = f"{range_phrase(row, payload.short_rows, payload.job)},"
    lead = f"{name}: {takes}"
    blocks = opening_blocks(payload, row, f"{lead} on {machine_phrase(row)}.")
    blocks += decisive_blocks(payload)
    if shows(tight, until=5) and payload.shortfall is None:
        blocks.append(Paragraph(bound_phrase(row)))
    return blocks


def _parts(row: Row) -> list[Block]:
    """The largest parts of the time and of the memory."""
    time_s = row.time_s
    memory = {k: v for k, v in row.memory_bytes.items() if k not in {"total", "usable"}}
    return [
        Paragraph(f"Time: {_shares(time_s, TIME_LABELS)}."),
        Paragraph(f"Memory: {_shares(memory, MEMORY_LABELS)}."),
    ]


def _shares(parts: Mapping[str, float], labels: Mapping[str, str]) -> str:
    total = sum(parts.values())
    told = sorted(parts.items(), key=lambda item: -item[1])[:PARTS]
    named = [
        f"{labels.get(name, name)} {100 * value / total:.0f} %"
        for name, value in told
        if total and value / total >= WORTH
    ]
    return ", ".join(named) or "nothing"

"""The first screen of `plan`: what the campaign takes, on which machine, and what to cut."""

from __future__ import annotations

from typing import Any

from autotune.report.campaign.machines import machines_section, mix_section
from autotune.report.campaign.schedule import schedule_section
from autotune.report.campaign.text import (
    campaign_lead,
    contradictions_of_plan,
    cuts_section,
    phases_section,
    subset_section,
)
from autotune.report.layout.blocks import Section, Table
from autotune.report.layout.text import sections_text
from autotune.report.screens.screen import (
    closing_section,
    decisive_blocks,
    fewer,
    grounds_section,
    next_section,
    screen_text,
    shows,
    trimmed,
)

Payload = dict[str, Any]
MACHINES, PHASES, CUTS, CONTRADICTIONS = 5, 6, 3, 2
NAMED = 6  # runs that a budget keeps, and that it leaves out


def plan_screen(
    payload: Payload, *, width: int = 80, colour: bool = False, chart: bool = False
) -> str:
    """The plan as one screen. chart: and below it the schedule as it was asked for."""
    text = screen_text(lambda tight: _sections(payload, tight), width=width, colour=colour)
    drawn = schedule_section(payload)
    if not chart or not drawn.blocks:
        return text
    return f"{text}\n{sections_text([drawn], width=width, colour=colour)}"


def _sections(payload: Payload, tight: int) -> list[Section]:
    lead = campaign_lead(payload)
    return [
        Section("", (*lead.blocks, *decisive_blocks(payload))),
        trimmed(contradictions_of_plan(payload), fewer(CONTRADICTIONS, tight, 4)),
        mix_section(payload),
        trimmed(_machines(payload), fewer(MACHINES, tight, 3, 4, 6)),
        trimmed(_whole_phases(payload), fewer(PHASES, tight, 5, 6, 7, 8, 9)),
        subset_section(payload, fewer(NAMED, tight, 2, 3, 4)),
        *([trimmed(cuts_section(payload), fewer(CUTS, tight, 3, 5))] if shows(tight, 9) else []),
        grounds_section(None, payload["assumed"], fewer(2, tight, 6, 7)),
        next_section(payload.get("next", [])),
        closing_section(payload),
    ]


def _machines(payload: Payload) -> Section:
    """The machines without what is to be said of each."""
    section = machines_section(payload)
    return Section(section.title, section.blocks[:1])


def _whole_phases(payload: Payload) -> Section:
    """The phases without their parts."""
    section = phases_section(payload)
    table = section.blocks[0]
    if not isinstance(table, Table):
        return section
    rows = tuple(row for i, row in enumerate(table.rows) if i in table.strong_rows)
    total = frozenset({len(rows) - 1})
    return Section(section.title, (Table(table.columns, rows, total),))

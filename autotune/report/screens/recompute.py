"""The first screen of `recompute`: whether the answer changes, by how much, and why."""

from __future__ import annotations

from typing import Any

from autotune.domain.units import format_seconds, format_usd
from autotune.report.layout.bars import TIME_LABELS
from autotune.report.layout.blocks import Section, bullets, section, table
from autotune.report.phrases import moved_cells
from autotune.report.screens.screen import (
    MOST_ASSUMED,
    closing_section,
    decisive_blocks,
    fewer,
    grounds_section,
    next_section,
    of_the_job,
    screen_text,
    shortened,
    trimmed,
)
from autotune.report.sections.recompute import changed_section, leads, parts_of, variants_table
from autotune.report.sections.unknown_lengths import lengths_open

Payload = dict[str, Any]
CHANGES, PARTS, VARIANTS = 6, 4, 8
SMALL = 0.005  # of the whole run: a part that did not move


def recompute_screen(payload: Payload, *, width: int = 80, colour: bool = False) -> str:
    """The answer of `recompute` as one screen."""
    return screen_text(lambda tight: _sections(payload, tight), width=width, colour=colour)


def _sections(payload: Payload, tight: int) -> list[Section]:
    parts = parts_of(payload)
    first = parts[0]
    most = fewer(CHANGES, tight, 2, 3, 4, 5)
    sections = [Section("", (*leads(payload, parts), *decisive_blocks(payload)))]
    if len(parts) > 1:
        sections.append(trimmed(variants_table(parts), fewer(VARIANTS, tight, 3, 4)))
    return [
        *sections,
        trimmed(changed_section(first), most),
        _bill(first, fewer(PARTS, tight, 3, 4, 5)),
        _doubted(first, fewer(2, tight, 6)),
        grounds_section(
            first["job"], of_the_job(first["assumed"]), fewer(MOST_ASSUMED, tight, 5, 7)
        ),
        next_section(payload.get("next", [])),
        closing_section(payload),
    ]


def _bill(part: Payload, most: int) -> Section:
    """Time, cost and the parts of the time that moved."""
    before, after = part["before"], part["after"]
    if before is None or after is None or lengths_open(part["job"]):
        return Section("", ())
    ends = {key: (before[key]["p50"], after[key]["p50"]) for key in ("duration_s", "cost_usd")}
    least = SMALL * max(ends["duration_s"])
    moved = {
        name: (before["time_s"].get(name, 0.0), after["time_s"].get(name, 0.0))
        for name in TIME_LABELS
    }
    told = sorted(
        (name for name, (old, new) in moved.items() if abs(new - old) >= least),
        key=lambda name: -abs(moved[name][1] - moved[name][0]),
    )
    parts = {f"  {TIME_LABELS[name]}": moved[name] for name in told[:most]}
    figures = {"time": ends["duration_s"], **parts}
    rows = [(name, *moved_cells(*pair, format_seconds)) for name, pair in figures.items()]
    rows.insert(1, ("cost", *moved_cells(*ends["cost_usd"], format_usd)))
    return section("What it takes", table(rows, "", ">before", ">after", ">change"))


def _doubted(part: Payload, most: int) -> Section:
    """Measurements that no longer hold for the new question."""
    lost = [each for each in part["observations"] if each["status"] != "valid"]
    items = [shortened(f"{each['id']}: {each['status']}; {each['why']}") for each in lost]
    return section("Measured before", bullets(items[:most]))

"""The first screen of `recompute`: whether the answer changes, by how much, and why."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.units import format_seconds, format_usd
from autotune.report.layout.bars import TIME_LABELS
from autotune.report.layout.blocks import Section, bullets, section, table
from autotune.report.phrases import change_phrase
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

if TYPE_CHECKING:
    from collections.abc import Callable

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
    least = SMALL * max(before["duration_s"]["p50"], after["duration_s"]["p50"])
    moved = {
        name: (before["time_s"].get(name, 0.0), after["time_s"].get(name, 0.0))
        for name in TIME_LABELS
    }
    told = sorted(
        (name for name, (old, new) in moved.items() if abs(new - old) >= least),
        key=lambda name: -abs(moved[name][1] - moved[name][0]),
    )
    rows = [
        _row("time", before["duration_s"]["p50"], after["duration_s"]["p50"], format_seconds),
        _row("cost", before["cost_usd"]["p50"], after["cost_usd"]["p50"], format_usd),
        *(_row(f"  {TIME_LABELS[name]}", *moved[name], format_seconds) for name in told[:most]),
    ]
    return section("What it takes", table(rows, "", ">before", ">after", ">change"))


def _row(
    name: str, before: float, after: float, show: Callable[[float], str]
) -> tuple[str, str, str, str]:
    return name, show(before), show(after), change_phrase(before, after, show(abs(after - before)))


def _doubted(part: Payload, most: int) -> Section:
    """Measurements that no longer hold for the new question."""
    lost = [each for each in part["observations"] if each["status"] != "valid"]
    items = [shortened(f"{each['id']}: {each['status']}; {each['why']}") for each in lost]
    return section("Measured before", bullets(items[:most]))

"""The first screen of `verify`: as predicted or not, what may explain it, and what it means now."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.report.layout.blocks import Paragraph, Section
from autotune.report.screens.screen import (
    closing_section,
    fewer,
    next_section,
    screen_text,
    shows,
    trimmed,
    warning_blocks,
)
from autotune.report.sections.verification import (
    explanations_section,
    lines_section,
    outlook_section,
    start_words,
    verdict_section,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

LINES, EXPLANATIONS, MOST_TOLD = 9, 3, 3


def verification_screen(
    payload: Mapping[str, Any], *, width: int = 80, colour: bool = False
) -> str:
    """The comparison as one screen."""
    return screen_text(lambda tight: _sections(payload, tight), width=width, colour=colour)


def _sections(payload: Mapping[str, Any], tight: int) -> list[Section]:
    most = fewer(EXPLANATIONS, tight, 4, 6)
    verdict = verdict_section(payload)
    return [
        Section("", (*verdict.blocks, *warning_blocks(payload["warnings"]))),
        trimmed(
            lines_section(payload, notes=shows(tight, until=2)), fewer(LINES, tight, 3, 5, 6, 7)
        ),
        trimmed(explanations_section(payload), most),
        outlook_section(payload),
        _learned(payload),
        next_section(payload.get("next", [])),
        closing_section({**payload, "decisive": payload["warnings"]}),
    ]


def _learned(payload: Mapping[str, Any]) -> Section:
    """What later answers start from, in a sentence."""
    pairs = {
        item["component"]: (f"{item['after']:.2f}", f"{item['before']:.2f}")
        for item in payload["calibration"]
    }
    if pairs.get("collectives") == pairs.get("compute"):  # of one step, and said once
        pairs.pop("collectives", None)
    told = [
        f"{_LEARNED[name]} {pairs[name][0]} times what the model says (before: {pairs[name][1]})"
        for name in _LEARNED
        if name in pairs and pairs[name][0] != pairs[name][1]
    ][:MOST_TOLD]
    told += start_words(payload)
    if not told or not payload["written"]:
        return Section("", ())
    return Section("", (Paragraph(f"Later answers will use: {'; '.join(told)}."),))


_LEARNED = {  # what is said first, first
    "compute": "steps take",
    "collectives": "communication between devices takes",
    "data": "waiting for data takes",
    "checkpoint": "a save takes",
    "evaluation": "an evaluation takes",
    "memory": "memory is",
}

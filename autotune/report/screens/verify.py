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

LINES, EXPLANATIONS = 9, 3


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
    told = [
        f"{_LEARNED.get(item['component'], item['component'])} {item['after']:.2f} times what the "
        f"model says (before: {item['before']:.2f})"
        for item in payload["calibration"]
        if f"{item['before']:.2f}" != f"{item['after']:.2f}"
    ][:2]
    told += start_words(payload)
    if not told or not payload["written"]:
        return Section("", ())
    return Section("", (Paragraph(f"Later answers will use: {'; '.join(told)}."),))


_LEARNED = {
    "compute": "steps take",
    "collectives": "communication between devices takes",
    "data": "waiting for data takes",
    "checkpoint": "a save takes",
    "evaluation": "an evaluation takes",
    "memory": "memory is",
}

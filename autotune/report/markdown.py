"""Sections as Markdown: for pull requests, tickets and notes."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autotune.report.answer import estimate_sections, recommendation_sections
from autotune.report.blocks import Bars, Bullets, Commands, Paragraph, Table

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.report.blocks import Block, Section
    from autotune.report.schema import EstimatePayload, RecommendationPayload

_OUTER_UNDERSCORE = re.compile(r"(?<!\w)_|_(?!\w)")  # within a word it is no emphasis


def recommendation_markdown(payload: RecommendationPayload) -> str:
    """The answer of `tune`."""
    return sections_markdown(recommendation_sections(payload))


def estimate_markdown(payload: EstimatePayload) -> str:
    """The answer of `estimate`."""
    return sections_markdown(estimate_sections(payload))


def sections_markdown(sections: Sequence[Section]) -> str:
    """Any report as Markdown."""
    parts: list[str] = []
    for section in sections:
        if section.title:
            parts.append(f"## {_escaped(section.title)}")
        parts += [_block(block) for block in section.blocks]
    return "\n\n".join(parts) + "\n"


def _block(block: Block) -> str:
    if isinstance(block, Paragraph):
        text = _escaped(block.text)
        return f"**{text}**" if block.tone in {"strong", "bad"} else text
    if isinstance(block, Bullets):
        return "\n".join(f"- {_escaped(item)}" for item in block.items)
    if isinstance(block, Commands):
        return "\n".join(["```sh", *(f"{line}  # {what}" for line, what in block.items), "```"])
    if isinstance(block, Table):
        return _table(block)
    return _table(_bars_table(block))


def _table(table: Table) -> str:
    rule = ["---:" if i in table.right else "---" for i in range(len(table.titles))]
    lines = [_line(table.titles), _line(rule)]
    for number, cells in enumerate(table.rows):
        strong = number in table.strong_rows or number in table.group_rows
        shown = [f"**{_escaped(c)}**" if strong and c else _escaped(c) for c in cells]
        lines.append(_line(shown))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _bars_table(bars: Bars) -> Table:
    rows = tuple((bar.name, bar.shown, bar.share) for bar in bars.bars)
    strong = frozenset(i for i, bar in enumerate(bars.bars) if bar.kind not in {"part", "count"})
    return Table(("part", "amount", "share"), rows, frozenset({1, 2}), strong)


def _escaped(text: str) -> str:
    """Text as itself: table bars, emphasis, code and HTML mean nothing in it."""
    for character in ("\\", "|", "*", "`", "<", "#"):
        text = text.replace(character, f"\\{character}")
    return _OUTER_UNDERSCORE.sub(r"\\_", text)

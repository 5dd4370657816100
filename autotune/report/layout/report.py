"""One kind of answer in every format but its first screen, which is made in `screens/`.

Sections as Markdown, too: for pull requests, tickets and notes.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Generic, TypeVar

from autotune.frozen import dataclass
from autotune.report.layout.blocks import Bars, Bullets, Commands, Paragraph, Table, columns
from autotune.report.layout.text import sections_text

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.report.layout.blocks import Block, Section

Payload = TypeVar("Payload")


@dataclass(frozen=True, slots=True)
class Report(Generic[Payload]):
    """What an answer says, decided once: text and Markdown render the same sections.

    csv: its rows as a table. ending: what is put below the sections, such as a glossary.
    """

    sections: Callable[[Payload], Sequence[Section]]
    csv: Callable[[Payload], str]
    ending: Callable[[Sequence[Section]], Sequence[Section]] = list

    def text(self, payload: Payload, *, width: int = 80, colour: bool = False) -> str:
        """The whole report for a terminal of `width` columns."""
        return sections_text(self.ending(self.sections(payload)), width=width, colour=colour)

    def markdown(self, payload: Payload) -> str:
        """The whole report for pull requests, tickets and notes."""
        return sections_markdown(self.ending(self.sections(payload)))


# What Markdown, or GitHub, takes for markup. An underscore within a word is no emphasis; a name
# after @ would notify whoever has it, unless it is code; what is in backticks is code already.
_MARKUP = re.compile(r"`[^`|]+`|(?<!\w)@\w[\w/-]*|[\\|*`<#~&\[]|(?<!\w)_|_(?!\w)")
_LINE_MARK = re.compile(r"(\d{0,9})(>|[-+=.)](?=\s|$|[-=]))")  # a list, a quotation, a rule


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
        text = plain_markdown(block.text)
        return f"**{text}**" if block.tone in {"strong", "bad"} else text
    if isinstance(block, Bullets):
        return "\n".join(f"- {plain_markdown(item)}" for item in block.items)
    if isinstance(block, Commands):
        return _code([f"{line}  # {what}" for line, what in block.items])
    if isinstance(block, Table):
        return _table(block)
    return _table(_bars_table(block))


def _code(commands: Sequence[str]) -> str:
    return fenced("sh", "\n".join(" ".join(command.splitlines()) for command in commands))


def fenced(language: str, text: str) -> str:
    """Text as code in Markdown, between fences that nothing in it can close."""
    fence = "`" * max(3, 1 + max(map(len, re.findall("`+", text)), default=0))
    return f"{fence}{language}\n{text.rstrip(chr(10))}\n{fence}"


def _table(table: Table) -> str:
    rule = ["---:" if i in table.right else "---" for i in range(len(table.titles))]
    lines = [_row([_escaped(title) for title in table.titles]), _row(rule)]
    for number, cells in enumerate(table.rows):
        strong = number in table.strong_rows or number in table.group_rows
        shown = [_escaped(cell) for cell in cells]
        lines.append(_row([f"**{c}**" if strong and c else c for c in shown]))
    return "\n".join(lines)


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _bars_table(bars: Bars) -> Table:
    shares = ["share"] if any(bar.share for bar in bars.bars) else []
    rows = tuple(
        (bar.name, *re.split(r"\s{2,}", bar.shown), *(bar.share for _ in shares))
        for bar in bars.bars
    )
    strong = frozenset(i for i, bar in enumerate(bars.bars) if bar.kind not in {"part", "count"})
    titles = columns("part", *(f">{title}" for title in (*bars.columns, *shares)))
    return Table(titles, rows, strong)


def plain_markdown(text: str) -> str:
    """Text that means nothing but itself, also where it begins a line: "1. " would be a list."""
    shown = _escaped(text)
    mark = _LINE_MARK.match(shown)
    return f"{mark[1]}\\{shown[mark.end(1) :]}" if mark else shown


def _escaped(text: str) -> str:
    """Text as itself, in one line: bars, emphasis, links, HTML and mentions mean nothing in it."""
    return _MARKUP.sub(_literal, " ".join(text.splitlines()).strip())


def _literal(found: re.Match[str]) -> str:
    text = found[0]
    if text[0] == "`" and text[1:]:
        return text
    return f"`{text}`" if text[0] == "@" else f"\\{text}"

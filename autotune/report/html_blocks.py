"""Sections as HTML: the same words as the text report, as headings, lists and tables."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from autotune.report.blocks import Bullets, Commands, Paragraph, Table
from autotune.report.html_markup import Markup, breakable, joined, share, tag

if TYPE_CHECKING:
    from autotune.report.blocks import Bar, Bars, Block, Section

SENTENCE = 36  # characters from which on a row's head is no name
FOLD_FROM, FOLD_TO = 12, 6  # items of a list: from how many on it is folded, and to how many


def section_html(section: Section) -> Markup:
    """A section under its heading."""
    return titled(section.title, *(block_html(block, section.title) for block in section.blocks))


def titled(title: str, *content: str) -> Markup:
    """Content under a heading that can be linked to; nothing if there is no content."""
    shown = [each for each in content if each]
    if not shown:
        return Markup()
    return tag("section", tag("h2", title), *shown, id=anchor(title), class_="part")


def anchor(title: str) -> str:
    """The identifier of the section with this title."""
    return re.sub(r"[^a-z0-9]+", "-", title.casefold()).strip("-") or "section"


def block_html(block: Block, label: str = "") -> Markup:
    """One block. label: what the table is about, for people who cannot see it."""
    if isinstance(block, Paragraph):
        return tag("p", with_code(block.text), class_=block.tone)
    if isinstance(block, Bullets):
        return _bullets(block)
    if isinstance(block, Commands):
        return joined([_command(line, what) for line, what in block.items])
    if isinstance(block, Table):
        return scrolling(_table(block), label)
    return scrolling(_bars(block), label)


def with_code(text: str) -> Markup:
    """Text in which what stands between backticks is code."""
    parts = re.split(r"`([^`]+)`", text)
    return joined([tag("code", each) if i % 2 else each for i, each in enumerate(parts)])


def _bullets(block: Bullets) -> Markup:
    """A list; of a long one, most is folded away on a screen."""
    items = [tag("li", with_code(item)) for item in block.items]
    if len(items) <= FOLD_FROM:
        return tag("ul", *items, class_=block.tone)
    more = tag("summary", f"{len(items) - FOLD_TO} more")
    folded = tag("details", more, tag("ul", *items[FOLD_TO:], class_=block.tone))
    return joined([tag("ul", *items[:FOLD_TO], class_=block.tone), folded])


def scrolling(table: Markup, label: str) -> Markup:
    """A wide table scrolls inside its frame, also by keyboard, instead of widening the page."""
    return tag(
        "div", table, class_="scroll", role="region", tabindex="0", aria_label=label or "table"
    )


def _command(line: str, what: str) -> Markup:
    return joined([tag("p", what, class_="what"), tag("pre", tag("code", line), tabindex="0")])


def _table(table: Table) -> Markup:
    width = len(table.titles)
    head = tag(
        "tr",
        *(
            tag("th", title, scope="col", class_=_side(table, i)) if title else tag("td")
            for i, title in enumerate(table.titles)
        ),
    )
    rows = []
    for number, cells in enumerate(table.rows):
        if number in table.group_rows:
            heading = tag("th", cells[0], colspan=str(width), scope="colgroup")
            rows.append(tag("tr", heading, class_="group"))
            continue
        shown = [_cell(table, i, cell) for i, cell in enumerate(cells)]
        rows.append(tag("tr", *shown, class_="strong" if number in table.strong_rows else None))
    return tag("table", tag("thead", head), tag("tbody", *rows))


def _cell(table: Table, index: int, text: str) -> Markup:
    """A cell; the first of a row, where it is a name, heads the row."""
    if index == 0 and 0 not in table.right:
        kind = "words" if len(text) > SENTENCE else None
        return tag("th", breakable(text), scope="row", class_=kind)
    return tag("td", breakable(text), class_=_side(table, index))


def _side(table: Table, index: int) -> str | None:
    return "num" if index in table.right else None


def _bars(bars: Bars) -> Markup:
    """Parts laid end to end, one a line, each with its number."""
    return tag("table", tag("tbody", *(_bar(bar) for bar in bars.bars)), class_="cascade")


def _bar(bar: Bar) -> Markup:
    mark = tag(
        "rect", x=share(bar.start), width=share(bar.length), y="3", height="12", class_=bar.kind
    )
    drawn = tag("svg", mark, width="100%", height="18", aria_hidden="true")
    return tag(
        "tr",
        tag("th", bar.name, scope="row"),
        tag("td", bar.shown, class_="num"),
        tag("td", bar.share, class_="num"),
        tag("td", drawn, class_="drawn"),
        class_="strong" if bar.kind == "total" else None,
    )

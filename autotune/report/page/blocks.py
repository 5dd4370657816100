"""The blocks of a report as HTML: tables, bars and spans, and the words with their meanings.

What is not markup already is escaped, always.
"""

from __future__ import annotations

import re
from html import escape
from typing import TYPE_CHECKING

from autotune.frozen import dataclass
from autotune.report.layout.blocks import Bullets, Commands, Paragraph, Table
from autotune.report.sections.glossary import used_words

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.report.layout.blocks import Bar, Bars, Block, Section

RANGE_PX, BAR_PX, PAIR_PX = 20, 14, 7
NARROWEST = 0.003  # of the width: what is there is seen

WHOSE = {"today": "today", "the pick": "pick"}  # a bar of that name has its colour


@dataclass(frozen=True, slots=True)
class Range:
    """A middle with its 80 % interval (None: it has none), and what was measured of it."""

    middle: float | None
    low: float | None = None
    high: float | None = None
    measured: float | None = None
    kind: str = "pick"

    @property
    def furthest(self) -> float:
        """The largest of its values."""
        return max(v or 0.0 for v in (self.middle, self.high, self.measured))


def ranges_drawn(ranges: Sequence[Range], limit: float | None = None) -> list[Markup]:
    """A drawing a range, all on one scale from zero; the limit as a dashed line through them."""
    scale = max([*(each.furthest for each in ranges), limit or 0.0]) * 1.02 or 1.0
    return [_range(each, scale, limit) for each in ranges]


def _range(item: Range, scale: float, limit: float | None) -> Markup:
    y = str(RANGE_PX // 2)
    marks: list[str] = [tag("line", x1="0%", x2="100%", y1=y, y2=y, class_="track")]
    if item.low is not None and item.high is not None:
        width = max(item.high - item.low, 0.0) / scale
        marks.append(
            tag(
                "rect", x=share(item.low / scale), width=share(max(width, NARROWEST)), y="4",
                height=str(RANGE_PX - 8), rx="2", class_=f"interval {item.kind}",
            )
        )  # fmt: skip
    if limit is not None:
        at = share(limit / scale)
        marks.append(tag("line", x1=at, x2=at, y1="0", y2=str(RANGE_PX), class_="limit"))
    if item.middle is not None:
        at = share(item.middle / scale)
        marks.append(tag("circle", cx=at, cy=y, r="5", class_="middle"))
    if item.measured is not None:
        cross = tag("path", d="M-5 -5L5 5M-5 5L5 -5", class_="cross")
        marks.append(tag("svg", cross, x=share(item.measured / scale), y=y, class_="at"))
    return _drawing(marks, RANGE_PX)


def bar_drawn(bar: Bar) -> Markup:
    """One part where it starts and as long as it is; a change by whether it adds or saves."""
    kind: str = bar.kind
    if kind == "part" and bar.shown[:1] in {"+", "-"}:
        kind = "less" if bar.shown.startswith("-") else "more"
    kind = WHOSE.get(bar.name, kind)
    width = max(bar.length, NARROWEST)
    start = min(bar.start, 1 - width)
    mark = tag("rect", x=share(start), width=share(width), y="1", height=str(BAR_PX - 2), rx="1.5",
               class_=kind)  # fmt: skip
    return _drawing([mark], BAR_PX)


def pair_drawn(values: Sequence[float], kinds: Sequence[str], scale: float) -> Markup:
    """The same part of several rows, one under the other from one edge."""
    marks = [
        tag(
            "rect", x="0%", width=share(value / scale), y=str(i * (PAIR_PX + 1)),
            height=str(PAIR_PX), rx="1.5", class_=kind,
        )
        for i, (value, kind) in enumerate(zip(values, kinds, strict=True))
        if value > 0
    ]  # fmt: skip
    return _drawing(marks, len(values) * (PAIR_PX + 1))


def _drawing(marks: Sequence[str], height: int) -> Markup:
    return tag("svg", *marks, width="100%", height=str(height), aria_hidden="true")


CARDS_FROM = 4  # columns from which on a row becomes a card on a phone
LONGEST, SHOWN = 4, 2  # items of a list: more than these are folded, and to how many


def section_html(section: Section) -> Markup:
    """A section under its own small heading; nothing if it holds nothing."""
    return titled(section.title, *blocks_html(section.blocks))


def blocks_html(blocks: Sequence[Block]) -> list[Markup]:
    """One block after the other."""
    return [block_html(block) for block in blocks]


def titled(title: str, *content: str) -> Markup:
    """Content under a heading that can be linked to; nothing if there is no content."""
    shown = [each for each in content if each]
    if not shown:
        return Markup()
    heading = [tag("h3", title)] if title else []
    return tag("div", *heading, *shown, id=anchor(title) if title else None, class_="part")


def fold(
    title: str, *content: str, printed: bool = False, wide: bool = False, linked: bool = True
) -> Markup:
    """Content that is folded away under its title.

    printed: on paper it is open; wide: on a wide screen too; linked: its title is told once.
    """
    shown = [each for each in content if each]
    if not shown:
        return Markup()
    kinds = ["fold", *(["printed"] if printed else []), *(["wide"] if wide else [])]
    name = anchor(title) if linked else None
    return tag("details", tag("summary", title), *shown, id=name, class_=" ".join(kinds))


def folded(
    section: Section, *, title: str = "", printed: bool = False, wide: bool = False
) -> Markup:
    """A section that is folded away under its title, or under another."""
    return fold(title or section.title, *blocks_html(section.blocks), printed=printed, wide=wide)


def anchor(title: str) -> str:
    """The identifier of what has this title."""
    return re.sub(r"[^a-z0-9]+", "-", title.casefold()).strip("-") or "part"


def block_html(block: Block) -> Markup:
    """One block."""
    if isinstance(block, Paragraph):
        return tag("p", with_code(block.text), class_=block.tone)
    if isinstance(block, Bullets):
        items = [tag("li", with_code(item)) for item in block.items]
        return tag("ul", *items, class_=block.tone)
    if isinstance(block, Commands):
        return commands_html(block.items)
    if isinstance(block, Table):
        return table_html(block)
    return cascade_html(block)


def few_bullets_html(block: Bullets) -> Markup:
    """A list; the most of a long one is folded away."""
    if len(block.items) <= LONGEST:
        return block_html(block)
    first, others = block.items[:SHOWN], block.items[SHOWN:]
    more = fold(f"{len(others)} more", block_html(Bullets(others, block.tone)), linked=False)
    return joined([block_html(Bullets(first, block.tone)), more])


def with_code(text: str) -> Markup:
    """Text in which what stands between backticks is code, and so is an option's name."""
    parts = re.split(r"`([^`]+)`", text)
    return joined([tag("code", each) if i % 2 else _options(each) for i, each in enumerate(parts)])


def _options(text: str) -> Markup:
    """An option's name is never broken at its hyphens."""
    parts = re.split(r"(?<![\w-])(--[a-z][a-z-]*)", text)
    return joined(
        [tag("code", each, class_="option") if i % 2 else each for i, each in enumerate(parts)]
    )


def commands_html(items: Sequence[tuple[str, str]]) -> Markup:
    """Command lines to copy, each under what it does, as a comment of the shell."""
    said = [(tag("span", f"# {what}", class_="what"), "\n") if what else () for _, what in items]
    lines = [joined([*words, line]) for words, (line, _) in zip(said, items, strict=True)]
    if not lines:
        return Markup()
    parts = [part for line in lines for part in ("\n", line)][1:]
    return tag("pre", tag("code", *parts))


def table_html(table: Table, drawn: Sequence[Markup] = ()) -> Markup:
    """A table. drawn: a drawing for each row, in a last column."""
    width = len(table.titles) + bool(drawn)
    cards = len(table.titles) >= CARDS_FROM
    rows = []
    for number, cells in enumerate(table.rows):
        if number in table.group_rows:
            heading = tag("th", cells[0], colspan=str(width), scope="colgroup")
            rows.append(tag("tr", heading, class_="group"))
            continue
        shown = [_cell(table, i, cell, cards=cards) for i, cell in enumerate(cells)]
        shown += [drawn_cell(drawn[number])] if drawn else []
        rows.append(tag("tr", *shown, class_="strong" if number in table.strong_rows else None))
    sides = [_side(table, i) for i in range(len(table.titles))]
    head = head_html(table.titles, sides, drawn=bool(drawn))
    kind = "cards" if cards else "settings" if table.group_rows else None
    return tag("table", tag("thead", head), tag("tbody", *rows), class_=kind)


def head_html(titles: Sequence[str], sides: Sequence[str | None], *, drawn: bool = False) -> Markup:
    """The titles of the columns."""
    cells = [
        tag("th", title, scope="col", class_=side) if title else tag("td")
        for title, side in zip(titles, sides, strict=True)
    ]
    return tag("tr", *cells, *([tag("td", aria_hidden="true")] if drawn else []))


def _cell(table: Table, index: int, text: str, *, cards: bool) -> Markup:
    """A cell; the first of a row, where it is a name, heads the row."""
    if index == 0 and 0 not in table.right:
        return tag("th", breakable(text), scope="row")
    label = table.titles[index] if cards else None
    return tag("td", breakable(text), class_=_side(table, index), data_label=label)


def drawn_cell(drawing: Markup) -> Markup:
    """The cell of a drawing."""
    return tag("td", drawing, class_="drawn", aria_hidden="true")


def _side(table: Table, index: int) -> str | None:
    return "num" if index in table.right else None


def cascade_html(bars: Bars) -> Markup:
    """Parts laid end to end, one a line, each with its number."""
    shares = any(bar.share for bar in bars.bars)
    rows = []
    for bar in bars.bars:
        numbers = re.split(r"\s{2,}", bar.shown) + ([bar.share] if shares else [])
        cells = [tag("td", each, class_="num") for each in numbers]
        name = tag("th", breakable(bar.name), scope="row")
        kind = "strong" if bar.kind == "total" else None
        rows.append(tag("tr", name, *cells, drawn_cell(bar_drawn(bar)), class_=kind))
    titles = ["", *bars.columns, *(["share"] if shares else [])]
    head = head_html(titles, [None, *("num" for _ in titles[1:])], drawn=True)
    titled_rows = [tag("thead", head)] if len(bars.columns) > 1 else []
    table = tag("table", *titled_rows, tag("tbody", *rows), class_="cascade")
    return tag("figure", table)


def words_html(parts: Sequence[Markup]) -> Markup:
    """The words that these parts of the page use, each with its meaning."""
    used = used_words(re.sub("<[^>]+>", " ", "".join(parts)))
    return tag(
        "dl", *(tag("div", tag("dt", word), tag("dd", what)) for word, what in used),
        class_="glossary",
    ) if used else Markup()  # fmt: skip


_VOID = frozenset({"meta", "link", "br", "col", "hr", "wbr"})


class Markup(str):
    """Text that is markup already and is taken as it is."""

    __slots__ = ()


def tag(name: str, /, *children: str, **attributes: str | float | None) -> Markup:
    """An element. Children and attributes that are no `Markup` are escaped.

    Attributes: `_` stands for `-`, a `_` at the end is dropped (class_, for_); None is left out.
    """
    stated = "".join(
        f' {key.rstrip("_").replace("_", "-")}="{_number(value)}"'
        for key, value in attributes.items()
        if value is not None
    )
    if name in _VOID:
        return Markup(f"<{name}{stated}/>")
    return Markup(f"<{name}{stated}>{joined(children)}</{name}>")


def joined(children: Sequence[str]) -> Markup:
    """Children one after the other."""
    return Markup("".join(c if isinstance(c, Markup) else escape(c) for c in children))


def breakable(text: str) -> Markup:
    """A name that may go on in the next line behind each of its underscores."""
    first, *others = text.split("_")
    return joined([first, *(part for each in others for part in ("_", tag("wbr"), each))])


def share(fraction: float) -> str:
    """A fraction of the width of a drawing."""
    return f"{100 * fraction:.3f}%"


def _number(value: str | float) -> str:
    return escape(value) if isinstance(value, str) else f"{value:g}"


def ascii_only(page: str) -> str:
    """The same page in ASCII, whatever the encoding of the stream that it is printed to."""
    return page.encode("ascii", "xmlcharrefreplace").decode("ascii")

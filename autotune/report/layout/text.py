"""Sections as text for a terminal: 80 columns are enough, colour only where it is wanted."""

from __future__ import annotations

import re
import textwrap
import unicodedata
from dataclasses import replace
from functools import lru_cache
from typing import TYPE_CHECKING

from autotune.report.layout.blocks import Bars, Bullets, Commands, Paragraph, Table

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator, Sequence

    from autotune.report.layout.blocks import Bar, Block, Section

    Line = list[tuple[str, str]]  # texts, each in its style

NARROWEST, WIDEST = 40, 120
FEWEST_CELLS, LEAST_CELLS = 10, 4  # [columns] for bars: beside wrapped names; beside one long word
NARROW_COLUMN, GAP = 11, 2  # [columns] least room for text that wraps; between columns
GRID_OF_WORDS = 60  # [columns] from here on a column may break a long word: a source's path
BULLET, EXPLAINED = 2, 4  # [columns] before an item; before what a command does
_CODES = {  # of a terminal, by style. Source: ECMA-48, 8.3.117 (select graphic rendition)
    "bold": "1", "dim": "2", "italic": "3", "green": "32", "yellow": "33", "blue": "34",
    "magenta": "35", "cyan": "36", "bright_green": "92", "bright_cyan": "96", "bold red": "1;31",
}  # fmt: skip
TITLES = "dim"  # the style of a table's titles
_WORD = re.compile(r"\s*\S+\s*")
_CONTROL = dict.fromkeys((7, 8, 11, 12, 13))  # they move the cursor
_NO_COLUMN = ("Mn", "Me", "Cf")  # marks on the character before, and what formats
_TONES = {
    "plain": "",
    "strong": "bold",
    "good": "green",
    "warn": "yellow",
    "bad": "bold red",
    "quiet": "dim",
}
_PART_COLOURS = ("cyan", "green", "yellow", "magenta", "blue", "bright_cyan", "bright_green")
_BAR_COLOURS = {"count": "cyan", "total": "bold", "free": "dim", "over": "bold red"}
_ASCII = str.maketrans({"█": "#", "▏": "|", "░": ".", "─": "-"})


def sections_text(
    sections: Sequence[Section],
    *,
    width: int = 80,
    colour: bool = False,
    gaps: Collection[int] | None = None,
) -> str:
    """Any report as text; without colour there is no escape sequence in it.

    gaps: the sections that an empty line stands before; None: all but the first.
    """
    wide = max(NARROWEST, min(width, WIDEST))
    texts: list[str] = []
    for number, section in enumerate(sections):
        if number and (gaps is None or number in gaps):
            texts.append("\n")
        if section.title:
            texts.append(_drawn_text(section.title, wide, 0, colour))
        indent = 2 if section.title else 0
        texts += [_drawn_text(block, wide, indent, colour) for block in section.blocks]
    lines = "".join(texts).splitlines()
    return "\n".join(line.rstrip() for line in lines) + "\n"


@lru_cache(maxsize=256)
def _drawn_text(block: Block | str, width: int, indent: int, colour: bool) -> str:  # noqa: FBT001 - a key
    """A block or a title as it is printed; a screen's several lengths share most of them."""
    if isinstance(block, str):
        lines = [[(line, "bold")] for line in wrapped(block, width)]
    else:
        lines = list(_lines(block, width - indent))
    lead = " " * indent
    return "".join(f"{lead}{''.join(_painted(*part, colour) for part in line)}\n" for line in lines)


def _painted(text: str, style: str, colour: bool) -> str:  # noqa: FBT001 - of every part
    """A text as a terminal shows it in that style."""
    return f"\x1b[{_CODES[style]}m{text}\x1b[0m" if colour and style and text else text


def to_ascii(text: str) -> str:
    """The same text for a stream that cannot show block characters."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def columns_of(text: str) -> int:
    """[columns] of a terminal that a text takes: some characters take two, or none."""
    if text.isascii():
        return len(text)
    taken = 0
    for character in text:
        if unicodedata.east_asian_width(character) in "WF":
            taken += 2
        elif unicodedata.category(character) not in _NO_COLUMN:
            taken += 1
    return taken


def wrapped(text: str, width: int) -> list[str]:
    """A text in lines of so many columns: broken before words, and in one that is longer."""
    lines: list[str] = []
    for stated in text.translate(_CONTROL).expandtabs().split("\n"):
        line, taken = "", 0
        for word in _WORD.findall(stated):
            bare = columns_of(word.rstrip())
            if taken and taken + bare > width:
                lines.append(line)
                line, taken = "", 0
            while bare > width:
                fits = _within(word, width)
                lines.append(word[:fits])
                word = word[fits:]  # noqa: PLW2901 - what is left of it
                bare = columns_of(word.rstrip())
            line, taken = line + word, taken + columns_of(word)
        lines.append(line)
    return lines


def _within(text: str, width: int) -> int:
    """How many of its first characters fit; at least one."""
    count = 1
    while columns_of(text[: count + 1]) <= width:
        count += 1
    return count


def _lines(block: Block, width: int) -> Iterator[Line]:
    """A block in lines of so many columns."""
    if isinstance(block, Paragraph):
        for line in wrapped(block.text, width):
            yield [(line, _TONES[block.tone])]
    elif isinstance(block, Bullets):
        for item in block.items:
            for number, line in enumerate(wrapped(item, width - BULLET)):
                yield [("  " if number else "- ", ""), (line, _TONES[block.tone])]
    elif isinstance(block, Commands):
        for command, what in block.items:
            yield [(command, "cyan")]  # in one piece: a wrapped command cannot be copied
            for line in wrapped(what, width - EXPLAINED) if what else ():
                yield [(" " * EXPLAINED, ""), (line, "dim")]
    elif isinstance(block, Table):
        yield from _table_lines(block, width)
    else:
        yield from _bar_lines(block, width)


def _table_lines(block: Table, width: int) -> Iterator[Line]:
    """A table. Rows that head a group take a line of their own, and then there are no titles."""
    rows = [cells for i, cells in enumerate(block.rows) if i not in block.group_rows]
    needed = [max(map(columns_of, column)) for column in zip(block.titles, *rows, strict=True)]
    pending: list[tuple[str, tuple[str, ...]]] = []
    if any(block.titles) and not block.group_rows:
        pending.append((TITLES, block.titles))
    for number, cells in enumerate(block.rows):
        if number in block.group_rows:
            yield from _grid_lines(block, pending, needed, width)
            pending = []
            yield from ([(line, "italic")] for line in wrapped(cells[0], width))
        else:
            pending.append(("bold" if number in block.strong_rows else "", cells))
    yield from _grid_lines(block, pending, needed, width)


def _grid_lines(
    block: Table, rows: Sequence[tuple[str, tuple[str, ...]]], needed: Sequence[int], width: int
) -> Iterator[Line]:
    """Rows under columns that are as wide as what stands in them, or as there is room for."""
    if not rows:
        return
    last = len(needed) - 1
    whole = _unwrapped(block, needed, width)
    if block.group_rows:  # one width for all groups
        whole |= {i for i in range(len(needed)) if i in block.right or i < last}
    widths = [
        needed[i]
        if i in whole
        else max(columns_of(line) for text in column for line in text.split("\n"))
        for i, column in enumerate(zip(*(cells for _, cells in rows), strict=True))
    ]
    _narrow(widths, set(range(len(widths))) - whole, width - GAP * last)
    if whole and 0 not in whole and widths[0] < min(NARROW_COLUMN, needed[0]):
        own = [needed[index] for index in sorted(whole)]
        if sum(own) + GAP * len(own) > width:
            yield from _listed_lines(block, rows, width)
        else:
            yield from _stacked_lines(block, rows, sorted(whole), needed, width)
        return
    if _breaks(rows, widths, width):
        yield from _listed_lines(block, rows, width)
        return
    for style, cells in rows:
        columns = [
            [_aligned(line, own, style, right=index in block.right) for line in wrapped(cell, own)]
            for index, (cell, own) in enumerate(zip(cells, widths, strict=True))
        ]
        empty = [[("", ""), (" " * own, "")] for own in widths]
        high = max(map(len, columns))
        for column, nothing in zip(columns, empty, strict=True):
            missing = [nothing] * (high - len(column))
            column[:] = missing + column if style == TITLES else column + missing
        for parts in zip(*columns, strict=True):
            between: Line = [(" " * GAP, "")]
            yield [part for own in parts for part in (*between, *own)][len(between) :]


def _stacked_lines(
    block: Table, rows: Sequence[tuple[str, tuple[str, ...]]], whole: Sequence[int],
    needed: Sequence[int], width: int,
) -> Iterator[Line]:  # fmt: skip
    """Rows whose words have no room beside the cells in one piece: they stand above and below."""
    indent, room = " " * GAP, width - GAP
    rest = replace(block, columns=tuple(block.columns[index] for index in whole), rows=())
    for style, cells in rows:
        yield from ([(line, style)] for line in wrapped(cells[0], width) if line)
        kept = tuple(cells[index] for index in whole)
        for line in _grid_lines(rest, [(style, kept)], [needed[index] for index in whole], room):
            yield [(indent, ""), *line]
        for index in sorted(set(range(1, len(cells))) - set(whole)):
            yield from (
                [(indent, ""), (line, style)] for line in wrapped(cells[index], room) if line
            )


def _listed_lines(
    block: Table, rows: Sequence[tuple[str, tuple[str, ...]]], width: int
) -> Iterator[Line]:
    """Rows that no grid of so many columns holds whole: each cell behind its title."""
    for style, (first, *others) in rows:
        if style == TITLES:
            continue
        if 0 in block.right:
            first = f"{block.titles[0]} {first}".lstrip()  # noqa: PLW2901 - a bare number says little
        stated = [
            f"{title} {cell}" if title else cell
            for title, cell in zip(block.titles[1:], others, strict=True)
            if cell
        ]
        if len(others) == 1:  # a name and what it is
            stated = []
            first = f"{first}: {others[0]}" if others[0] else first  # noqa: PLW2901 - one line
        yield from ([(line, style)] for line in wrapped(first, width) if line)
        for line in wrapped("; ".join(stated), width - GAP) if stated else ():
            yield [(" " * GAP, ""), (line, style)]


def _aligned(text: str, width: int, style: str, *, right: bool) -> Line:
    """A cell's line, as wide as its column."""
    bare = text.rstrip()
    both = [(bare, style), (" " * (width - columns_of(bare)), "")]
    return both[::-1] if right else both


def _breaks(rows: Sequence[tuple[str, tuple[str, ...]]], widths: Sequence[int], width: int) -> bool:
    """Whether columns of these widths are too wide together, or break a word that has room."""
    if sum(widths) + GAP * (len(widths) - 1) > width:
        return True
    return width < GRID_OF_WORDS and any(
        own < columns_of(word) <= width - GAP
        for _, cells in rows
        for cell, own in zip(cells, widths, strict=True)
        for word in cell.split()
    )


def _narrow(widths: list[int], wrapping: set[int], room: int) -> None:
    """Take what is too much from the widest of the columns that wrap, the last of equals first."""
    while sum(widths) > room and any(widths[index] > 1 for index in wrapping):
        widths[max(wrapping, key=lambda index: (widths[index], index))] -= 1


def _unwrapped(block: Table, widths: Sequence[int], available: int) -> set[int]:
    """Columns kept on one line: all numbers, then the narrowest text as long as there is room."""
    numbers = [index for index in range(len(widths)) if index in block.right]
    words = sorted(set(range(len(widths))) - block.right, key=lambda index: widths[index])
    room = available - GAP * (len(widths) - 1) - sum(widths[index] for index in numbers)
    kept = set(numbers)
    for position, index in enumerate(words):
        least = sum(min(widths[other], NARROW_COLUMN) for other in words[position + 1 :])
        if widths[index] + least > room:
            break
        room -= widths[index]
        kept.add(index)
    return kept


def _bar_lines(block: Bars, width: int) -> Iterator[Line]:
    """Bars beside their names and numbers; without bars where only those have room."""
    numbers = max(len(bar.shown) for bar in block.bars)
    room = width - numbers - 10
    words = [(place, word) for bar in block.bars for place, word in enumerate(bar.name.split())]
    longest = max(len(word) + (BULLET if place else 0) for place, word in words)
    least = max(room - FEWEST_CELLS, min(longest, room - LEAST_CELLS), 1)
    names = min(max(len(bar.name) for bar in block.bars), least)
    beside = names >= longest
    cells = room - names if beside else 0
    part = 0
    for bar in block.bars:
        colour = _BAR_COLOURS.get(bar.kind) or _PART_COLOURS[part % len(_PART_COLOURS)]
        part += bar.kind == "part"
        style = "bold" if bar.kind == "total" else ""
        if not beside:
            yield from ([(line, style)] for line in wrapped(bar.name, width))
            yield from ([(f"  {x}", style)] for x in wrapped(f"{bar.shown} {bar.share}", width - 2))
            continue
        *above, name = textwrap.wrap(bar.name, names, subsequent_indent="  ") or [""]
        yield from ([(begun, "")] for begun in above)
        lead = f"{name:<{names}}  {bar.shown:>{numbers}} {bar.share:>4}  "
        yield [(lead, style), (_drawn(bar, cells), colour)]


def _drawn(bar: Bar, cells: int) -> str:
    """A bar from its start to its end, both rounded, so that neighbours meet without a gap."""
    start, end = round(bar.start * cells), round((bar.start + bar.length) * cells)
    block = "░" if bar.kind == "free" else "█"
    if end == start:
        return " " * min(start, cells - 1) + "▏"
    return " " * start + block * (end - start)

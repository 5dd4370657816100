"""Sections as text for a terminal: 80 columns are enough, colour only where it is wanted."""

from __future__ import annotations

import textwrap
from functools import lru_cache
from io import StringIO
from typing import TYPE_CHECKING

from autotune.report.layout.blocks import Bars, Bullets, Commands, Paragraph, Table

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from rich.console import Console

    from autotune.report.layout.blocks import Bar, Block, Section

NARROWEST, WIDEST = 40, 120
FEWEST_CELLS = 10  # [columns] that the bars have at least
NARROW_COLUMN, GAP = 11, 2  # [columns] least room for text that wraps; between columns
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
    from rich.console import Console
    from rich.text import Text

    stream = StringIO()
    console = Console(
        file=stream,
        width=width,
        force_terminal=colour,
        color_system="standard" if colour else None,
        no_color=not colour,
        highlight=False,
        markup=False,  # nor names of emoji, whose table alone takes as long as a screen
        emoji=False,
        legacy_windows=False,
        _environ={},
    )
    if isinstance(block, str):
        console.print(Text(block, style="bold"))
    else:
        _print(console, block, indent)
    return stream.getvalue()


def to_ascii(text: str) -> str:
    """The same text for a stream that cannot show block characters."""
    return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


def _print(console: Console, block: Block, indent: int) -> None:
    from rich.padding import Padding
    from rich.text import Text

    if isinstance(block, Paragraph):
        console.print(Padding(Text(block.text, style=_TONES[block.tone]), (0, 0, 0, indent)))
    elif isinstance(block, Bullets):
        _print_bullets(console, block, indent)
    elif isinstance(block, Commands):
        _print_commands(console, block, indent)
    elif isinstance(block, Table):
        _print_table(console, block, indent)
    else:
        _print_bars(console, block, indent)


def _print_bullets(console: Console, block: Bullets, indent: int) -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    grid = Grid.grid(padding=(0, 1, 0, 0))
    grid.add_column(no_wrap=True)
    grid.add_column(overflow="fold")
    for item in block.items:
        grid.add_row(Text("-"), Text(item, style=_TONES[block.tone]))
    _print_indented(console, grid, indent)


def _print_commands(console: Console, block: Commands, indent: int) -> None:
    """Commands are never wrapped: a wrapped command cannot be copied."""
    from rich.padding import Padding
    from rich.text import Text

    for command, what in block.items:
        console.print(Text(" " * indent + command, style="cyan"), no_wrap=True, soft_wrap=True)
        if what:
            console.print(Padding(Text(what, style="dim"), (0, 0, 0, indent + 4)))


def _print_table(console: Console, block: Table, indent: int) -> None:
    """A table. Rows that head a group take a line of their own, and then there are no titles."""
    from rich.text import Text

    rows = [cells for i, cells in enumerate(block.rows) if i not in block.group_rows]
    widths = [max(len(c) for c in column) for column in zip(block.titles, *rows, strict=True)]
    pending: list[tuple[int, tuple[str, ...]]] = []
    for number, cells in enumerate(block.rows):
        if number in block.group_rows:
            _print_grid(console, block, pending, widths, indent)
            pending = []
            console.print(Text(" " * indent + cells[0], style="italic"))
        else:
            pending.append((number, cells))
    _print_grid(console, block, pending, widths, indent)


def _print_grid(
    console: Console,
    block: Table,
    rows: Sequence[tuple[int, tuple[str, ...]]],
    widths: Sequence[int],
    indent: int,
) -> None:
    from rich.table import Table as Grid
    from rich.text import Text

    if not rows:
        return
    grouped = bool(block.group_rows)
    titled = not grouped and any(block.titles)
    whole = _unwrapped(block, widths, console.width - indent)
    grid = Grid(box=None, padding=(0, GAP, 0, 0), pad_edge=False, show_header=titled)
    for index, title in enumerate(block.titles):
        right = index in block.right
        aligned = grouped and (right or index < len(widths) - 1)
        grid.add_column(
            Text(title, style="dim"),
            justify="right" if right else "left",
            overflow="fold",
            no_wrap=index in whole,
            min_width=widths[index] if aligned or index in whole else None,
        )
    for number, cells in rows:
        style = "bold" if number in block.strong_rows else ""
        grid.add_row(*(Text(cell, style=style) for cell in cells))
    _print_indented(console, grid, indent)


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


def _print_bars(console: Console, block: Bars, indent: int) -> None:
    from rich.text import Text

    numbers = max(len(bar.shown) for bar in block.bars)
    room = console.width - indent - numbers - 10
    names = min(max(len(bar.name) for bar in block.bars), max(room - FEWEST_CELLS, FEWEST_CELLS))
    cells = max(room - names, FEWEST_CELLS)
    part = 0
    for bar in block.bars:
        colour = _BAR_COLOURS.get(bar.kind) or _PART_COLOURS[part % len(_PART_COLOURS)]
        part += bar.kind == "part"
        *above, name = textwrap.wrap(bar.name, names, subsequent_indent="  ") or [""]
        for begun in above:
            console.print(Text(f"{' ' * indent}{begun}"), no_wrap=True, crop=False)
        lead = f"{' ' * indent}{name:<{names}}  {bar.shown:>{numbers}} {bar.share:>4}  "
        line = Text(lead, style="bold" if bar.kind == "total" else "")
        console.print(line + Text(_drawn(bar, cells), style=colour), no_wrap=True, crop=False)


def _drawn(bar: Bar, cells: int) -> str:
    """A bar from its start to its end, both rounded, so that neighbours meet without a gap."""
    start, end = round(bar.start * cells), round((bar.start + bar.length) * cells)
    block = "░" if bar.kind == "free" else "█"
    if end == start:
        return " " * min(start, cells - 1) + "▏"
    return " " * start + block * (end - start)


def _print_indented(console: Console, renderable: object, indent: int) -> None:
    from rich.padding import Padding

    console.print(Padding(renderable, (0, 0, 0, indent)))  # type: ignore[arg-type]

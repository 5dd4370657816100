"""Drawings in one dimension: stacked bars, ranges, steps from one bill to another, a timeline.

Widths are shares of the drawing and heights are pixels, so that a drawing is as legible on a phone
as on a screen. Every mark says its number when it is pointed at or reached by keyboard.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.report.html_markup import Markup, breakable, joined, share, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

BAR_PX, ROW_PX = 30, 20
LONG = 24  # characters of a name from which on names get more room
LEGIBLE = 0.05  # of the width: from here on a segment holds its own label


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of a bar. slot: which colour of the palette; it is the part's, in every bar."""

    name: str
    value: float
    shown: str
    slot: int


@dataclass(frozen=True, slots=True)
class Stack:
    """One bar: its name, its parts, their total as printed, and a limit to mark on it."""

    name: str
    shown: str
    segments: tuple[Segment, ...]
    total: str
    limit: float | None = None


@dataclass(frozen=True, slots=True)
class Range:
    """A middle with its 80 % interval (None: it has none), and what was measured of it."""

    name: str
    shown: str
    middle: float | None
    low: float | None = None
    high: float | None = None
    measured: float | None = None
    kind: str = "pick"


@dataclass(frozen=True, slots=True)
class Span:
    """A stretch of time, or a step of a waterfall, from start to end."""

    name: str
    shown: str
    start: float
    end: float
    kind: str


def stacks_html(stacks: Sequence[Stack], label: str) -> Markup:
    """Bars under each other on one scale."""
    ends = [max(sum(s.value for s in each.segments), each.limit or 0.0) for each in stacks]
    scale = max(ends, default=0.0) or 1.0
    return _figure(
        joined([row(each.name, each.shown, _stack(each, scale)) for each in stacks]), label
    )


def _stack(stack: Stack, scale: float) -> Markup:
    marks: list[str] = []
    start = 0.0
    for index, part in enumerate(stack.segments):
        width = part.value / scale
        marks.append(
            mark(
                "rect", f"{stack.name}: {part.name} {part.shown}", first=index == 0,
                x=share(start), width=share(width), y="0", height=str(BAR_PX),
                class_=f"seg s{part.slot}", data_value=repr(part.value),
            )
        )  # fmt: skip
        if width >= LEGIBLE:
            marks.append(
                tag(
                    "text", str(part.slot + 1), x=share(start + width / 2), y=str(BAR_PX - 10),
                    class_=f"in t{part.slot}", aria_hidden="true",
                )
            )  # fmt: skip
        start += width
    marks += _limit_line(stack.limit, scale, BAR_PX)
    return drawing(marks, BAR_PX, f"{stack.name}: {stack.shown}")


def ranges_html(ranges: Sequence[Range], label: str, limit: float | None = None) -> Markup:
    """Middles with intervals under each other, on one scale from zero."""
    values = [v for r in ranges for v in (r.middle, r.high, r.measured) if v is not None]
    scale = max([*values, limit or 0.0]) * 1.02 or 1.0
    rows = joined([row(r.name, r.shown, _range(r, scale, limit)) for r in ranges])
    return _figure(rows, label, "steps" if any(len(r.name) > LONG for r in ranges) else None)


def _range(item: Range, scale: float, limit: float | None) -> Markup:
    y = str(ROW_PX // 2)
    marks: list[str] = [tag("line", x1="0%", x2="100%", y1=y, y2=y, class_="track")]
    marks += _limit_line(limit, scale, ROW_PX)
    if item.low is not None and item.high is not None:
        width = max(item.high - item.low, 0.0) / scale
        marks.append(
            tag(
                "rect", x=share(item.low / scale), width=share(width), y="4",
                height=str(ROW_PX - 8), class_=f"interval {item.kind}",
            )
        )  # fmt: skip
    tip = f"{item.name}: {item.shown}"
    if item.middle is not None:
        at = share(item.middle / scale)
        marks.append(mark("circle", tip, first=True, cx=at, cy=y, r="6", class_="middle"))
    if item.measured is not None:
        cross = tag("path", d="M-6 -6L6 6M-6 6L6 -6", class_="cross")
        at = share(item.measured / scale)
        marks.append(tag("svg", cross, x=at, y=y, class_="at", aria_hidden="true"))
    return drawing(marks, ROW_PX, tip)


def spans_html(spans: Sequence[Span], label: str, limit: float | None = None) -> Markup:
    """Stretches under each other on one scale from zero."""
    scale = max([*(max(s.start, s.end) for s in spans), limit or 0.0]) or 1.0
    rows = joined([row(s.name, s.shown, _span(s, scale, limit)) for s in spans])
    return _figure(rows, label, "steps")


def _span(span: Span, scale: float, limit: float | None) -> Markup:
    low, high = sorted((max(span.start, 0.0) / scale, max(span.end, 0.0) / scale))
    shape = mark(
        "rect", f"{span.name}: {span.shown}", first=True, x=share(low),
        width=share(max(high - low, 0.002)), y="2", height=str(ROW_PX - 4),
        class_=f"span {span.kind}",
    )  # fmt: skip
    return drawing([shape, *_limit_line(limit, scale, ROW_PX)], ROW_PX, span.name)


def _limit_line(limit: float | None, scale: float, height: int) -> list[Markup]:
    if limit is None:
        return []
    at = share(limit / scale)
    return [tag("line", x1=at, x2=at, y1="-4", y2=str(height + 4), class_="limit")]


def row(name: str, shown: str, drawn: Markup) -> Markup:
    """A drawing beside its name and its numbers; on a phone, under them."""
    numbers = [tag("span", each) for each in re.split(r"\s{2,}", shown)]
    return tag("div", tag("span", breakable(name)), tag("b", *numbers), drawn, class_="row")


def drawing(marks: Sequence[str], height: int, label: str) -> Markup:
    """Marks as one stop of the Tab key; arrow keys go from mark to mark."""
    return tag(
        "svg", *marks, width="100%", height=str(height), role="group", aria_label=label,
        class_="marks",
    )  # fmt: skip


def mark(name: str, tip: str, *, first: bool, **attributes: str) -> Markup:
    """A shape that tells what it is when pointed at, touched or focused.

    The title is for pages without the script, which tells more at once and takes it away.
    """
    return tag(
        name, tag("title", tip), role="img", aria_label=tip, data_tip=tip,
        tabindex="0" if first else "-1", **attributes,
    )  # fmt: skip


def _figure(content: Markup, label: str, kind: str | None = None) -> Markup:
    return tag("figure", tag("figcaption", label), content, class_=kind)

"""Drawings that stand in a row of a table, beside the numbers that they draw.

Widths are shares of the drawing and heights are pixels, so that a drawing is as legible on a phone
as on a screen. The numbers are in the row, so a drawing is hidden from readers that cannot see it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.report.page.markup import Markup, share, tag

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.report.layout.blocks import Bar

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

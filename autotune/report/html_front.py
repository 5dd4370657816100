"""Time against money: what fits, the front of it, and where nothing can be."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from autotune.domain.outcome import FEASIBLE_PROBABILITY
from autotune.domain.units import HOUR_S, MINUTE_S, format_bytes, format_seconds, format_usd
from autotune.report.html_axis import Axis, axis_for
from autotune.report.html_bars import mark
from autotune.report.html_markup import Markup, joined, share, tag
from autotune.report.phrases import config_phrase, offer_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.report.schema import LimitsPayload, RecommendationPayload, Row

HEIGHT_PX = 320
EDGE = 0.15  # of the width: a name that near to an edge does not stand in the middle of its line
# A shape a role: told apart without colour.
SHAPES = {
    "pick": ("M0 -10L10 0L0 10L-10 0Z", "the pick"),
    "today": ("M0 -8L8 7L-8 7Z", "today"),
    "front": ("M-6 0A6 6 0 1 0 6 0A6 6 0 1 0 -6 0Z", "the front: nothing is sooner and cheaper"),
    "alternative": ("M-5 -5H5V5H-5Z", "another that fits"),
    "beyond": ("M-6 -6L6 6M-6 6L6 -6", "would be better, but does not fit"),
}


@dataclass(frozen=True, slots=True)
class Point:
    """One candidate."""

    role: str
    row: Row

    @property
    def at(self) -> tuple[float, float]:
        """Seconds and dollars."""
        return self.row["duration_s"]["p50"], self.row["cost_usd"]["p50"]

    @property
    def tip(self) -> str:
        """What it is, in a line."""
        time_s, usd = self.at
        memory = self.row["memory_bytes"]
        text = (
            f"{SHAPES[self.role][1]}: {offer_name(self.row)}, {config_phrase(self.row['config'])}; "
            f"{format_seconds(time_s)}, {format_usd(usd)}, {format_bytes(memory['total'])} "
            f"of {format_bytes(memory['usable'])}"
        )
        return text + ("" if self.role != "beyond" else ": does not fit")


def points_of(payload: RecommendationPayload) -> list[Point]:
    """Every candidate that the answer names, each once, the pick last so that it lies on top."""
    best, today = payload["best"], payload["today"]
    named = [("pick", best), ("today", today)]
    found = [Point(role, row) for role, row in named if row]
    found += [Point("front", row) for row in payload["pareto"]]
    found += [Point("alternative", row) for row in payload["alternatives"]]
    found += [Point("beyond", row) for row in payload.get("beyond", [])]
    found += [Point("alternative", row) for row in payload.get("machines", []) if feasible(row)]
    return each_once(found)


def feasible(row: Row) -> bool:
    """Whether it fits, by the numbers of the row."""
    memory = row["memory_bytes"]
    within = memory["total"] <= memory["usable"]
    return within and row["fits_probability"] >= FEASIBLE_PROBABILITY


def each_once(found: Sequence[Point]) -> list[Point]:
    """The first of each candidate, in reverse order."""
    seen: dict[tuple[object, ...], Point] = {}
    for point in found:
        row = point.row
        key = (offer_name(row), row["usd_per_hour"], *row["config"].values())
        seen.setdefault(key, point)
    return list(reversed(seen.values()))


def front_html(payload: RecommendationPayload) -> Markup:
    """The plane of time and money; nothing where nothing fits, is paid or is to be compared."""
    if not payload["best"]:
        return Markup()
    points, limits = points_of(payload), payload["job"]["limits"]
    free = not any(point.at[1] for point in points)
    if len(points) < 2 or free:  # noqa: PLR2004 - one point is no comparison
        return Markup()
    times, costs = axis_for([p.at[0] for p in points]), axis_for([p.at[1] for p in points])
    front = sorted({(r["duration_s"]["p50"], r["cost_usd"]["p50"]) for r in payload["pareto"]})
    drawn = [
        _grid(times, costs),
        _unreached(front, times, costs),
        _limits(limits, times, costs),
        _staircase(front, times, costs),
        _limit_names(limits, times, costs),
        *(_point(point, times, costs, first=i == 0) for i, point in enumerate(points)),
    ]
    plot = tag(
        "svg", _PATTERNS, *drawn, width="100%", height=str(HEIGHT_PX), role="group",
        aria_label="Duration against cost", class_="marks plot",
    )  # fmt: skip
    caption = tag("figcaption", "Duration (across) against cost (up) of the whole run")
    past = bool(_within(_stated(limits), times) or _within([("", limits["budget_usd"])], costs))
    legend = _legend(points, front, past=past)
    return tag("figure", caption, tag("div", plot, class_="plane"), legend)


_PATTERNS = tag(
    "defs",
    tag(
        "pattern", tag("path", d="M0 10L10 0", class_="hatch"), id="hatch-empty", width="10",
        height="10", patternUnits="userSpaceOnUse",
    ),
)  # fmt: skip


def _x(axis: Axis, value: float) -> str:
    return share(axis.place(value))


def _y(axis: Axis, value: float) -> float:
    return round((1.0 - axis.place(value)) * HEIGHT_PX, 2)


def _grid(times: Axis, costs: Axis) -> Markup:
    bottom = str(HEIGHT_PX)
    marks: list[str] = []
    for value in costs.ticks():
        y = f"{_y(costs, value):g}"
        marks.append(tag("line", x1="0%", x2="100%", y1=y, y2=y, class_="grid"))
        marks.append(tag("text", format_usd(value), x="-8", y=y, dy="4", class_="tick left"))
    unit, name = _time_unit(times.high)
    for value in Axis(times.low / unit, times.high / unit, times.logarithmic).ticks():
        x = _x(times, value * unit)
        marks.append(tag("line", x1=x, x2=x, y1="0", y2=bottom, class_="grid"))
        marks.append(
            tag("text", f"{value:g} {name}", x=x, y=str(HEIGHT_PX + 18), class_="tick under")
        )
    return joined(marks)


def _time_unit(longest_s: float) -> tuple[float, str]:
    if longest_s >= 2 * HOUR_S:
        return HOUR_S, "h"
    return (MINUTE_S, "min") if longest_s >= 2 * MINUTE_S else (1.0, "s")


def _unreached(front: Sequence[tuple[float, float]], times: Axis, costs: Axis) -> Markup:
    """Sooner and cheaper than the front: nothing that fits is there."""
    if not front:
        return Markup()
    edges = [0.0, *(times.place(time_s) for time_s, _ in front), 1.0]
    tops = [0.0, *(_y(costs, usd) for _, usd in front)]
    strips = [
        tag(
            "rect", x=share(left), width=share(max(right - left, 0.0)), y=f"{top:g}",
            height=f"{HEIGHT_PX - top:g}", class_="empty",
        )
        for left, right, top in zip(edges[:-1], edges[1:], tops, strict=True)
    ]  # fmt: skip
    return joined(list(strips))


def _staircase(front: Sequence[tuple[float, float]], times: Axis, costs: Axis) -> Markup:
    lines: list[str] = []
    for (time_s, usd), following in zip(front, [*front[1:], None], strict=False):
        y = f"{_y(costs, usd):g}"
        end = _x(times, following[0]) if following else "100%"
        lines.append(tag("line", x1=_x(times, time_s), x2=end, y1=y, y2=y, class_="stair"))
        top = "0" if not lines[1:] else f"{_y(costs, front[len(lines) // 2 - 1][1]):g}"
        lines.append(
            tag("line", x1=_x(times, time_s), x2=_x(times, time_s), y1=top, y2=y, class_="stair")
        )
    return joined(lines)


def _limits(limits: LimitsPayload, times: Axis, costs: Axis) -> Markup:
    """What lies past a stated limit, where the drawing reaches that far."""
    marks: list[str] = []
    bottom = str(HEIGHT_PX)
    for _, limit in _within(_stated(limits), times):
        at = times.place(limit)
        x = share(at)
        marks += [
            tag("rect", x=x, width=share(1 - at), y="0", height=bottom, class_="past"),
            tag("line", x1=x, x2=x, y1="0", y2=bottom, class_="past"),
        ]
    for _, budget in _within([("budget", limits["budget_usd"])], costs):
        y = f"{_y(costs, budget):g}"
        marks += [
            tag("rect", x="0%", width="100%", y="0", height=y, class_="past"),
            tag("line", x1="0%", x2="100%", y1=y, y2=y, class_="past"),
        ]
    return joined(marks)


def _limit_names(limits: LimitsPayload, times: Axis, costs: Axis) -> Markup:
    """What each limit is, written over all lines."""
    marks = []
    for name, limit in _within(_stated(limits), times):
        at = times.place(limit)
        side = "" if at < EDGE else "ends" if at > 1 - EDGE else "under"
        words = f"{name} {format_seconds(limit)}"
        marks.append(tag("text", words, x=share(at), y="-6", class_=f"tick {side}".strip()))
    for name, budget in _within([("budget", limits["budget_usd"])], costs):
        words = f"{name} {format_usd(budget)}"
        marks.append(
            tag(
                "text", words, x="100%", y=f"{_y(costs, budget):g}", dx="-6", dy="-6",
                class_="tick ends past",
            )
        )  # fmt: skip
    return joined(marks)


def _stated(limits: LimitsPayload) -> list[tuple[str, float | None]]:
    return [("deadline", limits["deadline_s"]), ("session", limits["max_session_s"])]


def _within(named: Sequence[tuple[str, float | None]], axis: Axis) -> list[tuple[str, float]]:
    return [(name, value) for name, value in named if value and axis.low < value < axis.high]


def _point(point: Point, times: Axis, costs: Axis, *, first: bool) -> Markup:
    time_s, usd = point.at
    shape = mark("path", point.tip, first=first, d=SHAPES[point.role][0], class_=f"p {point.role}")
    return tag("svg", shape, x=_x(times, time_s), y=f"{_y(costs, usd):g}", class_="at")


def _legend(points: Sequence[Point], front: Sequence[tuple[float, float]], *, past: bool) -> Markup:
    present = {point.role for point in points}
    items = [
        tag("li", _swatch(tag("path", d=path, class_=f"p {role}")), words)
        for role, (path, words) in SHAPES.items()
        if role in present
    ]
    if front:
        area = tag("rect", x="-9", y="-7", width="18", height="14", class_="empty")
        items.append(tag("li", _swatch(area), "nothing that fits is here"))
    if past:
        area = tag("rect", x="-9", y="-7", width="18", height="14", class_="past")
        line = tag("line", x1="-9", x2="-9", y1="-9", y2="9", class_="past")
        items.append(tag("li", _swatch(joined([area, line])), "past a limit of the job"))
    return tag("ul", *items, class_="legend")


def _swatch(shape: Markup) -> Markup:
    return tag("svg", shape, width="22", height="22", viewBox="-11 -11 22 22", aria_hidden="true")

"""Time against money on the page: each machine's best, their front, what cannot be."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.outcome import FEASIBLE_PROBABILITY
from autotune.domain.units import format_bytes, format_seconds, format_usd
from autotune.frozen import dataclass
from autotune.report.page.axis import Axis, axis_for, time_unit
from autotune.report.page.bills import figure_cell, figures, missed
from autotune.report.page.blocks import Markup, head_html, joined, share, tag
from autotune.report.phrases import config_phrase, marks_note, offer_name, price_marks, probability
from autotune.report.sections.settings import thinned

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.report.schema import LimitsPayload, RecommendationPayload, Row


HEIGHT_PX = 180
MACHINES = 3  # prices an hour from which on money says something else than time
BADGE_PX = 9  # radius of a mark that holds a letter
# A shape a role: told apart without colour.
SHAPES = {
    "pick": ("", "the pick"),
    "today": ("M0 -8L8 7L-8 7Z", "today"),
    "front": ("M-4 0A4 4 0 1 0 4 0A4 4 0 1 0 -4 0Z", "on the front"),
    "alternative": ("M-3.5 -3.5H3.5V3.5H-3.5Z", "another that fits"),
    "beyond": ("M-5 -5L5 5M-5 5L5 -5", "would be better, but does not fit"),
}


@dataclass(frozen=True, slots=True)
class Point:
    """One candidate."""

    role: str
    row: Row

    @property
    def at(self) -> tuple[float, float]:
        """Seconds and dollars."""
        return self.row.duration_s.p50, self.row.cost_usd.p50

    @property
    def tip(self) -> str:
        """What it is, in a line."""
        time_s, usd = self.at
        memory = self.row.memory_bytes
        text = (
            f"{SHAPES[self.role][1]}: {offer_name(self.row)}, {config_phrase(self.row.config)}; "
            f"{format_seconds(time_s)}, {format_usd(usd)}, {format_bytes(memory['total'])} "
            f"of {format_bytes(memory['usable'])}"
        )
        return text + ("" if self.role != "beyond" else ": does not fit")


def points_of(payload: RecommendationPayload) -> list[Point]:
    """Every candidate that the answer names, each once, the pick last so that it lies on top."""
    best, today = payload.best, payload.today
    named = [("pick", best), ("today", today)]
    found = [Point(role, row) for role, row in named if row]
    found += [Point("front", row) for row in payload.pareto]
    found += [Point("alternative", row) for row in payload.alternatives]
    found += [Point("beyond", row) for row in payload.beyond]
    found += [Point("alternative", row) for row in payload.machines if feasible(row)]
    return each_once(found)


def feasible(row: Row) -> bool:
    """Whether it fits, by the numbers of the row."""
    memory = row.memory_bytes
    within = memory["total"] <= memory["usable"]
    return within and row.fits_probability >= FEASIBLE_PROBABILITY


def each_once(found: Sequence[Point]) -> list[Point]:
    """The first of each candidate, in reverse order."""
    seen: dict[tuple[object, ...], Point] = {}
    for point in found:
        seen.setdefault(key_of(point.row), point)
    return list(reversed(seen.values()))


def key_of(row: Row) -> tuple[object, ...]:
    """What tells a candidate from the others."""
    return (offer_name(row), row.usd_per_hour, *row.config.values())


def front_html(payload: RecommendationPayload, letters: Mapping[tuple[object, ...], str]) -> Markup:
    """The plane of time and money; nothing where it would only show one price an hour.

    letters: the candidates that are marked by a letter, as a table beside it names them.
    """
    points, limits = points_of(payload), payload.job.limits
    prices = {point.row.usd_per_hour for point in points if point.role != "beyond"}
    if not payload.best or len(prices) < MACHINES:
        return Markup()
    times, costs = axis_for([p.at[0] for p in points]), axis_for([p.at[1] for p in points])
    front = sorted({(r.duration_s.p50, r.cost_usd.p50) for r in payload.pareto})
    lettered = [point for point in points if key_of(point.row) in letters]
    order = [*(point for point in points if point not in lettered), *lettered]
    drawn = [
        _grid(times, costs),
        _limits(limits, times, costs),
        _staircase(front, times, costs),
        *(
            _point(point, times, costs, letters.get(key_of(point.row), ""), first=i == 0)
            for i, point in enumerate(order)
        ),
    ]
    plot = tag(
        "svg", *drawn, width="100%", height=str(HEIGHT_PX), role="group",
        aria_label="Duration against cost; the table below has the numbers", class_="marks plot",
    )  # fmt: skip
    words = "Duration of the whole run (across) against its cost (up). Letters: the table below."
    legend = _legend(order, limits, times, costs, letters)
    return joined([tag("figcaption", words), tag("div", plot, class_="plane"), legend])


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
    unit, name = time_unit(times.high)
    for value in Axis(times.low / unit, times.high / unit, times.logarithmic).ticks():
        x = _x(times, value * unit)
        marks.append(tag("line", x1=x, x2=x, y1="0", y2=bottom, class_="grid"))
        marks.append(
            tag("text", f"{value:g} {name}", x=x, y=str(HEIGHT_PX + 18), class_="tick under")
        )
    return joined(marks)


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
    for _, budget in _within([("budget", limits.budget_usd)], costs):
        y = f"{_y(costs, budget):g}"
        marks += [
            tag("rect", x="0%", width="100%", y="0", height=y, class_="past"),
            tag("line", x1="0%", x2="100%", y1=y, y2=y, class_="past"),
        ]
    return joined(marks)


def _stated(limits: LimitsPayload) -> list[tuple[str, float | None]]:
    return [("deadline", limits.deadline_s), ("session", limits.max_session_s)]


def _within(named: Sequence[tuple[str, float | None]], axis: Axis) -> list[tuple[str, float]]:
    return [(name, value) for name, value in named if value and axis.low < value < axis.high]


def _point(point: Point, times: Axis, costs: Axis, letter: str, *, first: bool) -> Markup:
    time_s, usd = point.at
    tip = f"{letter}, {point.tip}" if letter else point.tip
    if not letter:
        path = SHAPES[point.role][0] or SHAPES["front"][0]
        marks = [mark("path", tip, first=first, d=path, class_=f"p {point.role}")]
    else:
        circle = mark("circle", tip, first=first, r=str(BADGE_PX), class_=f"p named {point.role}")
        name = tag("text", letter, dy="4", class_=f"in {point.role}", aria_hidden="true")
        marks = [circle, name]
    return tag("svg", *marks, x=_x(times, time_s), y=f"{_y(costs, usd):g}", class_="at")


def mark(name: str, tip: str, *, first: bool, **attributes: str) -> Markup:
    """A shape that tells what it is when pointed at, touched or reached with the arrow keys.

    The title is for pages without the script, which tells more at once and takes it away.
    """
    return tag(
        name, tag("title", tip), role="img", aria_label=tip, data_tip=tip,
        tabindex="0" if first else "-1", **attributes,
    )  # fmt: skip


def _legend(
    points: Sequence[Point],
    limits: LimitsPayload,
    times: Axis,
    costs: Axis,
    letters: Mapping[tuple[object, ...], str],
) -> Markup:
    """What the shapes and lines are: no name stands in the drawing, where a line could cross it."""
    plain = {point.role for point in points if key_of(point.row) not in letters}
    items = [
        tag("li", _swatch(tag("path", d=path, class_=f"p {role}")), words)
        for role, (path, words) in SHAPES.items()
        if role in plain - {"front"} and path
    ]
    stairs = tag("path", d="M-10 -5H0V5H10", class_="stair")
    items.append(tag("li", _swatch(stairs), "the front: nothing that fits is sooner and cheaper"))
    for name, limit in _within(_stated(limits), times):
        line = tag("line", x1="0", x2="0", y1="-10", y2="10", class_="past")
        items.append(tag("li", _swatch(line), f"{name} {format_seconds(limit)}"))
    for name, budget in _within([("budget", limits.budget_usd)], costs):
        line = tag("line", x1="-10", x2="10", y1="0", y2="0", class_="past")
        items.append(tag("li", _swatch(line), f"{name} {format_usd(budget)}"))
    return tag("ul", *items, class_="legend")


def _swatch(shape: Markup) -> Markup:
    return tag("svg", shape, width="22", height="22", viewBox="-11 -11 22 22", aria_hidden="true")


SHOWN = 4
MISFITS = 4  # that are named
LETTERS = "ABCD"
TITLES = ("machine", "duration", "cost", "peak memory")
ALL_TITLES = ("machine", "configuration", "duration", "cost", "price/h", "memory", "fits",
              "bound by")  # fmt: skip
ROLES = {"front": "on the front", "alternative": "alternative", "beyond": "does not fit",
         "misfit": "does not fit"}  # fmt: skip


def machines(payload: RecommendationPayload) -> list[Row]:
    """The best row of each machine that fits, the cheapest first; of the pick's machine the pick.

    The pick may be the simpler of a tie, and a hair dearer than its machine's cheapest.
    """
    pick = [payload.best] if payload.best else []
    rest = sorted([*payload.pareto, *payload.machines], key=lambda row: row.cost_usd.p50)
    by_name: dict[tuple[str, float], Row] = {}
    for row in filter(feasible, [*pick, *rest]):
        by_name.setdefault((offer_name(row), row.usd_per_hour), row)
    return sorted(by_name.values(), key=lambda row: row.cost_usd.p50)


def keeping(payload: RecommendationPayload) -> list[Row]:
    """Those of the machines that keep the job's limits."""
    limits = payload.job.limits
    return [row for row in machines(payload) if not any(missed(row, limits))]


def machines_to_choose(payload: RecommendationPayload) -> list[Row]:
    """A few machines worth a choice, from the cheapest to the soonest, the pick among them.

    Within the limits each is sooner for more money; one that is past a limit shows what it costs.
    """
    found, kept = machines(payload), keeping(payload)
    best = payload.best
    front: list[Row] = []
    for row in kept or found:
        if not front or row.duration_s.p50 < front[-1].duration_s.p50:
            front.append(row)
    picked = [row for row in found if best and key_of(row) == key_of(best)]
    outside = [row for row in found if kept and row not in kept][:1]
    few = _each([*picked, *thinned(front, SHOWN - len(picked) - len(outside)), *outside, *kept])
    return sorted(few[:SHOWN], key=lambda row: row.cost_usd.p50)


def _each(rows: Sequence[Row]) -> list[Row]:
    return list({key_of(row): row for row in rows}.values())


def plane_html(payload: RecommendationPayload) -> Markup:
    """Time against money, with the letters of the table; nothing where it would say nothing."""
    rows = machines_to_choose(payload)
    letters = {key_of(row): letter for letter, row in zip(LETTERS, rows, strict=False)}
    return front_html(payload, letters)


def few_machines_html(payload: RecommendationPayload) -> Markup:
    """The machines worth a choice, with the letters of the drawing where there is one."""
    best, lettered = payload.best, bool(plane_html(payload))
    limits = payload.job.limits
    head = head_html(TITLES, [None, *("num" for _ in TITLES[1:])])
    body = []
    for letter, row in zip(LETTERS, machines_to_choose(payload), strict=False):
        chosen = best is not None and key_of(row) == key_of(best)
        badge = [tag("span", letter, class_="badge")] if lettered else []
        words = f"{format_usd(row.usd_per_hour)}/h"
        words += f" ({price_marks(row)})" if price_marks(row) else ""
        price = tag("span", words, class_="quiet")
        pick = [tag("span", ", the pick")] if chosen else []
        heading = tag("th", *badge, offer_name(row), *pick, " ", price, scope="row")
        body.append(tag("tr", heading, *figures(row, limits), class_="strong" if chosen else None))
    table = tag("table", tag("thead", head), tag("tbody", *body), class_="few machines")
    note = marks_note(machines_to_choose(payload))
    notes = [tag("p", note, class_="quiet")] if note else []
    return joined([table, *notes, misfits_words(payload)])


def machines_html(payload: RecommendationPayload) -> Markup:
    """Every candidate of the answer, cheapest first; nothing where it names none."""
    misfits = [Point("misfit", row) for row in payload.machines if not feasible(row)]
    points = each_once([*reversed(points_of(payload)), *misfits])
    points.sort(key=lambda point: point.at[::-1])
    if not points:
        return Markup()
    head = tag("tr", *(_title(name) for name in ALL_TITLES))
    limits = payload.job.limits
    body = [_line(point, limits) for point in points]
    return tag("table", tag("thead", head), tag("tbody", *body), class_="cards sortable")


def _title(name: str) -> Markup:
    words = {"machine", "configuration", "bound by"}
    side = None if name in words else "num"
    order = "ascending" if name == "cost" else None
    return tag("th", tag("button", name, type="button"), scope="col", class_=side, aria_sort=order)


def _line(point: Point, limits: LimitsPayload) -> Markup:
    row = point.row
    role = ROLES.get(point.role) or SHAPES[point.role][1]
    heading = tag("th", offer_name(row), tag("div", role, class_="quiet"), scope="row")
    words = tag("td", config_phrase(row.config), class_="words", data_label="configuration")
    time_s, usd, memory = figures(row, limits)
    price = figure_cell("price/h", row.usd_per_hour, format_usd, price_marks(row))
    chance = figure_cell("fits", row.fits_probability, lambda _: probability(row))
    bound = tag("td", row.bound_by, data_label="bound by")
    kind = "strong" if point.role == "pick" else None
    return tag("tr", heading, words, time_s, usd, price, memory, chance, bound, class_=kind)


def misfits_words(payload: RecommendationPayload) -> Markup:
    """On how many machines it does not fit, and the names of some."""
    found = machines(payload)
    fitting = {offer_name(row) for row in found}
    every = dict.fromkeys(offer_name(row) for row in payload.machines)
    names = [name for name in every if name not in fitting]
    if not names:
        return Markup()
    more = f" and {len(names) - MISFITS} more" if len(names) > MISFITS else ""
    words = f"It fits on {len(found)} machines, and not on {', '.join(names[:MISFITS])}{more}."
    return tag("p", words, class_="quiet")

"""Machines: the few that are worth a choice, and every candidate in a table that can be sorted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.units import format_usd
from autotune.report.devices.price_marks import marks_note, price_marks
from autotune.report.page.blocks import head_html
from autotune.report.page.choices import figure_cell, figures, missed
from autotune.report.page.front import (
    SHAPES,
    Point,
    each_once,
    feasible,
    front_html,
    key_of,
    points_of,
)
from autotune.report.page.markup import Markup, joined, tag
from autotune.report.phrases import config_phrase, offer_name, probability

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.report.schema import LimitsPayload, RecommendationPayload, Row

SHOWN = 4
LETTERS = "ABCD"
TITLES = ("machine", "duration", "cost", "peak memory")
ALL_TITLES = ("machine", "configuration", "duration", "cost", "price/h", "memory", "fits",
              "bound by")  # fmt: skip
ROLES = {"front": "on the front", "alternative": "alternative", "beyond": "does not fit",
         "misfit": "does not fit"}  # fmt: skip


def machines(payload: RecommendationPayload) -> list[Row]:
    """The best row of each machine that fits, the cheapest first."""
    best = payload["best"]
    found = [*([best] if best else []), *payload["pareto"], *payload.get("machines", [])]
    by_name: dict[tuple[str, float], Row] = {}
    for row in sorted(filter(feasible, found), key=lambda row: row["cost_usd"]["p50"]):
        by_name.setdefault((offer_name(row), row["usd_per_hour"]), row)
    return list(by_name.values())


def keeping(payload: RecommendationPayload) -> list[Row]:
    """Those of the machines that keep the job's limits."""
    limits = payload["job"]["limits"]
    return [row for row in machines(payload) if not any(missed(row, limits))]


def shown_machines(payload: RecommendationPayload) -> list[Row]:
    """A few machines worth a choice, from the cheapest to the soonest, the pick among them.

    Within the limits each is sooner for more money; one that is past a limit shows what it costs.
    """
    found, kept = machines(payload), keeping(payload)
    best = payload["best"]
    front: list[Row] = []
    for row in kept or found:
        if not front or row["duration_s"]["p50"] < front[-1]["duration_s"]["p50"]:
            front.append(row)
    picked = [row for row in found if best and key_of(row) == key_of(best)]
    outside = [row for row in found if kept and row not in kept][:1]
    few = _each([*picked, *_thinned(front, SHOWN - len(picked) - len(outside)), *outside, *kept])
    return sorted(few[:SHOWN], key=lambda row: row["cost_usd"]["p50"])


def _each(rows: Sequence[Row]) -> list[Row]:
    return list({key_of(row): row for row in rows}.values())


def _thinned(rows: Sequence[Row], count: int) -> list[Row]:
    if len(rows) <= count:
        return list(rows)
    step = (len(rows) - 1) / (count - 1)
    return [rows[round(i * step)] for i in range(count)]


def plane_html(payload: RecommendationPayload) -> Markup:
    """Time against money, with the letters of the table; nothing where it would say nothing."""
    rows = shown_machines(payload)
    letters = {key_of(row): letter for letter, row in zip(LETTERS, rows, strict=False)}
    return front_html(payload, letters)


def few_machines_html(payload: RecommendationPayload) -> Markup:
    """The machines worth a choice, with the letters of the drawing where there is one."""
    best, lettered = payload["best"], bool(plane_html(payload))
    limits = payload["job"]["limits"]
    head = head_html(TITLES, [None, *("num" for _ in TITLES[1:])])
    body = []
    for letter, row in zip(LETTERS, shown_machines(payload), strict=False):
        chosen = best is not None and key_of(row) == key_of(best)
        badge = [tag("span", letter, class_="badge")] if lettered else []
        words = f"{format_usd(row['usd_per_hour'])}/h"
        words += f" ({price_marks(row)})" if price_marks(row) else ""
        price = tag("span", words, class_="quiet")
        pick = [tag("span", ", the pick")] if chosen else []
        heading = tag("th", *badge, offer_name(row), *pick, " ", price, scope="row")
        body.append(tag("tr", heading, *figures(row, limits), class_="strong" if chosen else None))
    table = tag("table", tag("thead", head), tag("tbody", *body), class_="few machines")
    note = marks_note(shown_machines(payload))
    notes = [tag("p", note, class_="quiet")] if note else []
    return joined([table, *notes, misfits_words(payload)])


def machines_html(payload: RecommendationPayload) -> Markup:
    """Every candidate of the answer, cheapest first; nothing where it names none."""
    misfits = [Point("misfit", row) for row in payload.get("machines", []) if not feasible(row)]
    points = each_once([*reversed(points_of(payload)), *misfits])
    points.sort(key=lambda point: point.at[::-1])
    if not points:
        return Markup()
    head = tag("tr", *(_title(name) for name in ALL_TITLES))
    limits = payload["job"]["limits"]
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
    words = tag("td", config_phrase(row["config"]), class_="words", data_label="configuration")
    time_s, usd, memory = figures(row, limits)
    price = figure_cell("price/h", row["usd_per_hour"], format_usd, price_marks(row))
    chance = figure_cell("fits", row["fits_probability"], lambda _: probability(row))
    bound = tag("td", row["bound_by"], data_label="bound by")
    kind = "strong" if point.role == "pick" else None
    return tag("tr", heading, words, time_s, usd, price, memory, chance, bound, class_=kind)


def misfits_words(payload: RecommendationPayload, most: int = 4) -> Markup:
    """On how many machines it does not fit, and the names of some."""
    found = machines(payload)
    fitting = {offer_name(row) for row in found}
    every = dict.fromkeys(offer_name(row) for row in payload.get("machines", []))
    names = [name for name in every if name not in fitting]
    if not names:
        return Markup()
    more = f" and {len(names) - most} more" if len(names) > most else ""
    words = f"It fits on {len(found)} machines, and not on {', '.join(names[:most])}{more}."
    return tag("p", words, class_="quiet")

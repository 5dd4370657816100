"""Every machine and configuration that the answer names, in a table that can be sorted."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.units import format_bytes, format_seconds, format_usd
from autotune.report.html_blocks import scrolling
from autotune.report.html_front import SHAPES, Point, each_once, feasible, points_of
from autotune.report.html_markup import Markup, tag
from autotune.report.phrases import between, config_phrase, offer_name, probability

if TYPE_CHECKING:
    from autotune.report.schema import RecommendationPayload

COLUMNS = ("machine", "role", "configuration", "duration", "cost", "price/h", "memory", "fits",
           "bound by")  # fmt: skip
NUMBERS = frozenset({3, 4, 5, 6, 7})
ROLES = {"front": "on the front", "alternative": "alternative", "beyond": "does not fit",
         "misfit": "does not fit"}  # fmt: skip


def machines_html(payload: RecommendationPayload) -> Markup:
    """The table, cheapest first; nothing where the answer names no candidate."""
    misfits = [Point("misfit", row) for row in payload.get("machines", []) if not feasible(row)]
    points = each_once([*reversed(points_of(payload)), *misfits])
    points.sort(key=lambda point: point.at[::-1])
    if not points:
        return Markup()
    head = tag("tr", *(_title(i, name) for i, name in enumerate(COLUMNS)))
    body = [_line(point) for point in points]
    table = tag("table", tag("thead", head), tag("tbody", *body), class_="sortable")
    return scrolling(table, "machines and configurations")


def _title(index: int, name: str) -> Markup:
    side = "num" if index in NUMBERS else None
    order = "ascending" if name == "cost" else None
    return tag("th", tag("button", name, type="button"), scope="col", class_=side, aria_sort=order)


def _line(point: Point) -> Markup:
    row = point.row
    memory = row["memory_bytes"]
    chance = row["fits_probability"]
    cells: list[tuple[str, str | float, str | None]] = [
        (offer_name(row), "", None),
        (ROLES.get(point.role) or SHAPES[point.role][1], "", None),
        (config_phrase(row["config"]), "", None),
        (format_seconds(row["duration_s"]["p50"]), row["duration_s"]["p50"],
         between(row["duration_s"], format_seconds)),
        (format_usd(row["cost_usd"]["p50"]), row["cost_usd"]["p50"],
         between(row["cost_usd"], format_usd)),
        (format_usd(row["usd_per_hour"]), row["usd_per_hour"], None),
        (format_bytes(memory["total"]), memory["total"], f"of {format_bytes(memory['usable'])}"),
        (probability(row), chance, None),
        (row["bound_by"], "", None),
    ]  # fmt: skip
    shown = [_cell(index, *cell) for index, cell in enumerate(cells)]
    return tag("tr", *shown, class_="strong" if point.role == "pick" else None)


def _cell(index: int, text: str, value: str | float, under: str | None) -> Markup:
    if index == 0:
        return tag("th", text, scope="row")
    words = [tag("div", under, class_="quiet")] if under else []
    return tag(
        "td", text, *words, class_="num" if index in NUMBERS else None,
        data_sort=repr(float(value)) if value != "" else None,
    )  # fmt: skip

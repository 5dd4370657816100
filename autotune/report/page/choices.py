"""The pick beside today's configuration and the best alternatives: a table with intervals drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.job import BUDGET, DEADLINE, SESSION
from autotune.domain.units import format_bytes, format_seconds, format_usd
from autotune.report.page.bills import PICK, TODAY
from autotune.report.page.blocks import Range, drawn_cell, head_html, ranges_drawn
from autotune.report.page.markup import Markup, breakable, tag
from autotune.report.phrases import between, config_phrase, offer_name, probability
from autotune.report.screens.words import difference_words
from autotune.report.sections.limits import missed_words

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.report.schema import LimitsPayload, RecommendationPayload, Row

ALTERNATIVES = 3
LONG = 90  # [characters] of what a configuration does otherwise
TITLES = ("", "duration", "cost", "peak memory")
SURE = 0.95  # from this probability of fitting on, only the whole table tells it


def choices_html(payload: RecommendationPayload) -> Markup:
    """The table; nothing where the pick stands alone."""
    pick = payload.best
    if not pick:
        return Markup()
    named = choices(payload)
    if len(named) < 2:  # noqa: PLR2004 - one is no choice
        return Markup()
    limits = payload.job.limits
    dollars = _by_cost([row for _, row in named])
    spans = [row.cost_usd if dollars else row.duration_s for _, row in named]
    ranges = [
        Range(span.p50, span.p10, span.p90, kind="today" if name == TODAY else "pick")
        for (name, _), span in zip(named, spans, strict=True)
    ]
    limit = limits.budget_usd if dollars else limits.deadline_s
    drawn = ranges_drawn(ranges, limit)
    lines = [
        _line(name, row, pick, limits, drawing)
        for (name, row), drawing in zip(named, drawn, strict=True)
    ]
    head = head_html(TITLES, [None, *("num" for _ in TITLES[1:])], drawn=True)
    table = tag("table", tag("thead", head), tag("tbody", *lines), class_="few choices")
    return tag("figure", tag("figcaption", _caption(limits, dollars=dollars)), table)


def choices(payload: RecommendationPayload) -> list[tuple[str, Row]]:
    """The pick, today's config unless it is the pick, and the best others on the pick's machine.

    Those that keep the job's limits come first; other machines are a question of their own.
    """
    pick, today = payload.best, payload.today
    if not pick:
        return []
    named = [(PICK, pick)]
    if today and not _same(today, pick):
        named.append((TODAY, today))
    others = [
        row for row in payload.alternatives
        if offer_name(row) == offer_name(pick) and not any(_same(row, r) for _, r in named)
    ]  # fmt: skip
    others.sort(key=lambda row: any(missed(row, payload.job.limits)))
    return [*named, *(("", row) for row in others[:ALTERNATIVES])]


def _same(row: Row, other: Row) -> bool:
    return row.config == other.config and offer_name(row) == offer_name(other)


def _by_cost(rows: Sequence[Row]) -> bool:
    """Whether the money says more than the hours: at one price an hour both say the same."""
    return len({row.usd_per_hour for row in rows}) > 1


def _caption(limits: LimitsPayload, *, dollars: bool) -> str:
    limit = limits.budget_usd if dollars else limits.deadline_s
    words = f"Drawn: {'cost' if dollars else 'duration'}, the dot with its 80 % interval"
    if limit is None:
        return f"{words}."
    shown = f"budget, {format_usd(limit)}" if dollars else f"deadline, {format_seconds(limit)}"
    return f"{words}; the dashed line is the {shown}."


def _line(name: str, row: Row, pick: Row, limits: LimitsPayload, drawing: Markup) -> Markup:
    kind = "strong" if row is pick else None
    cells = figures(row, limits)
    return tag("tr", _name(name, row, pick), *cells, drawn_cell(drawing), class_=kind)


def figures(row: Row, limits: LimitsPayload) -> list[Markup]:
    """Duration, cost and peak memory of a row as cells."""
    time_s, usd, memory = row.duration_s, row.cost_usd, row.memory_bytes
    late, dear = missed(row, limits)
    hours, dollars = between(time_s, format_seconds), between(usd, format_usd)
    sure = row.fits_probability >= SURE
    usable = f"of {format_bytes(memory['usable'])}"
    return [
        figure_cell("duration", time_s.p50, format_seconds, hours, late),
        figure_cell("cost", usd.p50, format_usd, dollars, dear),
        figure_cell("peak memory", memory["total"], format_bytes, usable,
                    "" if sure else f"fits: {probability(row)}"),
    ]  # fmt: skip


def missed(row: Row, limits: LimitsPayload) -> tuple[str, str]:
    """Which limits of time and of money it does not keep; empty where it keeps them."""
    words = missed_words(limits, row)
    return words.get(DEADLINE) or words.get(SESSION, ""), words.get(BUDGET, "")


def figure_cell(
    label: str, value: float, show: Callable[[float], str], under: str = "", warning: str = ""
) -> Markup:
    """A number with what belongs to it underneath; label: its column, for phones."""
    words = [(under, "quiet"), (warning, "quiet warn")]
    lines = [tag("div", text, class_=kind) for text, kind in words if text]
    return tag("td", show(value), *lines, class_="num", data_label=label, data_sort=repr(value))


def _name(name: str, row: Row, pick: Row) -> Markup:
    elsewhere = offer_name(row) != offer_name(pick)
    words = config_phrase(row.config)
    if row is not pick and not elsewhere:
        words = difference_words(row.config, pick.config, LONG)
    if elsewhere or row is pick:
        words = f"{offer_name(row)}, {words}"
    if not name:
        return tag("th", breakable(words), scope="row")
    return tag("th", name, tag("div", breakable(words), class_="quiet"), scope="row")

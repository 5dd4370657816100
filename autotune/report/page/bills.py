"""The bill of the pick, and the pick beside today's configuration and the best alternatives.

Its figures, where time and memory go, what probes measured of it; a table with intervals drawn.
"""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

from autotune.domain.job import BUDGET, DEADLINE, SESSION
from autotune.domain.units import format_bytes, format_seconds, format_usd
from autotune.report.layout.bars import MEMORY_LABELS, TIME_LABELS, memory_bars, time_bars
from autotune.report.layout.blocks import Bars, Table
from autotune.report.page.blocks import (
    Markup,
    Range,
    block_html,
    breakable,
    drawn_cell,
    head_html,
    joined,
    pair_drawn,
    ranges_drawn,
    table_html,
    tag,
)
from autotune.report.phrases import between, config_phrase, offer_name, probability
from autotune.report.screens.screen import difference_words
from autotune.report.sections.answer import bill_sections
from autotune.report.sections.limits import missed_words
from autotune.report.sections.unknown_lengths import lengths_open, range_cell

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.domain.outcome import Spread
    from autotune.report.layout.blocks import Section
    from autotune.report.schema import LimitsPayload, RecommendationPayload, Row

PICK, TODAY = "the pick", "today"
KINDS = {PICK: "pick", TODAY: "today"}


def rows_by_name(payload: RecommendationPayload) -> dict[str, Row]:
    """The pick, and today's config where there is one and it is another."""
    named = {PICK: payload.best, TODAY: payload.today}
    return {name: row for name, row in named.items() if row}


def pick_tiles(payload: RecommendationPayload, row: Row) -> Markup:
    """The pick's figures: both ends where nobody stated how long the rows are, and no saving."""
    if not lengths_open(payload.job):
        return tiles(row, payload.today)
    short = payload.short_rows
    under = "short rows to full rows"
    return tag(
        "dl",
        _tile("Duration", range_cell(row, short, "duration_s"), under),
        _tile("Cost", range_cell(row, short, "cost_usd"), under),
        _memory_tile(row, payload.today),
        class_="tiles",
    )


def tiles(row: Row, today: Row | None = None) -> Markup:
    """A row's figures, large; what they are today, small."""
    before = (today.duration_s, today.cost_usd) if today else None
    return tag(
        "dl",
        _spread_tile(
            "Duration", row.duration_s, today.duration_s if today else None, format_seconds
        ),
        _spread_tile("Cost", row.cost_usd, before and before[1], format_usd),
        _memory_tile(row, today),
        class_="tiles",
    )


def _spread_tile(
    name: str, spread: Spread, today: Spread | None, show: Callable[[float], str]
) -> Markup:
    before = _before(today.p50, spread.p50, show) if today else None
    around = between(spread, show) or ("exactly" if spread.p50 else "free of charge")
    return _tile(name, show(spread.p50), around, before)


def _memory_tile(row: Row, today: Row | None) -> Markup:
    total, usable = row.memory_bytes["total"], row.memory_bytes["usable"]
    before = _before(today.memory_bytes["total"], total, format_bytes) if today else None
    of_usable = f"of {format_bytes(usable)} usable"
    return _tile("Peak memory", format_bytes(total), of_usable, before)


def _before(today: float, pick: float, show: Callable[[float], str]) -> str:
    change = f" ({100 * (pick - today) / today:+.0f}%)" if today else ""
    return f"today {show(today)}{change}"


def _tile(name: str, figure: str, *under: str | None) -> Markup:
    return tag(
        "div",
        tag("dt", name),
        tag("dd", figure, class_="figure"),
        *(tag("dd", words, class_="quiet") for words in under if words),
    )


def bills_html(rows: Mapping[str, Row]) -> list[tuple[Section, Markup]]:
    """Where the time and the memory of these rows go: the report's sections, and their content.

    The parts of one row are laid end to end; of two rows each part stands beside the other's.
    """
    first = next(iter(rows.values()))
    time_section, memory_section = bill_sections(first)
    if len(rows) == 1:
        return [(each, _blocks(each)) for each in (time_section, memory_section)]
    times = [row.time_s for row in rows.values()]
    memories = [row.memory_bytes for row in rows.values()]
    longest = max(sum(each.values()) for each in times)
    most = max(each["total"] for each in memories)
    time_pairs = _pairs(list(rows), times, TIME_LABELS, [time_bars(t, longest) for t in times])
    memory_pairs = _pairs(
        list(rows), memories, MEMORY_LABELS, [memory_bars(m, most) for m in memories]
    )
    return [
        (time_section, joined([time_pairs, _blocks(time_section, bars=False)])),
        (memory_section, joined([memory_pairs, _blocks(memory_section, bars=False)])),
    ]


def _blocks(section: Section, *, bars: bool = True) -> Markup:
    kept = [each for each in section.blocks if bars or not isinstance(each, Bars)]
    return joined([block_html(each) for each in kept])


def _pairs(
    names: Sequence[str],
    amounts: Sequence[Mapping[str, float]],
    labels: Mapping[str, str],
    written: Sequence[Bars],
) -> Markup:
    """A line a part with the numbers of each row, which add up as printed, and their bars."""
    shown = [{bar.name: bar.shown for bar in bars.bars} for bars in written]
    parts = [name for name in labels if any(each.get(name, 0.0) > 0 for each in amounts)]
    scale = max(each.get(name, 0.0) for each in amounts for name in parts)
    lines = []
    for name in parts:
        values = [each.get(name, 0.0) for each in amounts]
        numbers = [each.get(labels[name], "0") for each in shown]
        drawing = pair_drawn(values, [KINDS[each] for each in names], scale)
        lines.append(_pair_line(labels[name], numbers, drawing, values))
    for name in ("total", "free", "too much"):
        if any(name in each for each in shown):
            numbers = [each.get(name, "") for each in shown]
            lines.append(_pair_line(name, numbers, Markup(), strong=name == "total"))
    swatches = [tag("span", class_=f"swatch {KINDS[each]}") for each in names]
    titles = [joined([swatch, name]) for swatch, name in zip(swatches, names, strict=True)]
    head = head_html(["", *titles], [None, *("num" for _ in names)], drawn=True)
    table = tag("table", tag("thead", head), tag("tbody", *lines), class_="parts")
    return tag("figure", table)


def _pair_line(
    name: str,
    numbers: Sequence[str],
    drawing: Markup,
    values: Sequence[float] = (),
    *,
    strong: bool = False,
) -> Markup:
    exact = [repr(value) for value in values]
    cells = [
        tag("td", number, class_="num", data_value=value)
        for number, value in zip_longest(numbers, exact)
    ]
    heading = tag("th", name, scope="row")
    return tag("tr", heading, *cells, drawn_cell(drawing), class_="strong" if strong else None)


def probes_html(payload: RecommendationPayload, section: Section) -> Markup:
    """The report's table of probes with each step drawn: predicted (dot) and measured (cross)."""
    probed = payload.probed
    content: list[Markup] = []
    for block in section.blocks:
        if isinstance(block, Table) and len(block.rows) == len(probed) > 1:
            ranges = [
                Range(
                    run.predicted_step_s, run.predicted_p10_s,
                    run.predicted_p90_s, run.step_time_s,
                )
                for run in probed
            ]  # fmt: skip
            words = "A step: predicted (dot, with its 80 % interval) and measured (cross)."
            caption = tag("figcaption", words)
            content.append(tag("figure", caption, table_html(block, ranges_drawn(ranges))))
        else:
            content.append(block_html(block))
    return joined(list(content))


ALTERNATIVES = 3
LONG = 90  # [characters] of what a configuration does otherwise
TITLES = ("", "duration", "cost", "peak memory")
SURE = 0.95  # from this probability of fitting on, only the whole table tells it


def choices_html(payload: RecommendationPayload) -> Markup:
    """The table; nothing where the pick stands alone."""
    pick = payload.best
    if not pick:
        return Markup()
    named = _choices(payload, pick)
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


def _choices(payload: RecommendationPayload, pick: Row) -> list[tuple[str, Row]]:
    """The pick, today's config unless it is the pick, and the best others on the pick's machine.

    Those that keep the job's limits come first; other machines are a question of their own.
    """
    today = payload.today
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

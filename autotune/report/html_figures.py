"""The drawings of the page, made from a recommendation's payload."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.units import format_bytes, format_seconds, format_usd
from autotune.report.bars import MEMORY_LABELS, TIME_LABELS, memory_bars, time_bars
from autotune.report.blocks import Bars
from autotune.report.html_bars import (
    Range,
    Segment,
    Span,
    Stack,
    ranges_html,
    spans_html,
    stacks_html,
)
from autotune.report.html_blocks import scrolling
from autotune.report.html_markup import Markup, joined, tag
from autotune.report.phrases import between, differences, seconds_span, usd_span

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from autotune.report.blocks import Section
    from autotune.report.schema import ProbedPayload, RecommendationPayload, Row, SpreadPayload

ARROW = "\N{RIGHTWARDS ARROW}"
OUTCOME = {"ok": "ran", "oom": "out of memory"}


def rows_by_name(payload: RecommendationPayload) -> dict[str, Row]:
    """Today's config, where there is one, and the pick."""
    named = {"today": payload["today"], "the pick": payload["best"]}
    return {name: row for name, row in named.items() if row}


def against_today(payload: RecommendationPayload) -> Markup:
    """Duration and cost of both, with their 80 % intervals, beside the job's limits."""
    rows, limits = rows_by_name(payload), payload["job"]["limits"]
    kinds = {"today": "today", "the pick": "pick"}
    durations = [
        Range(name, seconds_span(row["duration_s"]), row["duration_s"]["p50"],
              row["duration_s"]["p10"], row["duration_s"]["p90"], kind=kinds[name])
        for name, row in rows.items()
    ]  # fmt: skip
    costs = [
        Range(name, usd_span(row["cost_usd"]), row["cost_usd"]["p50"], row["cost_usd"]["p10"],
              row["cost_usd"]["p90"], kind=kinds[name])
        for name, row in rows.items()
    ]  # fmt: skip
    deadline, budget = limits["deadline_s"], limits["budget_usd"]
    words = f"Duration, with its 80 % interval{_limit('deadline', deadline, format_seconds)}"
    drawn = [ranges_html(durations, words, deadline)]
    if any(item.middle for item in costs):
        words = f"Cost, with its 80 % interval{_limit('budget', budget, format_usd)}"
        drawn.append(ranges_html(costs, words, budget))
    return joined(list(drawn))


def _limit(name: str, value: float | None, show: Callable[[float], str]) -> str:
    return f"; the dashed line is the {name}, {show(value)}" if value is not None else ""


def time_figure(rows: Mapping[str, Row]) -> Markup:
    """Where the time goes, part by part."""
    most = max(sum(row["time_s"].values()) for row in rows.values())
    stacks = []
    for name, row in rows.items():
        parts = row["time_s"]
        drawn = _segments(parts, TIME_LABELS, time_bars(parts, most))
        stacks.append(Stack(name, format_seconds(sum(parts.values())), *drawn))
    return joined([stacks_html(stacks, "Duration by part"), _parts_table(stacks)])


def memory_figure(rows: Mapping[str, Row]) -> Markup:
    """Where the memory goes at its peak, against what is usable."""
    most = max(row["memory_bytes"]["total"] for row in rows.values())
    stacks = []
    for name, row in rows.items():
        memory = row["memory_bytes"]
        shown = f"{format_bytes(memory['total'])} of {format_bytes(memory['usable'])}"
        drawn = _segments(memory, MEMORY_LABELS, memory_bars(memory, most))
        stacks.append(Stack(name, shown, *drawn, limit=memory["usable"]))
    return joined(
        [
            stacks_html(stacks, "Memory at its peak by part; the line is what is usable"),
            _parts_table(stacks),
        ]
    )


def _segments(
    parts: Mapping[str, float], labels: Mapping[str, str], written: Bars
) -> tuple[tuple[Segment, ...], str]:
    """The parts and their total, in numbers that add up as printed."""
    shown = {bar.name: bar.shown for bar in written.bars if bar.kind == "part"}
    segments = tuple(
        Segment(label, parts[name], shown[label], slot)
        for slot, (name, label) in enumerate(labels.items())
        if parts.get(name, 0.0) > 0
    )
    return segments, next(bar.shown for bar in written.bars if bar.kind == "total")


def _parts_table(stacks: Sequence[Stack]) -> Markup:
    """The legend of the bars and their numbers, for people who do not see or tell the colours."""
    named = {part.slot: part.name for stack in stacks for part in stack.segments}
    head = tag(
        "tr",
        tag("th", "part", scope="col"),
        *(tag("th", stack.name, scope="col", class_="num") for stack in stacks),
    )
    lines = []
    for slot, name in sorted(named.items()):
        cells = [
            next((part.shown for part in stack.segments if part.slot == slot), "0")
            for stack in stacks
        ]
        swatch = tag("span", str(slot + 1), class_=f"swatch s{slot} t{slot}", aria_hidden="true")
        lines.append(
            tag(
                "tr",
                tag("th", swatch, name, scope="row"),
                *(tag("td", cell, class_="num") for cell in cells),
            )
        )
    total = [tag("td", stack.total, class_="num") for stack in stacks]
    lines.append(tag("tr", tag("th", "in all", scope="row"), *total, class_="strong"))
    table = tag("table", tag("thead", head), tag("tbody", *lines), class_="parts")
    return scrolling(table, "parts and amounts")


def waterfall_figure(payload: RecommendationPayload, section: Section) -> Markup:
    """Today to the pick, change by change, in the words and numbers of the report's section."""
    steps, today = payload.get("waterfall", []), payload["today"]
    bars = next((block.bars for block in section.blocks if isinstance(block, Bars)), ())
    if not steps or not today or len(bars) != len(steps) + 2:
        return Markup()
    level = today["duration_s"]["p50"]
    spans = [Span(bars[0].name, bars[0].shown, 0.0, level, "today")]
    for step, bar in zip(steps, bars[1:-1], strict=True):
        after = level + step["duration_s"]
        kind = "less" if step["duration_s"] <= 0 else "more"
        ends = f" {ARROW} ".join(end for end in (step["from"], step["to"]) if end)
        name = step["change"] + (": " if " " in step["change"] else " ") + ends
        spans.append(Span(name, bar.shown, level, after, kind))
        level = after
    spans.append(Span(bars[-1].name, bars[-1].shown, 0.0, level, "pick"))
    deadline = payload["job"]["limits"]["deadline_s"]
    words = "Duration; beside it what each change adds, in time and dollars"
    words += _limit("deadline", deadline, format_seconds)
    return spans_html(spans, words, deadline)


def probe_figures(payload: RecommendationPayload) -> Markup:
    """Predicted against measured, and when each probe ran."""
    best, probed = payload["best"], payload.get("probed") or []
    pick = best["config"] if best else probed[0]["config"] if probed else {}
    ranges = [_predicted(run, pick) for run in probed if run["step_time_s"]]
    if not ranges and best and best["measured"]:
        ranges = [_row_range(best)]
    drawn = []
    if ranges:
        words = (
            "A step: predicted (dot, with its 80 % interval where it is known) "
            f"{ARROW} measured (cross)"
        )
        drawn.append(ranges_html(ranges, words))
    drawn.append(_timeline([run for run in probed if not run["reused"]], pick))
    return joined(drawn)


def _row_range(best: Row) -> Range:
    measured = best["measured"] or {}
    seen = float(measured["step_time_s"])
    return Range("the pick", f"measured {format_seconds(seen)}", None, measured=seen)


def _predicted(run: ProbedPayload, pick: Mapping[str, object]) -> Range:
    predicted, measured = run["predicted_step_s"], run["step_time_s"]
    shown = format_seconds(measured or 0.0)
    if predicted:
        shown = f"{format_seconds(predicted)} {ARROW} {shown}"
    return Range(
        _config_name(run, pick), shown, predicted, run.get("predicted_p10_s"),
        run.get("predicted_p90_s"), measured,
    )  # fmt: skip


def _config_name(run: ProbedPayload, pick: Mapping[str, object]) -> str:
    words = differences(run["config"], pick)
    name = "the pick" if words == "same settings" else words
    return f"{name}, again" if run["role"] == "confirm" else name


def _timeline(runs: Sequence[ProbedPayload], pick: Mapping[str, object]) -> Markup:
    spans, clock = [], 0.0
    for run in runs:
        end = clock + run["wall_s"]
        outcome = OUTCOME.get(run["status"], run["status"])
        kind = run["status"] if run["status"] in OUTCOME else "failed"
        shown = f"{outcome}, {format_seconds(run['wall_s'])}"
        spans.append(Span(_config_name(run, pick), shown, clock, end, kind))
        clock = end
    if not spans:
        return Markup()
    return spans_html(spans, f"Probes in the order they ran: {format_seconds(clock)} in all")


def tiles(row: Row, today: Row | None = None) -> Markup:
    """A row's figures, large; what they are today, small."""
    return tag(
        "dl",
        _tile("Duration", row["duration_s"], today and today["duration_s"], format_seconds),
        _tile("Cost", row["cost_usd"], today and today["cost_usd"], format_usd),
        _memory_tile(row, today),
        class_="tiles",
    )


def _tile(
    name: str, spread: SpreadPayload, today: SpreadPayload | None, show: Callable[[float], str]
) -> Markup:
    before = today and _before(today["p50"], spread["p50"], show)
    around = between(spread, show) or "exactly"
    return _figure_tile(name, show(spread["p50"]), around, before)


def _memory_tile(row: Row, today: Row | None) -> Markup:
    total, usable = row["memory_bytes"]["total"], row["memory_bytes"]["usable"]
    before = today and _before(today["memory_bytes"]["total"], total, format_bytes)
    of_usable = f"of {format_bytes(usable)} usable"
    return _figure_tile("Peak memory", format_bytes(total), of_usable, before)


def _before(today: float, pick: float, show: Callable[[float], str]) -> str:
    change = f" ({100 * (pick - today) / today:+.0f}%)" if today else ""
    return f"today {show(today)}{change}"


def _figure_tile(name: str, figure: str, *under: str | None) -> Markup:
    return tag(
        "div",
        tag("dt", name),
        tag("dd", figure, class_="figure"),
        *(tag("dd", words, class_="quiet") for words in under if words),
    )

"""Today to the pick as bars that add up; options around the job; readings of a measured time."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.units import HOUR_S, MINUTE_S, format_seconds, format_usd
from autotune.report.layout.bars import rounded_parts
from autotune.report.layout.blocks import (
    Bar,
    Bars,
    Bullets,
    Paragraph,
    Section,
    bullets,
    section,
    table,
)
from autotune.report.phrases import signed
from autotune.report.sections.unknown_lengths import lengths_open

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from autotune.domain.answer.waterfall import (
        DecidingCheck,
        MeasuredGap,
        SideOption,
        WaterfallStep,
    )
    from autotune.report.layout.blocks import Block
    from autotune.report.schema import RecommendationPayload, Row

_UNITS = ((2 * HOUR_S, HOUR_S, "h", 2), (2 * MINUTE_S, MINUTE_S, "min", 1), (0.0, 1.0, "s", 1))
CENTS = 2
SMALL = 0.005  # of today's cost or time: a change that is not worth a line
FAR = 1.05  # times: a measured run further from the modelled one is not explained by it
VERDICTS = {
    "likely": "fits",
    "possible": "possible",
    "strained": "strained",
    "insufficient": "too little",
    "impossible": "impossible",
    "immaterial": "no effect",
}
_SAID = {
    "strained": "needs kernels faster than anything observed, so it is unlikely alone",
    "insufficient": "explains a part at most: the rest is more than kernels can differ",
    "impossible": "would need more than the device's peak",
    "immaterial": "changes next to nothing, so it cannot be the cause",
}


def journey_sections(payload: RecommendationPayload) -> list[Section]:
    """From today to the pick: readings of what was measured, the waterfall, and options."""
    today, pick, journey = payload.today, payload.best, payload.journey
    if not today or not pick or journey is None:
        return []
    ends = [
        (name, row.duration_s.p50, row.cost_usd.p50)
        for name, row in (("today", today), ("the pick", pick))
    ]
    if lengths_open(payload.job):
        return readings_sections(journey.measured)
    fall = waterfall_section(payload.waterfall or (), ends[0], ends[1])
    return [
        _with_notes(fall, _far_from_measured(journey.measured, ends[0][1])),
        options_section(journey.options),
        *readings_sections(journey.measured),
    ]


def _with_notes(section: Section, notes: tuple[str, ...]) -> Section:
    if not notes or not section.blocks:
        return section
    return Section(section.title, (*section.blocks, Bullets(notes, "warn")))


def _far_from_measured(gaps: Sequence[MeasuredGap], modelled_s: float) -> tuple[str, ...]:
    """Said where the model does not explain how long today's run took."""
    return tuple(
        f"it starts from the {format_seconds(modelled_s)} that the model gives today's config, not "
        f"from the {format_seconds(gap.measured_s)} measured: the difference is not explained"
        for gap in gaps
        if gap.observation.endswith("duration_s")
        and not 1 / FAR < gap.measured_s / max(modelled_s, 1e-9) < FAR
    )


def waterfall_section(
    steps: Sequence[WaterfallStep],
    start: tuple[str, float, float],
    end: tuple[str, float, float],
    title: str = "From today to the pick, change by change",
) -> Section:
    """Bars from start to end. start, end: a name, seconds, dollars."""
    if not steps:
        return Section(title, ())
    blocks: list[Block] = [_bars(steps, start, end)]
    notes = ["the worth of each change is averaged over all orders of making the changes"]
    notes += [f"{step.change}: {step.note}" for step in steps if step.note]
    notes += [
        f"{step.change}: your decision, because it changes what is learned"
        for step in steps
        if step.yours
    ]
    blocks.append(Bullets(tuple(notes), "quiet"))
    return Section(title, tuple(blocks))


def _bars(
    steps: Sequence[WaterfallStep],
    start: tuple[str, float, float],
    end: tuple[str, float, float],
) -> Bars:
    """Where each step starts, the one above ends; rounded so that the columns add up."""
    levels = [start[1]]
    for step in steps:
        levels.append(levels[-1] + step.duration_s)
    scale = max(*levels, 1e-9)
    _, unit, name, decimals = next(unit for unit in _UNITS if scale >= unit[0])
    times = _added([step.duration_s / unit for step in steps], start[1] / unit, end[1] / unit,
                   decimals)  # fmt: skip
    money = _added([step.cost_usd for step in steps], start[2], end[2], CENTS)

    def amounts(seconds: float, dollars: float, *, sign: bool) -> str:
        form = "+" if sign else ""
        cents = f"{dollars:{form},.{CENTS}f}"
        cash = f"{cents[0]}${cents[1:]}" if cents[0] in "+-" else f"${cents}"
        return f"{seconds:{form},.{decimals}f} {name}  {cash:>9}"

    bars = [_whole(start[0], amounts(start[1] / unit, start[2], sign=False), start[1] / scale)]
    for step, time, cash, before, after in zip(
        steps, times, money, levels, levels[1:], strict=False
    ):
        low, length = min(before, after) / scale, abs(after - before) / scale
        label = f"{step.change} {_arrow(step)}".strip()
        bars.append(Bar(label, amounts(time, cash, sign=True), "", max(low, 0.0), length))
    bars.append(_whole(end[0], amounts(end[1] / unit, end[2], sign=False), end[1] / scale))
    return Bars(tuple(bars), ("duration", "cost"))


def _arrow(step: WaterfallStep) -> str:
    text = f"{step.from_} -> {step.to}"
    return text if len(text) <= 24 else ""  # noqa: PLR2004 - what leaves room for a bar


def _whole(name: str, text: str, share: float) -> Bar:
    return Bar(name, text, "", 0.0, share, "total")


def _added(parts: Sequence[float], start: float, end: float, decimals: int) -> list[float]:
    """Parts rounded so that start + parts = end as printed."""
    return rounded_parts(parts, round(end, decimals) - round(start, decimals), decimals)


def options_section(options: Sequence[SideOption]) -> Section:
    """What else could be changed around the job, with what it physically gives."""
    title = "Other changes around the job (none is applied)"
    rows = (
        (
            f"{each.change} {each.from_} -> {each.to}",
            signed(each.duration_s, format_seconds),
            signed(each.cost_usd, format_usd),
        )
        for each in options
    )
    notes = bullets(f"{each.change}: {each.why}" for each in options if each.why)
    return section(title, table(rows, "change", ">duration", ">cost"), notes)


def readings_sections(gaps: Sequence[MeasuredGap]) -> list[Section]:
    """For each measured time: what it may mean, what cannot be told apart, and what decides."""
    return [_readings(gap) for gap in gaps]


def _readings(gap: MeasuredGap) -> Section:
    rows = (
        (
            each.text,
            format_seconds(each.predicted_s),
            f"{1 / each.efficiency:.2f}x",
            f"{100 * each.peak_share:.0f}%",
            VERDICTS[each.verdict],
            format_seconds(each.pick_s) if each.pick_s is not None else "",
        )
        for each in gap.readings
    )
    titles = ("reading", ">predicted", ">speed", ">peak", "", ">the pick then")
    how = (
        "Speed: how much faster than modelled the kernels must be for the measured time. "
        "Peak: the share of the device's peak that this is, padding counted."
    )
    blocks: list[Block] = [table(rows, *titles), Paragraph(how, "quiet")]
    notes = [
        f"{each.name}: {_SAID[each.verdict]}" for each in gap.readings if each.verdict in _SAID
    ]
    notes += [
        f"if {each.text}: fixing that alone would bring it to {format_seconds(each.fixed_s)}"
        for each in gap.readings
        if each.fixed_s is not None
    ]
    blocks.append(Bullets(tuple(notes)))
    standing = gap.open
    if not standing:
        blocks.append(Paragraph("None of these explains it alone.", "warn"))
    if len(standing) > 1:
        blocks.append(Paragraph(_verdict(gap)))
        blocks += _checks(gap.checks)
    title = f"What the measured {format_seconds(gap.measured_s)} may mean"
    return Section(title, tuple(blocks))


def _verdict(gap: MeasuredGap) -> str:
    named = ", ".join(dict.fromkeys(gap.open))
    return f"The measurement cannot tell these apart: {named}."


def _checks(checks: Sequence[DecidingCheck]) -> list[Block]:
    if not checks:
        return [Paragraph("No check known to the cost model tells them apart.")]
    blocks: list[Block] = []
    for number, check in enumerate(checks):
        price = (
            "costs nothing"
            if check.cost_usd == 0 and check.duration_s == 0
            else f"{format_seconds(check.duration_s)}, {format_usd(check.cost_usd)}"
        )
        lead = "The cheapest check" if number == 0 else "Then"
        if check.name == "probe" and number and not checks[number - 1].leaves:
            lead = "Or measure"
        tail = "It decides." if check.decides else "It leaves open: " + _pairs(check.leaves)
        blocks.append(Paragraph(f"{lead} ({price}): {check.text}. {tail}"))
        if check.name != "arguments":  # there the readings' names say what would be seen
            shows = tuple(f"{name}: {text}" for name, text in check.shows.items())
            blocks.append(Bullets(shows))
    return blocks


def _pairs(pairs: Sequence[Sequence[str]]) -> str:
    """Readings that look alike, as groups where every two of a group do."""
    left = [frozenset(pair) for pair in pairs]
    groups: list[list[str]] = []
    for pair in pairs:
        if frozenset(pair) not in left:
            continue
        group = list(pair)
        for name in dict.fromkeys(name for other in pairs for name in other):
            if name not in group and all(frozenset((name, own)) in left for own in group):
                group.append(name)
        left = [other for other in left if not other <= set(group)]
        groups.append(group)
    return "; ".join(", ".join(g[:-1]) + " or " + g[-1] for g in groups) + "."


def largest_moves(
    steps: Sequence[WaterfallStep],
    today: Row,
    most: int,
    named: Callable[[str], str],
    *,
    every: bool,
) -> list[tuple[str, str, str]]:
    """(change, time, cost) of the largest changes, and of the rest of them together.

    every: also of a rest that is not worth a line.
    """

    def worth(duration_s: float, cost_usd: float) -> float:
        usd, seconds = today.cost_usd.p50, today.duration_s.p50
        of_cost = abs(cost_usd) / usd if usd else 0.0
        return max(of_cost, abs(duration_s) / seconds if seconds else 0.0)

    def moved(duration_s: float, cost_usd: float) -> tuple[str, str]:
        return signed(duration_s, format_seconds), signed(cost_usd, format_usd)

    ordered = sorted(steps, key=lambda s: worth(s.duration_s, s.cost_usd), reverse=True)
    told = [s for s in ordered[:most] if worth(s.duration_s, s.cost_usd) >= SMALL]
    rows = [
        (
            f"{named(step.change)} {step.from_} -> {step.to}"
            + (" (your decision)" if step.yours else ""),
            *moved(step.duration_s, step.cost_usd),
        )
        for step in told
    ]
    rest = ordered[len(told) :]
    usd, seconds = sum(step.cost_usd for step in rest), sum(step.duration_s for step in rest)
    if rest and (every or (told and worth(seconds, usd) >= SMALL)):
        more = f"{len(rest)} {'more ' if told else ''}change{'s' * (len(rest) > 1)}"
        rows.append((more, *moved(seconds, usd)))
    return rows

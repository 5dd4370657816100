"""The settings of the pick and why each is so; what other settings and machines would take.

What allowing a setting would be worth is in `what_ifs.py`.
"""

from __future__ import annotations

from shlex import quote
from typing import TYPE_CHECKING

from autotune.domain.config import KNOBS
from autotune.domain.units import format_bytes, format_seconds, format_usd
from autotune.report.layout.blocks import Paragraph, Section, bullets, section, table
from autotune.report.phrases import (
    NO_CHANGE,
    VERDICT,
    config_phrase,
    differences,
    global_batch,
    intervals,
    knob_text,
    marked_name,
    marks_note,
    memory_phrase,
    moved_cells,
    offer_name,
    price_marks,
    probability,
    sentence,
)
from autotune.report.sections.unknown_lengths import NO_SAVING, lengths_open

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.answer.recommendation import WorthProbe
    from autotune.report.layout.blocks import Block
    from autotune.report.schema import RecommendationPayload, Row

FOLD = 3  # knobs that share a reason are listed in one line from this many on
_CLASS_HEADINGS = {
    "neutral": "neutral: the training is the same",
    "numeric": "numeric: the same mathematics with other rounding or kernels",
    "extra": "your own: extra in the search space",
}


def settings_section(row: Row, reasons: dict[str, str]) -> Section:
    """Every setting by its class, and why it is so."""
    shared: dict[str, list[str]] = {}
    for name in row.config:
        shared.setdefault(reasons.get(name, ""), []).append(name)
    folded = {why for why, names in shared.items() if len(names) >= FOLD and reasons}
    rows: list[tuple[str, ...]] = []
    groups: set[int] = set()
    for knob_class, heading in _CLASS_HEADINGS.items():
        names = [
            name
            for name in row.config
            if _class_of(name) == knob_class and reasons.get(name, "") not in folded
        ]
        if names:
            groups.add(len(rows))
            rows.append((heading, "", ""))
        rows += [(n, knob_text(row.config[n]), reasons.get(n, "")) for n in names]
    width = 3 if reasons else 2
    titles = ("setting", ">value", "why")[:width]
    notes = [
        Paragraph(
            f"{sentence(why or 'not searched')}: "
            + ", ".join(f"{name} {knob_text(row.config[name])}" for name in shared[why])
            + "."
        )
        for why in sorted(folded)
    ]
    drawn = table((cells[:width] for cells in rows), *titles, groups=groups)
    return Section("Settings", (drawn, *notes) if rows else tuple(notes))


def _class_of(name: str) -> str:
    return KNOBS[name].knob_class if name in KNOBS else "extra"


MACHINE = "machine"  # the knob of a change that is another machine
ALTERNATIVES = 6
FRONT = 8


def today_section(payload: RecommendationPayload) -> Section:
    """Today's config and the pick, side by side: what differs, and what it saves."""
    today, pick = payload.today, payload.best
    if not today or not pick:
        return Section("Beside today", ())
    rows = [
        (name, knob_text(today.config[name]), knob_text(value), "")
        for name, value in pick.config.items()
        if name in today.config and today.config[name] != value
    ]
    if global_batch(today) != global_batch(pick):
        yours = "your decision"
        rows.insert(0, ("global batch", str(global_batch(today)), str(global_batch(pick)), yours))
    if offer_name(today) != offer_name(pick):
        rows.insert(0, ("machine", offer_name(today), offer_name(pick), ""))
    if not lengths_open(payload.job):
        rows += [
            ("duration", *moved_cells(today.duration_s.p50, pick.duration_s.p50, format_seconds)),
            ("cost", *moved_cells(today.cost_usd.p50, pick.cost_usd.p50, format_usd)),
            ("a step", *moved_cells(today.step_time_s, pick.step_time_s, format_seconds)),
        ]
    before, after = today.memory_bytes["total"], pick.memory_bytes["total"]
    rows.append(("peak memory", *moved_cells(before, after, format_bytes)))
    blocks: list[Block] = [table(rows, "", ">today", ">pick", ">change")]
    if lengths_open(payload.job):
        blocks.append(Paragraph(NO_SAVING))
    if today.verdict != "fits":
        blocks.append(
            Paragraph(
                f"By this model today's config {VERDICT[today.verdict]}: "
                f"{memory_phrase(today)}. If it does run, the model counts too much memory here.",
                "warn",
            )
        )
    return Section("Beside today", tuple(blocks))


def alternatives_section(payload: RecommendationPayload) -> Section:
    """The pick and the next best, with what each does otherwise."""
    pick = payload.best
    others = payload.alternatives[:ALTERNATIVES]
    if not pick or not others:
        return Section("Alternatives", ())
    several = len({offer_name(row) for row in [pick, *others]}) > 1
    by = payload.search.objective
    rows = [_alternative("the pick", pick, pick, by, several=several)]
    rows += [_alternative(_label(row, pick), row, pick, by, several=several) for row in others]
    titles = ("config", ">duration", ">cost", ">", ">memory", ">fits")
    return section("Alternatives", table(rows, *titles, strong={0}), explained([pick, *others]))


def explained(rows: Sequence[Row]) -> Paragraph:
    """What the marks of the prices mean, where there are any."""
    return Paragraph(marks_note(rows), "quiet")


def _label(row: Row, pick: Row) -> str:
    if offer_name(row) != offer_name(pick):
        return config_phrase(row.config)
    words = differences(row.config, pick.config)
    return (intervals(row.config, pick.config) or words) if words == NO_CHANGE else words


def _alternative(label: str, row: Row, pick: Row, by: str, *, several: bool) -> tuple[str, ...]:
    return (
        f"{marked_name(offer_name(row), row)}: {label}" if several else label,
        format_seconds(row.duration_s.p50),
        format_usd(row.cost_usd.p50),
        against(row, pick, by) if row is not pick else "",
        format_bytes(row.memory_bytes["total"]),
        probability(row),
    )


def minimised(row: Row, objective: str) -> float:
    """The dollars or the seconds of a row, whichever are minimised."""
    return (row.cost_usd if objective == "cost" else row.duration_s).p50


def against(row: Row, pick: Row, objective: str = "cost") -> str:
    """The worse by what is minimised, in percent: "+4%"; "same" where it rounds to nothing.

    Better by what nobody measured alone, it says so: that is why it is not the pick.
    """
    figure, least = minimised(row, objective), minimised(pick, objective)
    percent = round(100 * (figure - least) / least) if least else 0
    change = f"{percent:+d}%" if percent else "same" if least else ""
    sure, other = least * pick.caution, figure * row.caution
    return f"{change}, unmeasured" if percent < 0 and other >= sure else change


def front_section(payload: RecommendationPayload) -> Section:
    """Faster for more money: every step of the front, thinned to a few rows."""
    front = sorted(payload.pareto, key=lambda row: row.cost_usd.p50)
    if len(front) < 2:  # noqa: PLR2004 - a front of one is the pick
        return Section("Time against money", ())
    shown = thinned(front, FRONT)
    rows = (
        (
            marked_name(offer_name(row), row),
            config_phrase(row.config),
            format_seconds(row.duration_s.p50),
            format_usd(row.cost_usd.p50),
            _price_of_an_hour(front[0], row) + (", unmeasured" if row.caution > 1 else ""),
        )
        for row in shown
    )
    titles = ("machine", "config", ">duration", ">cost", ">an hour saved costs")
    return section("Time against money", table(rows, *titles), explained(shown))


def thinned(rows: Sequence[Row], count: int) -> list[Row]:
    """So many of the rows at most, evenly, the first and the last among them."""
    if len(rows) <= count:
        return list(rows)
    step = (len(rows) - 1) / (count - 1)
    return [rows[round(i * step)] for i in range(count)]


def _price_of_an_hour(cheapest: Row, row: Row) -> str:
    hours = (cheapest.duration_s.p50 - row.duration_s.p50) / 3600
    extra = row.cost_usd.p50 - cheapest.cost_usd.p50
    return format_usd(extra / hours) if hours > 0 else ""


def worth_a_probe_section(payload: RecommendationPayload) -> Section:
    """Changes whose gain nobody measured: what a probe of each may be worth."""
    pick, found = payload.best, payload.worth_a_probe
    if not pick or not found:
        return Section("Worth a probe", ())
    if lengths_open(payload.job):
        items = bullets(f"{_typed(each)}: {each.why}" for each in found)
        return section("Worth a probe (how much depends on the row lengths)", items)
    rows = ((_typed(each), worth_phrase(each)) for each in found)
    notes = bullets(f"{each.change}: {each.why}" for each in found)
    title = "Worth a probe (nobody has measured these, so the pick does not use them)"
    return section(title, table(rows, "change", "may save"), notes)


def _typed(each: WorthProbe) -> str:
    """A change as the command line takes it."""
    if each.knob == MACHINE:
        return f"--gpu {quote(each.change)}"
    return " ".join(f"--set {change}" for change in each.change.split(", "))


def unmeasured_machines(pick: Row | None, worth: Sequence[WorthProbe] | None, most: int) -> str:
    """The machines that may be better and nobody measured, in a sentence; empty without any."""
    found = [each for each in worth or [] if each.knob == MACHINE]
    if not pick or not found:
        return ""
    cheaper = found[0].expected_saving_usd > 0
    usd, seconds = pick.cost_usd.p50, pick.duration_s.p50

    def with_saving(each: WorthProbe) -> str:
        if not cheaper:
            return f"{each.change} ({format_seconds(seconds - each.expected_saving_s)})"
        expected = format_usd(usd - each.expected_saving_usd)
        return f"{each.change} ({expected}, counted as {format_usd(usd - each.p10)})"

    rest = f" and {len(found) - most} more" if len(found) > most else ""
    named = ", ".join(with_saving(each) for each in found[:most])
    better = "cheaper" if cheaper else "sooner"
    return f"Possibly {better}, but never measured: {named}{rest}."


def worth_phrase(each: WorthProbe) -> str:
    """What an unmeasured change may save, in money where the machine costs any."""
    if each.expected_saving_usd <= 0:
        return format_seconds(each.expected_saving_s)
    most = format_usd(each.p90)
    return f"{format_usd(each.expected_saving_usd)} (between nothing and {most})"


def price_changes(payload: RecommendationPayload) -> list[str]:
    """At which price another machine would be the cheaper one (derived: cost / hours)."""
    pick = payload.best
    if not pick:
        return []
    items: list[str] = []
    seen = {offer_name(pick)}
    for row in [*payload.alternatives, *payload.pareto]:
        name, hours = offer_name(row), row.duration_s.p50 / 3600
        dearer = row.cost_usd.p50 > pick.cost_usd.p50 > 0
        if name in seen or hours <= 0 or not dearer:
            continue  # nothing is cheaper than a pick that is free
        seen.add(name)
        marks = f", {price_marks(row)}" if price_marks(row) else ""
        items.append(
            f"{name} below {format_usd(pick.cost_usd.p50 / hours)}/h "
            f"(now {format_usd(row.usd_per_hour)}/h{marks}) would be cheaper"
        )
    return items

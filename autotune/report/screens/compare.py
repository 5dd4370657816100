"""The first screen of `compare`: which machine, for how long and how much, and how sure that is."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.typed.machine import recorded_label
from autotune.domain.units import format_bytes
from autotune.report.compare.notes import variants_lead, variants_section
from autotune.report.compare.table import (
    bill_line,
    folded_rows,
    least_odds,
    limits_phrase,
    may_be_better,
    order_doubt,
    row_marks,
    why_it_leads,
)
from autotune.report.layout.blocks import Paragraph, Section, table
from autotune.report.phrases import chance, marks_note
from autotune.report.screens.screen import (
    MOST_ASSUMED,
    closing_section,
    decisive_blocks,
    fewer,
    grounds_section,
    next_section,
    of_the_job,
    screen_text,
    settings_phrase,
    shortened,
    shows,
    trimmed,
)
from autotune.report.sections.limits import chances, stated_limits
from autotune.report.sections.unknown_lengths import open_blocks, range_cell
from autotune.report.ties import tiebreak_phrase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.report.layout.blocks import Block, Table

Payload = dict[str, Any]
NAME, MACHINES, VARIANTS, UNFIT = 48, 12, 10, 3
FEW = 6  # machines whose ranges of time and of cost both have room
UNMEASURED, NOBODY = "unmeasured", " ?"  # a mark in few rows, and behind the name in many
MISSED = {
    "late": "late: too likely to miss the deadline",
    "dear": "dear: too likely to exceed the budget",
}  # fmt: skip
SURE = 0.95  # a probability of fitting that needs no word


def comparison_screen(payload: Payload, *, width: int = 80, colour: bool = False) -> str:
    """The comparison as one screen."""
    return screen_text(lambda tight: _sections(payload, tight), width=width, colour=colour)


def _sections(payload: Payload, tight: int) -> list[Section]:
    most = fewer(MACHINES, tight, 7, 8, 9, 9, 9, 9)
    if payload["variants"]:
        several = fewer(VARIANTS, tight, 2, 3, 4, 4, 5, 6)
        parts = [
            trimmed(variants_lead(payload), max(2, several - 4)),
            trimmed(variants_section(payload), several),
        ]
    else:
        many = len(folded_rows(payload["rows"], payload)) > FEW
        signs = many and not shows(tight, until=4)
        named = (fewer(2, tight, 1, 2), fewer(4, tight, 1, 2, 3, 4))
        settings = shows(tight, until=7)
        parts = [
            Section("", tuple(_lead(payload, named, signs=signs))),
            _machines(payload, most, settings=settings),
        ]
    return [
        *parts,
        Section("", (*decisive_blocks(payload), *_unfit(payload["infeasible"], tight))),
        grounds_section(
            payload["job"], of_the_job(payload["assumed"]), fewer(MOST_ASSUMED, tight, 6, 7)
        ),
        next_section(payload.get("next", [])),
        closing_section(payload),
    ]


def _lead(payload: Payload, named: tuple[int, int], *, signs: bool) -> list[Block]:
    """The cheapest and the fastest, what keeps the limits, and how sure the order is.

    named: so many machines that were never measured, and whose ranges reach below the cheapest.
    signs: those that were never measured have a sign in the table, and no sentence here.
    """
    name, cheapest = shortened(payload["job"]["name"], NAME), payload["cheapest"]
    if cheapest is None:
        return [Paragraph(f"{name}: it fits on none of these machines.", "bad")]
    blocks: list[Block] = open_blocks({**payload, "short_rows": payload["leads"]["short_rows"]})
    fastest, leads = payload["fastest"], payload["leads"]
    text = f"{name}: cheapest on {_took(leads)}{why_it_leads(payload)}"
    text += ". It is the fastest too." if fastest is leads else f"; fastest on {_took(fastest)}."
    tiebreak = tiebreak_phrase(payload["tiebreak"], leads)
    text += f" {tiebreak}" if tiebreak else ""
    blocks.insert(0, Paragraph(text, "strong"))
    limits = stated_limits(payload["job"]["limits"])
    within = payload["cheapest_within_limits"]
    if limits and within is None:
        asked = chances(payload["job"]["limits"]["confidence"])
        text = f"No machine keeps {limits_phrase(limits)} with {asked}."
        blocks.append(Paragraph(text, "bad"))
    elif limits:
        which = "There" if within is leads else f"Cheapest that keeps it: {_took(within)};"
        which = which if within is leads or len(limits) == 1 else which.replace(" it:", " them:")
        text = f"{which} {limits_phrase(limits)} {'is' if len(limits) == 1 else 'are'} "
        text += f"{least_odds(within)}."
        blocks.append(Paragraph(text, "plain" if within is leads else "strong"))
    better = "" if signs else may_be_better(payload, named[0])
    doubt = order_doubt(payload, named[1])
    return [*blocks, *(Paragraph(text, "warn") for text in (better, doubt) if text)]


def _took(row: Payload) -> str:
    short = row["short_rows"]
    hours, usd = (range_cell(row, short, what) for what in ("duration_s", "cost_usd"))
    return f"{recorded_label(row)} ({hours}, {usd})"


def _machines(payload: Payload, most: int, *, settings: bool) -> Section:
    """Time and money of each machine, and the settings of the one that leads."""
    rows = folded_rows(payload["rows"], payload)
    if not rows:
        return Section("Machines", ())
    winner = payload["leads"]
    named = [row for row in rows[most:] if row is winner or row is payload["fastest"]]
    shown = [*rows[: most - len(named)], *named]
    strong = frozenset(i for i, row in enumerate(shown) if row is winner)
    usual = _OLD if all(_OLD in row["price_marks"] for row in shown) else ""
    many = len(rows) > FEW
    lines = [_line(row, payload, usual) for row in shown]
    blocks: list[Block] = [_table(lines, strong, many=many)]
    more = _more(payload["rows"], shown)
    blocks += [Paragraph(more, "quiet")] if more else []
    marks = {mark for row in shown for mark in row_marks(row, payload)}
    told = ["8 of 10 runs should end within the ranges"]
    if UNMEASURED in marks and many:
        told.append("?: may be cheaper, never measured")
    told += [MISSED[mark] for mark in sorted(marks & MISSED.keys())]
    note = marks_note(shown, usual)
    blocks.append(Paragraph(f"{'; '.join(told)}. {note}".strip(), "quiet"))
    if settings:
        words = settings_phrase(winner["config"], winner["device_count"])
        blocks.append(Paragraph(f"On {recorded_label(winner)}: {words}."))
    return Section("Machines, each with its best settings", tuple(blocks))


_OLD = "old"  # a mark that says nothing where every price has it: a note tells it once


def _table(lines: Sequence[tuple[str, ...]], strong: frozenset[int], *, many: bool) -> Table:
    """The machines. Of many, the range of the cost alone: that of the time is in proportion."""
    titles = ("machine", ">$/h", ">time", ">range", ">cost", ">range", "")
    if not many:
        return table(lines, *titles, strong=strong)
    shorter = [_folded((*line[:3], *line[4:])) for line in lines]
    return table(shorter, *titles[:3], *titles[4:], strong=strong)


def _folded(line: tuple[str, ...]) -> tuple[str, ...]:
    """A line whose longest mark stands as a sign behind the name."""
    name, *figures, marks = line
    kept = [mark for mark in marks.split(", ") if mark and mark != UNMEASURED]
    return (name + NOBODY * (UNMEASURED in marks), *figures, ", ".join(kept))


def _more(rows: Sequence[Payload], shown: Sequence[Payload]) -> str:
    """How many machines that hold the job are left out, and where they are; empty: none."""
    seen = {row["device"] for row in shown}
    devices = {row["device"] for row in rows} - seen
    of_seen = sum(row["device"] in seen for row in rows) - len(shown)
    others = len(rows) - len(shown) - of_seen
    told = []
    if others:
        kinds = "another device" if len(devices) == 1 else f"{len(devices)} other devices"
        told.append(f"{others} {'machine' if others == 1 else 'machines'} with {kinds}")
    told += [f"{of_seen} more with these"] if of_seen else []
    return f"Not shown: {', '.join(told)} (--format csv or json)" if told else ""


def _line(row: Payload, payload: Payload, usual: str) -> tuple[str, ...]:
    marks = row_marks(row, payload, usual)
    if row["fits_probability"] < SURE:
        marks.append(f"fits {chance(row['fits_probability'])}")
    return (*bill_line(row), ", ".join(marks))


def _unfit(items: Sequence[Payload], tight: int) -> list[Block]:
    """Machines that it does not fit on, in a sentence."""
    if not items:
        return []
    most = fewer(UNFIT, tight, 3, 6)
    named = [f"{recorded_label(item)} ({_short_of(item)})" for item in items[:most]]
    more = f" and {len(items) - most} more" if len(items) > most else ""
    return [Paragraph(f"Does not fit: {', '.join(named)}{more}.")]


SHORT_OF = {"disk": " on the disk", "ram": " of RAM", "shm": " of /dev/shm"}


def _short_of(item: Payload) -> str:
    if item["required_bytes"] is None or item["available_bytes"] is None:
        return shortened(item["reason"], 48)
    needs, usable = format_bytes(item["required_bytes"]), format_bytes(item["available_bytes"])
    short = SHORT_OF.get(item.get("short_of") or "", "")
    fits = item["required_bytes"] <= item["available_bytes"]
    close = ", too close" if fits or needs == usable else ""
    return f"{needs} of {usable}{short}{close}"

"""The report of `compare`: one table of machines, and what decides between them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

from autotune.domain.typed.machine import recorded_label
from autotune.domain.units import format_age, format_bytes, format_count, format_seconds, format_usd
from autotune.report.compare.notes import (
    beyond_hours_section,
    memory_section,
    scaling_section,
    session_section,
    sharding_section,
    spot_section,
    spread,
    spread_s,
    variant_and_machine,
    variants_lead,
    variants_section,
)
from autotune.report.compare.payload import comparison_csv
from autotune.report.layout.blocks import Bullets, Paragraph, Section, section, table
from autotune.report.layout.report import Report
from autotune.report.phrases import (
    BASIS,
    config_phrase,
    marks_note,
    price_marks,
    probability,
    step_arithmetic,
)
from autotune.report.sections.answer import assumed_section, warnings_section
from autotune.report.sections.glossary import with_words
from autotune.report.sections.limits import chances, contradictions_section, stated_limits
from autotune.report.sections.unknown_lengths import open_blocks, range_cell
from autotune.report.ties import tiebreak_phrase

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.report.layout.blocks import Block
    from autotune.report.schema import Row

Payload = dict[str, Any]
MOST_ROWS = 24  # more than a screen: then one row a device and those that win something
MOST_CONFIGS, MOST_INFEASIBLE, MOST_NAMED = 8, 10, 4
DOUBTFUL = 0.95  # as `autotune.app.tune.tracing` has it: under it, auto traces


def comparison_sections(payload: Payload) -> list[Section]:
    """The answer first, then the rows, then what would turn them."""
    named = payload["variants"]
    if named:
        sections = [variants_lead(payload), variants_section(payload), memory_section(payload)]
    else:
        sections = [
            comparison_lead(payload, payload),
            Section("Machines", tuple(_table(payload["rows"], payload))),
        ]
    sections += [
        scaling_section(payload["scaling"]),
        _configs_section(payload["rows"]),
        sharding_section([row for row in payload["rows"] if _decides(row, payload)]),
        spot_section(payload["rows"]),
        beyond_hours_section(payload["rows"]),
        session_section(payload["rows"], payload["job"]),
        _infeasible_section(payload["infeasible"]),
        contradictions_section(payload.get("contradictions", [])),
        assumed_section(payload["assumed"]),
        warnings_section(payload["warnings"]),
        _search_section(payload),
    ]
    return [section for section in sections if section.blocks]


def comparison_lead(payload: Payload, part: Payload) -> Section:
    """Cheapest, fastest, cheapest within the limits, and how sure the order is."""
    job, cheapest, fastest = payload["job"], part["cheapest"], part["fastest"]
    if cheapest is None:
        text = f"{job['name']}: it fits on none of these machines."
        hint = "`autotune tune` says what would have to change for it to fit."
        return Section("", (Paragraph(text, "bad"), Paragraph(hint)))
    leads = part["leads"]
    lines = [f"cheapest: {_won(leads)}{why_it_leads(part)}", f"fastest: {_won(fastest)}"]
    lines += [text] if (text := tiebreak_phrase(part["tiebreak"], leads)) else []
    limits = stated_limits(job["limits"])
    if limits:
        within = part["cheapest_within_limits"]
        lines.append(
            f"cheapest within {limits_phrase(limits)}: {_won(within)}, {least_odds(within)}"
            if within
            else f"within {limits_phrase(limits)}: none of them with "
            f"{chances(job['limits']['confidence'])}"
        )
    blocks: list[Block] = [
        Paragraph(f"{job['name']}: {step_arithmetic(job)}.", "strong"),
        Bullets(tuple(lines)),
        *open_blocks({**payload, "job": job, "short_rows": leads["short_rows"]}),
    ]
    doubts = (may_be_better(part), order_doubt(part))
    return Section("", (*blocks, *(Paragraph(text, "warn") for text in doubts if text)))


def why_it_leads(part: Payload) -> str:
    """Why a machine leads though another one is expected to cost less; empty where none is."""
    if part["leads"] is part["cheapest"]:
        return ""
    tiebreak = part["tiebreak"]  # which has a sentence of its own
    if tiebreak and tiebreak.over == recorded_label(part["cheapest"]):
        return ""
    if part["may_be_better"]:
        return ", counting machines without measured runs at their worst"
    return " within the limits" if part["cheapest_within_limits"] else ", nearest to the limits"


def may_be_better(part: Payload, most: int = 4) -> str:
    """Machines expected to beat the one that leads, on which nobody measured a training step."""
    found = part["may_be_better"]
    if not found:
        return ""
    most = max(most, int(len(found) == 1))
    if not most:
        return f"Possibly cheaper, but never measured: {len(found)} machines."
    named = ", ".join(
        f"{recorded_label(row)} ({format_usd(row['cost_usd']['p50'])}, counted as "
        f"{format_usd(row['cost_usd']['p50'] * row['caution'])})"
        for row in found[:most]
    )
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return f"Possibly cheaper, but never measured: {named}{more}."


def _won(row: Payload) -> str:
    hours, usd = row["duration_s"], row["cost_usd"]
    if row["short_rows"] is not None:
        ends = [range_cell(row, row["short_rows"], what) for what in ("duration_s", "cost_usd")]
        return f"{recorded_label(row)}{_price(row)}, {' and '.join(ends)}"
    return (
        f"{recorded_label(row)}{_price(row)}, {format_seconds(hours['p50'])} and "
        f"{format_usd(usd['p50'])} ({format_usd(usd['p10'])} to {format_usd(usd['p90'])})"
    )


def _price(row: Payload) -> str:
    if not row["usd_per_hour"]:
        return f" ({row['price_source']})"
    age = row["price_age_days"]
    seen = f", seen {format_age(age)} ago" if age is not None else f", {row['price_source'][:60]}"
    marks = f" ({price_marks(row)})" if price_marks(row) else ""
    return f" at {format_usd(row['usd_per_hour'])}/h{seen}{marks}"


def least_odds(row: Payload) -> str:
    """The odds of the limit that a row is least sure to keep."""
    return f"kept with {chances(min(each['probability'] for each in row['limits']))}"


def limits_phrase(limits: Payload) -> str:
    """The stated limits in words: the deadline of 24 h and the budget of $60."""
    words = {
        "deadline_s": "the deadline of ", "budget_usd": "the budget of ",
        "max_session_s": "one session of ",
    }  # fmt: skip
    show = {"budget_usd": format_usd}
    return " and ".join(words[k] + show.get(k, format_seconds)(v) for k, v in limits.items())


def order_doubt(part: Payload, most: int = 4) -> str:
    """Ties with the cheapest, and whose range reaches below what leads; empty: neither is so.

    most: of these are named.
    """
    rows, leads = part["rows"], part["leads"]
    known = leads if part["tiebreak"] else None  # a tiebreak has a sentence of its own
    ties = [recorded_label(row) for row in rows if row["tie"] and row is not known]
    said = leads["cost_usd"]["p50"]  # what is expected to cost less has a sentence of its own
    open_ = [row for row in rows if row["could_be_cheapest"] and row is not leads]
    open_ = [row for row in open_ if not row["tie"] and row["cost_usd"]["p50"] >= said]
    text = ""
    if ties:
        text = f"Equal within 1 % of cost: {recorded_label(rows[0])} and {', '.join(ties)}. "
    if open_ and not most:
        text += "By their 80 % ranges other machines may be cheaper."
    elif open_:
        names = ", ".join(recorded_label(row) for row in open_[:most])
        more = f" and {len(open_) - most} more" if len(open_) > most else ""
        text += f"The order is not certain: by their 80 % ranges {names}{more} may be cheaper. "
        text += "Timing a few steps on each would tell."
    return text.strip()


def _table(rows: Sequence[Payload], part: Payload) -> list[Block]:
    """Hours and dollars of each machine, then what bounds each and what would turn the order."""
    if not rows:
        return []
    shown = folded_rows(rows, part)
    strong = frozenset(i for i, row in enumerate(shown) if row is part["leads"])
    titles = ("machine", ">USD/h", ">duration", ">80 % range", ">cost", ">80 % range")
    bill = table(map(bill_line, shown), *titles, strong=strong)
    titles = ("machine", ">fits", "bound by", ">seen", ">wins below", "")
    turning = table((_turning_line(row, part) for row in shown), *titles, strong=strong)
    note = (
        "seen: the age of a price that was looked up. wins below: the price in USD/h under which "
        "the row would be the cheapest; the cheapest stays so below the figure after its <. "
        "late, dear: not sure enough to be within the deadline, the budget."
    )
    note += f" {marks_note(shown)}" if marks_note(shown) else ""
    if len(shown) < len(rows):
        note += (
            f" {len(rows) - len(shown)} rows of other counts are left out here; --format csv or "
            "json has them all."
        )
    return [bill, Paragraph(""), turning, Paragraph(note, "quiet")]


def _decides(row: Payload, payload: Payload) -> bool:
    """Whether a row is named above, or few enough are compared to speak of each."""
    if len(payload["rows"]) <= MOST_ROWS:
        return True
    parts = payload["variants"] or [payload]
    return any(row is winner for part in parts for winner in _winners(part))


def _winners(part: Payload) -> list[Payload | None]:
    return [part["cheapest"], part["fastest"], part["cheapest_within_limits"], part["leads"]]


def folded_rows(rows: Sequence[Payload], part: Payload) -> list[Payload]:
    """All rows, or the cheapest of each device and those that win something; the leader first."""
    rows = sorted(rows, key=lambda row: row is not part["leads"])
    if len(rows) <= MOST_ROWS:
        return rows
    winners = _winners(part)
    seen: set[str] = set()
    kept = []
    for row in rows:
        if row["device"] not in seen or any(row is winner for winner in winners):
            kept.append(row)
        seen.add(row["device"])
    return kept


def bill_line(row: Payload) -> tuple[str, ...]:
    """A machine, its price, and its time and cost with their ranges."""
    hours, usd = row["duration_s"], row["cost_usd"]
    return (
        recorded_label(row),
        f"{row['usd_per_hour']:,.2f}",
        format_seconds(hours["p50"]),
        spread_s(hours),
        format_usd(usd["p50"]),
        spread(usd, 1.0),
    )


def _turning_line(row: Payload, part: Payload) -> tuple[str, ...]:
    flip, age = row["flip_usd_per_hour"], row["price_age_days"]
    first, fits = row is part["cheapest"], probability(cast("Row", row))
    return (
        recorded_label(row),
        _FITS.get(fits, fits),
        row["bound_by"],
        "" if age is None else f"{age} d",
        "" if flip is None else f"{'< ' if first else ''}{flip:,.2f}",
        ", ".join(row_marks(row, part)),
    )


def row_marks(row: Payload, part: Payload, usual: str = "") -> list[str]:
    """What is to be said of a row in a word: fastest, late, dear.

    usual: a mark that every price has, and that is told elsewhere.
    """
    marks = []
    if row is part["fastest"]:
        marks.append("fastest")
    if row is part["leads"] and row is not part["cheapest"]:
        limited = stated_limits(part["job"]["limits"]) and part["cheapest_within_limits"] is row
        marks.append("in limits" if limited else "leads")
    if row["tie"]:
        marks.append("tie")
    if any(row is other for other in part.get("may_be_better", ())):
        marks.append("unmeasured")
    marks += [_MISSED.get(miss["limit"], miss["limit"]) for miss in row["misses"]]
    told = price_marks({"price_marks": [mark for mark in row["price_marks"] if mark != usual]})
    return [*marks, told] if told else marks


_MISSED = {"deadline": "late", "budget": "dear", "max_session": "over a session"}
_FITS = {"over 0.99": "> .99"}


def _configs_section(rows: Sequence[Payload]) -> Section:
    """What the first rows would run."""
    lines = (
        (
            variant_and_machine(row),
            config_phrase(row["config"]),
            f"workers {row['config'][_WORKERS]}",
        )
        for row in rows[:MOST_CONFIGS]
    )
    title = "What each would run" if len(rows) <= MOST_CONFIGS else "What the first would run"
    return section(title, table(lines, "machine", "config", ""))


_WORKERS = "num_dataloader_workers"


def _infeasible_section(items: Sequence[Payload]) -> Section:
    lines = (
        (
            (f"{item['variant']}: " if item["variant"] else "") + recorded_label(item),
            _bytes(item["required_bytes"]),
            _bytes(item["available_bytes"]),
            item["reason"],
        )
        for item in items[:MOST_INFEASIBLE]
    )
    more = len(items) - MOST_INFEASIBLE
    note = f"and {more} more (--format json)." if more > 0 else ""
    drawn = table(lines, "machine", ">needs", ">usable", "of")
    return section("Does not fit", drawn, Paragraph(note, "quiet"))


def _bytes(value: float | None) -> str:
    return "" if value is None else format_bytes(value)


def _search_section(payload: Payload) -> Section:
    """What was priced, what it rests on, and which rows `tune` would look at more closely."""
    search, rows = payload["search"], payload["rows"]
    formula = search["fidelity"] == "formula"
    command = f"`autotune tune --fidelity {search['fidelity']}`"
    priced = (
        f"Priced {format_count(search['priced'])} of {format_count(search['space_size'])} "
        f"candidates in {format_seconds(search['wall_seconds'])}: each row is what {command} "
        "would pick if its machine were the only one."
    )
    lines = [priced, *(f"{BASIS[basis]}." for basis in sorted({row["basis"] for row in rows}))]
    doubtful = [row for row in rows if row["fits_probability"] < DOUBTFUL]
    if formula and doubtful:
        names = ", ".join(dict.fromkeys(variant_and_machine(row) for row in doubtful[:MOST_NAMED]))
        lines.append(
            f"Memory is by formula, and {len(doubtful)} of the rows fit with a probability under "
            f"{DOUBTFUL} ({names}): --fidelity auto traces those, as `autotune tune` does."
        )
    return Section("How it was found", (Paragraph(" ".join(lines), "quiet"),))


COMPARE_REPORT = Report(comparison_sections, comparison_csv, with_words)

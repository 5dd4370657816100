"""What `autotune plan` says to a person: sections, printed as text and as Markdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.typed.machine import recorded_label
from autotune.domain.units import HOUR_S, format_age, format_count, format_seconds, format_usd
from autotune.report.campaign.machines import (
    apart_blocks,
    beside,
    machines_section,
    mix_section,
    mixed_lead,
)
from autotune.report.campaign.payload import plan_csv
from autotune.report.campaign.schedule import (
    hours,
    many,
    scaling_section,
    schedule_section,
    unit_of,
)
from autotune.report.compare.notes import spread_s
from autotune.report.layout.blocks import Paragraph, Section, bullets, section, table
from autotune.report.layout.report import Report
from autotune.report.phrases import (
    config_phrase,
    price_marks,
    sentence,
)
from autotune.report.sections.limits import chances, limit_phrases
from autotune.report.ties import tiebreak_phrase

if TYPE_CHECKING:
    from autotune.report.layout.blocks import Block

Payload = dict[str, Any]
MOST_LINES = 40
OWNED = "owned"  # how the source of a price begins that nobody pays to others
_EXACT = 5e-4  # a gap that is shown as 0.0 %
_LETTERS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


def plan_sections(payload: Payload) -> list[Section]:
    """The whole report. Sections with nothing to say are left out."""
    sections = [
        campaign_lead(payload),
        contradictions_of_plan(payload),
        mix_section(payload),
        machines_section(payload),
        phases_section(payload),
        _runs(payload),
        schedule_section(payload),
        scaling_section(payload),
        subset_section(payload),
        cuts_section(payload),
        _assumed(payload),
        section("Warnings", bullets(payload["warnings"])),
    ]
    return [each for each in sections if each.blocks]


def campaign_lead(payload: Payload) -> Section:
    """What the campaign takes, on which machine, and when it ends."""
    total, offer = payload["total"], payload["offers"][payload["machine"]]
    phases = len({run["phase"] for run in payload["runs"]})
    text = f"{payload['name']}: {many(total['runs'], 'run')}"
    text += f" in {phases} phases" if phases > 1 else ""
    text += f", {format_count(total['steps'])} steps. " if total["steps"] else ". "
    if not all(run["fits"] for run in payload["runs"]):
        text += "Not all of them fit on a machine of the file; see the warnings."
        return Section("", (Paragraph(text, "bad"),))
    seconds, usd = total["duration_s"], total["cost_usd"]
    span, money = "", ""
    if seconds["p10"] < seconds["p90"]:
        ends = " to ".join(format_usd(usd[end]) for end in ("p10", "p90"))
        span, money = f" ({spread_s(seconds)})", f" ({ends})"
    where = f"On {recorded_label(offer)} at {format_usd(offer['usd_per_hour'])}/h{_seen(offer)}"
    if payload["mixed"]:
        where = "Each on the machine that is planned for it,"
    text += (
        f"{where} they take {hours(seconds['p50'])}{span} and cost {format_usd(usd['p50'])}{money}."
    )
    blocks: list[Block] = [Paragraph(text, "strong")]
    blocks += [Paragraph(mixed_lead(payload))] if payload["mixed"] else []
    blocks += [Paragraph(why)] if (why := tiebreak_phrase(payload["tiebreak"], total)) else []
    schedule = payload["schedule"]
    if schedule is not None and schedule["placements"]:
        blocks.append(Paragraph(_ends(payload, schedule)))
    blocks += apart_blocks(payload)
    blocks += _deadline(payload)
    blocks.append(Paragraph(_source(payload), "quiet"))
    return Section("", tuple(blocks))


def _seen(offer: Payload) -> str:
    """The age of a price that was looked up."""
    age, marks = offer["price_age_days"], price_marks(offer)
    seen = "" if age is None else f", seen {format_age(age)} ago"
    seen += f" ({marks})" if marks else ""
    return f"{seen}," if seen else ""


def _ends(payload: Payload, schedule: Payload) -> str:
    kept = "" if payload["subset"] is None else " with what the budget keeps"
    text = (
        f"On {many(schedule['machines'], unit_of(payload))}{kept} it ends after "
        f"{hours(schedule['makespan_s'])}"
    )
    text += f", {schedule['days']:.1f} days of {schedule['hours_per_day']:g} h"
    if schedule["hours_per_day"] == 24.0:  # noqa: PLR2004 - hours of a day
        text = text.rpartition(", ")[0]
    gap = schedule["gap"]
    best = "no order is shorter" if gap < _EXACT else f"at most {100 * gap:.1f} % over the best"
    return f"{text} ({best}: nothing ends before {hours(schedule['lower_bound_s'])})."


def _deadline(payload: Payload) -> list[Block]:
    """Whether all runs end in time, and what would make them."""
    found = payload["deadline"]
    if found is None:
        return []
    kept, missed = limit_phrases((found["odds"],), found["confidence"])
    if kept:
        return [Paragraph(f"{sentence(kept)}.")]
    enough = found["enough_machines"]
    more = f"On {enough} machines it would be kept: `--parallel {enough}`."
    own = payload["offers"][payload["machine"]]["price_source"].startswith(OWNED)
    if own and not payload["mixed"]:
        more = (
            f"On {enough} such machines it would be kept; you own one: `--parallel {enough}` plans"
            " with rented ones, if the file names any."
        )
    if enough is None:
        more = f"More machines{'' if payload['mixed'] else ' of this kind'} would not keep it."
    return [Paragraph(f"{sentence(missed)}. {more}", "bad")]


def _source(payload: Payload) -> str:
    by = {run["hours_from"] for run in payload["runs"] if run["fits"]}
    if by == {"stated"}:
        return "Hours as stated in the file; --hours model prices the runs instead."
    if by == {"model", "stated"}:
        return "Hours as stated where a run states them, else modelled; ranges are 80 % intervals."
    return "Modelled, each run at its best config; ranges are 80 % intervals, added end to end."


def contradictions_of_plan(payload: Payload) -> Section:
    """What the file says and what does not hold."""
    return section("What does not add up in the campaign file", bullets(payload["contradictions"]))


def phases_section(payload: Payload) -> Section:
    """Hours and dollars of each phase and its parts."""
    stated = beside(payload)
    rows: list[tuple[str, ...]] = []
    strong = set()
    for phase in payload["phases"]:
        if phase["part"] is None:
            strong.add(len(rows))
        name = f"  {phase['part']}" if phase["part"] else phase["phase"] or "all runs"
        own = phase["stated_s"]
        rows.append(
            (
                name,
                format_count(phase["runs"]),
                format_count(phase["steps"]),
                f"{phase['duration_s'] / HOUR_S:,.2f}",
                format_usd(phase["cost_usd"]),
                *([f"{own / HOUR_S:,.1f}" if own is not None else ""] if stated else []),
            )
        )
    titles = ("runs", "steps", "hours", "cost", *(("stated h",) if stated else ()))
    total = payload["total"]
    last = (
        "total",
        format_count(total["runs"]),
        format_count(total["steps"]),
        f"{total['duration_s']['p50'] / HOUR_S:,.2f}",
        format_usd(total["cost_usd"]["p50"]),
    )
    own = total["stated_s"]
    rows.append((*last, *([f"{own / HOUR_S:,.1f}" if own is not None else ""] if stated else [])))
    strong.add(len(rows) - 1)
    drawn = table(rows, "phase", *(f">{title}" for title in titles), strong=strong)
    return Section("Phases", (drawn,))


def _runs(payload: Payload) -> Section:
    """Runs of a part that are alike share a line; configs are listed once, under the table."""
    alike: dict[tuple[Any, ...], list[Payload]] = {}
    configs: dict[str, str] = {}
    for run in payload["runs"]:
        key = (
            run["phase"], run["part"], run["steps"], run["stages"], run["fits"],
            (run["duration_s"] or {}).get("p50"), run["expected_fraction"], run["priority"],
            run["machine"],
        )  # fmt: skip
        alike.setdefault(key, []).append(run)
    rows: list[tuple[str, ...]] = []
    for group in alike.values():
        best = group[0]["best"]
        words = config_phrase(best["config"]) if best else ""
        letter = configs.setdefault(words, _LETTERS[len(configs) % len(_LETTERS)]) if words else ""
        rows.append(_run_line(group, letter, mixed=beside(payload)))
    if payload["mixed"]:
        rows = [
            (row[0], recorded_label(payload["offers"][group[0]["machine"]]), *row[1:])
            for row, group in zip(rows, alike.values(), strict=True)
        ]
    more = len(rows) - MOST_LINES
    text = f"{more} more kinds of runs in --format csv or json." if more > 0 else ""
    label = recorded_label(payload["offers"][payload["machine"]])
    on = ["machine"] if payload["mixed"] else []
    return section(
        "Runs, each on its machine" if on else f"Runs on {label}",
        table(rows[:MOST_LINES], "runs", *on, ">steps", ">each", ">cost each", "config", ""),
        Paragraph(text, "quiet"),
        bullets(f"{letter}: {words}" for words, letter in configs.items()),
    )


def _run_line(group: list[Payload], letter: str, *, mixed: bool) -> tuple[str, ...]:
    first = group[0]
    name = first["run"]
    if len(group) > 1:
        name += f" and {len(group) - 1} like it"
    if first["repeat"] > 1:
        name = f"{first['repeat']} x {name}"
    if not first["fits"]:
        return name, format_count(first["steps"]), "", "", "", f"does not fit: {first['reason']}"
    words = ["hours as stated"] if first["hours_from"] == "stated" and mixed else []
    if first["stages"] > 1:
        words.append(f"{first['stages']} stages")
    if first["expected_fraction"] < 1:
        words.append(f"stops at {100 * first['expected_fraction']:.0f} %")
    return (
        name,
        format_count(first["steps"]),
        format_seconds(first["duration_s"]["p50"]),
        format_usd(first["cost_usd"]["p50"]),
        letter,
        ", ".join(words),
    )


def subset_section(payload: Payload, most: int = 1000) -> Section:
    """What a budget keeps and leaves out. most: names of runs that are shown of each."""
    subset = payload["subset"]
    if subset is None:
        return Section("Within the budget", ())
    usd = subset["budget_usd"]
    budget = format_usd(usd) if usd is not None else hours(subset["budget_device_s"])
    runs, total = subset["runs"], payload["total"]["runs"]
    text = f"The budget of {budget} keeps {format_count(runs)} of {total} runs"
    if (subset["priority"], subset["of_priority"]) != (runs, total):
        text += f", with {subset['priority']:g} of {subset['of_priority']:g} of all priority"
    takes = f"{format_usd(subset['cost_usd'])} and {hours(subset['device_s'])} of GPU time"
    sure = subset["probability"]
    text += f". They should take {takes}"
    text += f"; it is kept with {chances(sure)}." if sure is not None else "."
    if not subset["left_out"]:
        return Section("Within the budget", (Paragraph(f"{text} Everything fits.", "good"),))
    items = [
        f"kept: {_counted(subset['kept'], most)}",
        f"left out: {_counted(subset['left_out'], most)}",
    ]
    note = "No other choice of runs is worth more; among equals the cheapest is taken."
    first = Paragraph(text, "strong")
    last = [Paragraph(note, "quiet")] if most >= len(subset["left_out"]) else []
    return section("Within the budget", first, bullets(items), *last)


def _counted(runs: dict[str, int], most: int) -> str:
    named = [f"{count} x {name}" if count > 1 else name for name, count in runs.items()]
    rest = sum([*runs.values()][most:])
    return ", ".join(named[:most]) + (f" and {rest} more" if rest else "")


def cuts_section(payload: Payload) -> Section:
    """The runs to leave out first."""
    if payload["total"]["runs"] < 2 or not payload["cuts"]:  # noqa: PLR2004 - nothing to choose
        return Section("What to cut first", ())
    rows = (
        (
            cut["run"] + (f" and {len(cut['also'])} that wait for it" if cut["also"] else ""),
            format_count(cut["runs"]),
            hours(cut["saves_device_s"]),
            format_usd(cut["saves_usd"]),
            f"{cut['priority']:g}",
        )
        for cut in payload["cuts"]
    )
    titles = ("run", ">runs", ">device time", ">cost", ">priority lost")
    note = "The least priority lost for each hour saved comes first."
    return section("What to cut first", table(rows, *titles), Paragraph(note, "quiet"))


def _assumed(payload: Payload) -> Section:
    """Of the first run; the others differ in their sizes only."""
    items = [f"{item['key']}: {item['value']} ({item['why']})" for item in payload["assumed"]]
    return section("Assumed for every run (the first one's figures)", bullets(items))


PLAN_REPORT = Report(plan_sections, plan_csv)

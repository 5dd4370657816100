"""What `autotune plan` says of its machines: each with its bill, and every run on its own."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

from autotune.domain.typed.machine import recorded_label
from autotune.domain.units import HOUR_S, format_age, format_usd
from autotune.report.campaign.schedule import hours, many
from autotune.report.compare.notes import spread
from autotune.report.layout.blocks import Paragraph, Section, bullets, section, table
from autotune.report.phrases import marked_name, marks_note

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.report.layout.blocks import Block

Payload = dict[str, Any]
MOST_OFFERS = 12
APART = 0.1  # of the bill: less saved by machines of their own is not worth a sentence
NAMED_APART = 4  # runs of a machine that are named


def apart_blocks(payload: Payload) -> list[Block]:
    """What a mix of machines would save, and what is typed for it; nothing of a plan of one."""
    found, total = payload["apart"], payload["total"]["cost_usd"]["p50"]
    if found is None or payload["mixed"]:
        return []
    subset = payload["subset"]
    if subset is not None:
        more = found["kept_runs"] - subset["runs"]
        if more <= 0:
            return []
        kept = f"the budget keeps {found['kept_runs']}"
        return [Paragraph(f"With `--mixed`, each run on its cheapest machine, {kept}.")]
    if found["cost_usd"] > (1.0 - APART) * total:
        return []
    text = (
        f"Each on the machine that is cheapest for it, they cost {format_usd(found['cost_usd'])} "
        f"({format_usd(total - found['cost_usd'])} less) and end after "
        f"{hours(found['makespan_s'])}: {mix_phrase(payload, found['machines'])}. Plan that with "
        "`--mixed`."
    )
    return [Paragraph(text)]


def mix_phrase(payload: Payload, machines: Sequence[int]) -> str:
    """Which runs are on which machine of a mix."""
    runs: dict[int, list[Payload]] = {}
    for run, machine in zip(payload["runs"], machines, strict=True):
        runs.setdefault(machine, []).append(run)
    offers = payload["offers"]
    return "; ".join(
        f"{_names(group)} on {marked_name(recorded_label(offers[machine]), offers[machine])}"
        for machine, group in sorted(runs.items())
    )


def mixed_lead(payload: Payload) -> str:
    """What a mix costs, against all runs on one machine."""
    cost = payload["total"]["cost_usd"]["p50"]
    one = payload["offers"][payload["one_machine"]]
    told = f"{mix_phrase(payload, [run['machine'] for run in payload['runs']])}."
    if one["missing"]:
        return f"No one machine of the file holds all of them: {told}"
    less, label = one["cost_usd"]["p50"] - cost, marked_name(recorded_label(one), one)
    words = f"{format_usd(abs(less))} {'less' if less >= 0 else 'more'} than all on {label}"
    return f"That is {words} ({format_usd(one['cost_usd']['p50'])}): {told}"


def mix_section(payload: Payload) -> Section:
    """The machines of a mix, with what their own runs take."""
    if not payload["mixed"]:
        return Section("", ())
    rows = []
    for number, offer in enumerate(payload["offers"]):
        own = [run for run in payload["runs"] if run["machine"] == number]
        if own:
            seconds = math.fsum(run["duration_s"]["p50"] * run["repeat"] for run in own)
            usd = math.fsum(run["cost_usd"]["p50"] * run["repeat"] for run in own)
            rows.append(
                (
                    marked_name(recorded_label(offer), offer),
                    format_usd(offer["usd_per_hour"]),
                    f"{sum(run['repeat'] for run in own):,}",
                    f"{seconds / HOUR_S:,.1f}",
                    format_usd(usd),
                )
            )
    total = payload["total"]
    seconds, usd = total["duration_s"]["p50"], total["cost_usd"]["p50"]
    rows.append(
        ("total", "", f"{total['runs']:,}", f"{seconds / HOUR_S:,.1f}", format_usd(usd))
    )  # fmt: skip
    drawn = table(
        rows, "machine", ">an hour", ">runs", ">hours", ">cost", strong={len(rows) - 1}
    )  # fmt: skip
    return Section("Machines of the plan", (drawn,))


def _names(runs: Sequence[Payload]) -> str:
    """Which runs: by name where they are few, else how many."""
    if len(runs) <= NAMED_APART:
        return ", ".join(
            f"{run['repeat']} x {run['run']}" if run["repeat"] > 1 else run["run"] for run in runs
        )
    return many(sum(run["repeat"] for run in runs), "run")


def beside(payload: Payload) -> bool:
    """Whether stated hours stand beside other ones, and are not the hours of the plan itself."""
    stated = any(phase["stated_s"] is not None for phase in payload["phases"])
    return stated and any(run["hours_from"] == "model" for run in payload["runs"])


def machines_section(payload: Payload) -> Section:
    """Hours and dollars on each machine."""
    rows: list[tuple[str, ...]] = []
    notes = []
    stated = beside(payload)
    shown = _cheapest_machines(payload)
    for number in shown:
        offer = payload["offers"][number]
        rows.append(_machine(payload, number, offer, stated=stated))
        if offer["electricity_usd"] is not None:
            notes.append(_electricity(offer, beside=stated))
    ages = [(payload["offers"][n], payload["offers"][n]["price_age_days"]) for n in shown]
    dated = [
        f"{recorded_label(offer)} {format_age(age)} ago" for offer, age in ages if age is not None
    ]
    if dated:
        notes += [note] if (note := marks_note(payload["offers"][n] for n in shown)) else []
        notes.append(f"prices that were looked up were seen: {', '.join(dated)}")
    if len(shown) < len(payload["offers"]):
        left = len(payload["offers"]) - len(shown)
        notes.append(f"the {len(shown)} cheapest; {left} more in --format csv or json")
    titles = ["an hour", "hours", "80 % range", "cost", "energy"]
    titles += ["at stated hours"] if stated else []
    titles = ["machine", *(f">{title}" for title in titles)]
    strong = set() if payload["mixed"] else {shown.index(payload["machine"])}
    drawn = table(rows, *titles, strong=strong)
    same = all(run["hours_from"] == "stated" for run in payload["runs"])
    title = "Machines at the stated hours" if same else "Machines, each with its own hours"
    if payload["mixed"]:
        title = "All runs on one machine instead"
    title += " (*: chosen)" if len(shown) > 1 and not payload["mixed"] else ""
    return section(title, drawn, bullets(notes))


def _cheapest_machines(payload: Payload) -> list[int]:
    """All machines in the file's order, or of many the cheapest; always the planned one."""
    offers = payload["offers"]
    if len(offers) <= MOST_OFFERS:
        return list(range(len(offers)))

    def rank(number: int) -> tuple[bool, int, float]:
        offer = offers[number]
        return number != payload["machine"], -offer["runs"], offer["cost_usd"]["p50"]

    first = sorted(range(len(offers)), key=rank)[:MOST_OFFERS]
    return sorted(first, key=lambda number: rank(number)[1:])


def _machine(payload: Payload, number: int, offer: Payload, *, stated: bool) -> tuple[str, ...]:
    name = recorded_label(offer)
    if offer["electricity_usd"] is not None:
        name += " (own)"
    else:
        name = marked_name(name, offer)
    if offer["missing"]:
        runs = payload["total"]["runs"]
        cells = [f"{offer['runs']} of {runs} runs fit", "", "", ""]
    else:
        seconds = offer["duration_s"]
        exact = seconds["p10"] == seconds["p90"]
        cells = [
            f"{seconds['p50'] / HOUR_S:,.1f}",
            "" if exact else spread(seconds, HOUR_S),
            format_usd(offer["cost_usd"]["p50"]),
            _kwh(offer["energy_kwh"]),
        ]
    price = format_usd(offer["usd_per_hour"])
    marked = "*" if number == payload["machine"] and not payload["mixed"] else ""
    last = [format_usd(offer["stated"]["cost_usd"])] if stated and offer["stated"] else []
    last = last or ([""] if stated else [])
    return (name + marked, price, *cells, *last)


def _kwh(energy: float) -> str:
    return f"{round(energy, 6):,.1f} kWh"


def _electricity(offer: Payload, *, beside: bool) -> str:
    """What the power of one's own machine costs, and what the machine costs with it."""
    text = (
        f"{recorded_label(offer)} of one's own: {offer['watts']:g} W x "
        f"{offer['duration_s']['p50'] / HOUR_S:,.1f} h = {_kwh(offer['energy_kwh'])}, "
        f"{format_usd(offer['electricity_usd'])} of electricity"
    )
    if offer["full_cost_usd"] is not None:
        text += f", {format_usd(offer['full_cost_usd'])} with its purchase"
    stated = offer["stated"]
    if beside and stated and stated["electricity_usd"] is not None:
        text += (
            f"; at the stated hours {_kwh(stated['energy_kwh'])} and "
            f"{format_usd(stated['electricity_usd'])}"
        )
    return text

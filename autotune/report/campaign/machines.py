"""What `autotune plan` says of its machines: each with its bill, and every run on its own."""

from __future__ import annotations

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
    """That every run on its own cheapest machine would cost clearly less, and which machines."""
    found, total = payload["apart"], payload["total"]["cost_usd"]["p50"]
    together = not payload["offers"][payload["machine"]]["missing"]
    if found is None or payload["subset"] is not None:
        return []
    if together and (payload["deadline"] or found["cost_usd"] > (1.0 - APART) * total):
        return []
    runs: dict[int, list[Payload]] = {}
    for run, machine in zip(payload["runs"], found["machines"], strict=True):
        runs.setdefault(machine, []).append(run)
    offers = payload["offers"]
    told = [
        f"{_names(group)} on {marked_name(recorded_label(offers[machine]), offers[machine])}"
        for machine, group in sorted(runs.items())
    ]
    less = f" ({format_usd(total - found['cost_usd'])} less)" if together else ""
    text = (
        f"Each on its own cheapest machine, they cost {format_usd(found['cost_usd'])}{less} and "
        f"take {hours(found['duration_s'])} end to end: {'; '.join(told)}."
    )
    return [Paragraph(text)]


def _names(runs: Sequence[Payload]) -> str:
    """Which runs: by name where they are few, else how many."""
    if len(runs) <= NAMED_APART:
        return ", ".join(run["run"] for run in runs)
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
    titles = ["USD/h", "hours", "80 % range", "cost", "energy"]
    titles += ["at stated hours"] if stated else []
    titles = ["machine", *(f">{title}" for title in titles)]
    drawn = table(rows, *titles, strong={shown.index(payload["machine"])})
    same = all(run["hours_from"] == "stated" for run in payload["runs"])
    title = "Machines at the stated hours" if same else "Machines, each with its own hours"
    title += " (*: chosen)" if len(shown) > 1 else ""
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
    price = f"{offer['usd_per_hour']:,.3g}"
    marked = "*" if number == payload["machine"] else ""
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

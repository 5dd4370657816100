"""What a comparison says below its table: sharding, spot, owned machines, sessions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.typed.machine import machine_label
from autotune.domain.units import format_bytes, format_count, format_seconds, format_usd
from autotune.report.layout.blocks import Bullets, Section, Table, columns

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Payload = dict[str, Any]
MOST_SPLITS = 6
MANY = 100  # a day: from so many on no decimals are shown


def machine_name(row: Mapping[str, Any]) -> str:
    """The machine of a row in a few characters: "2x h100-sxm, spot"."""
    spot, instance = row["spot"], row.get("instance")
    return machine_label(row["device"], row["device_count"], spot=spot, instance=instance)


def variant_and_machine(row: Mapping[str, Any]) -> str:
    """The machine, after its variant where there are several."""
    name = machine_name(row)
    return f"{row['variant']}: {name}" if row["variant"] else name


def sharding_section(rows: Sequence[Payload]) -> Section:
    """Offers of several devices: is the sharding needed, and does it pay?"""
    on_demand = {(row["device"], row["device_count"]) for row in rows if not row["spot"]}
    several = [
        row
        for row in rows
        if row["shardings"]
        and not (row["spot"] and (row["device"], row["device_count"]) in on_demand)
    ][:MOST_SPLITS]
    lines: list[tuple[str, ...]] = []
    notes = []
    for row in several:
        for split in row["shardings"]:
            seconds = split["duration_s"]
            lines.append((
                variant_and_machine(row), split["sharding"],
                format_seconds(seconds) if seconds is not None else "does not fit",
                format_usd(split["cost_usd"]) if seconds is not None else "",
            ))  # fmt: skip
        notes.append(_needed(row))
    if not lines:
        return Section("Several devices: is sharding needed?", ())
    table = Table(
        columns("machine", "sharding", ">duration", ">cost"),
        tuple(lines),
    )
    return Section("Several devices: is sharding needed?", (table, Bullets(tuple(notes))))


def _needed(row: Payload) -> str:
    alone, name = row["one_device"], variant_and_machine(row)
    if row["sharding_needed"]:
        needs = (
            f"{format_bytes(alone['required_bytes'])} of {format_bytes(alone['available_bytes'])}"
        )
        return f"{name}: needed. One {row['device']} would need {needs}."
    if not alone or not alone["fits"]:
        return f"{name}: not needed. Every card holds the model beside its share of the batch."
    speedup = alone["duration_s"] / row["duration_s"]["p50"]
    return (
        f"{name}: not needed. One {row['device']} holds the job: "
        f"{format_seconds(alone['duration_s'])} and {format_usd(alone['cost_usd'])} at its share "
        f"of the price; {row['device_count']} are {speedup:.1f} times as fast."
    )


def spot_section(rows: Sequence[Payload]) -> Section:
    """Each spot offer against the same machine on demand, with its break-even rate."""
    items = []
    for row in rows:
        terms = row["spot_terms"]
        if terms is None:
            continue
        saved = terms["on_demand_usd"] - row["cost_usd"]["p50"]
        verdict = f"saves {format_usd(saved)}" if saved > 0 else f"costs {format_usd(-saved)} more"
        even = terms["break_even_per_day"]
        until = (
            "and is cheaper at any rate"
            if even is None
            else "and is never cheaper"
            if even == 0
            else f"and breaks even at {_rate(even)} interruptions a day"
        )
        lost = format_seconds(row["time_s"]["lost_work"])
        items.append(
            f"{variant_and_machine(row)}: {verdict} against "
            f"{format_usd(terms['on_demand_usd'])} on demand at "
            f"{_rate(terms['interruptions_per_day'])} interruptions a day, {until}; "
            f"{_saves(row)}{lost} of lost work in its duration"
        )
    return Section("Spot against on demand", (Bullets(tuple(items)),) if items else ())


def _saves(row: Payload) -> str:
    every = format_count(row["config"]["checkpoint_every_steps"])
    return f"saved every {every} steps, " if row["checkpoints"] else ""


def _rate(per_day: float) -> str:
    return f"{per_day:,.0f}" if per_day >= MANY else f"{per_day:.3g}"


def beyond_hours_section(rows: Sequence[Payload]) -> Section:
    """What a machine costs beyond the hours that the bill counts."""
    items = []
    for row in rows:
        if row["full_cost_usd"] is not None:
            items.append(
                f"{variant_and_machine(row)}: {format_usd(row['cost_usd']['p50'])} as counted "
                f"({row['price_source']}); with its purchase spread over its use "
                f"{format_usd(row['full_cost_usd'])} ({format_usd(row['full_usd_per_hour'])}/h)"
            )
        if row["month_usd"] is not None:
            items.append(
                f"{variant_and_machine(row)}: {format_usd(row['cost_usd']['p50'])} is this run's "
                f"share; a month is paid whole, {format_usd(row['month_usd'])}"
            )
    title = "Owned machines and subscriptions"
    return Section(title, (Bullets(tuple(items)),) if items else ())


def session_section(rows: Sequence[Payload], job: Payload) -> Section:
    """Rows that outlast a session, and what starting again costs them."""
    session_s = job["limits"]["max_session_s"]
    items = [
        f"{variant_and_machine(row)}: {row['sessions']} sessions of {format_seconds(session_s)}; "
        f"save before each ends. Starting again is counted in its "
        f"{format_seconds(row['duration_s']['p50'])} "
        f"({format_seconds(row['time_s']['lost_work'])})"
        for row in rows
        if row["sessions"] > 1
    ]
    return Section("Longer than one session", (Bullets(tuple(items)),) if items else ())

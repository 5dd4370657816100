"""What a comparison says below its table, and of several variants of a job.

Sharding, spot, owned machines, sessions; bills, memory, growth with the data.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.typed.machine import recorded_label
from autotune.domain.units import (
    GIB,
    HOUR_S,
    MINUTE_S,
    format_bytes,
    format_count,
    format_seconds,
    format_usd,
)
from autotune.report.layout.blocks import Paragraph, Section, Table, bullets, section, table
from autotune.report.phrases import marked_name

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Payload = dict[str, Any]
MOST_SPLITS = 6
MANY = 100  # a day: from so many on no decimals are shown


def variant_and_machine(row: Mapping[str, Any]) -> str:
    """The machine, after its variant where there are several."""
    name = recorded_label(row)
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
    drawn = table(lines, "machine", "sharding", ">duration", ">cost")
    return section("Several devices: is sharding needed?", drawn, bullets(notes))


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
    return section("Spot against on demand", bullets(items))


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
    return section("Owned machines and subscriptions", bullets(items))


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
    return section("Longer than one session", bullets(items))


MOST_VARIANTS, MOST_MACHINES = 12, 6
_SHOWN_PARTS = ("weights", "adapters", "gradients", "optimizer", "activations", "logits")


def variants_lead(payload: Payload) -> Section:
    """What the variants are, in one sentence each."""
    named = payload["variants"]
    name = payload["job"]["name"].partition(":")[0]
    lead = (
        f"{name}: {len(named)} variants. Each trains something else, so the choice among them is "
        "yours; each is at its best config."
    )
    lines = (
        (
            item["variant"],
            f"{format_count(item['job']['steps'])} steps",
            f"{format_count(item['job']['tokens'])} tokens",
            item["job"]["method"].partition(" on ")[0],
        )
        for item in named
    )
    return section("", Paragraph(lead, "strong"), table(lines, "", ">", ">", ""))


def variants_section(payload: Payload) -> Section:
    """One table over machines and variants, a group a machine."""
    by_machine: dict[str, list[Payload]] = {}
    for row in payload["rows"]:
        by_machine.setdefault(recorded_label(row), []).append(row)
    order = {item["variant"]: number for number, item in enumerate(payload["variants"])}
    lines: list[tuple[str, ...]] = []
    groups = set()
    for name, rows in list(by_machine.items())[:MOST_MACHINES]:
        groups.add(len(lines))
        price = f"{name}, {rows[0]['usd_per_hour']:,.2f} USD/h"
        lines.append((marked_name(price, rows[0]), *[""] * 6))
        lines += [_line(row) for row in sorted(rows, key=lambda row: order[row["variant"]])]
    if not lines:
        return Section("Machines and variants", (Paragraph("Nothing fits anywhere.", "bad"),))
    titles = ("variant", ">duration", ">80 % range", ">cost", ">80 % range", ">memory", "bound by")
    left = len(by_machine) - MOST_MACHINES
    note = "Columns: duration and its 80 % range, cost and its 80 % range, peak memory, what bounds"
    note += f"; {left} more machines in --format csv or json." if left > 0 else "."
    drawn = table(lines, *titles, groups=groups)
    return section("Machines and variants", drawn, Paragraph(note, "quiet"))


def _line(row: Payload) -> tuple[str, ...]:
    hours, usd = row["duration_s"], row["cost_usd"]
    late = ", ".join(miss["limit"].replace("_", " ") for miss in row["misses"])
    return (
        row["variant"],
        format_seconds(hours["p50"]),
        spread_s(hours),
        format_usd(usd["p50"]),
        spread(usd, 1.0),
        format_bytes(row["memory_bytes"]["total"]),
        row["bound_by"] + (f"; misses {late}" if late else ""),
    )


def spread(of: Payload, unit: float) -> str:
    """An 80 % range with as many digits as mean something: 14.7-31.6."""
    low, high = of["p10"] / unit, of["p90"] / unit
    digits = 0 if high >= 100 else 1 if high >= 10 else 2  # noqa: PLR2004 - three digits are enough
    return f"{low:,.{digits}f}-{high:,.{digits}f}"


def spread_s(of: Payload) -> str:
    """An 80 % range of a duration, in the unit that its middle is shown in."""
    unit, name = (HOUR_S, "h") if of["p50"] >= 2 * HOUR_S else (MINUTE_S, "min")
    if of["p50"] < 120.0:  # noqa: PLR2004 - where format_seconds turns to seconds
        unit, name = 1.0, "s"
    return f"{spread(of, unit)} {name}"


def memory_section(payload: Payload) -> Section:
    """Memory by component [GiB] on the first machine that every variant fits on."""
    named = [item["variant"] for item in payload["variants"]]
    machines = list(dict.fromkeys(recorded_label(row) for row in payload["rows"]))
    for machine in machines:
        rows = {row["variant"]: row for row in payload["rows"] if recorded_label(row) == machine}
        totals = {row["memory_bytes"]["total"] for row in rows.values()}
        if len(rows) == len(named) <= MOST_VARIANTS and len(totals) > 1:
            return Section(f"Memory on {machine}, GiB", (_memory_table(named, rows),))
    return Section("Memory", ())


def _memory_table(named: Sequence[str], rows: dict[str, Payload]) -> Table:
    lines = []
    for variant in named:
        parts = rows[variant]["memory_bytes"]
        shown = [parts[name] for name in _SHOWN_PARTS]
        cells = [*shown, parts["total"] - sum(shown), parts["total"], parts["usable"]]
        lines.append((variant, *(f"{value / GIB:.2f}" for value in cells)))
    names = ("weights", "adapt.", "grad.", "optim.", "activ.", "logits", "other", "total", "usable")
    return table(lines, "variant", *(f">{name}" for name in names))


def scaling_section(lines: Sequence[Payload]) -> Section:
    """Fixed part and slope, for sizes that were not asked."""
    if not lines:
        return Section("With the number of rows", ())
    rows = (
        (
            recorded_label(line) + (f", {line['of']}" if line["of"] else ""),
            format_seconds(line["fixed_s"]),
            format_seconds(1000 * line["s_per_row"]),
            format_usd(line["fixed_usd"]),
            format_usd(1000 * line["usd_per_row"]),
            f"{100 * line['largest_deviation']:.1f}%",
        )
        for line in lines
    )
    each = ">per 1,000 rows"
    titles = ("machine", ">fixed", each, ">fixed", each, ">off by at most")
    sizes = ", ".join(format_count(size) for size in lines[0]["rows"])
    note = (
        f"A straight line through {sizes} rows: duration = fixed part + rows x slope. The fixed "
        "part is loading, compiling, evaluating at the end and the last save."
    )
    return section("With the number of rows", table(rows, *titles), Paragraph(note, "quiet"))

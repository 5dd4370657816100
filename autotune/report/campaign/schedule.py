"""What a plan says of when its runs run: the chart, more machines, sharing a card."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.units import HOUR_S, format_seconds, format_usd
from autotune.report.campaign.chart import machine_lines, phase_marks
from autotune.report.layout.blocks import Bullets, Paragraph, Section, Table

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.report.layout.blocks import Block

Payload = dict[str, Any]
MOST_MACHINES, CHART_CELLS = 16, 56


def hours(seconds: float) -> str:
    """Hours with one digit, as campaigns are added up; minutes where they are few."""
    return f"{seconds / HOUR_S:,.1f} h" if seconds >= 2 * HOUR_S else format_seconds(seconds)


def unit_of(payload: Payload) -> str:
    """What the machines of the schedule are called."""
    offer = payload["offers"][payload["machine"]]
    return "GPU" if offer["device_count"] == 1 and offer["device"] != "cpu" else "machine"


def many(count: int, one: str) -> str:
    """A count with its noun: 1 GPU, 4 GPUs."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"


def schedule_section(payload: Payload) -> Section:
    """The chart of the schedule, and what bounds it."""
    schedule = payload["schedule"]
    if schedule is None or not schedule["placements"]:
        return Section("Schedule", ())
    lines = machine_lines(payload, CHART_CELLS)[:MOST_MACHINES]
    rows = tuple((f"{number + 1}", line) for number, line in enumerate(lines))
    phases = phase_marks(payload)
    marks = ", ".join(f"{mark} {name}" for name, mark in phases.items()) if len(phases) > 1 else ""
    legend = (
        f"0 to {hours(schedule['makespan_s'])}. {marks}{'; ' if marks else ''}"
        "| starts a run, . is idle. "
        f"The {unit_of(payload)}s are busy {100 * schedule['busy_fraction']:.0f} % of the time."
    )
    if schedule["machines"] > MOST_MACHINES:
        legend += f" {schedule['machines'] - MOST_MACHINES} more in --format json or --chart."
    blocks: list[Block] = [
        Table((unit_of(payload), "runs"), rows, frozenset({1})),
        Paragraph(legend),
    ]
    blocks += _said_of_schedule(payload, schedule)
    return Section("Schedule", tuple(blocks))


def _said_of_schedule(payload: Payload, schedule: Payload) -> Iterator[Block]:
    items = []
    other = schedule["other_barrier_makespan_s"]
    if other is not None and schedule["barrier"]:
        items.append(f"phases wait for each other; without that it ends after {hours(other)}")
    elif other is not None:
        items.append(
            f"if each phase waits for the one before (--barrier), it ends after {hours(other)}"
        )
    if schedule["enough_machines"] > 1:
        items.append(
            f"from {many(schedule['enough_machines'], unit_of(payload))} on it cannot go under "
            f"{hours(schedule['longest_chain_s'])}, its longest run or chain of runs"
        )
    sharing = payload["sharing"]
    if schedule["shared"]:
        items.append(
            "launch-bound runs share a card two by two: cards are rented for "
            f"{hours(sharing['rented_s'])}, {format_usd(sharing['rented_usd'])}; modelled, "
            "never measured"
        )
    elif sharing["pays"]:
        items.append(
            f"{len(sharing['launch_bound'])} kinds of runs are bound by launching kernels: two to "
            f"a card (--share) it ends after {hours(sharing['makespan_s'])} and rents cards for "
            f"{hours(sharing['rented_s'])}, {format_usd(sharing['rented_usd'])}; modelled"
        )
    else:
        items.append(f"one run a card: {sharing['reason']}")
    yield Bullets(tuple(items))


def scaling_section(payload: Payload) -> Section:
    """How long the campaign takes on other numbers of machines."""
    if not payload["scaling"]:
        return Section("", ())
    stated = {each["machines"]: each for each in payload["stated_scaling"]}
    beside = bool(stated) and payload["hours_from"] == "model" and payload["subset"] is None
    rows = []
    for each in payload["scaling"]:
        own = stated.get(each["machines"])
        cells = [
            f"{each['machines']}",
            hours(each["makespan_s"]),
            hours(each["lower_bound_s"]),
            hours(each["barrier_makespan_s"]),
        ]
        if beside:
            cells.append(hours(own["makespan_s"]) if own else "")
            cells.append(hours(own["barrier_makespan_s"]) if own else "")
        rows.append(tuple(cells))
    titles = [f"{unit_of(payload)}s", "ends after", "at best", "with barriers"]
    titles += ["stated hours", "with barriers"] if beside else []
    table = Table(tuple(titles), tuple(rows), frozenset(range(len(titles))))
    return Section(f"More {unit_of(payload)}s, same bill", (table,))

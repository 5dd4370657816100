"""When each run of a campaign runs, and where: as a table, as bars, and drawn as an SVG."""

from __future__ import annotations

from html import escape
from typing import TYPE_CHECKING, Any

from autotune.domain.typed.machine import recorded_label
from autotune.domain.units import HOUR_S, format_seconds, format_usd
from autotune.report.layout.blocks import Bullets, Paragraph, Section, section, table
from autotune.report.page.axis import Axis, time_unit

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from autotune.report.layout.blocks import Block

Payload = dict[str, Any]
MOST_MACHINES, CHART_CELLS = 16, 56


def hours(seconds: float) -> str:
    """Hours with one digit, as campaigns are added up; minutes where they are few."""
    return f"{seconds / HOUR_S:,.1f} h" if seconds >= 2 * HOUR_S else format_seconds(seconds)


def unit_of(payload: Payload) -> str:
    """What the machines of the schedule are called."""
    offers = [payload["offers"][number] for number in {r["machine"] for r in payload["runs"]}]
    cards = all(offer["device_count"] == 1 and offer["device"] != "cpu" for offer in offers)
    return "GPU" if cards else "machine"


def many(count: int, one: str) -> str:
    """A count with its noun: 1 GPU, 4 GPUs."""
    return f"{count:,} {one}" if count == 1 else f"{count:,} {one}s"


def schedule_section(payload: Payload) -> Section:
    """The chart of the schedule, and what bounds it."""
    schedule = payload["schedule"]
    if schedule is None or not schedule["placements"]:
        return Section("Schedule", ())
    lines = machine_lines(payload, CHART_CELLS)[:MOST_MACHINES]
    rows = ((f"{number + 1}", line) for number, line in enumerate(lines))
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
        table(rows, unit_of(payload), ">runs"),
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
    drawn = table(rows, *(f">{title}" for title in titles))
    return section(f"More {unit_of(payload)}s, same bill", drawn)


_MARKS = "123456789abcdefghijklmnopqrstuvwxyz"
# Eight colours that differ in lightness as well as in hue (Okabe and Ito's palette, 2008).
_COLOURS = (
    "#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#999999",
)  # fmt: skip
_LEFT, _ROW, _TOP, _WIDTH = 70, 22, 46, 900


def phase_marks(payload: Payload) -> dict[str | None, str]:
    """A character for each phase."""
    names = list(dict.fromkeys(run["phase"] for run in payload["runs"]))
    return {name: _MARKS[number % len(_MARKS)] for number, name in enumerate(names)}


def machine_lines(payload: Payload, cells: int) -> list[str]:
    """One line of `cells` characters a machine: "|" starts a run, "." is idle."""
    schedule, marks = payload["schedule"], phase_marks(payload)
    span = schedule["makespan_s"]
    lines = [["."] * cells for _ in range(schedule["machines"])]
    for placed in schedule["placements"]:
        start = min(int(placed["start_s"] / span * cells), cells - 1)
        end = max(round(placed["end_s"] / span * cells), start + 1)
        line = lines[placed["machine"]]
        line[start:end] = marks[placed["phase"]] * (min(end, cells) - start)
        if end - start > 1:
            line[start] = "|"
    return ["".join(line) for line in lines]


def plan_svg(payload: Payload) -> str:
    """The schedule as a drawing. Every run carries its name and times as a tooltip."""
    schedule = payload["schedule"]
    if schedule is None or not schedule["placements"]:
        return _empty(payload)
    span = schedule["makespan_s"]
    scale = (_WIDTH - _LEFT - 20) / span
    bottom = _TOP + _ROW * schedule["machines"]
    phases = list(dict.fromkeys(run["phase"] for run in payload["runs"]))
    colours = {name: _COLOURS[n % len(_COLOURS)] for n, name in enumerate(phases)}
    legend, height = _legend([name or "runs" for name in phases], list(colours.values()), bottom)
    machines = "1 machine" if schedule["machines"] == 1 else f"{schedule['machines']} machines"
    title = f"{payload['name']}: {format_seconds(span)} on {machines}"
    parts = [_head(height, title), _text(_LEFT, 18, title, weight="bold")]
    parts += _axis(span, scale, schedule["machines"])
    parts += [
        _text(_LEFT - 8, _TOP + _ROW * n + 15, f"{n + 1}", anchor="end")
        for n in range(schedule["machines"])
    ]
    lanes = _lanes(schedule["placements"])
    for placed, (lane, of) in zip(schedule["placements"], lanes, strict=True):
        where = recorded_label(payload["offers"][placed["offer"]]) if payload["mixed"] else ""
        parts.append(_bar(placed, scale, colours[placed["phase"]], lane, of, where))
    parts += legend
    return "\n".join([*parts, "</svg>"]) + "\n"


def _lanes(placements: Sequence[Payload]) -> list[tuple[int, int]]:
    """Lane and number of lanes of each run: two where it shares its machine for some time."""
    found: list[tuple[int, int]] = []
    taken: list[Payload] = []
    for placed in placements:
        beside = [
            other
            for other in placements
            if other is not placed
            and other["machine"] == placed["machine"]
            and other["start_s"] < placed["end_s"] * (1 - 1e-9)
            and placed["start_s"] < other["end_s"] * (1 - 1e-9)
        ]
        used = {found[n][0] for n, other in enumerate(taken) if other in beside}
        found.append((0 if 0 not in used else 1, 2 if beside else 1))
        taken.append(placed)
    return found


def _head(height: int, title: str) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" '
        f'width="{_WIDTH}" height="{height}" font-family="sans-serif" font-size="12" role="img">\n'
        f"<title>{escape(title)}</title>\n"
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>'
    )


def _text(x: float, y: float, text: str, *, anchor: str = "start", weight: str = "normal") -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-weight="{weight}" '
        f'fill="#222222">{escape(text)}</text>'
    )


def _axis(span: float, scale: float, machines: int) -> list[str]:
    """Lines at round times, named over the schedule."""
    found = []
    bottom = _TOP + _ROW * machines
    unit, name = time_unit(span)
    for tick in Axis(0.0, span / unit, logarithmic=False).ticks():
        x = _LEFT + tick * unit * scale
        found.append(
            f'<line x1="{x:.1f}" y1="{_TOP - 4}" x2="{x:.1f}" y2="{bottom}" stroke="#dddddd"/>'
        )
        found.append(_text(x, _TOP - 9, f"{tick:g} {name}", anchor="middle"))
    return found


def _bar(placed: Payload, scale: float, colour: str, lane: int, of: int, where: str) -> str:
    x = _LEFT + placed["start_s"] * scale
    width = max((placed["end_s"] - placed["start_s"]) * scale, 0.8)
    tall = (_ROW - 4) / of
    y = _TOP + _ROW * placed["machine"] + 2 + lane * tall
    begun, ended = format_seconds(placed["start_s"]), format_seconds(placed["end_s"])
    tip = f"{placed['task']}{f' on {where}' if where else ''}: {begun} to {ended}"
    return (
        f'<rect x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{tall:.1f}" fill="{colour}" '
        f'stroke="#ffffff" stroke-width="0.7"><title>{escape(tip)}</title></rect>'
    )


def _legend(names: Sequence[str], colours: Sequence[str], top: int) -> tuple[list[str], int]:
    """The phases in lines under the schedule, and where the drawing ends [pixels]."""
    found = []
    x, y = float(_LEFT), top + 36
    for name, colour in zip(names, colours, strict=True):
        shown = name if len(name) < 30 else name[:27] + "..."  # noqa: PLR2004 - room in the legend
        wide = 30 + 7.5 * len(shown)
        if x + wide > _WIDTH and x > _LEFT:
            x, y = float(_LEFT), y + 20
        found.append(f'<rect x="{x:.1f}" y="{y - 10}" width="12" height="12" fill="{colour}"/>')
        found.append(_text(x + 16, y, shown))
        x += wide
    return found, y + 12


def _empty(payload: Payload) -> str:
    title = f"{payload['name']}: nothing is scheduled"
    return "\n".join([_head(60, title), _text(20, 34, title), "</svg>"]) + "\n"

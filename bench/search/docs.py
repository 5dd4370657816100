"""The generated parts of docs/search.md: the table, and the curves as SVG drawn by hand."""

from __future__ import annotations

import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.search.families import STRANGE
from bench.search.level import MOST, OURS, cell, levels

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
PAGE, PLOT = ROOT / "docs" / "search.md", ROOT / "docs" / "search.svg"
BEGIN_STRANGE, END_STRANGE = "<!-- begin families -->", "<!-- end families -->"
BEGIN, END = "<!-- begin search -->", "<!-- end search -->"
HEADS = {
    "probes_to_3pct": "probes to 3 %", "probes_to_1pct": "to 1 %",
    "regret_10": "regret after 10", "regret_10_p90": "p90", "regret_20": "after 20",
    "regret_20_p90": "p90", "oom_probes": "out of memory",
}  # fmt: skip
COLOURS = {
    "random": "#9a9a9a", "tpe": "#c58b2a", "tpe_warm": "#a3431f", "gp_warm": "#7a4fa3",
    "nsga2": "#5b8c3a", "ladder": "#2a7f8e", "calibrated": "#14399a", "topk": "#111111",
    "hill": "#d14a8b", "plain_gp": "#b59a00", "random_fits": "#c9c9c9",
}  # fmt: skip
STOCK = ("random", "tpe", "tpe_warm", "gp_warm", "nsga2")  # Optuna's
WIDTH, HEIGHT, LEFT, TOP, GAP = 300, 190, 52, 44, 26
DECADES = (0.001, 0.01, 0.1, 1.0, 10.0)
LEGEND = 30
# What an earlier page and plot say of methods that are not run again.
ROW = re.compile(r"^\| (?!scenario )(\w+) \| \**(\w+?)\** \| .*\|$", re.MULTILINE)
REACHED = re.compile(
    r"^- (\w+): (\w+) has a median regret of ([\d.]+)% after (\d+) probes", re.MULTILINE
)
PANEL = re.compile(r'<text [^>]*font-weight="bold">(\w+)</text>')
CURVE = re.compile(r'<polyline .* stroke="(#\w+)"')
OF_FAMILY = re.compile(rf"(?:\| |- )({'|'.join(STRANGE)})[ :]")


def write(
    figures: Mapping[str, Mapping[str, Mapping[str, Any] | None]],
    curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    first_seed: int,
) -> None:
    """Write the table into the page, and the plot beside it.

    Rows and curves of methods that were not run stay as they are: the machines are the same.
    Machines of no prior have tables of their own, where a family that is run is written whole and
    the others stay.
    """
    strange = {s: by for s, by in figures.items() if s in STRANGE}
    if strange:
        text = PAGE.read_text(encoding="utf-8")
        before, rest = text.split(BEGIN_STRANGE, 1)
        after = rest.split(END_STRANGE, 1)[1]
        own = {s: curves[s] for s in strange}
        page = strangers(strange, first_seed), beside_rivals(own), against_topk(own)
        body = with_other_families("\n\n".join(page), rest.split(END_STRANGE, 1)[0])
        text = f"{before}{BEGIN_STRANGE}\n{body}\n{END_STRANGE}{after}"
        PAGE.write_text(text, encoding="utf-8")
    figures = {s: by for s, by in figures.items() if s not in STRANGE}
    curves = {s: by for s, by in curves.items() if s not in STRANGE}
    if not curves:
        return
    text = PAGE.read_text(encoding="utf-8")
    before, rest = text.split(BEGIN, 1)
    body, after = rest.split(END, 1)
    machines = max(len(c) for by in curves.values() for c in by.values())
    head = f"{machines} machines a scenario, the same for every method."
    kept = body if head in body else ""
    drawn = drawn_before(PLOT.read_text(encoding="utf-8")) if kept else {}
    body = f"{head}\n\n{table(figures, kept)}\n\n{equal_regret(curves, kept)}"
    PAGE.write_text(f"{before}{BEGIN}\n{body}\n{END}{after}", encoding="utf-8")
    PLOT.write_text(plot(curves, drawn), encoding="utf-8")


def with_other_families(body: str, before: str) -> str:
    """The tables and lists of the families that were run, and of the others as an earlier page."""
    found, old = body.strip().split("\n\n"), before.strip().split("\n\n")
    if len(found) != len(old):
        return body
    blocks = []
    for own, other in zip(found, old, strict=True):
        lines: dict[str, list[str]] = {}
        for line in own.splitlines():
            lines.setdefault(_family(line), []).append(line)
        run = set(lines)
        for line in other.splitlines():
            if _family(line) not in run:
                lines.setdefault(_family(line), []).append(line)
        blocks.append("\n".join(line for f in ("", *STRANGE) for line in lines.get(f, ())))
    return "\n\n".join(blocks)


def _family(line: str) -> str:
    found = OF_FAMILY.match(line)
    return found[1] if found else ""


def strangers(
    figures: Mapping[str, Mapping[str, Mapping[str, Any] | None]], first_seed: int
) -> str:
    """Markdown: regret by method, then what was said of the rest and whether it held."""
    lines = [
        (
            f"Machines of the seeds from {first_seed} on, the same for every method. Regret is "
            "that of the median machine / of the one at the 90th percentile."
        ),
        "",
        "| family | method | after 6 | after 10 | after 20 | out of memory |",
        "|---|---|---:|---:|---:|---:|",
    ]
    for family, by_method in figures.items():
        ran = {m: v for m, v in by_method.items() if v is not None}
        for method, values in ran.items():
            name = f"**{method}**" if method == "calibrated" else method
            pairs = [
                f"{_cell('regret', values[f'regret_{n}'])} / "
                f"{_cell('regret', values[f'regret_{n}_p90'])}"
                for n in (6, 10, 20)
            ]
            cells = " | ".join([*pairs, f"{values['oom_probes']:g}"])
            lines.append(f"| {family} | {name} | {cells} |")
    lines += [
        "",
        "What `calibrated` says of how much better anything may be, and what comes of stopping:",
        "",
        "| family | true after 10 | bound after 10 | stops after | true then | regret then |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    for family, by_method in figures.items():
        own = by_method.get("calibrated")
        if own is not None:
            stop = own["stop_probe"]
            lines.append(
                f"| {family} | {own['bound_coverage_10']:.0%} | {own['bound_median_10']:.1%} | "
                f"{'not by 20' if stop is None else f'{stop:g}'} | "
                f"{own['bound_coverage_stop']:.0%} | {_cell('regret', own['stop_regret'])} / "
                f"{_cell('regret', own['stop_regret_p90'])} |"
            )
    return "\n".join(lines)


def beside_rivals(curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> str:
    """Markdown: whether the calibrated sampler is ahead of the best rival, level or behind."""
    lines = [
        (
            "`calibrated` beside the best rival of each cell: its regret minus the rival's and the "
            "standard error of the difference, in points of a hundred, over machines drawn again. "
            "Level is what lies within one standard error; a regret, or having no pick, counts as "
            f"{MOST:.0%} at most."
        ),
        "",
        (
            "| family | machines | 6, median | 6, p90 | 10, median | 10, p90 | 20, median "
            "| 20, p90 |"
        ),
        "|---|---:|---|---|---|---|---|---|",
    ]
    for family, by_method in curves.items():
        found = levels(by_method)
        if found:
            cells = [str(len(by_method[OURS])), *(cell(own) for own in found)]
            lines.append(f"| {family} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def table(figures: Mapping[str, Mapping[str, Mapping[str, Any] | None]], before: str = "") -> str:
    """Markdown: a row for each scenario and method. before: the text whose other rows stay."""
    rows = {(found[1], found[2]): found[0] for found in ROW.finditer(before)}
    for scenario, by_method in figures.items():
        for method, values in by_method.items():
            cells = [_cell(name, (values or {}).get(name)) for name in HEADS]
            name = f"**{method}**" if method == "calibrated" else method
            rows[scenario, method] = f"| {scenario} | {name} | " + " | ".join(cells) + " |"
    lines = [
        "| scenario | method | " + " | ".join(HEADS.values()) + " |",
        "|---|---|" + "---:|" * len(HEADS),
    ]
    return "\n".join([*lines, *rows.values()])


def equal_regret(
    curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]], before: str = ""
) -> str:
    """A line a scenario: the probes that each needs for the regret of the best stock sampler.

    before: the text that says what the stock samplers reached, where they were not run again.
    """
    known = {f[1]: (f[2], float(f[3]) / 100.0, int(f[4])) for f in REACHED.finditer(before)}
    lines = []
    for scenario, by_method in curves.items():
        medians = {name: np.median(np.asarray(c), axis=0) for name, c in by_method.items()}
        stock = [name for name in STOCK if name in medians]
        if stock:
            best = min(stock, key=lambda name: float(medians[name][-1]))
            least = float(medians[best][-1])
            known[scenario] = best, least, int(np.argmax(medians[best] <= least)) + 1
        if "calibrated" not in medians or scenario not in known:
            continue
        best, least, theirs = known[scenario]
        ours = int(np.argmax(medians["calibrated"] <= least)) + 1
        lines.append(
            f"- {scenario}: {best} has a median regret of {least:.1%} after {theirs} probes, "
            f"calibrated after {ours}: {theirs / ours:.1f} times fewer."
        )
    return "\n".join(["Probes at equal regret, against Optuna's best:", "", *lines])


def against_topk(curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]]) -> str:
    """A line a family: the probes that each needs for the regret that the model's best k end with.

    Where the calibrated sampler never gets there, or is no sooner there, it says so.
    """
    lines = []
    for family, by_method in curves.items():
        if not {"topk", "calibrated"} <= set(by_method):
            continue
        theirs, ours = (
            np.median(np.asarray(by_method[name], np.float64), axis=0)
            for name in ("topk", "calibrated")
        )
        least = float(theirs[-1])
        if not math.isfinite(least):
            lines.append(f"- {family}: nothing that topk measured fits on the median machine.")
            continue
        first = int(np.argmax(theirs <= least)) + 1
        text = f"- {family}: topk has a median regret of {least:.1%} after {first} probes, "
        if (ours <= least).any():
            own = int(np.argmax(ours <= least)) + 1
            says = f"{first / own:.1f} times fewer" if own < first else "no fewer"
            lines.append(f"{text}calibrated after {own}: {says}.")
        else:
            lines.append(f"{text}calibrated has {float(ours[-1]):.1%} at the end: none.")
    return "\n".join(["Probes at equal regret, against the model's distinct best:", "", *lines])


def drawn_before(svg: str) -> dict[str, dict[str, str]]:
    """The curves of a plot by scenario and method."""
    of_colour = {colour: method for method, colour in COLOURS.items()}
    found: dict[str, dict[str, str]] = {}
    title = ""
    for line in svg.splitlines():
        if panel := PANEL.match(line):
            title = panel[1]
        elif curve := CURVE.match(line):
            found.setdefault(title, {})[of_colour[curve[1]]] = line
    return found


def _cell(name: str, value: float | None) -> str:
    if value is None:
        return "not reached" if name.startswith("probes") else "-"
    return f"{value:.1%}" if name.startswith("regret") else f"{value:g}"


def plot(
    curves: Mapping[str, Mapping[str, Sequence[Sequence[float]]]],
    drawn: Mapping[str, Mapping[str, str]] | None = None,
) -> str:
    """Median regret by probes, a panel for each scenario, logarithmic. drawn: curves that stay."""
    columns = 2
    rows = math.ceil(len(curves) / columns)
    width = columns * (WIDTH + LEFT + GAP)
    height = rows * (HEIGHT + TOP + GAP) + LEGEND
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}"',
        'font-family="sans-serif" font-size="11">',
        "<title>Median regret of the recommendation after each probe</title>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for k, (scenario, by_method) in enumerate(curves.items()):
        x = (k % columns) * (WIDTH + LEFT + GAP) + LEFT
        y = (k // columns) * (HEIGHT + TOP + GAP) + TOP
        parts.append(_panel(scenario, by_method, x, y, (drawn or {}).get(scenario, {})))
    methods = {m for by in (*curves.values(), *(drawn or {}).values()) for m in by}
    parts.append(_legend([m for m in COLOURS if m in methods], height))
    return "\n".join([*parts, "</svg>", ""])


def _panel(
    title: str, by_method: Mapping[str, Sequence[Sequence[float]]], x: int, y: int,
    drawn: Mapping[str, str],
) -> str:  # fmt: skip
    longest = max(len(curve) for found in by_method.values() for curve in found)
    parts = [f'<text x="{x}" y="{y - 10}" font-weight="bold">{title}</text>']
    for level in DECADES:
        at = y + _height(level)
        parts.append(
            f'<line x1="{x}" x2="{x + WIDTH}" y1="{at:.1f}" y2="{at:.1f}" stroke="#dddddd"/>'
            f'<text x="{x - 6}" y="{at + 4:.1f}" text-anchor="end" fill="#555555">'
            f"{100 * level:g} %</text>"
        )
    parts += [
        f'<text x="{x + WIDTH * k / longest:.1f}" y="{y + HEIGHT + 14}" text-anchor="middle" '
        f'fill="#555555">{k}</text>'
        for k in range(10, longest + 1, 10)
    ]
    parts += [line for method, line in drawn.items() if method not in by_method]
    for method, found in by_method.items():
        points = []
        for k in range(max(len(c) for c in found)):
            median = float(np.median([c[min(k, len(c) - 1)] for c in found]))
            if math.isfinite(median):
                points.append(f"{x + WIDTH * (k + 1) / longest:.1f},{y + _height(median):.1f}")
        wide = 2.6 if method == "calibrated" else 1.4
        parts.append(
            f'<polyline points="{" ".join(points)}" fill="none" stroke="{COLOURS[method]}" '
            f'stroke-width="{wide}"/>'
        )
    return "\n".join(parts)


def _height(value: float) -> float:
    """Pixels below the panel's top; what is under the lowest line lies on it."""
    low, high = math.log10(DECADES[0]), math.log10(DECADES[-1])
    place = math.log10(min(max(value, DECADES[0]), DECADES[-1]))
    return HEIGHT * (high - place) / (high - low)


def _legend(methods: Sequence[str], height: int) -> str:
    parts = []
    for k, method in enumerate(methods):
        x = LEFT + 66 * k
        parts.append(
            f'<line x1="{x}" x2="{x + 18}" y1="{height - 14}" y2="{height - 14}" '
            f'stroke="{COLOURS[method]}" stroke-width="2.6"/>'
            f'<text x="{x + 22}" y="{height - 10}">{method}</text>'
        )
    return "\n".join(parts)

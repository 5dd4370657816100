"""The answer as one page that needs nothing else: no network, no fonts, no images.

It is made from the JSON payload, so a recorded run can be drawn again. The words are those of the
text report; the drawings are added.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

from autotune.report.answer import (
    bill_sections,
    recommendation_sections,
    row_blocks,
    warnings_section,
)
from autotune.report.blocks import Bars, Paragraph
from autotune.report.comparison import alternatives_section, front_section, today_section
from autotune.report.how_to_run import RUN_TITLE, run_commands
from autotune.report.html_blocks import anchor, block_html, section_html, titled
from autotune.report.html_figures import (
    against_today,
    memory_figure,
    probe_figures,
    rows_by_name,
    tiles,
    time_figure,
    waterfall_figure,
)
from autotune.report.html_front import front_html
from autotune.report.html_machines import machines_html
from autotune.report.html_markup import Markup, ascii_only, joined, tag
from autotune.report.phrases import offer_name, seconds_span, usd_span
from autotune.report.probes import probes_section
from autotune.report.waterfall import journey_sections

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.report.blocks import Section
    from autotune.report.schema import RecommendationPayload, Row

FRONT_TITLE = "Time against money"
MACHINES_TITLE = "Machines and configurations"
# How titles begin, in the order in which people ask. Every title begins with the "" of the end.
ORDER = (
    "Beside today", "Warnings", "The job", "Settings", "Where the time", "Where the memory",
    "Probes", "From today", FRONT_TITLE, MACHINES_TITLE, "Around", "What the measured", "What",
    "Assumed", RUN_TITLE, "How it was found", "",
)  # fmt: skip


def recommendation_html(payload: RecommendationPayload) -> str:
    """The whole page, in ASCII."""
    script = _resource("page.js")
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = (
        f"default-src 'none'; style-src 'unsafe-inline'; script-src 'sha256-{digest}'; "
        "img-src data:; base-uri 'none'; form-action 'none'"
    )
    head = tag(
        "head",
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("title", _title(payload)),
        tag("link", rel="icon", href="data:,"),
        tag("style", Markup(_resource("page.css"))),
    )
    body = tag("body", _report(payload), tag("script", Markup(script)), class_="autotune-page")
    page = tag("html", head, body, lang="en")
    return ascii_only(f"<!DOCTYPE html>\n{page}\n")


def recommendation_fragment(payload: RecommendationPayload) -> str:
    """The answer in short for a notebook's cell: no script, and styles that touch nothing else."""
    first, *_ = recommendation_sections(payload)
    best = payload["best"]
    content = [block_html(block) for block in first.blocks]
    if best:
        content += [tiles(best, payload["today"]), against_today(payload)]
        content += [section_html(today_section(payload))] if payload["today"] else []
    content.append(section_html(warnings_section(payload["warnings"])))
    return _fragment(content)


def row_fragment(row: Row) -> str:
    """One priced configuration in short for a notebook's cell, as `recommendation_fragment`."""
    rows = {"this config": row}
    content = [block_html(block) for block in row_blocks(row)]
    content += [tiles(row), time_figure(rows), memory_figure(rows)]
    return _fragment(content)


def _fragment(content: Sequence[Markup]) -> str:
    style = tag("style", Markup(_resource("page.css")))
    return ascii_only(tag("div", style, *content, class_="autotune fragment"))


def _resource(name: str) -> str:
    return files("autotune.report").joinpath("page", name).read_text(encoding="ascii")


def _title(payload: RecommendationPayload) -> str:
    best, name = payload["best"], payload["job"]["name"]
    if not best:
        return f"{name}: nothing fits"
    duration, cost = seconds_span(best["duration_s"]), usd_span(best["cost_usd"])
    return f"{name}: {offer_name(best)}, {duration}, {cost}"


def _report(payload: RecommendationPayload) -> Markup:
    first, *others = recommendation_sections(payload)
    drawn, parts = _drawn(payload)
    words = [(each.title, section_html(each)) for each in others if each not in drawn]
    # Where nothing fits, what would make it fit comes before the drawings; warnings come first.
    ordered = [parts[0], *words, *parts[1:]]
    if payload["best"]:
        ordered = sorted([*parts, *words], key=lambda each: _rank(each[0]))
    shown = [(title, part) for title, part in ordered if part]
    links = [
        tag("li", tag("a", title.partition(" (")[0], href=f"#{anchor(title)}"))
        for title, _ in shown
    ]
    best = payload["best"]
    header = tag(
        "header",
        *_lead(first),
        tiles(best, payload["today"]) if best else Markup(),
        joined([tag("pre", tag("code", line), tabindex="0") for line in run_commands(payload)]),
    )
    return tag(
        "div",
        header,
        tag("nav", tag("ul", *links), aria_label="contents"),
        tag("main", *(part for _, part in shown)),
        tag("div", id="tip", role="status", hidden="hidden"),
        class_="autotune",
    )


def _rank(title: str) -> int:
    return next(i for i, first in enumerate(ORDER) if title.startswith(first))


def _lead(section: Section) -> list[Markup]:
    """The answer in one sentence as the page's heading, and what belongs to it."""
    first, *others = section.blocks
    heading = tag("h1", first.text) if isinstance(first, Paragraph) else block_html(first)
    return [heading, *(block_html(block) for block in others)]


def _drawn(
    payload: RecommendationPayload,
) -> tuple[list[Section], list[tuple[str, Markup]]]:
    """Sections that are drawn instead of only written, and the drawings under their titles."""
    best = payload["best"]
    warnings = warnings_section(payload["warnings"])
    probes = probes_section(payload)
    front = (FRONT_TITLE, titled(FRONT_TITLE, front_html(payload)))
    machines = (MACHINES_TITLE, titled(MACHINES_TITLE, machines_html(payload)))
    probed = (probes.title, _with(probes, probe_figures(payload)))
    warned = (warnings.title, section_html(warnings))
    if not best:
        return [warnings, probes], [warned, front, probed, machines]
    beside = today_section(payload)
    time_bill, memory_bill = bill_sections(best)
    fall = journey_sections(payload)[:1]
    drawn = [beside, warnings, time_bill, memory_bill, *fall, probes]
    drawn += [alternatives_section(payload), front_section(payload)]
    parts = [
        (beside.title, _with(beside, against_today(payload)) if payload["today"] else Markup()),
        warned,
        (time_bill.title, _with(time_bill, time_figure(rows_by_name(payload)))),
        (memory_bill.title, _with(memory_bill, memory_figure(rows_by_name(payload)))),
        *((each.title, _with(each, waterfall_figure(payload, each))) for each in fall),
        front, probed, machines,
    ]  # fmt: skip
    return drawn, parts


def _with(section: Section, figure: Markup) -> Markup:
    """A section whose bars, where it has some, are drawn as a figure."""
    blocks = [b for b in section.blocks if not (figure and isinstance(b, Bars))]
    written: Sequence[Markup] = [block_html(block, section.title) for block in blocks]
    return titled(section.title, figure, joined(list(written)))

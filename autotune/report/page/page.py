"""The answer as one page that needs nothing else: no network, no fonts, no images.

It is made from the JSON payload, so a recorded run can be drawn again. The words are those of the
text report; the drawings are added.
"""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from typing import TYPE_CHECKING

from autotune.report.page.bills import bills_html, choices_html, pick_tiles, tiles
from autotune.report.page.blocks import Markup, ascii_only, block_html, section_html, tag, titled
from autotune.report.page.questions import questions
from autotune.report.phrases import offer_name, seconds_span, usd_span
from autotune.report.sections.answer import recommendation_sections, row_blocks, warnings_section
from autotune.report.sections.unknown_lengths import lengths_open, range_cell

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.report.page.questions import Question
    from autotune.report.schema import RecommendationPayload, Row


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
    best = payload.best
    content = [block_html(block) for block in first.blocks]
    if best:
        content += [pick_tiles(payload, best), choices_html(payload)]
    content.append(section_html(warnings_section(payload.warnings)))
    return _fragment(content)


def row_fragment(row: Row) -> str:
    """One priced configuration in short for a notebook's cell, as `recommendation_fragment`."""
    content = [*(block_html(block) for block in row_blocks(row)), tiles(row)]
    content += [titled(section.title, drawn) for section, drawn in bills_html({"it": row})]
    return _fragment(content)


def _fragment(content: Sequence[Markup]) -> str:
    style = tag("style", Markup(_resource("page.css")))
    return ascii_only(tag("div", style, *content, class_="autotune fragment"))


def _resource(name: str) -> str:
    return files("autotune.report").joinpath("page", name).read_text(encoding="ascii")


def _title(payload: RecommendationPayload) -> str:
    best, name = payload.best, payload.job.name
    if not best:
        return f"{name}: nothing fits"
    if lengths_open(payload.job):
        short = payload.short_rows
        ends = (range_cell(best, short, what) for what in ("duration_s", "cost_usd"))
        return f"{name}: {offer_name(best)}, {', '.join(ends)}"
    duration, cost = seconds_span(best.duration_s), usd_span(best.cost_usd)
    return f"{name}: {offer_name(best)}, {duration}, {cost}"


def _report(payload: RecommendationPayload) -> Markup:
    asked = questions(payload)
    job = payload.job
    links = [tag("li", tag("a", each.short, href=f"#{each.name}")) for each in asked]
    header = tag(
        "header",
        tag("h1", job.name),
        tag("p", f"{job.model}, {job.method}", class_="quiet"),
        tag("nav", tag("ul", *links), aria_label="contents"),
    )
    parts = [_section(number, each) for number, each in enumerate(asked, start=1)]
    note = "+ is on the page (report.html), folded, and was not printed."
    return tag(
        "div",
        header,
        tag("main", *parts),
        tag("p", note, class_="paper quiet"),
        tag("div", id="tip", role="status", hidden="hidden"),
        class_="autotune",
    )


def _section(number: int, asked: Question) -> Markup:
    heading = tag("h2", tag("span", str(number), class_="number"), " ", asked.words)
    answer = [tag("div", asked.answer, class_="answer")] if asked.answer else []
    return tag("section", heading, *answer, *asked.content, id=asked.name)

"""Everything that is made of one answer, and what it says that the answer denies."""

from __future__ import annotations

from typing import TYPE_CHECKING

from autotune.domain.answer.contract import plain
from autotune.report.layout.text import sections_text
from autotune.report.page.page import recommendation_html
from autotune.report.payload import recommendation_payload
from autotune.report.screens.estimate import estimate_screen
from autotune.report.screens.tune import recommendation_screen
from autotune.report.sections.answer import (
    ESTIMATE_REPORT,
    TUNE_REPORT,
    estimate_sections,
    recommendation_sections,
)
from bench.consistency.checks import contradictions
from bench.consistency.said import said

if TYPE_CHECKING:
    from autotune.domain.answer.recommendation import Recommendation
    from autotune.report.schema import EstimatePayload


def problems(rec: Recommendation) -> list[str]:
    """Of an answer of `tune`: its JSON, first screen, whole text, Markdown and page."""
    payload = recommendation_payload(rec)
    reports = {
        "screen": recommendation_screen(payload),
        "text": sections_text(recommendation_sections(payload)),
        "Markdown": TUNE_REPORT.markdown(payload),
        "page": recommendation_html(payload),
    }
    told = plain(payload)
    found = contradictions(told)
    return found + [f"{n}: {t}" for n, report in reports.items() for t in said(told, report)]


def problems_of_estimate(payload: EstimatePayload) -> list[str]:
    """The same of an answer of `estimate`."""
    reports = {
        "screen": estimate_screen(payload), "text": sections_text(estimate_sections(payload)),
        "Markdown": ESTIMATE_REPORT.markdown(payload),
    }  # fmt: skip
    told = plain(payload)
    found = contradictions(told)
    return found + [f"{n}: {t}" for n, report in reports.items() for t in said(told, report)]

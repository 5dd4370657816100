"""Answers that a notebook shows as a report.

The nouns are pure and cannot know how they are shown; what the library hands out is the noun with
the report attached.
"""

from __future__ import annotations

from dataclasses import fields

from autotune.domain.answer.recommendation import Recommendation
from autotune.domain.outcome import Estimated


class ShownRecommendation(Recommendation):
    """A recommendation with the method that Jupyter looks for."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """The answer in short, without scripts."""
        from autotune.report.page.page import recommendation_fragment
        from autotune.report.payload import recommendation_payload

        return recommendation_fragment(recommendation_payload(self))


class ShownEstimated(Estimated):
    """One priced configuration with the method that Jupyter looks for."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """Its time, cost and memory, without scripts."""
        from autotune.report.page.page import row_fragment
        from autotune.report.payload import row_payload

        return row_fragment(row_payload(self))


def shown(answer: Recommendation) -> ShownRecommendation:
    """The same answer, for notebooks."""
    return ShownRecommendation(**{item.name: getattr(answer, item.name) for item in fields(answer)})


def shown_row(row: Estimated) -> ShownEstimated:
    """The same configuration, for notebooks."""
    return ShownEstimated(**{item.name: getattr(row, item.name) for item in fields(row)})

"""Recommendations that a notebook shows as a report.

The noun is pure and cannot know how it is shown; what the library hands out is the noun with the
report attached.
"""

from __future__ import annotations

from dataclasses import fields

from autotune.domain.recommendation import Recommendation


class ShownRecommendation(Recommendation):
    """A recommendation with the method that Jupyter looks for."""

    __slots__ = ()

    def _repr_html_(self) -> str:
        """The answer in short, without scripts."""
        from autotune.report.html import recommendation_fragment
        from autotune.report.payload import recommendation_payload

        return recommendation_fragment(recommendation_payload(self))


def shown(answer: Recommendation) -> ShownRecommendation:
    """The same answer, for notebooks."""
    return ShownRecommendation(**{item.name: getattr(answer, item.name) for item in fields(answer)})

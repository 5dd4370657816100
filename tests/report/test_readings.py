"""How readings that a check leaves open are named."""

from __future__ import annotations

import pytest

from autotune.report.sections.waterfall import _pairs


@pytest.mark.parametrize(
    ("pairs", "said"),
    [
        ([("a", "b")], "a or b."),
        ([("a", "b"), ("a", "c"), ("b", "c")], "a, b or c."),
        ([("a", "b"), ("b", "c")], "a or b; b or c."),
        ([("a", "b"), ("c", "d")], "a or b; c or d."),
        ([("a", "b"), ("a", "c"), ("b", "c"), ("c", "d")], "a, b or c; c or d."),
    ],
)
def test_those_that_all_look_alike_are_one_group(pairs: list[tuple[str, str]], said: str) -> None:
    assert _pairs(pairs) == said

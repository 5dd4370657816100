"""Every defect that the walk is known to catch can still be put back into today's source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from bench.walk.faults import FAULTS, changed
from bench.walk.legs import LEGS

PACKAGE = Path(__file__).parents[2] / "autotune"


@pytest.mark.parametrize("name", FAULTS)
def test_a_defect_can_be_put_back_and_leaves_source_that_compiles(name: str) -> None:
    texts: dict[str, str] = {}
    for change in FAULTS[name].changes:
        source = texts.get(change.file) or (PACKAGE / change.file).read_text(encoding="utf-8")
        texts[change.file] = changed(source, change)
    for file, text in texts.items():
        ast.parse(text, file)
    assert set(FAULTS[name].legs) <= set(LEGS)


def test_a_change_that_no_longer_applies_is_told() -> None:
    fault = next(iter(FAULTS.values()))
    with pytest.raises(ValueError, match="0 times"):
        changed("another source", fault.changes[0])

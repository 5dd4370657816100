"""Every defect that the walk is known to catch can still be put back into today's source."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from bench.walk.faults import FAULTS, changed, sources_of
from bench.walk.legs import LEGS

PACKAGE = Path(__file__).parents[2] / "autotune"


@pytest.fixture(scope="module")
def sources() -> dict[Path, str]:
    return sources_of(PACKAGE)


@pytest.mark.parametrize("name", FAULTS)
def test_a_defect_can_be_put_back_and_leaves_source_that_compiles(
    name: str, sources: dict[Path, str]
) -> None:
    for path, text in changed(sources, FAULTS[name].changes).items():
        assert text != sources[path]
        ast.parse(text, str(path))
    assert set(FAULTS[name].legs) <= set(LEGS)


def test_a_change_that_no_longer_applies_is_told() -> None:
    fault = next(iter(FAULTS.values()))
    with pytest.raises(ValueError, match="0 times"):
        changed({Path("x.py"): "another source"}, fault.changes)
    twice = {Path("x.py"): "".join(change.now for change in fault.changes) * 2}
    with pytest.raises(ValueError, match="2 times"):
        changed(twice, fault.changes)

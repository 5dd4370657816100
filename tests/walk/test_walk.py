"""The product's own commands, typed in their order in a new folder with an odd name."""

from __future__ import annotations

import importlib.util

import pytest

from bench.walk.legs import LEGS, Walk

pytestmark = pytest.mark.slow
TRAINS = ("smoke", "learn", "train", "callback", "export", "busy", "probe")
DISTURBED = ("busy", "probe")  # by other programs, and by Ctrl-C: a part of services and faults


@pytest.fixture(scope="module")
def walk(tmp_path_factory: pytest.TempPathFactory) -> Walk:
    """One user, whose folder and home the legs share."""
    return Walk(tmp_path_factory.mktemp("walk"))


@pytest.mark.parametrize(
    "leg", [pytest.param(leg, marks=[pytest.mark.services] * (leg in DISTURBED)) for leg in LEGS]
)
def test_what_is_printed_can_be_typed_and_agrees_with_itself(leg: str, walk: Walk) -> None:
    if leg in TRAINS and importlib.util.find_spec("torch") is None:
        pytest.skip("training needs torch")
    LEGS[leg](walk)

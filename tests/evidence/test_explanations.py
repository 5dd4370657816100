"""The scale at which a prediction is what was measured."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.evidence.explanations import SOLVE_STEPS, _Crossing

if TYPE_CHECKING:
    from collections.abc import Callable

SHAPES: dict[str, Callable[[float], float]] = {
    "line": lambda scale: 3.0 + 2.0 * scale,
    "capped": lambda scale: 5.0 * (1.0 + 0.4 * min(scale, 4.65)) ** 1.3,
    "hinge": lambda scale: max(5.0, scale),
    "steps": lambda scale: 2.0 + 0.1 * round(10.0 * scale),
    "log": lambda scale: 9.0 + scale**0.1,
}


def bisected(low: float, high: float, is_above: Callable[[float], bool]) -> float:
    for _ in range(SOLVE_STEPS):
        middle = (low * high) ** 0.5
        low, high = (middle, high) if is_above(middle) else (low, middle)
    return high


@pytest.mark.parametrize("shape", sorted(SHAPES))
@pytest.mark.parametrize("share", [0.001, 0.2, 0.5, 0.9, 1.2])
def test_a_crossing_answers_a_bisection_as_pricing_every_step_does(
    shape: str, share: float
) -> None:
    low, high, seconds = 0.02, 50.0, SHAPES[shape]
    measured = seconds(low) + share * (seconds(high) - seconds(low)) + 1e-9
    crossing = _Crossing(seconds, measured, low, high)
    found = bisected(low, high, crossing.is_above)
    assert found == bisected(low, high, lambda scale: seconds(scale) < measured)


def test_a_nearly_straight_prediction_is_priced_a_third_as_often() -> None:
    asked: list[float] = []

    def seconds(scale: float) -> float:
        asked.append(scale)
        return 100.0 + 7.0 * scale**1.1

    bisected(0.02, 1e4, _Crossing(seconds, 900.0, 0.02, 1e4).is_above)
    assert len(asked) <= (SOLVE_STEPS + 2) / 2

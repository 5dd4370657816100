from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

import builders as build
import pytest

from autotune.evidence.accuracy import sweeps_of
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases

if TYPE_CHECKING:
    from autotune.evidence.cases import MeasuredCase


@cache
def shipped() -> MeasuredCase:
    return next(case for case in read_cases(SHIPPED_ROWS).cases if case.step)


def points(*seconds: float, sweep: str = "one") -> list[MeasuredCase]:
    return [
        build.observed(shipped(), step_s=value, id=f"{sweep}{i}", sweep_key=sweep)
        for i, value in enumerate(seconds)
    ]


def test_order_and_regret_of_a_sweep() -> None:
    found = sweeps_of(points(1.0, 1.2, 2.0), [1.3, 1.1, 3.0])
    assert (found.sweeps, found.points, found.pairs) == (1, 3, 3)
    assert found.right_order == pytest.approx(2 / 3)
    assert found.mean_regret == pytest.approx(0.2)
    assert found.worst_regret == pytest.approx(0.2)


@pytest.mark.parametrize("seconds", [(1.0, 2.0), (1.0, 1.04, 1.08)])
def test_two_points_or_a_flat_line_are_no_sweep(seconds: tuple[float, ...]) -> None:
    found = sweeps_of(points(*seconds), list(seconds))
    assert found.sweeps == found.pairs == 0
    assert found.right_order is found.mean_regret is None


def test_pairs_that_measure_the_same_are_not_ordered() -> None:
    found = sweeps_of(points(1.0, 1.03, 1.5), [1.1, 1.0, 2.0])
    assert (found.pairs, found.right_order) == (2, 1.0)


def test_sweeps_of_different_jobs_are_kept_apart() -> None:
    cases = [*points(1.0, 2.0, 3.0), *points(3.0, 2.0, 1.0, sweep="two")]
    found = sweeps_of(cases, [1.0, 2.0, 3.0, 3.0, 2.0, 1.0])
    assert (found.sweeps, found.right_order, found.mean_regret) == (2, 1.0, 0.0)

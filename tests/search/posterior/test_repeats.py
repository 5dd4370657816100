"""What several measurements of one candidate say, and when two candidates can be told apart."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.domain.observation import BETWEEN_RUNS_SD
from autotune.search.posterior.repeats import (
    DISTURBED_SD,
    DOUBTFUL,
    NARROW,
    Ratio,
    Run,
    believed,
    compared,
    repeat_sd,
    standings,
    unnoticed,
)
from autotune.search.selection import TIE


def run(value: float, *, disturbed: bool = False) -> Run:
    return Run(math.log(value), disturbed)


def test_of_a_disturbed_and_a_calm_measurement_the_calm_one_counts() -> None:
    calm = run(10.0)
    assert believed([run(9.0, disturbed=True), calm, run(80.0, disturbed=True)]) == [calm]


def test_of_calm_ones_those_count_that_agree_with_the_quickest() -> None:
    near = [run(10.0), run(10.3), run(9.8)]
    assert believed([*near, run(13.0)]) == near, "others only ever make a measurement longer"


def test_where_all_were_disturbed_the_quickest_is_the_guess() -> None:
    quick = run(20.0, disturbed=True)
    assert believed([run(90.0, disturbed=True), quick]) == [quick]
    found = standings({1: [quick]}, 0.0)[1]
    assert found.disturbed
    assert not found.stands
    assert found.sd >= DISTURBED_SD


@given(st.lists(st.floats(0.1, 100.0), min_size=1, max_size=8), st.floats(1.5, 10.0))
def test_a_measurement_that_took_longer_never_changes_what_is_believed(
    values: list[float], times: float
) -> None:
    runs = [run(value) for value in values]
    longer = run(max(values) * times)
    assert believed([*runs, longer]) == believed(runs)


def test_how_far_runs_differ_is_learned_from_all_candidates_together() -> None:
    assert repeat_sd([[run(10.0)], [run(20.0)]]) == pytest.approx(BETWEEN_RUNS_SD)
    chance = random.Random(1)  # noqa: S311 - noise
    groups = [[run(math.exp(chance.gauss(0.0, 0.05))) for _ in range(3)] for _ in range(60)]
    assert repeat_sd(groups) == pytest.approx(0.05, rel=0.25)


def test_measurements_that_were_overturned_put_single_ones_in_doubt() -> None:
    groups = {1: [run(10.0), run(31.0)], 2: [run(11.0)], 3: [run(10.0), run(10.1), run(9.9)]}
    share = unnoticed(groups.values())
    assert share > unnoticed([[run(10.0), run(10.1)]])
    found = standings(groups, max(share, DOUBTFUL))
    assert not found[2].stands
    assert found[3].stands
    assert not found[1].stands, "what held it up once may have done so again"


def test_looks_at_uneven_steps_that_nothing_explains_put_single_ones_in_doubt() -> None:
    assert unnoticed([], looks=20, unexplained=0) < 0.01
    assert unnoticed([], looks=20, unexplained=4) > DOUBTFUL


def test_a_tie_is_a_narrow_interval_around_no_difference() -> None:
    assert Ratio(0.0, 0.02).is_tie
    assert not Ratio(0.0, 0.2).is_tie, "that is not knowing"
    assert not Ratio(0.12, 0.02).is_tie, "that is a difference"
    assert Ratio(0.0, 0.2).hides


@given(st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_nothing_a_tenth_slower_is_ever_a_tie(mean: float, sd: float) -> None:
    if mean >= 0.1:
        assert not Ratio(mean, sd).is_tie
        assert not Ratio(-mean, sd).is_tie
    if Ratio(mean, sd).is_tie:
        assert mean <= NARROW + TIE


def test_more_runs_tell_nearer_candidates_apart() -> None:
    once = standings({1: [run(10.0)], 2: [run(10.5)]}, 0.0)
    often = standings({1: [run(10.0)] * 9, 2: [run(10.5)] * 9}, 0.0)
    assert compared(once[2], once[1]).low < 0 < compared(often[2], often[1]).low

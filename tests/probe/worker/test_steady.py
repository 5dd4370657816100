"""When steps count as steady, and what a steady step is said to take."""

from __future__ import annotations

import random
import statistics

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.probe.worker.windows import Step, first_steady, fit_steps, is_steady, summary


def step(wall_s: float, tokens: int = 1000) -> Step:
    return Step(wall_s, tokens, 0.01, 0.8 * wall_s, 0.1 * wall_s)


def test_the_window_starts_after_the_compile_step() -> None:
    steps = [step(45.0)] + [step(0.5)] * 10
    assert first_steady(steps) == 1


def test_a_compile_step_in_the_middle_is_never_inside_the_window() -> None:
    steps = [step(0.5)] * 3 + [step(45.0)] + [step(0.5)] * 8
    start = first_steady(steps)
    assert start == 4


def test_a_compile_step_on_the_longest_batch_is_not_explained_by_its_length() -> None:
    steps = [step(45.0, 2000)] + [step(0.5, 900 + 20 * i) for i in range(8)]
    assert first_steady(steps) == 1


def test_batches_of_different_lengths_may_differ_by_what_their_lengths_explain() -> None:
    lengths = [400, 1900, 800, 1500, 1000, 600, 1200]
    ragged = [step(0.1 + n * 1e-3, n) for n in lengths]
    assert is_steady(ragged)
    assert not is_steady([step(s.wall_s, 1000) for s in ragged])


def test_warming_up_is_not_steady() -> None:
    assert first_steady([step(1.0 * 0.8**i) for i in range(8)]) is None


def test_too_few_steps_are_not_steady() -> None:
    assert first_steady([step(0.5)] * 5) is None


def test_a_stall_changes_the_mean_and_not_the_step() -> None:
    found = summary([step(0.5)] * 19 + [step(5.0)])
    assert found["step_s"] == pytest.approx(0.5)
    assert found["mean_s"] == pytest.approx(0.725)
    assert found["outliers"] == 1


def test_the_step_of_ragged_batches_is_their_mean_and_not_their_median() -> None:
    lengths = [100] * 12 + [2000] * 8
    found = summary([step(0.05 + n * 1e-3, n) for n in lengths])
    assert found["step_s"] == pytest.approx(0.05 + statistics.fmean(lengths) * 1e-3, rel=1e-6)


def test_slowing_down_shows_as_a_slope() -> None:
    found = summary([step(0.5 * 1.01**i) for i in range(20)])
    assert found["slope_per_step"] == pytest.approx(0.01, rel=0.2)


def test_twenty_noisy_steps_are_known_to_about_one_percent() -> None:
    rng = random.Random(3)  # noqa: S311 - no secret
    errors, said = [], []
    for _ in range(200):
        found = summary([step(rng.gauss(1.0, 0.03)) for _ in range(20)])
        errors.append(found["step_s"] - 1.0)
        said.append(found["relative_error"])
    assert statistics.stdev(errors) < 0.011
    assert statistics.fmean(said) == pytest.approx(statistics.stdev(errors), rel=0.25)


@given(st.lists(st.tuples(st.integers(1, 10**6), st.floats(1e-4, 1e3)), min_size=2, max_size=30))
def test_a_fit_never_predicts_negative_seconds(pairs: list[tuple[int, float]]) -> None:
    fit = fit_steps([n for n, _ in pairs], [t for _, t in pairs])
    assert fit.a >= 0
    assert fit.b >= 0

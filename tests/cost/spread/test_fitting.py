"""How likely a run fits: the spread that is known, and runs that hold what nobody told."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from autotune.cost.memory import component as memory
from autotune.cost.spread.fitting import (
    HOPELESS,
    UNTOLD_LOG_SD,
    UNTOLD_SHARE,
    chance_of_fitting,
    normal_cdf,
)
from autotune.domain.outcome import Z90


@pytest.mark.parametrize("spread", [0.01, 0.05, 0.2, 0.45])
def test_what_is_untold_makes_the_sure_less_sure_and_leaves_the_interval_as_it_is(
    spread: float,
) -> None:
    ends = spread * np.asarray([-6.0, -3.0, -2.0, -Z90, 0.0, Z90, 2.0, 3.0, 6.0])
    plain, found = (
        chance_of_fitting(ends, np.full_like(ends, spread), told=told) for told in (True, False)
    )
    assert np.all(np.diff(found) > 0)
    assert found[[3, 4, 5]] == pytest.approx(plain[[3, 4, 5]], abs=1e-4)
    assert found[[3, 4, 5]] == pytest.approx([0.1, 0.5, 0.9], abs=1e-4)
    outside = [0, 1, 2, 6, 7, 8]
    assert np.all(np.abs(found[outside] - 0.5) < np.abs(plain[outside] - 0.5))


def test_the_share_and_width_are_those_of_the_formula() -> None:
    margin, spread = np.log(np.asarray([1.25])), np.asarray([0.02])
    sure = (1 - UNTOLD_SHARE) + UNTOLD_SHARE * normal_cdf(margin / UNTOLD_LOG_SD)
    assert chance_of_fitting(margin, spread) == pytest.approx(sure, abs=1e-6)
    wide = np.asarray([2 * UNTOLD_LOG_SD])  # a spread that is wider anyway stays as it is
    plain = chance_of_fitting(margin, wide, told=True)
    assert chance_of_fitting(margin, wide) == pytest.approx(plain, abs=1e-6)


def test_a_run_far_over_the_card_is_said_to_fail(lab: Any) -> None:
    far = chance_of_fitting(np.log(np.asarray([0.8])), np.asarray([0.05]))
    assert far < HOPELESS
    job = lab.job("meta-llama/Llama-2-7b-hf", lab.full())
    found = lab.price(memory.COMPONENT, job, lab.offer("a100-sxm4-40gb"), lab.config())
    assert found["certain_oom"] == 1
    assert 0 < found["fits_probability"] < HOPELESS


def test_a_peak_that_was_measured_is_sure_again(lab: Any) -> None:
    job = lab.job("meta-llama/Llama-2-7b-hf", lab.lora())
    found = lab.price(memory.COMPONENT, job, lab.offer("a100-sxm4-40gb"), lab.config())
    priced = {name: np.asarray([value]) for name, value in found.items()}
    factor = 0.85 * found["capacity"] / found["total"]
    unsure, sure = (
        float(memory.learned_memory(priced, factor, log_sd)["fits_probability"][0])
        for log_sd in (None, 0.01)
    )
    assert unsure < 0.98
    assert sure > 0.99

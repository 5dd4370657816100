from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.domain.outcome import Spread
from autotune.report.schema import Row
from autotune.training.stopwatch import Step
from autotune.training.verdict import Pace, pace_of, verdict

GIB = 2**30
STEPS = 3600
ROW = Row(
    device="a100-sxm4-40gb", device_count=1, usd_per_hour=2.5, price_as_of=None,
    price_source="stated", spot=False, config={}, basis="modelled", checkpoints=0,
    checkpoint_bytes=0.0, duration_s=Spread(3000.0, 3800.0, 4900.0), cost_usd=Spread(2.1, 2.6, 3.4),
    step_time_s=1.0, tokens_per_s=1000.0, mfu=0.3, bound_by="compute",
    time_s={"data_wait": 0.02 * STEPS}, fits_probability=1.0, verdict="fits",
    memory_bytes={"total": 31.0 * GIB, "context": 0.5 * GIB, "fragmentation": 0.5 * GIB,
                  "usable": 40.0 * GIB},
    reserved_bytes=30.0 * GIB, measured=None,
)  # fmt: skip


def said(pace: Pace, row: Row | None = ROW, memory: Any = None, free: int | None = None) -> str:
    return verdict(pace, 50, STEPS, row, memory or {}, free)


def test_within_a_tenth_is_on_plan() -> None:
    assert said(Pace(1.05, 0.02, 0.0)) == (
        "step 50: on plan: 1.1 s a step, 1.05 of the predicted 1.0 s"
    )


def test_a_slow_loader_is_named_with_what_it_costs() -> None:
    """0.4 s x 3,600 steps more than 3,800 s are 5,240 s: 1.46 h, $3.64 at $2.50/h."""
    assert said(Pace(1.4, 0.42, 0.0)) == (
        "step 50: 40 % slower than predicted: data wait 420 ms (predicted 20 ms) of 1.4 s a step, "
        "not 1.0 s; at this pace 87.3 min and $3.64 in all, planned 63.3 min (outside its 80 % "
        "range)"
    )


def test_an_excess_without_one_cause_names_none() -> None:
    text = said(Pace(1.3, 0.14, 0.11))
    assert "30 % slower than predicted: 1.3 s a step, not 1.0 s;" in text
    assert "(within its 80 % range)" in text


@pytest.mark.parametrize(("step_s", "told"), [(3.44, "3.4"), (131.0, "130"), (2510.0, "2,500")])
def test_a_multiple_is_a_number_that_people_read(step_s: float, told: str) -> None:
    assert f"step 50: {told} times as long as predicted" in said(Pace(step_s, 0.0, 0.0))


def test_faster_is_said_too() -> None:
    assert "40 % faster than predicted: 600 ms a step, not 1.0 s; at this pace" in said(
        Pace(0.6, 0.0, 0.0)
    )


def test_allocated_memory_is_held_against_allocated_and_reserved_against_reserved() -> None:
    pace = Pace(1.0, 0.02, 0.0)
    text = said(pace, memory={"allocated_bytes": 32 * GIB, "reserved_bytes": 60 * GIB})
    assert text.endswith("memory 32.0 GiB allocated, predicted 30.0 GiB")
    text = said(pace, memory={"reserved_bytes": 36 * GIB}, free=GIB)
    assert text.endswith(
        "memory 20 % above the prediction so far (36.0 GiB reserved, predicted 30.0 GiB), only "
        "1.0 GiB left on the device"
    )


def test_without_a_plan_the_pace_alone_is_said() -> None:
    assert said(Pace(2.0, 0.5, 0.0), row=None) == (
        "step 50: 2.0 s a step, 500 ms of it waiting for data; 118.3 min of steps remain"
    )


@settings(deadline=None)
@given(
    st.lists(
        st.tuples(*(st.floats(1e-6, 1e4) for _ in range(3))), min_size=1, max_size=60
    )
)  # fmt: skip
def test_a_pace_lies_among_its_steps(seconds: list[tuple[float, float, float]]) -> None:
    steps = [Step(i, sum(s), s[0], s[1]) for i, s in enumerate(seconds, start=1)]
    pace = pace_of(steps)
    durations = [step.duration_s for step in steps]
    assert min(durations) <= pace.step_s * (1 + 1e-9)
    assert pace.step_s <= max(durations) * (1 + 1e-9)
    assert said(pace)


def test_stalls_of_the_loader_count_and_those_of_a_compiler_do_not() -> None:
    usual = [Step(i, 1.0, 0.1, 0.0) for i in range(40)]
    compiler = [*usual, Step(41, 60.1, 0.1, 0.0)]
    loader = [*usual, Step(41, 60.9, 60.0, 0.0)]
    assert pace_of(compiler).step_s == pytest.approx(1.0)
    assert pace_of(loader).step_s > 2

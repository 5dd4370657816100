from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.catalog.models.models import find_model
from autotune.cost.parameters import parameter_count
from autotune.cost.time import checkpoint
from autotune.cost.time.checkpoint import lost_work_s, on_disk, young_daly_interval_steps

LLAMA8, COMPONENT = "meta-llama/Llama-3.1-8B", checkpoint.COMPONENT
HOUR = 3600.0


def interval(step: float, save: float, steps: float, per_hour: float, most: float | None) -> float:
    found = young_daly_interval_steps(
        step_s=np.array([step]), save_s=np.array([save]), steps=np.array([steps]),
        interruptions_per_s=np.array([per_hour / HOUR]), max_lost_work_s=most,
    )  # fmt: skip
    return float(found[0])


def lost(running: float, every: float, per_hour: float, restart: float) -> float:
    found = lost_work_s(
        running_s=np.array([running]), interval_s=np.array([every]),
        interruptions_per_s=np.array([per_hour / HOUR]), restart_s=np.array([restart]),
    )  # fmt: skip
    return float(found[0])


@given(
    st.floats(1e-3, 100), st.floats(0, 1000), st.integers(0, 10**7), st.floats(0, 2),
    st.floats(1, 1e5),
)  # fmt: skip
def test_an_interval_is_a_whole_number_of_steps_of_the_run(
    step: float, save: float, steps: int, per_hour: float, most: float
) -> None:
    found = interval(step, save, steps, per_hour, most)
    assert found == int(found)
    assert 1 <= found <= max(steps, 1)
    assert found == 1 or found * step <= most * (1 + 1e-9)


@given(st.floats(1e-3, 100), st.integers(1, 10**6), st.floats(1, 1e5))
def test_saves_are_spread_evenly_and_as_few_as_the_longest_interval_makes(
    step: float, steps: int, most: float
) -> None:
    longest = min(max(np.floor(most / step), 1.0), steps)
    found, number = interval(step, 60.0, steps, 0.0, most), np.ceil(steps / longest)
    assert checkpoint.saves(steps, found) <= number
    assert found == np.ceil(steps / number) <= longest


def test_two_saves_of_a_run_are_at_its_half_and_its_end() -> None:
    assert interval(2.0, 60.0, 1000, 0.0, 1800.0) == 500  # 900 would leave 100 for the second


def test_on_demand_an_interval_is_the_loss_the_user_accepts() -> None:
    assert interval(2.0, 60.0, 10**6, 0.0, 1800.0) == 900


@pytest.mark.parametrize(("save", "expected"), [(60.0, 900), (180.0, 900), (2000.0, 10_000)])
def test_saves_that_nobody_asked_for_take_a_tenth_of_the_time_at_most(
    save: float, expected: int
) -> None:
    assert interval(2.0, save, 10**6, 0.0, None) == expected
    assert interval(2.0, save, 10**6, 0.0, 1800.0) == 900


@pytest.mark.parametrize("per_hour", [0.02, 0.1, 0.5])
def test_the_interval_on_spot_is_the_cheapest_of_all(per_hour: float) -> None:
    step, save, steps = 1.5, 40.0, 60_000

    def cost(every: float) -> float:
        saves = np.ceil(steps / every) * save
        return float(saves + lost(steps * step + saves, every * step, per_hour, 300.0))

    found = interval(step, save, steps, per_hour, 1e9)
    best = min(cost(every) for every in range(50, 20_000, 10))
    assert cost(found) <= best * 1.02


def test_nothing_is_lost_where_nothing_interrupts() -> None:
    assert lost(1e6, 1800.0, 0.0, 600.0) == 0


def test_each_interruption_loses_half_an_interval_and_a_start() -> None:
    # 100 hours, one interruption in 100 hours: about one loss of 15 minutes and 5 minutes.
    assert lost(100 * HOUR, 1800.0, 0.01, 300.0) == pytest.approx(1200.0, rel=0.01)


def test_a_run_that_is_always_interrupted_still_has_a_finite_bill() -> None:
    assert np.isfinite(lost(1e6, 1e6, 50.0, 600.0))


def disk(limit: float, size: float, final: float, stated: float, saves: float) -> tuple[float, ...]:
    """Checkpoints kept, those that lie there at once, and what all that takes."""
    sizes = np.array([size])
    found = on_disk(
        np.array([limit]), sizes, np.array([final]), np.array([stated]), np.array([saves])
    )
    return float(found.limit[0]), float(found.checkpoints[0]), float(found.total(sizes)[0])


def test_two_checkpoints_are_kept_and_a_third_must_fit() -> None:
    assert disk(0, 30, 10, 100, 50) == (2, 3, 90)
    assert disk(0, 40, 13, 100, 50) == (1, 2, 80)
    assert disk(0, 60, 20, 100, 50) == (1, 2, 120)  # more than there is


def test_a_limit_of_the_user_stands_even_when_it_does_not_fit() -> None:
    assert disk(10, 20, 7, 100, 50) == (10, 11, 220)


def test_a_limit_above_the_number_of_saves_needs_room_for_the_saves_and_the_model() -> None:
    assert disk(1e6, 20, 15, 100, 4) == (1e6, 4, 95)


def test_a_run_that_saves_once_keeps_two_where_only_one_would_fit() -> None:
    assert disk(0, 60, 20, 100, 1) == (2, 1, 80)


def test_the_model_at_the_end_comes_beside_a_checkpoint_that_stays() -> None:
    assert disk(0, 190, 65, 200, 1)[2] == 255
    assert disk(0, 190, 65, 200, 0)[2] == 65  # and alone where nothing is saved on the way


def test_a_lora_checkpoint_holds_adapters_and_two_moments(lab: Any) -> None:
    job = lab.job(LLAMA8, lab.lora(64))
    out = lab.price(COMPONENT, job, lab.offer("h100"), lab.config())
    adapters = 167_772_160  # rank 64 on all seven projections of 32 layers
    assert out["bytes"] == pytest.approx(3 * 4 * adapters, rel=0.02)
    narrow = lab.price(COMPONENT, job, lab.offer("h100"), lab.config(adapter_dtype="bf16"))
    assert narrow["bytes"] == pytest.approx(out["bytes"] / 2, rel=0.02)


def test_a_full_checkpoint_holds_weights_and_states_in_their_dtype(lab: Any) -> None:
    weights = 8_030_261_248
    for base, value in (("16bit", 2), ("32bit", 4)):
        job = lab.job(LLAMA8, lab.full(base))
        out = lab.price(COMPONENT, job, lab.offer("h100"), lab.config())
        assert out["bytes"] == pytest.approx(3 * value * weights, rel=0.01)
    eight = lab.price(
        COMPONENT, lab.job(LLAMA8, lab.full()), lab.offer("h100"),
        lab.config(optimizer="adamw_bnb_8bit"),
    )  # fmt: skip
    assert eight["bytes"] == pytest.approx((2 + 2.03) * weights, rel=0.01)


def test_a_checkpoint_without_states_holds_what_is_trained_alone(lab: Any) -> None:
    job, parameters = lab.job(LLAMA8, lab.full()), parameter_count(find_model(LLAMA8))
    alone = replace(job, software=replace(job.software, saves_model_only=True))
    for sharding in ("none", "fsdp", "zero2", "zero3"):
        machine = lab.offer("h100", 1 if sharding == "none" else 4)
        out = lab.price(COMPONENT, alone, machine, lab.config(sharding=sharding))
        assert out["bytes"] == pytest.approx(2 * parameters, rel=0.01)
        assert out["save_s"] == pytest.approx(out["final_save_s"])


def test_a_slow_disk_is_what_makes_two_gigabytes_take_minutes(lab: Any) -> None:
    job = lab.job(LLAMA8, lab.lora(64))
    slow, fast = (
        lab.price(
            COMPONENT, job, lab.offer("h100", checkpoint_write_bytes_per_s=rate), lab.config()
        )["save_s"]
        for rate in (25e6, 2e9)
    )
    assert 60 < slow < 120
    assert fast < 5


def test_the_final_save_leaves_the_optimizer_out(lab: Any) -> None:
    job = lab.job(LLAMA8, lab.full())
    out = lab.price(COMPONENT, job, lab.offer("h100"), lab.config())
    assert out["final_save_s"] < out["save_s"] / 2.5


def test_deepspeed_saves_fp32_masters_and_moments_of_what_is_trained(lab: Any) -> None:
    job, parameters = lab.job(LLAMA8, lab.full()), parameter_count(find_model(LLAMA8))

    def out(sharding: str, **knobs: Any) -> dict[str, float]:
        found: dict[str, float] = lab.price(
            COMPONENT, job, lab.offer("h100", 4), lab.config(sharding=sharding, **knobs)
        )
        return found

    assert out("fsdp")["bytes"] == pytest.approx(6 * parameters, rel=0.01)
    assert out("zero3")["bytes"] == pytest.approx(14 * parameters, rel=0.01)
    assert out("zero2")["bytes"] == pytest.approx(16 * parameters, rel=0.01)  # the model twice
    assert out("zero2")["save_s"] > out("zero3")["save_s"] > out("fsdp")["save_s"]
    assert out("zero2")["final_save_s"] == out("fsdp")["final_save_s"]
    small = out("zero3", optimizer="adamw_bnb_8bit")["bytes"]
    assert small == pytest.approx((2 + 4 + 2.03) * parameters, rel=0.01)

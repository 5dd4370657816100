from __future__ import annotations

from typing import Any

import pytest

from autotune.training.stopwatch import Pause, Step, Stopwatch


def test_a_step_is_its_wait_its_work_and_its_log(fake: Any) -> None:
    device = fake.Device()
    watch = Stopwatch(device)
    device.host(0.3)
    watch.ends("wait", 0)
    device.host(0.5)
    watch.ends("work", 1)
    device.host(0.1)
    watch.ends("other", 1)
    device.host(0.2)
    watch.ends("wait", 1)
    device.host(0.5)
    watch.ends("work", 2)
    first, second = watch.passed()
    assert isinstance(first, Step)
    assert isinstance(second, Step)
    assert (first.number, second.number) == (1, 2)
    assert first.duration_s == pytest.approx(0.8)
    assert second.duration_s == pytest.approx(0.8)
    assert (second.data_wait_s, second.other_s) == pytest.approx((0.2, 0.1))
    assert second.work_s == pytest.approx(0.5)


def test_saves_are_in_no_step_and_evaluations_of_several_sets_are_one(fake: Any) -> None:
    device = fake.Device()
    watch = Stopwatch(device)
    watch.ends("wait", 0)
    device.host(1.0)
    watch.ends("work", 1)
    for seconds in (3.0, 4.0):
        device.host(seconds)
        watch.ends("evaluation", 1)
    device.host(5.0)
    watch.ends("checkpoint", 1)
    device.host(0.5)
    watch.ends("wait", 1)
    device.host(1.0)
    watch.ends("work", 2)
    step, evaluation, save, following = watch.passed()
    assert evaluation == Pause("evaluation", 1, pytest.approx(7.0))
    assert save == Pause("checkpoint", 1, pytest.approx(5.0))
    assert isinstance(step, Step)
    assert isinstance(following, Step)
    assert (step.duration_s, following.duration_s) == pytest.approx((1.0, 1.5))


def test_an_evaluation_at_the_very_end_is_not_lost(fake: Any) -> None:
    device = fake.Device()
    watch = Stopwatch(device)
    device.host(2.0)
    watch.ends("evaluation", 9)
    assert watch.passed() == []
    assert watch.rest() == [Pause("evaluation", 9, pytest.approx(2.0))]
    assert watch.rest() == []


def test_what_happens_in_the_midst_of_a_step_is_part_of_it(fake: Any) -> None:
    device = fake.Device()
    watch = Stopwatch(device)
    watch.ends("wait", 0)
    for stretch in ("other", "evaluation", "checkpoint", "wait"):
        device.host(1.0)
        watch.ends(stretch, 0)  # type: ignore[arg-type]
    device.host(1.0)
    watch.ends("work", 1)
    (step,) = watch.passed()
    assert isinstance(step, Step)
    assert (step.duration_s, step.data_wait_s) == pytest.approx((5.0, 0.0))


def test_a_device_that_runs_behind_is_not_waited_for_and_hides_the_fetch(fake: Any) -> None:
    """The host fetches for 0.4 s a step while the device is busy for 1 s: nothing is lost."""
    device = fake.Device()
    watch = Stopwatch(device)
    for step in range(1, 4):
        device.host(0.4)
        watch.ends("wait", step - 1)
        device.queue(1.0)
        watch.ends("work", step)
    assert device.now_s == pytest.approx(101.2)  # no call waited
    assert [item.number for item in watch.passed() if isinstance(item, Step)] == []
    device.wait()
    first, second, third = watch.passed()
    assert isinstance(first, Step)
    assert isinstance(second, Step)
    assert isinstance(third, Step)
    assert (first.data_wait_s, second.data_wait_s) == pytest.approx((0.4, 0.0))
    assert (second.duration_s, third.duration_s) == pytest.approx((1.0, 1.0))


def test_a_fetch_longer_than_the_device_is_busy_costs_what_the_device_idles(fake: Any) -> None:
    device = fake.Device()
    watch = Stopwatch(device)
    watch.ends("wait", 0)
    device.queue(1.0)
    watch.ends("work", 1)
    device.host(2.5)  # the device idles after the first second of it
    watch.ends("wait", 1)
    device.queue(1.0)
    watch.ends("work", 2)
    device.wait()
    _, second = watch.passed()
    assert isinstance(second, Step)
    assert (second.data_wait_s, second.duration_s) == pytest.approx((1.5, 2.5))

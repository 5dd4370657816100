"""A disturbed window is measured again, within bounds, and the calmest one is the answer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autotune.probe.worker.disturbance import Counters
from autotune.probe.worker.windows import Step, Windows, summary

if TYPE_CHECKING:
    from collections.abc import Callable

PLAN = {
    "longest": 2, "most": 60, "measured": 20, "least": 8, "seconds": 15.0, "patience_s": 60.0,
    "windows": 3, "calm_s": 15.0, "window_s": 1.0,
}  # fmt: skip
CORES = 2


class World:
    """A clock, a processor that others may use, and steps that take longer while they do."""

    def __init__(self, others: Callable[[float], float], *, read: bool = True) -> None:
        """others: cores that they use at a time [s]; read: whether anybody counts them."""
        self.others, self.reads = others, read
        self.at_s = self.busy_s = self.own_s = self.slept_s = 0.0
        self.cores = CORES

    def read(self) -> Counters:
        return Counters(self.at_s, self.own_s, self.busy_s if self.reads else None)

    def pass_by(self, seconds: float, own: float, taken: float) -> None:
        self.busy_s += seconds * (own + taken)
        self.own_s += seconds * own
        self.at_s += seconds

    def step(self, quiet_s: float) -> Step:
        taken = self.others(self.at_s)
        wall_s = quiet_s * (1.0 + taken * 2.0)
        self.pass_by(wall_s, CORES - taken, taken)
        return Step(wall_s, 1000, 0.0, wall_s, 0.0)

    def wait(self, _: Any, most_s: float) -> tuple[bool, float]:
        begun = self.at_s
        while self.at_s - begun < most_s:
            taken = self.others(self.at_s)
            self.pass_by(0.5, 0.0, taken)
            if taken < 0.1:
                return True, self.at_s - begun
        return False, self.at_s - begun

    def measured(self, quiet_s: float = 0.1, **changes: Any) -> Windows:
        """What the stopwatch does, step after step."""
        steps: list[Step] = []
        found = Windows(
            {**PLAN, **changes}, steps, on_cpu=True, host=self,  # type: ignore[arg-type]
            now=lambda: self.at_s, wait=self.wait,
        )  # fmt: skip
        found.begin()
        for _ in range(10_000):
            steps.append(self.step(quiet_s))
            if not found.is_open:
                if not found.opens():
                    if found.given_up():
                        break
                    continue
                found.opened(len(steps), self.at_s)
            if found.full():
                found.close(len(steps), self.at_s)
                if found.satisfied():
                    break
        found.finish(len(steps), self.at_s)
        return found


def test_a_quiet_machine_is_measured_once_and_waits_for_nobody() -> None:
    found = World(lambda _: 0.0).measured()
    assert len(found.done) == 1
    assert found.best.disturbed == []
    assert found.waited_s == 0.0
    assert found.best.step_s == pytest.approx(0.1)


def test_a_window_lasts_until_a_step_is_known_well_and_no_longer() -> None:
    even = World(lambda _: 0.0).measured()
    assert even.best.last - even.best.first < 26, "there was nothing more to be learned"
    uneven = iter(0.1 * (1.0 + 0.1 * (n * 7 % 11 - 5) / 5.0) for n in range(10_000))
    world = World(lambda _: 0.0)
    world.step = lambda _: World.step(world, next(uneven))  # type: ignore[method-assign]
    found = world.measured()
    assert found.best.last - found.best.first == 26


def test_a_short_step_is_measured_for_a_second_at_least() -> None:
    found = World(lambda _: 0.0).measured(quiet_s=0.004)
    assert (found.best.last - found.best.first) * 0.004 >= 1.0


def test_a_window_that_others_disturbed_is_measured_again_when_they_are_gone() -> None:
    found = World(lambda at: 1.0 if at < 9.0 else 0.0).measured()
    assert found.done[0].disturbed == ["other programs used 1.0 of 2 cores"]
    assert found.done[0].step_s > 0.2
    assert found.best is found.done[-1]
    assert found.best.disturbed == []
    assert found.best.step_s == pytest.approx(0.1)
    assert found.waited_s > 0


def test_a_machine_that_never_calms_down_costs_a_bounded_time_and_is_marked() -> None:
    world = World(lambda _: 1.0)
    found = world.measured()
    assert found.best.disturbed
    assert found.waited_s == pytest.approx(PLAN["calm_s"], abs=0.5)
    assert len(found.done) == 1, "nothing is to be gained by another look"
    assert world.at_s < 60.0
    assert found.report()["disturbed"] == ["other programs used 1.0 of 2 cores"]
    assert found.report()["window"]["slowdown"] > 1.5


def test_of_windows_that_all_were_disturbed_the_quickest_is_kept() -> None:
    world = World(lambda at: 1.0 if at % 8.0 > 4.0 else 0.5)
    world.wait = lambda _host, _most: (True, 0.5)  # type: ignore[method-assign]
    found = world.measured()
    assert len(found.done) == PLAN["windows"]
    assert all(window.disturbed for window in found.done)
    assert found.best.step_s == min(window.step_s for window in found.done)


def test_steps_that_nobody_explains_and_that_differ_are_looked_at_again() -> None:
    """No counter betrays the others: the steps alone do."""
    count = 0

    def others(at: float) -> float:
        nonlocal count
        count += 1
        return 1.0 if 0.7 < at < 9.0 and count % 4 == 0 else 0.0

    found = World(others, read=False).measured(quiet_s=0.08)
    assert found.done[0].disturbed == ["19% of the steps stalled"]
    assert found.best.step_s == pytest.approx(0.08)


def test_steps_that_others_keep_from_becoming_steady_are_given_up_after_one_wait() -> None:
    world = World(lambda at: 1.5 * (int(at * 7.3) * 5 % 7) / 6.0)
    world.wait = lambda _host, most_s: (False, most_s)  # type: ignore[method-assign]
    found = world.measured(quiet_s=0.5)
    assert world.at_s < PLAN["seconds"] + PLAN["calm_s"] + 15.0
    assert found.best.disturbed
    assert len(found.steps) >= PLAN["least"]


def test_one_look_only_is_allowed_where_several_processes_would_have_to_pause_together() -> None:
    found = World(lambda at: 1.0 if at < 9.0 else 0.0).measured(windows=1)
    assert len(found.done) == 1
    assert found.best.disturbed
    assert found.waited_s == 0.0


def wavering(world: World, drift: float = 0.0) -> Windows:
    """Steps that differ by a fifth up and down, each from the one before; drift: a step."""
    pace = iter(
        0.1 * (1.0 + 0.18 * (-1) ** n * (1 + n * 5 % 7) / 7.0 + drift * n) for n in range(10_000)
    )
    world.step = lambda _: World.step(world, next(pace))  # type: ignore[method-assign]
    return world.measured()


class Counted(World):
    """A virtual machine whose hypervisor tells what it gave away: nothing."""

    def read(self) -> Counters:
        return Counters(self.at_s, self.own_s, self.busy_s, stolen_s=0.0)


def test_steps_that_waver_by_themselves_are_a_calm_window_with_a_wide_error() -> None:
    found = wavering(Counted(lambda _: 0.0))
    best = found.best
    assert best.disturbed == []
    assert best.seen["spread"] > 0.12
    assert found.waited_s == 0.0
    steps = found.steps[best.first : best.last]
    assert summary(steps)["relative_error"] > 0.01


@pytest.mark.parametrize("world", [World(lambda _: 0.0, read=False), Counted(lambda _: 0.05)])
def test_steps_that_waver_where_somebody_may_be_are_not_believed(world: World) -> None:
    assert "the steps never became steady" in wavering(world).best.disturbed


def test_steps_that_waver_and_become_slower_are_not_believed() -> None:
    assert wavering(Counted(lambda _: 0.0), drift=0.01).best.disturbed


def test_what_stalls_add_is_part_of_the_error_of_a_step() -> None:
    plain = [Step(0.1, 1000, 0.0, 0.1, 0.0)] * 20
    stalled = [*plain[:18], *[Step(0.3, 1000, 0.0, 0.3, 0.0)] * 2]
    found = summary(stalled)
    assert found["step_s"] == pytest.approx(0.1)
    assert found["stall_share"] == pytest.approx(0.2)
    assert found["relative_error"] == pytest.approx(0.1)
    assert summary(plain)["relative_error"] == 0.0

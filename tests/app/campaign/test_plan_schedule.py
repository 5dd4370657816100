"""Placing runs on machines: never under the bound, never twice on one, never out of order."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.app.campaign.list_schedule import (
    go_together,
    longest_chain,
    lower_bound,
    schedule,
    topological,
    waits_of,
)
from autotune.domain.answer.plan import Task

HOURS = [
    [1 / 6] * 10,
    [5, 12.5, 25] * 3 + [2.5, 5, 5, 10, 5, 10, 5, 10, 2.5, 5, 2.5, 5] + [5] * 6,
    [2.5] * 10 + [5, 5, 5, 5, 5, 5, 10, 7.5, 5, 7.5] + [3, 5, 7.5, 5, 6.5, 3],
]
CAMPAIGN = [Task("", 3600.0 * h, phase=n) for n, phase in enumerate(HOURS) for h in phase]


@st.composite
def task_lists(draw: st.DrawFn) -> list[Task]:
    count = draw(st.integers(1, 14))
    return [
        Task(
            name=str(index),
            duration_s=draw(st.floats(1e-3, 1e6)),
            after=tuple(draw(st.sets(st.integers(0, index - 1), max_size=3))) if index else (),
            phase=index * 3 // count,
            busy=draw(st.floats(0.05, 1.0)),
            memory=draw(st.floats(0.05, 1.0)),
            shareable=draw(st.booleans()),
        )
        for index in range(count)
    ]


@given(task_lists(), st.integers(1, 6), st.booleans(), st.booleans())
@settings(max_examples=150, deadline=None)
def test_a_schedule_keeps_its_bound_its_order_and_its_machines(
    tasks: list[Task], machines: int, barrier: bool, share: bool
) -> None:
    found = schedule(tasks, machines, barrier=barrier, share=share)
    near = 1e-6 * found.makespan_s
    assert found.makespan_s >= found.lower_bound_s - near
    assert [placed.task for placed in found.placements] == list(range(len(tasks)))
    for placed, task in zip(found.placements, tasks, strict=True):
        assert 0 <= placed.machine < machines
        assert placed.end_s - placed.start_s >= task.duration_s - near
    waits = waits_of(tasks, barrier=barrier)
    for placed, before in zip(found.placements, waits, strict=True):
        assert all(found.placements[b].end_s <= placed.start_s + near for b in before)
    assert all(set(task.after) <= before for task, before in zip(tasks, waits, strict=True))
    for first, second in itertools.combinations(found.placements, 2):
        overlap = min(first.end_s, second.end_s) - max(first.start_s, second.start_s)
        if first.machine == second.machine and overlap > near:
            assert share
            assert go_together(tasks[first.task], tasks[second.task])


@given(task_lists(), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_never_three_runs_share_a_machine(tasks: list[Task], machines: int) -> None:
    found = schedule(tasks, machines, share=True)
    for placed in found.placements:
        middle = (placed.start_s + placed.end_s) / 2
        there = [
            p for p in found.placements
            if p.machine == placed.machine and p.start_s < middle < p.end_s
        ]  # fmt: skip
        assert len(there) <= 2


@given(task_lists(), st.integers(1, 6))
@settings(max_examples=60, deadline=None)
def test_greedy_stays_within_graham_of_the_bound(tasks: list[Task], machines: int) -> None:
    found = schedule(tasks, machines)
    assert found.makespan_s <= (2 - 1 / machines) * found.lower_bound_s * (1 + 1e-9)


@pytest.mark.parametrize(
    ("machines", "hours", "walled"),
    [(1, 341.7, 341.7), (2, 170.8, 171.3), (4, 85.5, 88.0), (8, 43.0, 45.3), (14, 25.0, 35.2)],
)
def test_the_hours_of_case_c_on_several_gpus(machines: int, hours: float, walled: float) -> None:
    assert round(schedule(CAMPAIGN, machines).makespan_s / 3600, 1) == hours
    assert round(schedule(CAMPAIGN, machines, barrier=True).makespan_s / 3600, 1) == walled


def test_no_number_of_gpus_beats_the_longest_run() -> None:
    assert longest_chain(CAMPAIGN) == 25 * 3600
    assert schedule(CAMPAIGN, 13).makespan_s > 25 * 3600
    assert schedule(CAMPAIGN, 63).makespan_s == pytest.approx(25 * 3600)


def test_the_bound_of_a_chain_is_its_length() -> None:
    chain = [Task("a", 5.0), Task("b", 7.0, (0,)), Task("c", 1.0)]
    assert lower_bound(chain, 4) == 12.0
    assert schedule(chain, 4).makespan_s == 12.0
    assert schedule(chain, 4).gap == 0.0


def test_two_light_runs_share_a_card_at_full_speed_and_heavy_ones_do_not() -> None:
    light = [Task(str(n), 10.0, busy=0.4, memory=0.3, shareable=True) for n in range(4)]
    assert schedule(light, 2).makespan_s == 20.0
    assert schedule(light, 2, share=True).makespan_s == 10.0
    heavy = [Task(str(n), 10.0, busy=0.9, memory=0.3, shareable=True) for n in range(4)]
    assert schedule(heavy, 2, share=True).makespan_s == 20.0
    large = [Task(str(n), 10.0, busy=0.4, memory=0.6, shareable=True) for n in range(4)]
    assert schedule(large, 2, share=True).makespan_s == 20.0


def test_a_pair_that_needs_more_than_one_device_is_slowed_by_as_much() -> None:
    pair = [Task(str(n), 10.0, busy=0.7, memory=0.3, shareable=True) for n in range(2)]
    assert schedule(pair, 1, share=True).makespan_s == pytest.approx(14.0)


def test_runs_on_a_circle_have_no_place_in_the_order() -> None:
    assert topological([set(), {2}, {1}, {0}]) == [0, 3]


def test_idle_time_is_not_counted_as_busy() -> None:
    found = schedule([Task("a", 6.0), Task("b", 2.0)], 2)
    assert found.busy_fraction == pytest.approx(8 / 12)

"""Deadlines and budgets: how likely each is kept, and what is picked among bills that may miss."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.cost.bill import component_seconds, duration_log_sd
from autotune.cost.model import CostModel
from autotune.cost.time.checkpoint import interruptions_variance, lost_work_s
from autotune.domain.answer.limits import held_with, misses, odds, probability_within, worst_excess
from autotune.domain.job import Limits
from autotune.domain.outcome import Spread
from autotune.search.alternatives import distinct_alternatives
from autotune.search.selection import best_index, excess
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space

if TYPE_CHECKING:
    from autotune.cost.bill import Bill
    from autotune.domain.job import Job

HOURS = st.floats(0.01, 1e4)
GROW = st.floats(1.0, 5.0)
SURE = st.floats(0.501, 0.999)


def spread(middle: float, grow: float) -> Spread:
    return Spread(middle / grow, middle, middle * grow)


@settings(deadline=None)
@given(HOURS, GROW, HOURS, st.floats(1.0, 10.0))
def test_a_later_deadline_is_kept_at_least_as_surely(
    middle: float, grow: float, limit: float, later: float
) -> None:
    figure = spread(middle, grow)
    near, far = probability_within(figure, limit), probability_within(figure, limit * later)
    assert 0.0 <= near <= far <= 1.0


@settings(deadline=None)
@given(HOURS, GROW, HOURS, SURE)
def test_a_limit_is_kept_exactly_where_its_probability_is_the_asked_one(
    middle: float, grow: float, limit: float, sure: float
) -> None:
    limits = Limits(0.05, 1800.0, deadline_s=limit, confidence=sure)
    found = odds(limits, spread(middle, grow), spread(0.0, 1.0))
    assert [each.limit for each in found] == ["deadline"]
    assert found[0].kept == (found[0].probability >= sure)
    told = misses(found)
    assert bool(told) == (not found[0].kept)
    if abs(found[0].probability - sure) > 1e-9:
        assert all(miss.by > 0 for miss in told)
        assert (worst_excess(found) > 0) == bool(told)


@settings(deadline=None)
@given(HOURS, st.floats(1.001, 5.0), SURE)
def test_what_is_held_with_a_probability_has_that_probability(
    middle: float, grow: float, sure: float
) -> None:
    figure = spread(middle, grow)
    assert probability_within(figure, held_with(figure, sure)) == pytest.approx(sure, abs=1e-9)


def test_the_quantiles_of_a_bill_are_the_probabilities_they_are_called() -> None:
    figure = Spread(14.0, 34.8, 84.0)
    assert probability_within(figure, 14.0) == pytest.approx(0.1, abs=1e-6)
    assert probability_within(figure, 34.8) == pytest.approx(0.5, abs=1e-6)
    assert probability_within(figure, 84.0) == pytest.approx(0.9, abs=1e-6)
    assert probability_within(figure, 48.0) == pytest.approx(0.68, abs=0.01)


def test_nothing_costs_more_than_a_budget_of_nothing_on_a_machine_of_ones_own() -> None:
    limits = Limits(0.05, 1800.0, budget_usd=0.0)
    free = odds(limits, spread(3600.0, 1.5), Spread(0.0, 0.0, 0.0))
    paid = odds(limits, spread(3600.0, 1.5), spread(1.0, 1.5))
    assert (free[0].kept, free[0].probability) == (True, 1.0)
    assert (paid[0].kept, paid[0].probability) == (False, 0.0)


def test_every_candidate_is_judged_as_its_own_row_is(small_bill: Bill) -> None:
    middle = float(np.median(small_bill.duration_s))
    usd = float(np.median(small_bill.cost_usd))
    limits = Limits(0.05, 1800.0, deadline_s=middle, budget_usd=usd, max_session_s=2 * middle)
    over = excess(small_bill, limits)
    plain = np.flatnonzero(small_bill.unmeasured_gain == 1.0)
    assert len(plain) > 40
    for index in map(int, plain[:: len(plain) // 40]):
        row = small_bill.estimate(index)
        found = odds(limits, row.duration_s, row.cost_usd)
        assert over[index] == pytest.approx(worst_excess(found), abs=1e-9)
        assert (over[index] <= 0) == all(each.kept for each in found)


def test_a_gain_that_nobody_measured_keeps_no_limit(tight_bill: Bill) -> None:
    """torch.compile makes a run shorter by the formula; no deadline is kept by that alone."""
    off = np.asarray([v == "off" for v in tight_bill.candidates.levels["compile"]])
    plain = off[tight_bill.candidates.codes["compile"]]
    fits = tight_bill.feasible
    assert tight_bill.duration_s[fits & ~plain].min() < tight_bill.duration_s[fits & plain].min()
    for hours in (1.0, 5.0, 10.0, 20.0, 30.0):
        limits = Limits(0.05, 1800.0, deadline_s=3600.0 * hours)
        index = best_index(tight_bill, "time", limits).index
        assert index is not None
        assert plain[index]


def test_a_surer_limit_never_widens_the_choice(small_bill: Bill) -> None:
    middle = float(np.median(small_bill.duration_s))
    kept = [
        excess(small_bill, Limits(0.05, 1800.0, deadline_s=middle, confidence=sure)) <= 0
        for sure in (0.51, 0.8, 0.95)
    ]
    assert kept[0].sum() > kept[1].sum() > kept[2].sum()
    assert not (kept[1] & ~kept[0]).any()
    assert not (kept[2] & ~kept[1]).any()


def test_alternatives_of_a_pick_within_its_limits_are_within_them(small_job: Job) -> None:
    plain = CostModel(small_job).price(enumerate_candidates(small_job, load_space()).candidates)
    limits = replace(small_job.limits, deadline_s=float(np.median(plain.duration_s)))
    bill = CostModel(replace(small_job, limits=limits)).price(plain.candidates)
    pick = best_index(bill, "cost", limits).index
    assert pick is not None
    for index in (pick, *distinct_alternatives(bill, pick)):
        row = bill.estimate(index)
        assert all(each.kept for each in odds(limits, row.duration_s, row.cost_usd))


def bill_on(build: Any, job: Job, per_hour: float) -> Bill:
    offer = replace(build.offer("h100", 1, 1.0), spot=True, interruptions_per_hour=per_hour)
    job = replace(job, offers=(offer,))
    return CostModel(job).price(enumerate_candidates(job, load_space()).candidates)


def test_the_luck_of_interruptions_widens_a_spot_bill(build: Any, tight_job: Job) -> None:
    at = np.asarray([0])
    luck = {}
    for rate in (0.0, 0.5):
        bill = bill_on(build, tight_job, rate)
        seconds = component_seconds(bill, at)
        known = sum((s[0] * bill.at(name, "log_sd", 0)) ** 2 for name, s in seconds.items())
        luck[rate] = (duration_log_sd(bill, at)[0] * bill.duration_s[0]) ** 2 - known
    assert luck[0.0] == pytest.approx(0.0, abs=1.0)
    count = 0.5 / 3600.0 * bill.duration_s[0]
    assert luck[0.5] > count * 300.0**2


def test_work_done_again_is_as_much_longer_as_the_run(build: Any, tight_job: Job) -> None:
    bill, at = bill_on(build, tight_job, 0.5), np.asarray([0])
    parts = bill.time_parts(0)
    again = parts.total / (parts.total - parts.lost_work)
    assert again > 1.01
    assert component_seconds(bill, at)["compute"][0] == pytest.approx(again * parts.train)


def test_the_variance_of_interruptions_is_that_of_simulated_ones() -> None:
    rng = np.random.default_rng(7)
    running, interval, rate, restart = 36_000.0, 1800.0, 1 / 7200.0, 300.0
    lost = [
        float(np.sum(rng.uniform(0.0, interval, count) + restart))
        for count in rng.poisson(rate * running, 40_000)
    ]
    arrays = {
        "running_s": np.asarray([running]), "interval_s": np.asarray([interval]),
        "interruptions_per_s": np.asarray([rate]), "restart_s": np.asarray([restart]),
    }  # fmt: skip
    assert interruptions_variance(**arrays)[0] == pytest.approx(np.var(lost), rel=0.03)
    # The expectation counts interruptions of the time redone too, which the simulation leaves out.
    assert lost_work_s(**arrays)[0] == pytest.approx(np.mean(lost) / (1 - rate * 1200.0), rel=0.03)


def test_a_cheaper_machine_that_is_late_once_in_three_does_not_win(
    build: Any, tight_job: Job
) -> None:
    """A deadline at the slow machine's middle plus a third: it keeps it two times in three."""
    slow, fast = build.offer("t4", 1, 0.05), build.offer("h100", 1, 2.5)
    small = replace(tight_job, offers=(slow, fast), model=build.model(), rows=2000, steps=250)
    bill = CostModel(small).price(enumerate_candidates(small, load_space()).candidates)
    free = best_index(bill, "cost", small.limits).index
    assert free is not None
    row = bill.estimate(free)
    assert row.offer == slow, "the slow machine is the cheaper one"
    deadline = 0.5 * (row.duration_s.p50 + held_with(row.duration_s, 0.7))
    assert 0.5 < probability_within(row.duration_s, deadline) < 0.7
    tight = replace(small.limits, deadline_s=deadline)
    index = best_index(bill, "cost", tight).index
    assert index is not None
    chosen = bill.estimate(index)
    assert probability_within(chosen.duration_s, deadline) >= tight.confidence
    assert math.isclose(tight.confidence, 0.8)

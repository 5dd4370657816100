from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.cost.bill import slow_log_sd
from autotune.cost.model import CostModel
from autotune.domain.answer.limits import misses, odds, standard
from autotune.domain.candidates import OFFER
from autotune.domain.job import Limits
from autotune.search import selection
from autotune.search.alternatives import (
    VISIBLE,
    as_infeasible,
    best_of_each_offer,
    beyond_front,
    distinct_alternatives,
    nearest_misses,
    neighbours,
    pareto_front,
)
from autotune.search.selection import TIE, best_index, simplicity
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space

if TYPE_CHECKING:
    from autotune.cost.bill import Bill
    from autotune.domain.answer.limits import LimitOdds
    from autotune.domain.job import Job

OPEN = Limits(0.08, 1800.0)


def limits(**fields: Any) -> Limits:
    return replace(OPEN, **fields)


def held_s(bill: Bill, confidence: float) -> Any:
    """[n] what each candidate's duration stays within with that probability."""
    spread = slow_log_sd(bill, np.arange(len(bill)))
    return bill.duration_s * np.exp(standard(confidence) * spread) * bill.unmeasured_gain


def odds_at(bill: Bill, index: int, **fields: Any) -> tuple[LimitOdds, ...]:
    row = bill.estimate(index)
    return odds(limits(**fields), row.duration_s, row.cost_usd)


def kept(bill: Bill, index: int, **fields: Any) -> bool:
    return all(each.kept for each in odds_at(bill, index, **fields))


def described(bill: Bill, index: int | None) -> tuple[str, str] | None:
    if index is None:
        return None
    return repr(bill.candidates.offer(index)), bill.candidates.config(index).key


def test_the_optimum_is_what_a_scalar_loop_finds(build: Any) -> None:
    offers = (build.offer("a100", 1, 1.6), build.offer("h100", 2, 5.0), build.offer("t4", 1, 0.3))
    job = build.job(*offers, lock={"compile": "off", "attention": "sdpa"}, global_batch_size=4)
    model = CostModel(job)
    candidates = enumerate_candidates(job, load_space()).candidates
    least: dict[str, float] = {"cost": np.inf, "time": np.inf}
    for i in range(len(candidates)):
        one = model.price(candidates.take(np.asarray([i])))
        if one.feasible[0]:
            caution = float(one.caution[0])
            least["cost"] = min(least["cost"], float(one.cost_usd[0]) * caution)
            least["time"] = min(least["time"], float(one.duration_s[0]) * caution)
    bill = model.price(candidates)
    for objective, expected in least.items():
        found = best_index(bill, objective, OPEN)  # type: ignore[arg-type]  # a Literal
        assert found.optimum is not None
        value = selection.cautious_scores(bill, objective)[found.optimum]  # type: ignore[arg-type]
        assert value == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("objective", ["cost", "time"])
def test_the_pick_is_feasible_and_nothing_feasible_is_more_than_the_tie_better(
    tight_bill: Bill, objective: Any
) -> None:
    found = best_index(tight_bill, objective, OPEN)
    values = selection.cautious_scores(tight_bill, objective)
    assert found.index is not None
    assert tight_bill.feasible[found.index]
    assert not tight_bill.feasible.all(), "the job must have candidates that do not fit"
    assert values[found.index] <= values[tight_bill.feasible].min() * (1 + TIE)
    assert values[found.optimum] == values[tight_bill.feasible].min()


def test_of_what_ties_with_the_optimum_nothing_is_simpler_than_the_pick(tight_bill: Bill) -> None:
    found = best_index(tight_bill, "cost", OPEN)
    assert found.index is not None
    assert found.optimum is not None
    values = selection.cautious_scores(tight_bill, "cost")
    offers = tight_bill.candidates.codes[OFFER]
    near = tight_bill.feasible & (values <= values[found.optimum] * (1 + TIE))
    at = np.flatnonzero(near & (offers == offers[found.optimum]))
    keys = list(zip(*(key.tolist() for key in simplicity(tight_bill, at)), strict=True))
    assert keys[list(at).index(found.index)] == min(keys)


def evenly(bill: Bill, memory: Any) -> Any:
    """The same candidates at one bill. memory: [n] share of what there is."""
    same = np.ones(len(bill))
    return SimpleNamespace(
        job=bill.job, candidates=bill.candidates, usable_bytes=bill.usable_bytes, cost_usd=same,
        duration_s=same, caution=same, memory_bytes=bill.usable_bytes * memory,
    )  # fmt: skip


def test_a_second_framework_is_not_taken_to_spare_memory(build: Any) -> None:
    job = build.job(build.offer("a100", 4, 6.4), lock={"compile": "off", "attention": "sdpa"})
    bill = CostModel(job).price(enumerate_candidates(job, load_space()).candidates)
    levels = bill.candidates.levels["sharding"]
    rank = np.asarray([("ddp", "fsdp", "zero2", "zero3").index(value) for value in levels])
    even = evenly(bill, 0.1 * (4.0 - rank[bill.candidates.codes["sharding"]]))
    least = int(np.argmin(even.memory_bytes))
    found = selection._simplest(even, np.ones(len(bill), np.bool_), "cost", least)
    assert bill.candidates.config(least).sharding == "zero3"
    assert bill.candidates.config(found).sharding == "ddp"


def test_lora_on_four_cards_takes_ddp_though_a_framework_is_half_a_percent_cheaper(
    build: Any,
) -> None:
    job = build.job(build.offer("a100", 4, 6.4), global_batch_size=16)
    bill = CostModel(job).price(enumerate_candidates(job, load_space()).candidates)
    found = best_index(bill, "cost", OPEN)
    assert found.index is not None
    assert bill.candidates.config(found.index).sharding == "ddp"
    sharding = bill.candidates.levels["sharding"]
    zero2 = bill.candidates.codes["sharding"] == sharding.index("zero2")
    cheaper = replace(bill, cost_usd=np.where(zero2, 0.995, 1.0) * bill.cost_usd)
    again = best_index(cheaper, "cost", OPEN)
    assert again.index is not None
    assert bill.candidates.config(again.index).sharding == "ddp"
    much = replace(bill, cost_usd=np.where(zero2, 0.95, 1.0) * bill.cost_usd)
    paid = best_index(much, "cost", OPEN)
    assert paid.index is not None
    assert bill.candidates.config(paid.index).sharding == "zero2"


@pytest.mark.parametrize(
    ("knob", "simple"),
    [("num_dataloader_workers", 0), ("compile", "off"), ("activation_checkpointing", "none"),
     ("micro_batch_size", 1)],
)  # fmt: skip
def test_at_an_equal_bill_fewer_processes_and_the_trainers_own_settings_win(
    build: Any, knob: str, simple: Any
) -> None:
    job = build.job(build.offer("a100", 1, 1.6))
    bill = CostModel(job).price(enumerate_candidates(job, load_space()).candidates)
    even = evenly(bill, np.full(len(bill), 0.5))
    found = selection._simplest(even, np.ones(len(bill), np.bool_), "cost", len(bill) - 1)
    assert getattr(bill.candidates.config(found), knob) == simple


@settings(max_examples=25, deadline=None)
@given(data=st.data())
def test_the_order_of_offers_and_values_does_not_change_the_answer(
    small_job: Job, small_bill: Bill, data: Any
) -> None:
    offers = data.draw(st.permutations(small_job.offers))
    space = load_space()
    shuffled = replace(
        space,
        values={name: tuple(data.draw(st.permutations(own))) for name, own in space.values.items()},
    )
    job = replace(small_job, offers=tuple(offers))
    bill = CostModel(job).price(enumerate_candidates(job, shuffled).candidates)
    for objective in ("cost", "time"):
        before = best_index(small_bill, objective, OPEN)
        after = best_index(bill, objective, OPEN)
        for field in ("index", "optimum", "runner_up"):
            assert described(bill, getattr(after, field)) == described(
                small_bill, getattr(before, field)
            )
    front = [described(bill, i) for i in pareto_front(bill)]
    assert front == [described(small_bill, i) for i in pareto_front(small_bill)]


def test_doubling_prices_doubles_cost_and_keeps_the_pick(small_job: Job, small_bill: Bill) -> None:
    offers = tuple(
        replace(offer, usd_per_hour=2 * offer.usd_per_hour) for offer in small_job.offers
    )
    job = replace(small_job, offers=offers)
    bill = CostModel(job).price(
        small_bill.candidates.__class__(
            {**small_bill.candidates.levels, OFFER: offers}, small_bill.candidates.codes
        )
    )
    np.testing.assert_allclose(bill.cost_usd, 2 * small_bill.cost_usd, rtol=1e-12)
    before, after = best_index(small_bill, "cost", OPEN), best_index(bill, "cost", OPEN)
    assert (before.index, before.optimum) == (after.index, after.optimum)


def test_free_machines_are_told_apart_by_time(small_job: Job) -> None:
    offers = tuple(replace(offer, usd_per_hour=0.0) for offer in small_job.offers)
    job = replace(small_job, offers=offers)
    bill = CostModel(job).price(enumerate_candidates(job, load_space()).candidates)
    found = best_index(bill, "cost", OPEN)
    assert selection.score_name(bill, "cost") == "duration_s"
    assert found.optimum is not None
    surely_s = bill.duration_s * bill.caution
    assert surely_s[found.optimum] == surely_s[bill.feasible].min()


def test_limits_that_can_be_met_are_met(small_bill: Bill) -> None:
    held = held_s(small_bill, OPEN.confidence)
    deadline = 1.1 * float(held[small_bill.feasible].min())
    found = best_index(small_bill, "cost", limits(deadline_s=deadline))
    assert found.index is not None
    assert kept(small_bill, found.index, deadline_s=deadline)
    within = small_bill.feasible & (held <= deadline)
    costs = selection.cautious_scores(small_bill, "cost")
    assert costs[found.optimum] == costs[within].min()


def test_a_missed_deadline_gives_what_is_soonest_as_surely_as_is_asked(small_bill: Bill) -> None:
    found = best_index(small_bill, "cost", limits(deadline_s=1.0))
    soonest = held_s(small_bill, OPEN.confidence)[small_bill.feasible].min()
    assert found.index is not None
    missed = misses(odds_at(small_bill, found.index, deadline_s=1.0))
    assert [miss.limit for miss in missed] == ["deadline"]
    assert missed[0].by == pytest.approx(soonest - 1.0)


def test_a_missed_budget_gives_what_is_cheapest_as_surely_as_is_asked(small_bill: Bill) -> None:
    found = best_index(small_bill, "time", limits(budget_usd=1e-6))
    rate = small_bill.cost_usd / small_bill.duration_s
    held = held_s(small_bill, OPEN.confidence) * rate
    assert found.index is not None
    missed = misses(odds_at(small_bill, found.index, budget_usd=1e-6))
    assert [miss.limit for miss in missed] == ["budget"]
    assert missed[0].by == pytest.approx(held[small_bill.feasible].min() - 1e-6)


def test_nothing_feasible_gives_no_pick_but_near_misses(build: Any, tight_job: Job) -> None:
    job = replace(tight_job, offers=(build.offer("t4"),))
    bill = CostModel(job).price(enumerate_candidates(job, load_space()).candidates)
    found = best_index(bill, "cost", OPEN)
    assert found.index is None
    misses = nearest_misses(bill)
    assert len(misses) == 3
    worst = [float(np.maximum(*selection.violations(bill))[i]) for i in misses]
    assert worst == sorted(worst)
    assert worst[0] == np.maximum(*selection.violations(bill)).min()
    first = as_infeasible(bill, misses[0])
    assert first.required_bytes > first.available_bytes
    assert first.short_of == "memory"
    assert distinct_alternatives(bill, misses[0]) == []
    assert pareto_front(bill) == []


def test_near_misses_would_beat_the_pick_and_need_different_memory(tight_bill: Bill) -> None:
    found = best_index(tight_bill, "cost", OPEN)
    misses = nearest_misses(tight_bill, pick=found.index)
    assert len(misses) == 3
    assert not tight_bill.feasible[misses].any()
    assert len({float(tight_bill.memory_bytes[i]) for i in misses}) == 3


@pytest.mark.parametrize("name", ["small_bill", "tight_bill"])
def test_the_front_is_exact(name: str, request: pytest.FixtureRequest) -> None:
    bill: Bill = request.getfixturevalue(name)
    front = pareto_front(bill)
    at = np.flatnonzero(bill.feasible)
    time, cost = bill.duration_s * bill.caution, bill.cost_usd * bill.caution
    points = set()
    for i in at:
        beaten = (time[at] <= time[i]) & (cost[at] <= cost[i])
        beaten &= (time[at] < time[i]) | (cost[at] < cost[i])
        if not beaten.any():
            points.add((time[i], cost[i]))
    assert [(time[i], cost[i]) for i in front] == sorted(points)


def test_beyond_the_front_is_what_would_beat_it_if_it_fitted(small_bill: Bill) -> None:
    soonest = pareto_front(small_bill)[0]
    usable = np.array(small_bill.usable_bytes, dtype=float)
    usable[soonest] = 1.0  # byte
    bill = small_bill.with_memory(usable_bytes=usable)
    time, cost = bill.duration_s * bill.caution, bill.cost_usd * bill.caution
    beyond = beyond_front(bill)
    assert soonest in beyond or any(time[f] == time[soonest] for f in pareto_front(bill))
    assert not bill.feasible[beyond].any()
    for i in beyond:
        assert not ((time < time[i]) & (cost < cost[i])).any()
        assert not any(time[f] <= time[i] and cost[f] <= cost[i] for f in pareto_front(bill))


@pytest.mark.parametrize("objective", ["cost", "time"])
def test_the_best_of_each_offer_is_its_least_that_fits_else_its_nearest(
    small_bill: Bill, objective: selection.Objective
) -> None:
    offers = small_bill.candidates.codes[OFFER]
    last = len(small_bill.job.offers) - 1
    usable = np.where(offers == last, 1.0, small_bill.usable_bytes)
    bill = small_bill.with_memory(usable_bytes=usable)
    figures = selection.cautious_scores(bill, objective)
    found = best_of_each_offer(bill, objective)
    assert [int(offers[i]) for i in found] == list(range(last + 1))
    for number, i in enumerate(found[:-1]):
        assert bill.feasible[i]
        assert figures[i] == figures[(offers == number) & bill.feasible].min()
    assert not bill.feasible[found[-1]]
    assert bill.memory_violation[found[-1]] == bill.memory_violation[offers == last].min()


def test_alternatives_differ_visibly_from_the_pick_and_from_each_other(small_bill: Bill) -> None:
    pick = best_index(small_bill, "cost", OPEN).index
    assert pick is not None
    chosen = distinct_alternatives(small_bill, pick, "cost")
    assert len(chosen) == 5
    looks = {
        tuple(int(small_bill.candidates.codes[axis][i]) for axis in VISIBLE)
        for i in [pick, *chosen]
    }
    assert len(looks) == 6
    assert len({int(small_bill.candidates.codes[OFFER][i]) for i in chosen}) >= 3
    costs = [selection.cautious_scores(small_bill, "cost")[i] for i in chosen]
    assert costs == sorted(costs)


def test_neighbours_differ_in_one_knob_by_one_step(small_bill: Bill) -> None:
    pick = best_index(small_bill, "time", OPEN).index
    assert pick is not None
    config = small_bill.candidates.config(pick).as_dict()
    found = neighbours(small_bill, pick)
    assert {n.knob for n in found} >= {"micro_batch_size", "num_dataloader_workers", "compile"}
    for neighbour in found:
        other = small_bill.candidates.config(neighbour.index).as_dict()
        changed = {name for name in config if config[name] != other[name]}
        assert changed - {"gradient_accumulation_steps"} == {neighbour.knob}
        assert small_bill.candidates.offer(neighbour.index) == small_bill.candidates.offer(pick)
    micro = [
        small_bill.candidates.value("micro_batch_size", n.index)
        for n in found
        if n.knob == "micro_batch_size"
    ]
    own = config["micro_batch_size"]
    assert isinstance(own, int)
    assert set(micro) <= {own // 2, own * 2}


def test_a_runner_up_trains_differently(small_bill: Bill) -> None:
    found = best_index(small_bill, "cost", OPEN)
    assert found.index is not None
    assert found.runner_up is not None
    mine = small_bill.candidates.config(found.index).as_dict()
    other = small_bill.candidates.config(found.runner_up).as_dict()
    same_offer = small_bill.candidates.offer(found.index) == small_bill.candidates.offer(
        found.runner_up
    )
    changed = {name for name in mine if mine[name] != other[name]} - selection.FEEDING
    assert changed or not same_offer


def test_a_choice_among_some_candidates_stays_among_them(small_bill: Bill) -> None:
    some = [int(i) for i in np.flatnonzero(small_bill.feasible)[5:25]]
    found = best_index(small_bill, "cost", OPEN, among=some)
    assert found.index in some
    assert found.optimum in some


def test_figures_that_are_not_finite_are_never_chosen(small_bill: Bill) -> None:
    duration = small_bill.duration_s.copy()
    best = best_index(small_bill, "time", OPEN).optimum
    assert best is not None
    duration[best] = np.nan
    broken = replace(small_bill, duration_s=duration)
    assert best_index(broken, "time", OPEN).optimum not in {None, best}
    assert best not in pareto_front(broken)

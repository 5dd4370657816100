"""What candidates share cancels between them; ties and the fact worth most follow from the rest."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cost.bill import duration_log_sd
from autotune.cost.model import CostModel
from autotune.cost.spread.joint import (
    FASTER,
    Loadings,
    difference_log_sd,
    loadings,
    sides_of_difference,
)
from autotune.cost.spread.variance import narrowest_input, narrowings, said
from autotune.domain.answer.recommendation import Difference
from autotune.domain.candidates import OFFER
from autotune.domain.device import DeviceRates
from autotune.domain.job import Assumption, Limits
from autotune.domain.outcome import Z90
from autotune.search.alternatives import differences, too_close
from autotune.search.selection import TIE, best_index
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space

if TYPE_CHECKING:
    from autotune.cost.bill import Bill
    from autotune.domain.job import Job

OPEN = Limits(0.08, 1800.0)
SIZE = st.floats(-1.0, 1.0)
OWN = st.dictionaries(
    st.tuples(st.sampled_from(["device", "scatter", "own", "startup"]), st.integers(0, 2)),
    SIZE, max_size=6,
)  # fmt: skip


def bill_of(job: Job) -> Bill:
    return CostModel(job).price(enumerate_candidates(job, load_space()).candidates)


@pytest.fixture(scope="module")
def job(build: Any) -> Job:
    return build.job(build.offer("a100", 1, 1.6), build.offer("h100", 1, 3.0), global_batch_size=8)  # type: ignore[no-any-return]


@pytest.fixture(scope="module")
def bill(job: Job) -> Bill:
    return bill_of(job)


@given(OWN, OWN, SIZE)
def test_a_factor_that_both_share_changes_no_difference(
    one: dict[Any, float], other: dict[Any, float], shared: float
) -> None:
    before = difference_log_sd(Loadings(one), Loadings(other))
    key = ("lengths",)
    after = difference_log_sd(Loadings({**one, key: shared}), Loadings({**other, key: shared}))
    assert after == pytest.approx(before)


@given(OWN, OWN, SIZE, st.floats(-0.5, 0.5))
def test_noise_of_its_own_makes_a_tie_more_likely_and_never_less(
    one: dict[Any, float], other: dict[Any, float], noise: float, apart: float
) -> None:
    def tie(rival: dict[Any, float]) -> bool:
        grow = math.exp(Z90 * difference_log_sd(Loadings(one), Loadings(rival)))
        ends = Difference(0, math.exp(apart) / grow - 1.0, math.exp(apart) * grow - 1.0)
        return bool(too_close([ends]))

    assert tie({**other, ("own", 99): noise}) or not tie(other)


def test_loadings_make_the_interval_of_every_candidate(bill: Bill) -> None:
    at = np.linspace(0, len(bill) - 1, 40).astype(np.intp)
    told = [math.sqrt(own.variance()) for own in loadings(bill, at.tolist())]
    assert told == pytest.approx(duration_log_sd(bill, at).tolist(), rel=1e-6)


def test_two_candidates_of_one_step_differ_by_less_than_either_is_unsure(bill: Bill) -> None:
    rows = bill.tables["compute"].row_of
    first = int(np.flatnonzero(np.bincount(rows) > 1)[0])
    one, other = (int(i) for i in np.flatnonzero(rows == first)[:2])
    a, b = loadings(bill, [one, other])
    assert difference_log_sd(a, b) < 0.5 * math.sqrt(a.variance())


def test_machines_share_less_than_settings_of_one_machine(bill: Bill) -> None:
    pick = best_index(bill, "cost", OPEN).index
    assert pick is not None
    offers = bill.candidates.codes[OFFER]
    here = [int(i) for i in np.flatnonzero(offers == offers[pick])[:20]]
    there = [int(i) for i in np.flatnonzero(offers != offers[pick])[:20]]
    own, *rest = loadings(bill, [pick, *here, *there])
    sds = [difference_log_sd(own, each) for each in rest]
    assert max(sds[: len(here)]) < min(sds[len(here) :])


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_a_factor_on_every_candidate_changes_neither_pick_nor_ties(
    bill: Bill, factor: float
) -> None:
    longer = replace(bill, duration_s=bill.duration_s * factor, cost_usd=bill.cost_usd * factor)
    picks = [best_index(each, "cost", OPEN).index for each in (bill, longer)]
    assert picks[0] == picks[1]
    assert picks[0] is not None
    others = [int(i) for i in np.flatnonzero(bill.feasible)[:10]]
    ratios = [
        [(d.low + 1.0) * (d.high + 1.0) for d in differences(each, picks[0], others, "cost")]
        for each in (bill, longer)
    ]
    assert ratios[0] == pytest.approx(ratios[1])


def test_what_is_far_behind_is_no_tie_and_what_is_equal_is_one(bill: Bill) -> None:
    pick = best_index(bill, "cost", OPEN).index
    assert pick is not None
    worst = int(np.argmax(np.where(bill.feasible, bill.cost_usd, 0.0)))
    found = differences(bill, pick, [pick, worst], "cost")
    assert too_close(found) == (0,)
    assert found[0].low == pytest.approx(0.0)
    assert found[1].low > TIE


@pytest.mark.parametrize("objective", ["cost", "time"])
def test_nothing_is_expected_to_be_better_but_what_caution_holds_back(
    bill: Bill, objective: Any
) -> None:
    """Ranked by the expected bill: the mean of the ratio, in which what is shared cancels."""
    pick = best_index(bill, objective, OPEN).optimum
    assert pick is not None
    others = [int(i) for i in np.flatnonzero(bill.feasible)[::7]]
    for each in differences(bill, pick, others, objective):
        index = others[each.place]
        assert each.low <= each.expected <= each.high or each.high - each.low < TIE
        if bill.caution[index] <= bill.caution[pick]:
            assert each.expected >= -1e-9


def test_a_free_machine_and_a_priced_one_are_told_apart(build: Any) -> None:
    free = bill_of(build.job(build.offer("t4", 1, 0.0), build.offer("a100", 1, 1.6)))
    pick = best_index(free, "cost", OPEN).index
    assert pick is not None
    priced = int(np.flatnonzero((free.cost_usd > 0) & free.feasible)[0])
    ties = [int(i) for i in np.flatnonzero(free.cost_usd <= 0)[:1]]
    found = differences(free, pick, [priced, *ties], "cost")
    assert 0 not in [each.place for each in found]
    assert 0 not in too_close(found)


def spread_of(bill: Bill) -> float:
    """The upper end of the first candidate's interval over its lower."""
    row = bill.estimate(0).duration_s
    return row.p90 / row.p10


def told(bill: Bill, fact: str) -> float:
    own = next(each for each in narrowings(bill, 0) if each.fact == fact)
    return own.p90 / own.p10


def one_row(job: Job, **fields: Any) -> Bill:
    changed = replace(job, **fields)
    candidates = enumerate_candidates(changed, load_space()).candidates
    return CostModel(changed).price(candidates.take(np.asarray([0])))


def test_known_lengths_narrow_the_interval_to_the_figure_told(job: Job) -> None:
    lengths = replace(job.lengths, log_sd=0.3)
    known = one_row(job, lengths=replace(lengths, log_sd=0.0))
    unknown = one_row(job, lengths=lengths)
    assert told(unknown, "lengths") == pytest.approx(spread_of(known), rel=1e-6)
    assert told(unknown, "lengths") < spread_of(unknown)


def test_a_doctor_run_narrows_the_interval_to_the_figure_told(build: Any) -> None:
    plain = build.offer("cpu", 1, 0.0)
    calm = replace(plain, device=replace(plain.device, rates=DeviceRates(log_sd=0.0)))
    before, after = one_row(build.job(plain)), one_row(build.job(calm))
    assert told(before, "doctor") == pytest.approx(spread_of(after), rel=1e-6)
    assert all(each.fact != "doctor" for each in narrowings(after, 0))


def test_the_fact_that_is_named_is_the_one_that_narrows_most(job: Job) -> None:
    note = Assumption("data.lengths", "512", "why")
    blind = one_row(job, lengths=replace(job.lengths, known=False), assumed=(note,))
    for each in (blind, one_row(job), one_row(job, steps=1, rows=8)):
        found = narrowings(each, 0)
        assert said(found[0]) == narrowest_input(each, 0)
        assert found[0].p90 == min(own.p90 for own in found)
        assert all(own.p90 < each.estimate(0).duration_s.p90 for own in found)


def test_a_cause_that_only_shortens_runs_moves_a_difference_one_way() -> None:
    shorter, own = ("lengths", FASTER), ("own", "a")
    long, short = (Loadings({shorter: size, own: 0.1}) for size in (0.8, 0.3))
    assert sides_of_difference(long, short) == pytest.approx((0.0, 0.5))
    assert sides_of_difference(short, long) == pytest.approx((0.5, 0.0))
    even = Loadings({("lengths",): 0.3, own: 0.1}), Loadings({("lengths",): 0.8, own: 0.1})
    assert sides_of_difference(*even) == pytest.approx((0.5, 0.5))


def test_a_difference_is_the_same_to_its_last_digit_in_every_process() -> None:
    """Names are hashed anew in each process, and a sum in another order ends in other digits."""
    code = (
        "from autotune.cost.spread.joint import Loadings, difference_log_sd\n"
        "of = {(f'cause {n}',): 1 / (3 + n * n) for n in range(60)}\n"
        "other = {key: value * 0.7 for key, value in of.items()}\n"
        "print(repr(difference_log_sd(Loadings(of), Loadings(other))))\n"
    )
    told = {
        subprocess.run(
            [sys.executable, "-c", code], cwd=Path(__file__).parents[2], check=True,
            capture_output=True, env={**os.environ, "PYTHONHASHSEED": seed},
        ).stdout
        for seed in ("1", "2", "3")
    }  # fmt: skip
    assert len(told) == 1

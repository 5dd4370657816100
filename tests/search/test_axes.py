from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.domain.candidates import OFFER
from autotune.search import axes
from autotune.search.axes import ParameterSpace
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space

if TYPE_CHECKING:
    from autotune.cost.bill import Bill


@pytest.mark.parametrize("most", [axes.MAX_TABLE, 1])
def test_every_candidate_is_found_by_its_parameters(
    small_bill: Bill, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(axes, "MAX_TABLE", most)
    space = ParameterSpace(small_bill.candidates)
    assert [space.find(space.params(i)) for i in range(len(small_bill))] == list(
        range(len(small_bill))
    )


@pytest.mark.parametrize("most", [axes.MAX_TABLE, 1])
def test_a_combination_that_is_no_candidate_is_not_found_and_has_a_distance(
    small_bill: Bill, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    monkeypatch.setattr(axes, "MAX_TABLE", most)
    space = ParameterSpace(small_bill.candidates)
    params = space.params(0)
    alone = next(i for i, o in enumerate(small_bill.candidates.levels[OFFER]) if o.count == 1)
    labels = next(axis.values for axis in space.axes if axis.name == OFFER)
    params = {**params, OFFER: labels[alone], "sharding": "ddp"}
    assert space.find(params) is None
    assert space.distance(params) == 1
    assert space.distance(space.params(3)) == 0


def test_what_follows_from_the_offer_is_no_parameter(build: Any) -> None:
    job = build.job(build.offer("a100"), build.offer("h100"))
    candidates = enumerate_candidates(job, load_space()).candidates
    names = {axis.name for axis in ParameterSpace(candidates).axes}
    assert OFFER in names
    assert names.isdisjoint({"pin_memory", "gradient_accumulation_steps", "sharding", "precision"})


def test_counts_are_positions_in_ascending_order(small_bill: Bill) -> None:
    space = ParameterSpace(small_bill.candidates)
    micro = next(axis for axis in space.axes if axis.name == "micro_batch_size")
    assert micro.ordinal
    values = [small_bill.candidates.levels["micro_batch_size"][code] for code in micro.codes]
    assert values == sorted(values)


def test_offers_that_look_alike_have_distinct_names(build: Any) -> None:
    one = build.offer("a100", 1, 1.0)
    job = build.job(one, replace(one, usd_per_hour=2.0), replace(one, usd_per_hour=2.0))
    candidates = enumerate_candidates(job, load_space()).candidates
    offers = next(axis for axis in ParameterSpace(candidates).axes if axis.name == OFFER)
    assert len(set(offers.values)) == 3

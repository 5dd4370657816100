"""Costs are worked out where they may decide; what is left out could not have been chosen."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.search.posterior.acquisition import LEAST_FIT, Posterior
from autotune.search.posterior.costs import least
from autotune.search.posterior.measurements import History
from bench.search.families import stranger
from bench.search.simulated import Grid, Machine

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray
    from bench.search.hidden import Hidden

    Indices = NDArray[np.intp]

SIZE = 500
VALUES = st.floats(-3.0, 3.0)


def measured(machine: Hidden, probes: int) -> History:
    history = History()
    order = machine.order()
    while history.probes < probes:
        index = next(order)
        found = machine.probe(index)
        if found is None:
            history.learn_oom(machine, index)
        else:
            history.learn(machine, index, found)
    return history


@pytest.fixture(params=["grid", "billed"])
def machine(request: pytest.FixtureRequest) -> Hidden:
    if request.param == "grid":
        return Machine(Grid.of(1), 4, 0.2)
    return stranger("billed_physics", 4)


def test_the_shortlist_is_what_all_costs_would_make_it(machine: Hidden) -> None:
    history = measured(machine, 4)
    posterior = Posterior(machine, history, shortlist=SIZE)
    everyone = np.arange(len(machine))
    costs, chance = posterior.log_cost[everyone], posterior.chance(everyone)
    open_ = chance > LEAST_FIT
    for index in history.tried:
        open_[posterior.twins(index)] = False
    at = np.flatnonzero(open_)
    order = np.argsort(costs[at] - np.log(chance[at]), kind="stable")
    assert len(at) > 2 * SIZE
    assert posterior.shortlist.tolist() == np.sort(at[order[:SIZE]]).tolist()


def test_most_costs_are_not_worked_out(machine: Hidden) -> None:
    asked: list[int] = []
    totals = machine.totals

    def counted(factors: dict[str, FloatArray], at: Indices) -> FloatArray:
        asked.append(len(at))
        return totals(factors, at)

    history = measured(machine, 4)
    machine.totals = counted  # type: ignore[method-assign, assignment]
    Posterior(machine, history, shortlist=SIZE)
    assert sum(asked) < 2.5 * len(machine), "one bill of each, and more of few"


@settings(deadline=None)
@given(st.data())
def test_the_least_are_found_from_what_each_is_worth_at_the_least(data: st.DataObject) -> None:
    count = data.draw(st.integers(1, 60))
    bare = np.asarray(data.draw(st.lists(VALUES, min_size=count, max_size=count)))
    more = st.one_of(st.floats(0.0, 2.0), st.just(np.inf))
    worth = bare + np.asarray(data.draw(st.lists(more, min_size=count, max_size=count)))
    size = data.draw(st.integers(1, 20))
    at = np.arange(count) + 7
    found = least(at, bare, lambda some: worth[some - 7], size)
    order = np.argsort(worth, kind="stable")[:size]
    assert found.tolist() == np.sort(at[order[np.isfinite(worth[order])]]).tolist()

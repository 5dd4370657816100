"""What is searched for besides the least cost: limits, the front.

A toy cost model: three devices, six micro-batches, four kernels; the quick device is dear. The
truth differs by device and kernel.
"""

from __future__ import annotations

import itertools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
import pytest

from autotune.domain.errors import InputError
from autotune.search.measured.front import CHEAPEST, KNEE, SOONEST, Blend, Front
from autotune.search.posterior.acquisition import Posterior
from autotune.search.posterior.lookahead import next_probe
from autotune.search.posterior.measurements import History
from autotune.search.posterior.stopping import ProbeBudget, judged, remaining
from autotune.search.priced import MEMORY, Dimension, part_of
from autotune.search.study.calibrated import CalibratedSampler

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from autotune.cost.columns import FloatArray

    Indices = NDArray[np.intp]

DEVICES, MICRO, KERNELS = ("slow", "middle", "quick"), (1, 2, 4, 8, 16, 32), tuple("abcd")
SPEED, PRICE, ROOM = (1.0, 2.4, 5.0), (1.0, 3.0, 9.0), (10.0, 19.0, 36.0)
HOURS = 100.0


class Toy:
    """hours = work / (speed x efficiency of the micro-batch); memory grows with the micro-batch."""

    grows = ("micro",)
    identity = "toy"
    confidence = 0.8

    def __init__(self, aim: str = "cost", limits: Mapping[str, float] | None = None) -> None:
        self.aim, self.limits = aim, dict(limits or {})
        levels = [DEVICES, tuple(map(str, MICRO)), KERNELS]
        names = ("device", "micro", "kernel")
        self.shape = tuple(map(len, levels))
        codes = np.unravel_index(np.arange(math.prod(self.shape)), self.shape)
        self.columns = dict(zip(names, codes, strict=True))
        dimensions = [Dimension(n, v, n == "micro") for n, v in zip(names, levels, strict=True)]
        device, micro, kernel = codes
        rows = np.asarray(MICRO, float)[micro]
        hours = HOURS / np.asarray(SPEED)[device] * (1.0 + 1.0 / rows)
        hours = hours * np.asarray([1.0, 1.05, 1.1, 1.15])[kernel]
        self.limit = np.asarray(ROOM)[device]
        self.parts = (
            part_of("compute", dimensions, self.columns, hours, spread=0.2),
            part_of(MEMORY, dimensions[:2], self.columns, 1.0 + rows, spread=0.05, noise=0.005),
        )
        self.price = np.asarray(PRICE)[device]

    def __len__(self) -> int:
        return len(self.limit)

    def hours(self, factors: Mapping[str, FloatArray], at: Indices) -> FloatArray:
        part = self.parts[0]
        found: FloatArray = part.predicted[part.row_of[at]] * factors["compute"]
        return found

    def totals(self, factors: Mapping[str, FloatArray], at: Indices) -> FloatArray:
        hours = self.hours(factors, at)
        return hours if self.aim == "time" else hours * self.price[at]

    def excesses(self, factors: Mapping[str, FloatArray], at: Indices) -> dict[str, FloatArray]:
        hours = self.hours(factors, at)
        values = {"deadline": hours, "budget": hours * self.price[at]}
        return {name: np.log(values[name] / limit) for name, limit in self.limits.items()}

    def params(self, index: int) -> dict[str, Any]:
        found = {k: int(v[index]) for k, v in self.columns.items()}
        return {**found, "device": DEVICES[found["device"]], "kernel": KERNELS[found["kernel"]]}

    def find(self, params: Mapping[str, Any]) -> int | None:
        codes = (DEVICES.index(params["device"]), params["micro"], KERNELS.index(params["kernel"]))
        return int(np.ravel_multi_index(codes, self.shape))

    def order(self) -> Iterator[int]:
        ones = {"compute": np.ones(len(self))}
        fits = self.parts[1].predicted[self.parts[1].row_of] <= self.limit
        worth = np.where(fits, self.totals(ones, np.arange(len(self))), np.inf)
        yield from map(int, np.argsort(worth, kind="stable"))

    def neighbours(self, index: int) -> list[int]:
        own = np.asarray([c[index] for c in self.columns.values()])
        every = np.stack(list(self.columns.values()), axis=1)
        return [int(i) for i in np.flatnonzero((every != own).sum(axis=1) == 1)]

    def plainness(self, indices: Sequence[int]) -> list[tuple[float, ...]]:
        return [(float(self.columns["micro"][i]),) for i in indices]


class Other(Toy):
    """The same candidates of another job."""

    identity = "other"


# The middle device is slower than thought and kernel c is the good one.
TRUE_DEVICE, TRUE_KERNEL = np.asarray([1.0, 1.3, 0.95]), np.asarray([1.1, 1.05, 0.8, 1.0])


def truth(toy: Toy, index: int) -> dict[str, float] | None:
    """What a probe measures; None for out of memory."""
    part, memory = toy.parts
    device, kernel = toy.columns["device"][index], toy.columns["kernel"][index]
    hours = part.predicted[part.row_of[index]] * TRUE_DEVICE[device] * TRUE_KERNEL[kernel]
    needed = float(memory.predicted[memory.row_of[index]])
    measured = {"compute": float(hours), MEMORY: needed}
    return None if needed > toy.limit[index] else measured


def true_values(toy: Toy) -> tuple[FloatArray, FloatArray]:
    """[n] hours and dollars; infinite where it does not fit."""
    found = [truth(toy, i) for i in range(len(toy))]
    hours = np.asarray([np.inf if m is None else m["compute"] for m in found])
    return hours, hours * toy.price


def searched(toy: Toy, probes: int) -> Posterior:
    history = History()
    for _ in range(probes):
        proposal = next_probe(Posterior(toy, history))
        if proposal is None:
            break
        measured = truth(toy, proposal.index)
        if measured is None:
            history.learn_oom(toy, proposal.index)
        else:
            history.learn(toy, proposal.index, measured)
    return Posterior(toy, history)


def test_the_cheapest_candidate_that_keeps_the_deadline_is_found() -> None:
    free = searched(Toy(), 10).pick()
    toy = Toy(limits={"deadline": 40.0})
    hours, cost = true_values(toy)
    pick = searched(toy, 10).pick()
    assert free is not None
    assert hours[free] > 40.0, "the deadline binds"
    assert pick is not None
    assert hours[pick] <= 40.0
    assert cost[pick] <= 1.03 * cost[hours <= 40.0].min()


def test_a_budget_is_kept_when_time_is_minimised() -> None:
    toy = Toy("time", {"budget": 130.0})
    hours, cost = true_values(toy)
    pick = searched(toy, 12).pick()
    assert pick is not None
    assert cost[pick] <= 130.0
    assert hours[pick] <= 1.03 * hours[cost <= 130.0].min()


def test_a_limit_that_nothing_keeps_is_come_near_to() -> None:
    toy = Toy(limits={"deadline": 5.0})
    hours, _ = true_values(toy)
    posterior = searched(toy, 8)
    assert posterior.missed
    pick = posterior.pick()
    assert pick is not None
    assert hours[pick] <= 1.03 * hours.min()
    left = remaining(posterior)
    assert left.saving == pytest.approx(left.fraction * posterior.value(pick))


def test_probes_that_are_sure_to_miss_a_limit_are_not_made() -> None:
    toy = Toy(limits={"deadline": 30.0})
    posterior = searched(toy, 8)
    part = toy.parts[0]
    predicted = part.predicted[part.row_of]
    assert max(predicted[i] for i in posterior.history.tried) < 30.0 * 2.0
    slowest = int(np.argmax(predicted))
    assert posterior.keeps_probability.of(slowest) < 0.02
    assert not posterior.allows(np.asarray([slowest])).any()


def test_without_limits_every_candidate_keeps_them() -> None:
    toy = Toy()
    assert (Posterior(toy, History()).keeps_probability[np.arange(len(toy))] == 1.0).all()


def test_several_devices_in_one_study_teach_each_other() -> None:
    """The kernel is learned on one device and believed on another that was never measured."""
    toy = Toy()
    history = History()
    for micro, kernel in itertools.product((1, 2), range(4)):
        index = int(np.ravel_multi_index((0, micro, kernel), toy.shape))
        measured = truth(toy, index)
        assert measured is not None
        history.learn(toy, index, measured)
    posterior = Posterior(toy, history)
    quick = [int(np.ravel_multi_index((2, 3, kernel), toy.shape)) for kernel in range(4)]
    factors = np.exp(posterior.residuals["compute"].mean)[toy.parts[0].row_of[quick]]
    assert int(np.argmin(factors)) == 2
    assert factors[2] < 0.95 * factors[0]


def space() -> dict[str, Any]:
    return {
        "device": optuna.distributions.CategoricalDistribution(DEVICES),
        "micro": optuna.distributions.IntDistribution(0, len(MICRO) - 1),
        "kernel": optuna.distributions.CategoricalDistribution(KERNELS),
    }


def tell(study: optuna.Study, trial: optuna.Trial, measured: dict[str, float] | None) -> None:
    if measured is None:
        trial.set_user_attr("oom", True)
        study.tell(trial, 1e6)
    else:
        trial.set_user_attr("measured", measured)
        study.tell(trial, measured["compute"])


def probe_front(study: optuna.Study, probes: int) -> tuple[Front, list[dict[str, Any]]]:
    """A search for the cheapest, and probes of the front's aims wherever one is worth it."""
    cost, time = Toy("cost"), Toy("time")
    front, free = Front(cost, time, space()), ProbeBudget(0.0, free=True)
    cheapest, asked = CalibratedSampler(cost, space()), []
    for _ in range(probes):
        study.sampler = front.next_aim(study, lambda _: free) or cheapest
        trial = study.ask(space())
        asked.append(dict(trial.params))
        index = cost.find(trial.params)
        assert index is not None
        tell(study, trial, truth(cost, index))
    return front, asked


def test_the_front_is_probed_at_its_corners_and_its_knee() -> None:
    study = optuna.create_study()
    front, _ = probe_front(study, 15)
    hours, dollars = true_values(Toy())
    known = {weight: aim.posterior(study) for weight, aim in front.aims.items()}
    picks = {weight: posterior.pick() for weight, posterior in known.items()}
    assert dollars[picks[CHEAPEST]] <= 1.03 * dollars.min()
    assert hours[picks[SOONEST]] <= 1.03 * hours.min()
    assert (hours * dollars)[picks[KNEE]] <= 1.06 * (hours * dollars).min()
    assert known[KNEE].history.probes == 15, "no configuration twice, whatever the aim"


def test_no_aim_is_probed_that_is_not_worth_the_price_of_a_probe() -> None:
    study = optuna.create_study()
    front, _ = probe_front(study, 1)
    assert front.next_aim(study, lambda _: ProbeBudget(0.0, free=True)) is not None
    assert front.next_aim(study, lambda _: ProbeBudget(1e6)) is None
    assert front.next_aim(study, lambda _: ProbeBudget(1e-6, spent=1.0, limit=1.0)) is None


def test_a_resumed_front_goes_on_with_the_same_probes() -> None:
    def go(pieces: int) -> list[dict[str, Any]]:
        storage = optuna.storages.InMemoryStorage()
        asked = []
        for _ in range(pieces):
            study = optuna.create_study(storage=storage, study_name="s", load_if_exists=True)
            asked += probe_front(study, 6 // pieces)[1]
        return asked

    assert go(1) == go(6)


def test_objectives_of_different_candidates_do_not_blend() -> None:
    with pytest.raises(InputError, match="different candidates"):
        Blend(Toy(), Other("time"), 0.5)


def test_a_search_with_a_deadline_ends_by_itself() -> None:
    toy = Toy(limits={"deadline": 40.0})
    posterior = searched(toy, 40)
    stop = judged(posterior, next_probe(posterior), ProbeBudget(next_cost=0.0))
    assert stop.rule in {"regret", "exhausted"}

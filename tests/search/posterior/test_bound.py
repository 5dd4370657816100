"""What is said of the best of all candidates together, and how it is said."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.search.posterior.acquisition import Posterior
from autotune.search.posterior.amplitudes import Evidence, disbelief
from autotune.search.posterior.bound import Worlds, _promising, bound_of, worlds_of
from autotune.search.posterior.improvement import expected_improvement
from autotune.search.posterior.kernel import Observed
from autotune.search.posterior.lookahead import next_probe
from autotune.search.posterior.measurements import History
from autotune.search.posterior.stopping import ProbeBudget, Remaining, described, remaining, settled
from bench.search.simulated import Grid, Machine

DRAW = np.random.default_rng(3)


def likely_saving(worlds: Worlds) -> float:
    """Share of the pick's cost that the best saves at most, in nine worlds of ten."""
    return float(1.0 - np.exp(-np.quantile(worlds.best(), 0.9)))


def test_the_best_of_many_may_be_better_than_any_single_one_is_likely_to_be() -> None:
    off = DRAW.normal(0.0, 0.1, (200, 2000))
    fits = np.ones(off.shape, np.bool_)
    mean = np.full(200, 0.1)
    one = likely_saving(Worlds(mean[:1], off[:1], fits[:1]))
    all_of_them = likely_saving(Worlds(mean, off, fits))
    assert one == pytest.approx(0.028, abs=0.01)
    assert all_of_them > 0.15
    assert likely_saving(Worlds(mean, off, ~fits)) == 0.0, "what does not fit is no better"
    together = likely_saving(Worlds(mean, np.repeat(off[:1], 200, axis=0), fits))
    assert together == pytest.approx(one), "twins are one"


def test_the_bound_of_a_machine_is_joint_and_narrows_with_measurements() -> None:
    machine = Machine(Grid.of(1), 4, 0.1)
    history, bounds = History(), []
    for index in list(machine.order())[:1] + np.flatnonzero(machine.truly_fits)[::1800].tolist():
        measured = machine.probe(index)
        if measured is not None:
            history.learn(machine, index, measured)
        posterior = Posterior(machine, history)
        if posterior.incumbent is not None:
            bounds.append(remaining(posterior).bound)
    assert all(0.0 < bound < 1.0 for bound in bounds)
    assert bounds[-1] < 0.9 * bounds[0]
    worlds = worlds_of(posterior, posterior.pick())
    assert bounds[-1] >= bound_of(posterior, probability=0.5)
    assert len(worlds.mean) > 20


def test_the_bound_counts_that_the_pick_may_be_a_lucky_reading_where_nothing_was_repeated() -> None:
    machine = Machine(Grid.of(1), 4, 0.0)
    fitting = np.flatnonzero(machine.truly_fits)
    some = fitting[np.argsort(machine.predicted_cost[fitting])][:600:50].tolist()
    draw, said = np.random.default_rng(1), {}
    for off in (0.0, 0.3):
        history = History()
        for index in some:
            values = machine.probe(index) or {}
            factor = float(np.exp(draw.normal(0.0, off)))
            history.learn(machine, index, {**values, "compute": values["compute"] * factor})
        posterior = Posterior(machine, history)
        assert posterior.residuals["compute"].amplitudes.noise == 0.0, "no repeat shows any"
        exact = posterior.known["compute"]
        noises = Evidence(posterior.parts["compute"], exact).by_noise()
        assert sum(share for share, _ in noises) == pytest.approx(1.0)
        said[off] = sum(share * amplitudes.noise for share, amplitudes in noises)
        pick = posterior.incumbent or 0
        noisiest = posterior.under("compute", noises[-1][1])
        if off:
            assert noisiest.value(pick) > 1.02 * posterior.value(pick), "the least is a lucky one"
    assert said[0.3] > 2.0 * said[0.0]


def test_measurements_that_agree_with_what_the_model_says_of_itself_narrow_the_bound() -> None:
    machine = Machine(Grid.of(1), 4, 0.0)
    part = next(p for p in machine.parts if p.name == "compute")
    fitting = np.flatnonzero(machine.truly_fits)
    some = fitting[np.argsort(machine.predicted_cost[fitting])][:600:50].tolist()
    rows = part.codes[part.row_of[some]]

    def wide(*logs: float) -> float:
        pairs = zip(rows.tolist(), logs, strict=False)
        return disbelief(part, [Observed(tuple(r), log, part.noise) for r, log in pairs])

    agreeing, apart = wide(*[0.02, -0.02] * 6), wide(*[1.0, -1.0] * 6)
    assert agreeing < wide(*[0.1, -0.1] * 6) <= apart
    assert wide() < wide(1.0, -1.0), "one says less than many"
    assert wide(0.02) == agreeing, "no bound is narrower than the worlds that were drawn"
    history = History()
    for index in some:
        history.learn(machine, index, machine.probe(index) or {})
    posterior = Posterior(machine, history)
    said = bound_of(posterior)
    posterior.known["compute"] = [
        *posterior.known["compute"], Observed(tuple(rows[0].tolist()), 9.0, 0.03, disturbed=True)
    ]  # fmt: skip
    assert disbelief(part, posterior.known["compute"]) == disbelief(
        part, posterior.known["compute"][:-1]
    ), "what others disturbed says nothing of the model"
    far = [replace(o, log_ratio=o.log_ratio * 8.0) for o in posterior.known["compute"][:-1]]
    posterior.known["compute"] = far
    assert bound_of(posterior) > said


def test_what_is_pending_is_pending_whatever_the_noise_may_be() -> None:
    machine = Machine(Grid.of(1), 4, 0.1)
    history = History()
    some = np.flatnonzero(machine.truly_fits)[:: len(machine) // 20].tolist()[:6]
    for index in some[:4]:
        history.learn(machine, index, machine.probe(index) or {})
    history.pending.extend(some[4:])
    history.tried.update(some[4:])
    posterior = Posterior(machine, history)
    own = posterior.residuals["compute"]
    again = posterior.under("compute", own.amplitudes)
    assert again.residuals["compute"].variance == pytest.approx(own.variance)
    at = posterior.shortlist
    assert again.log_cost[at] == pytest.approx(posterior.log_cost[at])
    assert again.pick() == posterior.pick()


def test_without_a_measurement_there_is_no_bound_to_speak_of() -> None:
    posterior = Posterior(Machine(Grid.of(1), 4, 0.1), History())
    left = remaining(posterior)
    assert left.bound == 1.0
    assert bound_of(posterior) == 1.0, "nothing is known, and not: nothing is left"
    assert described(left, ProbeBudget(0.0)) == "nothing that fits has been measured"


def test_a_search_ends_when_little_is_left_by_the_joint_bound_or_its_pick_outlives_probes() -> None:
    machine = Machine(Grid.of(1), 4, 0.1)
    history = History()
    fitting = np.flatnonzero(machine.truly_fits)
    dear_to_cheap = fitting[np.argsort(-machine.true_cost[fitting])]
    for index in dear_to_cheap[:: len(dear_to_cheap) // 5].tolist():
        history.learn(machine, index, machine.probe(index) or {})
    cheapest = int(dear_to_cheap[-1])
    history.learn(machine, cheapest, machine.probe(cheapest) or {})
    wide, narrow = Remaining(0.0, 0.0, 0.2), Remaining(0.0, 0.0, 0.02)
    assert Posterior(machine, history).incumbent == cheapest
    assert not settled(Posterior(machine, history), wide), "the last probe was the best so far"
    assert settled(Posterior(machine, history), narrow)
    for index in dear_to_cheap[1:4].tolist():
        assert not settled(Posterior(machine, history), wide)
        history.learn(machine, index, machine.probe(index) or {})
    assert settled(Posterior(machine, history), wide)


def test_an_answer_says_that_the_model_is_distrusted_where_measurements_contradict_it() -> None:
    text = described(Remaining(1.0, 0.01, 0.12, {"save": 2.0, "compute": 3.14}), ProbeBudget(0.0))
    assert "computing is 3.1 times as far off as the cost model says of itself" in text
    assert text.endswith("no configuration is more than 12.0% better")
    assert "not trusted" not in described(Remaining(1.0, 0.01, 0.12), ProbeBudget(0.0))


def test_measurements_that_contradict_each_other_beyond_noise_are_said_and_widen_one_part() -> None:
    machine = Machine(Grid.of(1), 4, 0.1)
    history, index = History(), next(i for i in machine.order() if machine.truly_fits[i])
    values = machine.probe(index) or {}
    for factor in (1.0, 8.0, 1.0 / 8.0, 5.0):
        history.learn(machine, index, {**values, "compute": values["compute"] * factor})
    posterior = Posterior(machine, history)
    left = remaining(posterior)
    assert posterior.residuals["compute"].noise > 0.2
    assert posterior.residuals["save"].noise < 0.2, "of other parts nothing contradicts"
    assert 0.0 < left.bound < 1.0
    assert "computing" in described(left, ProbeBudget(0.0))
    assert "is not trusted here" in described(left, ProbeBudget(0.0))
    pattern = Remaining(
        1.0, 0.01, 0.12, {"memory": 1.0}
    )  # right on average, not from one to another
    assert "1.0 times" not in described(pattern, ProbeBudget(0.0))
    assert "from one configuration to another" in described(pattern, ProbeBudget(0.0))
    assert next_probe(posterior) is not None


def test_where_everything_fails_the_smallest_is_tried_next_and_it_is_said_that_nothing_fits() -> (
    None
):
    machine = Machine(Grid.of(1), 4, 0.1)
    history, index = History(), next(machine.order())
    for _ in range(7):
        history.learn_oom(machine, index)
        posterior = Posterior(machine, history)
        proposal = next_probe(posterior)
        assert proposal.index not in history.tried
        index = proposal.index
    smallest = float((machine.predicted_memory / machine.limit).min())
    assert machine.predicted_memory[index] / machine.limit[index] < 1.1 * smallest
    left = remaining(posterior)
    assert posterior.pick() is None
    assert left.bound == 1.0
    assert described(left, ProbeBudget(0.0)) == "nothing that fits has been measured"


def test_where_all_that_is_cheap_may_fail_together_what_surely_fits_is_among_the_worlds() -> None:
    machine = Machine(Grid.of(1), 4, 0.1)
    history = History()
    by_cost = np.argsort(machine.predicted_cost)
    small = by_cost[machine.predicted_memory[by_cost] < 0.5 * machine.limit[by_cost]]
    pick = int(small[200])
    history.learn(machine, pick, machine.probe(pick) or {})
    posterior = Posterior(machine, history)
    at = posterior.shortlist
    chance = np.where(machine.predicted_memory < 0.6 * machine.limit, 1.0, 0.06)
    posterior.fits_probability = chance
    mean, sd = posterior.difference(at, pick)
    sure = at[chance[at] == 1.0]
    gain = expected_improvement(mean, sd)[chance[at] == 1.0]
    best = set(sure[np.argsort(-gain)][:20].tolist())
    assert len(best & set(_promising(posterior, at, pick).tolist())) >= 10

"""What the calibrated sampler believes: of twins, of what its columns share, and by which prior."""

from __future__ import annotations

import json
import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from autotune.domain.errors import InputError
from autotune.search.measured.prior import PriorKey, load_residuals, save_residuals
from autotune.search.posterior.acquisition import Posterior
from autotune.search.posterior.improvement import expected_improvement, normal_cdf
from autotune.search.posterior.kernel import Observed
from autotune.search.posterior.measurements import History
from autotune.search.posterior.residuals import Residual
from autotune.search.priced import Dimension, part_of
from bench.search.simulated import Grid, Machine

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def grid() -> Grid:
    return Grid.of(1)


def test_a_twin_of_a_measured_candidate_is_never_probed_and_may_be_the_pick(grid: Grid) -> None:
    machine = Machine(grid, 4, 0.1)
    history = History()
    order = machine.order()
    index = next(i for i in order if machine.probe(i) is not None)
    history.learn(machine, index, machine.probe(index) or {})
    posterior = Posterior(machine, history)
    twins = posterior.twins(index)
    assert len(twins) == 5, "configurations that differ in the checkpoint interval alone"
    assert not posterior.allows(twins).any()
    pick = posterior.pick()
    assert pick in twins
    assert posterior.log_cost.of(pick) == posterior.log_cost[twins].min()


def test_twins_of_the_incumbent_have_almost_no_uncertainty_against_it(grid: Grid) -> None:
    machine = Machine(grid, 4, 0.1)
    history = History()
    index = next(i for i in machine.order() if machine.probe(i) is not None)
    history.learn(machine, index, machine.probe(index) or {})
    posterior = Posterior(machine, history)
    assert posterior.incumbent == index
    _, twin_sd = posterior.difference(posterior.twins(index), index)
    near = np.asarray(machine.neighbours(index))
    _, other_sd = posterior.difference(near[posterior.allows(near)], index)
    assert twin_sd.max() < 0.02
    assert np.median(other_sd) > 5 * twin_sd.max()


def test_a_residual_follows_measurements_and_keeps_to_the_columns_it_reads() -> None:
    rng = np.random.default_rng(0)
    codes = {"a": rng.integers(0, 3, 60), "b": rng.integers(0, 4, 60)}
    reads = [Dimension("a", ("x", "y", "z")), Dimension("b", ("1", "2", "3", "4"), ordinal=True)]
    part = part_of("compute", reads, codes, np.ones(60))
    assert len(part.predicted) <= 12
    effect = {0: 0.3, 1: 0.0, 2: -0.2}
    seen = [row for row in range(len(part.predicted)) if part.codes[row, 1] < 3]
    observed = [
        Observed(tuple(part.codes[row].tolist()), effect[int(part.codes[row, 0])], 0.01)
        for row in seen
    ]
    residual = Residual(part, observed)
    for row in range(len(part.predicted)):
        assert residual.mean[row] == pytest.approx(effect[int(part.codes[row, 0])], abs=0.08)
    unseen = [row for row in range(len(part.predicted)) if row not in seen]
    assert residual.variance[unseen].min() > residual.variance[seen].max()


def test_the_fast_posterior_equals_the_textbook_one(grid: Grid) -> None:
    part = grid.parts[0]
    rng = np.random.default_rng(1)
    rows = rng.choice(len(part.predicted), 20, replace=False)
    observed = [
        Observed(tuple(part.codes[row].tolist()), float(rng.normal(0, 0.2)), 0.03) for row in rows
    ]
    residual = Residual(part, observed)
    shape, amplitudes = residual._shape, residual.amplitudes
    test = rng.choice(len(part.predicted), 50, replace=False)
    k = shape.kernel(part.codes[rows], part.codes[rows], amplitudes) + np.eye(20) * 0.03**2
    cross = shape.kernel(part.codes[test], part.codes[rows], amplitudes)
    mean = cross @ np.linalg.solve(k, [o.log_ratio for o in observed])
    prior = shape.kernel(part.codes[test], part.codes[test], amplitudes)
    covariance = prior - cross @ np.linalg.solve(k, cross.T)
    assert residual.mean[test] == pytest.approx(mean, abs=1e-4)
    assert residual.variance[test] == pytest.approx(np.diag(covariance), abs=1e-4)
    assert residual.covariance(int(test[0]))[test] == pytest.approx(covariance[0], abs=1e-4)


def test_a_component_that_varies_with_more_than_it_declares_is_refused() -> None:
    columns = {"a": np.asarray([0, 0, 1])}
    with pytest.raises(InputError, match="more than it declares"):
        part_of("compute", [Dimension("a", ("x", "y"))], columns, np.asarray([1.0, 2.0, 3.0]))


def test_normal_distribution_and_expected_improvement_are_right() -> None:
    z = np.linspace(-5, 5, 101)
    exact = np.asarray([0.5 * math.erfc(-v / math.sqrt(2)) for v in z])
    assert normal_cdf(z) == pytest.approx(exact, abs=2e-7)
    draws = np.random.default_rng(0).normal(0.1, 0.3, 400_000)
    found = expected_improvement(np.asarray([0.1]), np.asarray([0.3]))[0]
    assert found == pytest.approx(np.maximum(-draws, 0).mean(), rel=0.02)


def test_a_prior_of_another_shape_or_a_damaged_one_is_named(grid: Grid, tmp_path: Path) -> None:
    machine = Machine(grid, 0, 0.1)
    history = History()
    index = next(i for i in machine.order() if machine.probe(i) is not None)
    history.learn(machine, index, machine.probe(index) or {})
    key = PriorKey("24gb", "llama", "1b", "software")
    path, _ = save_residuals(machine, history, key, tmp_path)
    other = load_residuals(machine, PriorKey("24gb", "llama", "8b", "software"), tmp_path)
    assert other.count > 0
    assert "weak prior" in other.warnings[0]
    own = load_residuals(machine, key, tmp_path)
    assert other.observed["compute"][0].noise > own.observed["compute"][0].noise
    assert load_residuals(machine, PriorKey("80gb", "llama", "1b", "software"), tmp_path).count == 0
    data = json.loads(path.read_text())
    data["observed"][0]["log_ratio"] = math.nan
    path.write_text(json.dumps(data))
    assert "damaged" in load_residuals(machine, key, tmp_path).warnings[0]

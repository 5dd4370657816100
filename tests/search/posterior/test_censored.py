"""What an out-of-memory teaches: a lower bound, against numerical integration."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest

from autotune.search.measured.prior import PriorKey, load_residuals, save_residuals
from autotune.search.posterior.kernel import Observed
from autotune.search.posterior.measurements import History
from autotune.search.posterior.residuals import equivalent_observations, hazard, residuals_of
from autotune.search.priced import Dimension, Part, part_of
from bench.search.simulated import Grid, Machine

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.cost.columns import FloatArray
    from autotune.search.posterior.residuals import Residual

GRID = np.linspace(-3.0, 3.0, 1201)
SD = 0.3


def normal_cdf(z: float) -> float:
    return 0.5 * math.erfc(-z / math.sqrt(2.0))


def posterior(
    mean: FloatArray, covariance: FloatArray, bounds: FloatArray, noise: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Mean and sd that the equivalent observations lead to."""
    values, sds = equivalent_observations(mean, covariance, bounds, noise)
    inverse, sites = np.linalg.inv(covariance), np.diag(1.0 / sds**2)
    after = np.linalg.inv(inverse + sites)
    return after @ (inverse @ mean + sites @ values), np.sqrt(np.diagonal(after))


def integrated(
    mean: FloatArray, covariance: FloatArray, bounds: FloatArray, noise: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """The same by summing over a grid of both unknowns."""
    both = np.stack([v.ravel() for v in np.meshgrid(GRID, GRID, indexing="ij")], axis=1)
    gap = both - mean
    weight = np.exp(-0.5 * np.einsum("ij,jk,ik->i", gap, np.linalg.inv(covariance), gap))
    for k in range(2):
        over = np.asarray([normal_cdf((v - bounds[k]) / noise[k]) for v in GRID])
        weight *= over[np.searchsorted(GRID, both[:, k])]
    weight /= weight.sum()
    centre = weight @ both
    return centre, np.sqrt(weight @ (both - centre) ** 2)


@pytest.mark.parametrize(
    ("mean", "bounds", "shared"),
    [
        ((0.0, 0.0), (0.2, 0.3), 0.5),
        ((-0.2, 0.1), (0.5, 0.3), 0.8),
        ((0.5, 0.5), (-0.5, -0.2), 0.3),
        ((0.0, 0.0), (1.2, -1.0), 0.2),
    ],
)
def test_two_bounds_move_mean_and_sd_as_numerical_integration_does(
    mean: tuple[float, float], bounds: tuple[float, float], shared: float
) -> None:
    arrays = (
        np.asarray(mean), SD**2 * np.asarray([[1.0, shared], [shared, 1.0]]),
        np.asarray(bounds), np.asarray([0.05, 0.05]),
    )  # fmt: skip
    (centre, sd), (true_centre, true_sd) = posterior(*arrays), integrated(*arrays)
    assert centre == pytest.approx(true_centre, abs=0.003)
    assert sd == pytest.approx(true_sd, abs=0.003)


def test_a_bound_that_was_expected_teaches_nothing() -> None:
    values, sds = equivalent_observations(
        np.asarray([0.5]), np.asarray([[0.01]]), np.asarray([-0.5]), np.asarray([0.01])
    )
    assert np.isinf(sds).all()
    assert values == pytest.approx([0.5])


@pytest.mark.parametrize("surprise", [3.0, 12.0, 40.0])
def test_however_surprising_a_bound_is_it_is_believed(surprise: float) -> None:
    centre, sd = posterior(
        np.zeros(1), np.asarray([[SD**2]]), np.asarray([surprise * SD]), np.asarray([0.005])
    )
    assert surprise * SD < centre[0] < (surprise + 1.0 / surprise + 0.1) * SD
    assert sd[0] < 0.5 * SD


def test_the_hazard_is_continuous_where_the_series_takes_over() -> None:
    assert hazard(-30.0001) == pytest.approx(hazard(-29.9999), rel=1e-5)
    assert hazard(0.0) == pytest.approx(math.sqrt(2.0 / math.pi))
    assert hazard(50.0) == 0.0
    for z in (-200.0, -40.0, -31.0):
        assert 0.0 < hazard(z) * (hazard(z) + z) < 1.0


def part() -> Part:
    """Ten kernels and two optimizers."""
    codes = np.unravel_index(np.arange(20), (10, 2))
    reads = [Dimension("kernel", tuple("abcdefghij")), Dimension("optimizer", ("x", "y"))]
    columns = {d.name: c for d, c in zip(reads, codes, strict=True)}
    return part_of("memory", reads, columns, np.ones(20), spread=0.2, noise=0.005)


def after(*observed: Observed) -> Residual:
    return residuals_of({"memory": part()}, {"memory": observed})["memory"]


def test_an_out_of_memory_raises_what_is_believed_of_everything_alike_and_keeps_the_doubt() -> None:
    bound = after(Observed((0, 0), 0.2, 0.005, least=True))
    exact = after(Observed((0, 0), 0.2, 0.005))
    row = int(np.flatnonzero((bound.part.codes == (0, 0)).all(axis=1))[0])
    assert bound.mean[row] > 0.2
    assert exact.mean[row] < 0.2
    assert bound.variance[row] > 10.0 * exact.variance[row]
    assert (bound.mean > 0.0).all()


def test_an_out_of_memory_says_most_of_it_of_candidates_that_share_no_knob_with_it() -> None:
    bound = after(Observed((0, 0), 0.3, 0.005, least=True))
    place = {tuple(code): k for k, code in enumerate(bound.part.codes.tolist())}
    assert bound.mean[place[9, 1]] > 0.5 * bound.mean[place[0, 0]]
    exact = after(Observed((0, 0), 0.0, 0.005))
    assert exact.variance[place[9, 1]] < 0.6 * after().variance[place[9, 1]], "once measured"


def test_two_surprises_teach_more_than_the_sum_of_both() -> None:
    """At a third place, and in the scale of the whole model's error."""
    one, other = (Observed((k, 0), 0.35, 0.005, least=True) for k in (0, 1))
    alone = max(float(after(o).mean.min()) for o in (one, other))
    assert float(after(one, other).mean.min()) > alone
    calm = after(Observed((0, 0), -0.9, 0.005, least=True))
    assert after(one, other).amplitudes.constant > calm.amplitudes.constant


def test_an_out_of_memory_is_a_bound_at_what_there_is_and_stays_one_in_the_past(
    tmp_path: Path,
) -> None:
    machine = Machine(Grid.of(1), 3, 0.1)
    index = next(i for i in machine.order() if machine.probe(i) is None)
    history = History()
    history.learn_oom(machine, index)
    (seen,) = history.observed["memory"]
    limit, predicted = machine.limit[index], machine.predicted_memory[index]
    assert seen.least
    assert seen.log_ratio == pytest.approx(math.log(limit / predicted))
    key = PriorKey("24gb", "llama", "shape", "software")
    save_residuals(machine, history, key, tmp_path)
    (again,) = load_residuals(machine, key, tmp_path).observed["memory"]
    assert again.least
    assert again.log_ratio == pytest.approx(seen.log_ratio, abs=1e-6)
    assert again.noise > seen.noise

"""What the residuals believe before and after measurements."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.search.posterior.residuals import (
    Observed,
    Residual,
    expected_amplitudes,
    fitted_amplitudes,
)
from autotune.search.priced import Dimension, Part, part_of

SHAPE = (3, 4, 2)
READS = [
    Dimension("kernel", ("a", "b", "c")),
    Dimension("rows", ("1", "2", "4", "8"), ordinal=True),
    Dimension("optimizer", ("x", "y")),
]


def part(name: str = "compute", *, summands: bool = False, spread: float = 0.2) -> Part:
    """A step of 1 s; the optimizer makes a hundredth of it."""
    codes = np.unravel_index(np.arange(int(np.prod(SHAPE))), SHAPE)
    columns = {d.name: c for d, c in zip(READS, codes, strict=True)}
    late = np.where(columns["optimizer"] == 0, 0.01, 0.012)
    step = 1.0 + 0.1 * columns["kernel"] + 0.05 * columns["rows"]
    terms = {"step": step, "late": late} if summands else None
    return part_of(name, READS, columns, step + late, spread=spread, terms=terms)


def row(found: Part, *codes: int) -> int:
    return int(np.flatnonzero((found.codes == codes).all(axis=1))[0])


@pytest.mark.parametrize("spread", [0.05, 0.4])
def test_the_prior_s_spread_is_the_one_that_the_model_states(spread: float) -> None:
    residual = Residual(part(spread=spread), [])
    assert np.sqrt(residual.variance) == pytest.approx(np.full(24, spread), rel=1e-6)


def test_a_knob_that_moves_a_hundredth_of_a_part_cannot_move_the_part() -> None:
    whole, split = Residual(part(), []), Residual(part(summands=True), [])
    for residual, least, most in ((whole, 0.05, 0.3), (split, 0.0, 0.01)):
        one, other = row(residual.part, 0, 0, 0), row(residual.part, 0, 0, 1)
        covariance = residual.joint(np.asarray([one, other]))
        difference = np.sqrt(covariance[0, 0] + covariance[1, 1] - 2.0 * covariance[0, 1])
        assert least <= difference < most


def test_summands_read_what_moves_them_and_together_all() -> None:
    terms = part(summands=True).terms
    assert [(t.name, t.reads) for t in terms] == [("step", (0, 1)), ("late", (2,))]
    assert part().terms == ()


def test_near_counts_are_believed_to_behave_alike_and_far_ones_less() -> None:
    found = part()
    observed = [Observed((0, 0, 0), 0.3, 0.01)]
    mean = Residual(found, observed).mean
    along = [mean[row(found, 0, k, 0)] for k in range(4)]
    assert along[0] == pytest.approx(0.3, abs=0.02)
    assert along == sorted(along, reverse=True)
    assert along[3] > 0.05


def test_a_pair_that_is_bad_together_is_learned_without_blaming_either_column() -> None:
    found = part()
    effect = {(1, 2): 0.5}
    observed = [
        Observed(tuple(codes), effect.get((codes[0], codes[1]), 0.0), 0.01)
        for codes in found.codes.tolist()
        if codes[2] == 0
    ]
    residual = Residual(found, observed)
    assert residual.mean[row(found, 1, 2, 1)] > 0.25
    others = [row(found, 1, 0, 1), row(found, 0, 2, 1), row(found, 2, 0, 1)]
    assert np.abs(residual.mean[others]).max() < 0.1


def test_a_model_that_is_wrong_about_one_part_is_doubted_about_the_others() -> None:
    parts = {"compute": part(), "save": part("save")}
    draw = np.random.default_rng(0)
    codes = parts["compute"].codes[draw.choice(24, 10, replace=False)].tolist()

    def save_amplitude(size: float) -> float:
        observed = [Observed(tuple(c), float(draw.normal(0.0, size)), 0.02) for c in codes]
        return fitted_amplitudes(parts, {"compute": observed})["save"].constant

    usual = expected_amplitudes(parts["save"]).constant
    assert save_amplitude(0.8) > 1.2 * usual
    assert save_amplitude(0.03) < usual / 1.2
    assert fitted_amplitudes(parts, {})["save"].constant == pytest.approx(usual, rel=0.05)


def test_an_observation_of_levels_that_no_candidate_combines_is_used_all_the_same() -> None:
    whole = part(summands=True)
    keep = np.flatnonzero(whole.codes[:, 0] != 2)
    columns = {d.name: whole.codes[keep, k] for k, d in enumerate(READS)}
    late = np.where(columns["optimizer"] == 0, 0.01, 0.012)
    step = 1.0 + 0.1 * columns["kernel"] + 0.05 * columns["rows"]
    fewer = part_of("compute", READS, columns, step + late, terms={"step": step, "late": late})
    residual = Residual(fewer, [Observed((2, 0, 0), 0.3, 0.01)])
    assert residual.mean.min() > 0.0

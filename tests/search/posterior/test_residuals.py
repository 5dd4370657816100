"""What the residuals believe before and after measurements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autotune.search.posterior.amplitudes import (
    JITTER,
    NOISES,
    OWN,
    SCALES,
    Evidence,
    contradiction,
    expected_amplitudes,
    fitted_amplitudes,
)
from autotune.search.posterior.kernel import Amplitudes, Observed, Shape, codes_of
from autotune.search.posterior.residuals import Residual
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
    assert np.sqrt(residual.variance) == pytest.approx(np.full(24, spread), rel=2e-3)


def test_a_knob_that_moves_a_hundredth_of_a_part_moves_it_by_what_is_a_signatures_own() -> None:
    whole, split = Residual(part(), []), Residual(part(summands=True), [])
    for residual, least, most in ((whole, 0.05, 0.3), (split, 0.0, 0.01)):
        one, other = row(residual.part, 0, 0, 0), row(residual.part, 0, 0, 1)
        covariance = residual.joint(np.asarray([one, other]))
        own = 2.0 * residual.amplitudes.own**2
        difference = covariance[0, 0] + covariance[1, 1] - 2.0 * covariance[0, 1]
        assert least <= np.sqrt(difference - own) < most
        assert np.sqrt(own) < 0.2 * 0.2, "a fifth of what the model says of its spread"


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
    observed = [
        Observed(tuple(codes), 0.5 if (codes[0], codes[2]) == (1, 1) else 0.0, 0.01)
        for codes in found.codes.tolist()
        if codes[1] != 2
    ]
    residual = Residual(found, observed)
    assert residual.mean[row(found, 1, 2, 1)] > 0.25
    others = [row(found, 1, 2, 0), row(found, 0, 2, 1), row(found, 2, 2, 1)]
    assert np.abs(residual.mean[others]).max() < 0.1


def test_what_one_signature_shows_alone_is_its_own_and_says_little_of_others() -> None:
    found = part()
    observed = [
        Observed(tuple(codes), 0.4 if codes == [1, 2, 0] else 0.0, 0.01)
        for codes in found.codes.tolist()
        if codes != [1, 2, 1]
    ]
    residual = Residual(found, observed)
    assert residual.mean[row(found, 1, 2, 0)] > 0.2
    assert abs(residual.mean[row(found, 1, 2, 1)]) < 0.15
    unseen = np.sqrt(residual.variance[row(found, 1, 2, 1)])
    assert unseen > 1.5 * np.sqrt(residual.variance[row(found, 0, 0, 0)]), "it may be odd as well"


def test_a_noisy_part_and_a_wrong_model_make_no_measurement_of_another_part_noisy() -> None:
    """Saving differs by half from run to run; computing is far off the model, and never differs."""
    step, save = part("compute"), part("save")
    draw = np.random.default_rng(0)
    off = [Observed((k % 3, k % 4, k % 2), float(draw.normal(0, 0.5)), 0.02) for k in range(6)]
    loud = [Observed((0, 0, 0), float(draw.normal(0, 0.4)), 0.02) for _ in range(8)]
    found = fitted_amplitudes({"compute": step, "save": save}, {"compute": off, "save": loud})
    assert found["compute"].noise == 0.0
    assert found["save"].noise > 0.1


def test_measurements_of_one_signature_that_differ_show_the_noise_of_all() -> None:
    found = part()
    twice = [
        Observed((kernel, 1, 0), value, found.noise)
        for kernel, off in enumerate((0.2, 0.25, 0.15))
        for value in (0.1 - off, 0.1 + off)
    ]
    loud = Residual(found, twice)
    quiet = Residual(found, [Observed(o.codes, 0.1, o.noise) for o in twice])
    assert loud.noise > 4.0 * found.noise
    assert quiet.noise == pytest.approx(found.noise)
    assert abs(loud.mean[row(found, 0, 1, 0)]) < 0.15


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


def test_a_few_measurements_that_lie_close_together_do_not_make_the_others_certain() -> None:
    """The likeliest scale of five near-equal residuals is the least that is looked at."""
    found = part()
    least = expected_amplitudes(found, min(SCALES)).constant
    near = [Observed((k % 3, k % 4, 0), 0.01 * k, 0.03) for k in range(5)]
    amplitudes = fitted_amplitudes({"compute": found}, {"compute": near})["compute"]
    assert amplitudes.constant > 1.1 * least
    many = [Observed(tuple(c), 0.0, 0.03) for c in found.codes.tolist()] * 3
    settled = fitted_amplitudes({"compute": found}, {"compute": many})["compute"]
    assert settled.constant < 1.05 * least, "many do"
    assert 0.02 * found.spread < settled.own < 0.5 * amplitudes.own


def test_an_observation_of_levels_that_no_candidate_combines_is_used_all_the_same() -> None:
    whole = part(summands=True)
    keep = np.flatnonzero(whole.codes[:, 0] != 2)
    columns = {d.name: whole.codes[keep, k] for k, d in enumerate(READS)}
    late = np.where(columns["optimizer"] == 0, 0.01, 0.012)
    step = 1.0 + 0.1 * columns["kernel"] + 0.05 * columns["rows"]
    fewer = part_of("compute", READS, columns, step + late, terms={"step": step, "late": late})
    residual = Residual(fewer, [Observed((2, 0, 0), 0.3, 0.01)])
    assert residual.mean.min() > 0.0


def test_measurements_beyond_what_the_model_says_of_itself_are_called_a_contradiction() -> None:
    found = part()
    draw = np.random.default_rng(4)
    codes = [tuple(c) for c in found.codes.tolist()[::3]]
    usual = [Observed(c, float(draw.normal(0.1, 0.1)), found.noise) for c in codes]
    wild = [Observed(c, float(draw.normal(0.0, 0.8)), found.noise) for c in codes]
    assert contradiction(found, usual) == 0.0
    assert 2.0 < contradiction(found, wild) < 8.0
    assert contradiction(found, wild[:2]) == 0.0, "two say nothing yet"
    narrow, wide = Residual(found, usual), Residual(found, wild)
    assert np.sqrt(wide.variance.mean()) > 2.0 * np.sqrt(narrow.variance.mean())


@pytest.mark.parametrize("summands", [False, True])
def test_the_likelihood_of_many_runs_of_few_signatures_is_the_exact_one(*, summands: bool) -> None:
    """A search of many workers repeats signatures: each costs no more than one."""
    found, draw = part(summands=summands), np.random.default_rng(3)
    codes = [(0, 0, 0), (1, 2, 1), (2, 3, 0), (1, 0, 1)]
    observed = [
        Observed(codes[k % 4], float(draw.normal(0.1, 0.2)), float(draw.choice([0.01, 0.03])))
        for k in range(30)
    ]
    evidence, shape = Evidence(found, observed), Shape(found)
    at, values = codes_of(found, observed), np.asarray([o.log_ratio for o in observed])

    def start_at(noise: int, scale: int, own: int) -> Amplitudes:
        expected = expected_amplitudes(found, SCALES[scale])
        return replace(expected, own=OWN[own] * found.spread, noise=NOISES[noise])

    for noise in range(len(NOISES)):
        errors = []
        for scale in range(len(SCALES)):
            for own in range(len(OWN)):
                start = start_at(noise, scale, own)
                variance = [o.noise**2 + start.noise**2 + JITTER for o in observed]
                whole = shape.kernel(at, at, start) + np.diag(variance)
                exact = -0.5 * (values @ np.linalg.solve(whole, values))
                exact -= 0.5 * np.linalg.slogdet(whole)[1]
                apart = evidence.loudness[noise]
                errors.append(exact - apart - evidence.scores([start])[0])
                prior = evidence.grid(noise)[scale, own] - evidence.scores([start])[0]
                assert prior == pytest.approx(
                    evidence.grid(noise)[0, own] - evidence.scores([start_at(noise, 0, own)])[0]
                )
        assert errors == pytest.approx([0.0] * len(errors), abs=1e-6)

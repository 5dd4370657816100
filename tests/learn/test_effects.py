"""What runs teach of later ones: how much, of whom, and how sure."""

from __future__ import annotations

import json
import math
import statistics
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from builders import config

from autotune.app.job.load import load_job
from autotune.app.workers.terms import calibration_of
from autotune.cost.learned import bumps_of
from autotune.domain.candidates import Candidates
from autotune.domain.observation import Calibration
from autotune.evidence.learned.effects import (
    PRIOR,
    Residual,
    believed,
    effect_of,
    effects_on,
    method_of,
    residual_of_run,
    step_of,
)
from autotune.evidence.learned.run import PastRun, case_of_run
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases
from autotune.pricing import Pricing, plain_bill
from bench.learn import bounds, from_few, left_one_out, sources_of

if TYPE_CHECKING:
    from collections.abc import Sequence

JOB = Path(__file__).parents[2] / "jobs" / "h100_38h.yaml"


def _run(log: float, device: str = "h100-nvl", count: int = 2, **other: object) -> Residual:
    facts: dict[str, object] = {
        "id": f"{device}{log}", "device": device, "count": count, "stack": "hf",
        "method": "full-16bit", "shape": "32x4096", "log": log, "sd": 0.3, "noise": 0.04,
        "shares": (0.5, 0.1, 0.2, 0.15, 0.05), "tokens": 2048.0,
    }  # fmt: skip
    return Residual(**{**facts, **other})  # type: ignore[arg-type]


def test_more_runs_that_agree_move_an_answer_more_and_narrow_it_more() -> None:
    factors, spreads = [], []
    for many in (1, 2, 5, 20):
        effect = effect_of(_run(0.0), [_run(-0.3, id=str(n)) for n in range(many)])
        factors.append(effect.factor)
        spreads.append(effect.spread)
    assert factors == sorted(factors, reverse=True)
    assert spreads == sorted(spreads, reverse=True)
    assert math.exp(-0.3) < factors[-1] < 0.75


def test_a_low_grade_moves_less() -> None:
    sure = effect_of(_run(0.0), [_run(-0.3)])
    unsure = effect_of(_run(0.0), [_run(-0.3, noise=0.25)])
    assert sure.factor < unsure.factor < 1
    assert sure.spread < unsure.spread


def test_another_training_code_says_nothing() -> None:
    assert effect_of(_run(0.0), [_run(-0.3, stack="litgpt")]) is None


def test_runs_that_disagree_narrow_nothing() -> None:
    apart = [_run(log) for log in (-0.6, -0.3, 0.0, 0.4, 0.7)]
    effect = effect_of(_run(0.0), apart)
    assert effect.spread > 1
    assert abs(math.log(effect.factor)) < 0.15


def test_one_run_far_off_is_doubted_and_three_that_agree_are_believed() -> None:
    kept, doubted = believed([_run(1.2)])
    assert not kept
    assert "slower than modelled" in next(iter(doubted.values()))
    alike: Sequence[Residual] = [_run(1.2), _run(1.25), _run(1.3)]
    assert len(believed(alike)[0]) == 3


def test_a_run_says_most_of_steps_that_spend_their_time_as_its_own_did() -> None:
    """Issuing kernels is slower here than modelled: what runs bound by it show."""
    by_host = (0.1, 0.05, 0.8, 0.0, 0.05)
    by_device = (0.8, 0.15, 0.0, 0.0, 0.05)
    runs = [_run(0.4 + 0.01 * n, shares=by_host) for n in range(4)]
    runs += [_run(0.01 * n, shares=by_device) for n in range(4)]
    factors = []
    for shares in (by_host, (0.45, 0.1, 0.4, 0.0, 0.05), by_device):
        effect = effect_of(_run(0.0, shares=shares), runs)
        factors.append(math.log(effect.factor))
    assert factors == sorted(factors, reverse=True)
    assert factors[0] > 0.3
    assert factors[2] < 0.1


def test_of_steps_unlike_any_run_more_stays_open() -> None:
    runs = [_run(0.2 + 0.01 * n, shares=(0.8, 0.15, 0.0, 0.0, 0.05)) for n in range(5)]
    alike = effect_of(_run(0.0, shares=(0.8, 0.15, 0.0, 0.0, 0.05)), runs)
    unlike = effect_of(_run(0.0, shares=(0.1, 0.05, 0.8, 0.0, 0.05)), runs)
    assert alike.spread < unlike.spread / 2


def test_runs_of_one_size_say_more_of_that_size() -> None:
    """Small batches are slower than modelled and large ones are not: each size takes its own."""
    runs = [_run(0.3, id=str(n), tokens=256.0) for n in range(3)]
    runs += [_run(0.0, id=str(n), tokens=16384.0) for n in range(3, 6)]
    factors = []
    for tokens in (256.0, 2048.0, 16384.0):
        effect = effect_of(_run(0.0, tokens=tokens), runs)
        factors.append(math.log(effect.factor))
    assert factors == sorted(factors, reverse=True)
    assert factors[0] - factors[2] > 0.1
    other = effect_of(_run(0.0, tokens=256.0, device="l40s"), runs)
    large = effect_of(_run(0.0, tokens=16384.0, device="l40s"), runs)
    assert other.factor == pytest.approx(large.factor), "of another device no size is known"


def test_the_likeness_of_two_sizes_goes_by_the_ratio_of_their_tokens() -> None:
    tokens = np.array([1.0, 37.0, 512.0, 1400.0, 8192.0, 1e6])
    away = np.log(tokens[:, None] / tokens[None, :])
    likeness = bumps_of(tokens) @ bumps_of(tokens).T
    assert likeness == pytest.approx(np.exp(-(away**2) / 2), abs=2e-3)


def test_every_candidate_takes_what_runs_say_of_steps_like_its_own() -> None:
    """The table that prices candidates and the effect on one run are the same function."""
    job = load_job(JOB)
    offer = job.offers[0]
    pairs = [(offer, config(micro)) for micro in (1, 8)]
    plain = plain_bill(job, Candidates.of(pairs))
    here = {"device": offer.device.name, "count": offer.count, "stack": job.software.stack,
            "method": method_of(job), "shape": "other"}  # fmt: skip
    runs = [
        _run(0.5, shares=(0.1, 0.05, 0.8, 0.0, 0.05), **here),
        _run(-0.3, shares=(0.8, 0.15, 0.0, 0.0, 0.05), **here),
    ]
    effects = effects_on([(offer.device.name, offer.count)], here["stack"], here["method"],
                         "another", runs)  # fmt: skip
    found: list[float] = []
    taught = Pricing(job, Calibration(machines=effects)).of(pairs)
    for place, pair in enumerate(pairs):
        one = plain_bill(job, Candidates.of([pair]))
        shares, tokens, unsettled = step_of(one, offer.count)
        sd = plain.at("compute", "log_sd", place)
        facts = {**here, "shape": "another", "shares": shares, "tokens": tokens, "sd": sd,
                 "unsettled": unsettled}  # fmt: skip
        expected = effect_of(_run(0.0, **facts), runs)
        assert taught.at("compute", "log_sd", place) == pytest.approx(sd * expected.spread)
        found.append(
            taught.at("compute", "micro_step_s", place) / plain.at("compute", "micro_step_s", place)
        )
        assert found[-1] == pytest.approx(expected.factor)
    assert found[0] > found[1], "smaller batches are bound by issuing, which is slow here"


def test_evaluations_are_learned_of_runs_of_such_a_model_on_the_machine_alone() -> None:
    def of(*runs: Residual) -> dict[str, float]:
        found = effects_on([("h100-nvl", 2)], "hf", "full-16bit", "32x4096", runs)
        return {own.component: own.factor for own in found}

    timed = [
        _run(0.0, id=str(n), evaluation_log=math.log(f)) for n, f in enumerate((1.4, 1.5, 9.0))
    ]
    assert of(*timed)["evaluation"] == pytest.approx(1.5)
    for other in ({"shape": "16x2048"}, {"method": "lora-16bit"}, {"count": 4}):
        assert "evaluation" not in of(_run(0.0, evaluation_log=0.4, **other))


def test_a_past_run_that_timed_its_evaluations_prices_the_next_ones() -> None:
    cells = {
        "source_repo": "huggingface/transformers", "source_path": "learned", "notes": "",
        "source_commit_or_date": "2025-06", "model_id": "meta-llama/Llama-3.1-8B", "task": "lora",
        "gpu": "h100-sxm", "n_gpus": "1", "parallelism": "none", "micro_batch": "4",
        "grad_accum": "2", "global_batch": "8", "step_time_s": "3", "seq_len": "1024",
        "lora_r": "16", "target_modules": "q_proj,v_proj", "packing": "yes", "precision": "bf16",
        "optimizer": "adamw_torch", "grad_ckpt": "none", "attn": "sdpa", "compile": "no",
    }  # fmt: skip
    run = PastRun("own", "Trainer output", "hf", "A", cells, steps=100)
    plain, timed = (
        residual_of_run(each, plain_bill)
        for each in (run, replace(run, evaluation_s=90.0, evaluation_rows=2000, evaluation_batch=8))
    )
    assert plain.evaluation_log is None
    assert timed.log == plain.log
    few = replace(run, evaluation_s=0.5, evaluation_rows=1, evaluation_batch=8)
    assert residual_of_run(few, plain_bill).evaluation_log is None
    case = case_of_run(replace(run, evaluation_s=90.0, evaluation_rows=2000, evaluation_batch=8))
    bill = plain_bill(case.job, case.candidates)
    expected = float(bill.tables["evaluation"].gather("once_s")[0])
    assert timed.evaluation_log == pytest.approx(math.log(90.0 / expected))
    (effect,) = [
        own
        for own in effects_on([("h100-sxm", 1)], timed.stack, timed.method, timed.shape, [timed])
        if own.component == "evaluation"
    ]
    after = Pricing(case.job, Calibration(machines=(effect,))).bill(case.candidates)
    assert float(after.tables["evaluation"].gather("once_s")[0]) == pytest.approx(90.0)


def test_another_process_gets_what_past_runs_say_whole() -> None:
    effects = effects_on([("h100-nvl", 2)], "hf", "full-16bit", "32x4096", [_run(-0.3)])
    told = json.loads(json.dumps(asdict(Calibration(machines=effects))))
    assert calibration_of(told).machines == effects


def test_what_runs_keep_around_their_own_mean_and_line() -> None:
    """Runs off by what share of a step they issue: a line explains them, and a mean does not."""
    issuing = [0.1 * n for n in range(8)]
    runs = [_run(0.4 * x, id=str(x), shares=(0.9 - x, 0.1, x, 0.0, 0.0)) for x in issuing]
    mean, line = bounds(runs)
    assert mean == pytest.approx(
        statistics.median(abs(math.expm1(-0.4 * (x - 0.35))) for x in issuing)
    )
    assert line < mean / 20


def test_of_one_known_run_every_pair_is_tried() -> None:
    """Two agree and one does not: of six pairs two are helped, whatever is drawn."""
    runs = [_run(log, id=str(log)) for log in (0.3, 0.31, -0.3)]
    assert from_few(runs, PRIOR, 1) == from_few(runs[::-1], PRIOR, 1)


@pytest.mark.slow
@pytest.mark.usefixtures("fitted_once")
def test_of_sources_with_one_machine_the_other_runs_halve_the_error_of_one() -> None:
    """Each as a fit without the source predicts it; the spreads in common are the shipped ones."""
    cases = read_cases(SHIPPED_ROWS).cases
    found = {own.name: left_one_out(own.taught) for own in sources_of(cases) if own.steady}
    ratios = [own["median_ape_after"] / own["median_ape_before"] for own in found.values()]
    assert len(ratios) >= 10
    assert statistics.median(ratios) <= 0.5
    assert sum(ratio <= 0.5 for ratio in ratios) >= 7
    assert max(ratios) < 1.0, "no source that learning makes worse"
    assert statistics.fmean(own["coverage_after"] for own in found.values()) >= 0.7

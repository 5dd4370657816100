"""What runs teach of later ones: how much, of whom, and how sure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import pytest

from autotune.evidence.learned.effects import Residual, believed, effect_of
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases
from bench.learn import left_one_out, residuals_of

if TYPE_CHECKING:
    from collections.abc import Sequence


def _run(log: float, device: str = "h100-nvl", count: int = 2, **other: object) -> Residual:
    facts: dict[str, object] = {
        "id": f"{device}{log}", "device": device, "count": count, "stack": "hf",
        "method": "full-16bit, fsdp", "shape": "32x4096", "log": log, "sd": 0.3, "noise": 0.04,
    }  # fmt: skip
    return Residual(**{**facts, **other})  # type: ignore[arg-type]


def test_more_runs_that_agree_move_an_answer_more_and_narrow_it_more() -> None:
    factors, spreads = [], []
    for many in (1, 2, 5, 20):
        effect = effect_of(_run(0.0), [_run(-0.3 + 0.001 * n) for n in range(many)])
        assert effect is not None
        factors.append(effect.factor)
        spreads.append(effect.spread)
    assert factors == sorted(factors, reverse=True)
    assert spreads == sorted(spreads, reverse=True)
    assert math.exp(-0.3) < factors[-1] < 0.8


def test_a_low_grade_moves_less() -> None:
    sure = effect_of(_run(0.0), [_run(-0.3)])
    unsure = effect_of(_run(0.0), [_run(-0.3, noise=0.25)])
    assert sure is not None
    assert unsure is not None
    assert sure.factor < unsure.factor < 1
    assert sure.spread < unsure.spread


def test_another_training_code_says_nothing() -> None:
    assert effect_of(_run(0.0), [_run(-0.3, stack="litgpt")]) is None


def test_runs_that_disagree_narrow_nothing() -> None:
    apart = [_run(log) for log in (-0.6, -0.3, 0.0, 0.4, 0.7)]
    effect = effect_of(_run(0.0), apart)
    assert effect is not None
    assert effect.spread > 1
    assert abs(math.log(effect.factor)) < 0.15


def test_one_run_far_off_is_doubted_and_three_that_agree_are_believed() -> None:
    kept, doubted = believed([_run(1.2)])
    assert not kept
    assert "slower than modelled" in next(iter(doubted.values()))
    alike: Sequence[Residual] = [_run(1.2), _run(1.25), _run(1.3)]
    assert len(believed(alike)[0]) == 3


@pytest.mark.slow
@pytest.mark.parametrize("source", ["Aochong-Li/KnowledgeUpdatePlayground", "huggingface/peft"])
def test_of_a_source_with_one_machine_the_other_runs_halve_the_error_of_one(source: str) -> None:
    cases = [c for c in read_cases(SHIPPED_ROWS).cases if c.group[0] == source]
    found = left_one_out(residuals_of(cases)[source])
    before, after = found["median_ape_before"], found["median_ape_after"]
    assert after <= max(before / 2, 0.06)
    assert found["coverage_after"] >= 0.7

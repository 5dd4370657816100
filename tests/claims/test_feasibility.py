from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autotune.app.estimate import estimate, stated_config
from autotune.app.job.load import load_job
from autotune.claims.feasibility import Stated, check_claim, parse_claim
from autotune.cost.model import CostModel
from autotune.domain.candidates import Candidates
from autotune.domain.errors import InputError
from autotune.domain.job import Lengths

JOBS = Path(__file__).parents[2] / "jobs"


def check(name: str, text: str, **changes: Any) -> Any:
    job = replace(load_job(JOBS / f"{name}.yaml"), **changes)
    bill = CostModel(job).price(Candidates.of([(job.offers[0], stated_config(job))]))
    return check_claim(job, bill.estimate(0), text)


def equal_rows(tokens: int) -> Lengths:
    return Lengths((float(tokens), float(tokens)), float(tokens), tokens, known=True)


@pytest.mark.parametrize(
    ("text", "quantity", "value"),
    [
        ("1.0 s/step", "step", 1.0),
        ("500 ms/it", "step", 0.5),
        ("2 steps/s", "step", 0.5),
        ("1800 steps/h", "step", 2.0),
        ("5000 tokens/s", "tokens", 5000.0),
        ("40k tok/s", "tokens", 40_000.0),
        ("1,200 tokens/s", "tokens", 1200.0),
        ("20 samples/s", "rows", 20.0),
        ("38 h", "duration", 136_800.0),
        ("1h 30min", "duration", 5400.0),
        ("0.8-1.2 s/step", "step", 1.2),
        ("1800 to 2000 steps/h", "step", 2.0),
        ("1,200-5,000 tokens/s", "tokens", 1200.0),
        ("40-50 min", "duration", 3000.0),
    ],
)
def test_a_claim_is_read(text: str, quantity: Any, value: float) -> None:
    (found,) = parse_claim(text)
    assert found == Stated(quantity, pytest.approx(value))


@pytest.mark.parametrize(
    "text",
    ["", "fast", "38", "0 s/step", "-1 h", "1 s/step at 2 h at 3 h", "nan tokens/s", "1e999 tok/s",
     "tokens/s", "5 apples/s", "5 tokens/parsec", "1 s/step-2 h", "1-2-3 h",
     "9" * 500 + " h", "1..2 tokens/s"],
)  # fmt: skip
def test_what_is_no_claim_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_claim(text)
    assert "tokens/s" in (caught.value.hint or "")


@pytest.mark.parametrize("text", ["0.8 s/step", "1.0 s/step", "1.2 s/step"])
@pytest.mark.parametrize("tokens", [200, 250, 300])
def test_a_second_a_step_of_128_rows_of_200_to_300_tokens_is_impossible(
    text: str, tokens: int
) -> None:
    found = check("a100_llama7b_int8", text, lengths=equal_rows(tokens))
    assert found.verdict == "impossible"
    assert not found.possible
    # The int8 forward and the 16-bit rest together: 416e12 without adapters.
    assert found.ceiling_flop_per_s == pytest.approx(416e12, rel=0.02)
    assert found.implied_flop_per_s > 1.3 * found.ceiling_flop_per_s or text == "1.2 s/step"
    assert found.tokens_per_row_possible < tokens
    assert "tokens on average" in found.reason


def test_at_65_tokens_a_row_it_is_beyond_anything_observed() -> None:
    found = check("a100_llama7b_int8", "1.0 s/step", lengths=equal_rows(65))
    assert found.verdict == "beyond_observed"
    assert found.possible
    assert found.implied_flop_per_s == pytest.approx(220e12, rel=0.05)
    assert found.observed_flop_per_s < found.implied_flop_per_s < found.ceiling_flop_per_s


def test_a_likely_step_is_plausible_and_a_measurement_on_another_card_is_weighed() -> None:
    job = load_job(JOBS / "a100_llama7b_int8.yaml")
    found = estimate(job, claim="12 s/step")
    weighed = next(text for text in found.warnings if text.startswith("evidence[1].duration_s"))
    assert "was measured on a10" in weighed
    assert "3 times shorter" in weighed
    assert "tokens on average" not in weighed  # 19 tokens a row would be needed: not credible
    assert found.claim.verdict == "plausible"
    assert found.claim.likely.step_time_s == found.row.step_time_s


def test_a_range_is_judged_at_its_slower_end() -> None:
    found = check("a100_llama7b_int8", "0.8-1.2 s/step")
    assert found.reason.startswith("at its slower end, ")
    plain = check("a100_llama7b_int8", "1.2 s/step")
    assert found.implied_flop_per_s == plain.implied_flop_per_s
    read = check("rtx5090_llama2_7b", "3.1-12.8 h at 1200-5000 tokens/s")
    assert "take 12.8 kiloseconds" in read.reason


def test_kiloseconds_read_as_hours_are_found_out() -> None:
    found = check("rtx5090_llama2_7b", "12.8 h at 1200 tokens/s")
    assert found.verdict == "impossible"
    assert "15,360,000 tokens at 1,200 tokens/s take 12.8 kiloseconds" in found.reason
    assert "read as hours" in found.reason
    alone = check("rtx5090_llama2_7b", "3.1 h")
    assert alone.verdict == "plausible"
    assert "3.1 kiloseconds are 51.7 min" in alone.reason
    assert check("rtx5090_llama2_7b", "3.56 h at 1200 tokens/s").verdict == "plausible"


@pytest.mark.parametrize("text", ["5 h", "2000 steps/h", "569 tokens/s"])
def test_an_idle_card_is_named(text: str) -> None:
    found = check("rtx4090_qwen2_05b", text)
    assert found.verdict == "plausible"
    assert found.implied_share == pytest.approx(0.0069, rel=0.02)
    assert "0.69 % of the dense peak" in found.reason
    assert "almost idle" in found.reason
    assert found.likely.tokens_per_s > 10 * found.implied_tokens_per_s


def test_a_rate_too_high_asks_for_another_model_not_for_shorter_rows() -> None:
    found = check("rtx4090_qwen2_05b", "400k tokens/s")
    assert found.verdict == "impossible"
    assert found.tokens_per_row_possible is None
    assert "padding counted as tokens" in found.reason


def test_a_faster_claim_never_gets_a_milder_verdict() -> None:
    order = ["plausible", "beyond_observed", "impossible"]
    seconds = (60.0, 20.0, 8.0, 5.0, 4.0, 2.5, 2.0, 1.0, 0.5)
    verdicts = [check("a100_llama7b_int8", f"{s} s/step").verdict for s in seconds]
    ranks = [order.index(verdict) for verdict in verdicts]
    assert ranks == sorted(ranks)
    assert set(ranks) == {0, 1, 2}


def test_without_training_steps_there_is_nothing_to_claim() -> None:
    job = load_job(JOBS / "rtx4090_qwen2_05b.yaml")
    bill = CostModel(replace(job, steps=0)).price(
        Candidates.of([(job.offers[0], stated_config(job))])
    )
    with pytest.raises(InputError, match="no training steps"):
        check_claim(replace(job, steps=0), bill.estimate(0), "5 h")

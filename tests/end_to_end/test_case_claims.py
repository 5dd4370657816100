"""Each planning note's own statements, as its job file gives them, against the arithmetic."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from commandline import Answers

FORMULA = ("--fidelity", "formula")
TITLE = "What does not add up in the job file"


def answer(answers: Answers, *words: str) -> Any:
    done = answers(*words, "--format", "json")
    assert done.returncode in {0, 4}, done.stderr
    return done.json


def figures(text: str) -> list[float]:
    return [float(number.replace(",", "")) for number in re.findall(r"\d[\d,]*\.?\d*", text)]


@pytest.fixture(scope="module")
def case_a(answers: Answers) -> Any:
    return answer(answers, "estimate", "jobs/a100_llama7b_int8.yaml", *FORMULA)


@pytest.fixture(scope="module")
def case_c(answers: Answers) -> Any:
    return answer(answers, "estimate", "jobs/rtx4090_qwen2_05b.yaml", *FORMULA)


@pytest.fixture(scope="module")
def case_d(answers: Answers) -> Any:
    return answer(answers, "tune", "jobs/h100_38h.yaml", "--dry-run", *FORMULA)


@pytest.fixture(scope="module")
def case_e(answers: Answers) -> Any:
    return answer(
        answers, "recompute", "jobs/t4_to_a100_gemma2.yaml", "--gpu", "a100-40gb", *FORMULA
    )


def test_case_a_its_step_time_is_impossible_in_the_terms_of_the_device(case_a: Any) -> None:
    (said,) = [text for text in case_a["contradictions"] if "a step is impossible" in text]
    # At 200 to 300 tokens a row: 21,300 to 48,000 tokens/s, 1.8 to 4 times the dense peak.
    low, high = figures(re.findall(r": (.+) tokens/s are", said)[0])
    assert 21_300 < low < high < 48_000
    low, high = figures(re.findall(r"TFLOP/s, (.+) times its dense peak", said)[0])
    assert 1.8 < low < high < 4.0
    low, high = figures(re.findall(r"Rows of (.+) tokens, not", said)[0])
    assert low < high < 70  # about 67 would already be beyond anything observed
    assert "411 at most" in said


def test_case_a_the_a10_that_it_cites_means_two_to_three_hours_a_run(case_a: Any) -> None:
    (said,) = [text for text in case_a["contradictions"] if "measured on a10 for 100,000" in text]
    (hours,) = figures(re.findall(r"rows are (.+) h of this job", said)[0])
    assert 2.0 <= hours <= 3.0
    assert said.endswith("not 40 to 50 min")


def test_case_a_what_it_counts_right_is_left_alone(case_a: Any) -> None:
    for word in ("2,375 steps", "48 checkpoints", "saves of"):
        assert not any(word in text for text in case_a["contradictions"])
    assert case_a["row"]["checkpoints"] == 48
    assert case_a["job"]["steps"] == 2375


def test_case_a_three_runs_are_a_campaign_with_its_total(answers: Answers) -> None:
    plan = answer(answers, "plan", "jobs/campaigns/a100_llama7b.yaml")
    assert (plan["total"]["runs"], plan["total"]["steps"]) == (3, 3 * 2375)
    (each,) = plan["runs"]
    total = plan["total"]["duration_s"]
    assert total["p50"] == pytest.approx(3 * each["best"]["duration_s"]["p50"])
    assert total["p10"] < total["p50"] < total["p90"]
    assert any("which is impossible" in text for text in plan["contradictions"])
    assert any("the stated 2.25 h are too few" in text for text in plan["contradictions"])


def test_case_b_kiloseconds_were_read_as_hours_at_every_size(answers: Answers) -> None:
    sizes = "data.rows=[10000, 50000, 100000]"
    said = answer(answers, "compare", "jobs/rtx5090_llama2_7b.yaml", "--set", sizes)[
        "contradictions"
    ]
    assert len(said) == 3
    # At 1,200 to 5,000 tokens/s: 0.85-3.6, 4.3-17.8 and 8.5-35.6 h.
    wanted = ((0.853, 3.56, "3.1 to 12.8 h"), (4.27, 17.8, "15.4 to 64 h"), (8.53, 35.6, "30 to"))
    for text, (low, high, stated) in zip(said, wanted, strict=True):
        assert figures(re.findall(r"take (.+) h, not", text)[0]) == [low, high]
        assert f"not {stated}" in text
        assert text.endswith("kiloseconds were read as hours")


@pytest.mark.parametrize(
    "words",
    [
        "200 to 250 tokens/s and 1,800 to 2,000 steps/h disagree",
        "the second 512 to 569",
        "0.24 to 0.3 % of its peak",
        "the measured 5 h are 569 tokens/s, 0.69 % of the peak of rtx-4090: it was almost idle",
        "trains 2.2 million parameters, not 2.5",
        "64 rows a step, not 8: at the same steps 8 times the samples",
    ],
)
def test_case_c_one_run_of_it_is_checked_as_the_campaign_is(case_c: Any, words: str) -> None:
    assert any(words in text for text in case_c["contradictions"]), case_c["contradictions"]


@pytest.mark.parametrize(
    "words",
    [
        "28,000 steps fit a global batch of 64: 1,800,000 rows / 8 are 225,000 steps",
        "28 checkpoints are not this job's: one each 1,000 of 225,000 steps are 225",
        "225 saves of 1 to 2 min take 3.75 to 7.5 h, not 56 min: 9.9 to 20 % of the 38.0 h run",
        "in 1 to 2 min is 16.9 to 33.7 MB/s: it is the disk for checkpoints that is slow",
        "1,800,000 steps count rows, not steps",
        "8 forward and 8 backward passes a step, not 1 backward pass",
        "the savings add up to 21 to 35 h of 38.0 h and not to the stated 14 to 18 h",
        "20 h on 4x a100-sxm4-40gb would be 1.9 times as fast",
        "its peak is 1.26 times as high",
        "data.storage is credited with 7 to 11 h, and the bill gives it about nothing",
        "data.pretokenized is credited with 2 to 4 h",
        "padding may be what takes the time",
    ],
)
def test_case_d_what_does_not_hold_is_named(case_d: Any, words: str) -> None:
    assert any(words in text for text in case_d["contradictions"]), case_d["contradictions"]


def test_case_d_the_device_is_idle_unless_rows_are_padded(case_d: Any) -> None:
    (said,) = [text for text in case_d["contradictions"] if "padding may be" in text]
    (real,) = figures(re.findall(r"are (\d+) % of the peak", said)[0])
    (padded,) = figures(re.findall(r"and (\d+) % if every row is padded", said)[0])
    assert 9 <= real <= 13  # at 220 to 300 tokens a row
    assert 42 <= padded <= 46  # 44 % at 1,024


def test_case_d_reading_and_tokenising_the_data_is_next_to_nothing(case_d: Any) -> None:
    (gap,) = case_d["journey"]["measured"]
    (data,) = [each for each in gap["readings"] if each["name"] == "dataloader"]
    rate, hours = figures(re.findall(r"\(all rows are (.+?) of one core", data["text"])[0])
    assert 0.01 <= rate <= 0.13  # [MB/s] of 1.8 million rows over 38 h
    assert 60 <= hours <= 120  # [min] about 1.5 core-hours
    assert data["verdict"] == "immaterial"


def test_case_d_the_answer_stays_first_and_the_findings_have_a_place(answers: Answers) -> None:
    text = answers("tune", "jobs/h100_38h.yaml", "--dry-run", *FORMULA, "--format", "md").stdout
    assert text.startswith("**h100-38h: run it on 1x h100-sxm")
    places = [text.index(f"## {title}") for title in ("Beside today", TITLE, "Alternatives")]
    assert places == sorted(places)


@pytest.mark.parametrize(
    "words",
    [
        "the 4 runs on t4 add up to 9.5 to 11.5 h, not 6 to 8 h",
        "rank 32 cannot take 2 times as long as rank 8 on t4",
        "8.1 TFLOP/s of t4 is its fp32 rate, outside the tensor cores: fp16 training uses 65",
        "8 x 768 x 256,000 in fp32 are 5.9 GiB, more than the 4.9 GiB of weights",
        "base nf4 are 2.2 GB, not 1.2: its embedding stays in 16 bit and is 1.18 GB alone",
        "micro-batch 6 x accumulation 3 is 18 rows a step, not 16",
        "150 warm-up steps are 2,400 rows at 16 a step, not 300",
        "the square-root and the linear rule give 1",
        "the learning rate changes the result, and is the user's",
    ],
)
def test_case_e_what_does_not_hold_is_named(case_e: Any, words: str) -> None:
    assert any(words in text for text in case_e["contradictions"]), case_e["contradictions"]


def test_case_e_what_holds_is_left_alone(case_e: Any) -> None:
    said = "\n".join(case_e["contradictions"])
    assert "312 TFLOP/s" not in said  # the dense bf16 rate
    assert "runs on a100" not in said  # 25 + 30-40 + 45 + 40-50 min are 2.3 to 2.7 h, within 2-3

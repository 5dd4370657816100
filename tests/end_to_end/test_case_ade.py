"""Planning notes A, D and E through the command line: their arithmetic, and what they got wrong."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commandline import typed

if TYPE_CHECKING:
    from commandline import Answers

ROOT = Path(__file__).resolve().parents[2]
CASE_A, CASE_D, CASE_E = (
    str(ROOT / "jobs" / f"{name}.yaml")
    for name in ("a100_llama7b_int8", "h100_38h", "t4_to_a100_gemma2")
)
FORMULA = ("--dry-run", "--fidelity", "formula")


def answer(*words: str, home: Path) -> tuple[int, Any]:
    done = typed(*words, "--format", "json", home=home, cwd=home)
    return done.returncode, done.json


def test_case_a_counts_its_steps_and_saves(tmp_path: Path) -> None:
    _, found = answer("estimate", CASE_A, "--fidelity", "formula", home=tmp_path)
    row = found["row"]
    assert found["job"]["steps"] == 2375
    assert row["checkpoints"] == 48  # 50, 100, ... 2,350 and the last step
    assert 48 * 5 <= row["time_s"]["checkpoint"] <= 48 * 10  # its own 5 to 10 s a save
    assert {"load", "prepare", "compile", "train", "checkpoint", "final_save"} <= set(row["time_s"])
    assert sum(row["time_s"].values()) == pytest.approx(row["duration_s"]["p50"])


@pytest.mark.parametrize(("claim", "verdict"), [("0.8 s/step", "impossible"), ("8 s/step", None)])
def test_case_a_its_step_time_is_impossible(
    tmp_path: Path, claim: str, verdict: str | None
) -> None:
    _, found = answer("estimate", CASE_A, "--claim", claim, home=tmp_path)
    checked = found["claim"]
    assert (checked["verdict"] == "impossible") is (verdict == "impossible")
    if verdict:
        assert checked["implied_flop_per_s"] > checked["ceiling_flop_per_s"] > 312e12
        assert checked["tokens_per_row_possible"] < 200  # its rows have 200 to 300


def test_case_a_saves_and_compile_are_worth_what_they_are(answers: Answers) -> None:
    found = answers("tune", CASE_A, *FORMULA, "--format", "json").json
    worth = {step["change"]: step for step in found["waterfall"]}
    saves = worth["checkpoint_every_steps"]
    fewer = found["today"]["time_s"]["checkpoint"] - found["best"]["time_s"]["checkpoint"]
    assert -saves["duration_s"] == pytest.approx(fewer, rel=0.1)
    assert not found["journey"]["measured"]  # its one measurement is of another card
    assert not any(each["change"] == "data.storage" for each in found["journey"]["options"])


def test_case_d_counts_its_steps_and_saves(tmp_path: Path, answers: Answers) -> None:
    found = answers("tune", CASE_D, *FORMULA, "--format", "json").json
    today = found["today"]
    assert found["job"]["steps"] == 225_000
    assert today["checkpoints"] == 225
    assert 225 * 60 <= today["time_s"]["checkpoint"] <= 225 * 120  # 3.8 to 7.5 h, not 56 min
    _, wider = answer(
        "estimate", CASE_D, "--set", "checkpoint_every_steps=2000", "--fidelity", "formula",
        home=tmp_path,
    )  # fmt: skip
    assert wider["row"]["checkpoints"] == 112 + 1


def test_case_d_savings_compound_and_do_not_add(answers: Answers) -> None:
    found = answers("tune", CASE_D, *FORMULA, "--format", "json").json
    today, best, steps = found["today"], found["best"], found["waterfall"]
    for key in ("duration_s", "cost_usd"):
        total = math.fsum(step[key] for step in steps)
        assert today[key]["p50"] + total == pytest.approx(best[key]["p50"], abs=1e-6)
    assert today["duration_s"]["p50"] == pytest.approx(38 * 3600, rel=0.02)
    assert today["cost_usd"]["p50"] == pytest.approx(95, rel=0.02)
    by_name = {step["change"]: step for step in steps}
    assert by_name["checkpoint_every_steps"]["touches"] == ["checkpoint"]
    # a worker more or less changes nothing: waiting for data was never the cause
    assert abs(by_name["num_dataloader_workers"]["duration_s"]) < 60


def test_case_d_bandwidth_is_not_the_cause_and_padding_may_be(answers: Answers) -> None:
    found = answers("tune", CASE_D, *FORMULA, "--format", "json").json
    (gap,) = found["journey"]["measured"]
    readings = {each["name"]: each for each in gap["readings"]}
    assert gap["measured_s"] == 38 * 3600
    assert readings["dataloader"]["verdict"] == "immaterial"
    assert {"as stated", "padding", "other config"} <= set(gap["open"])
    assert "global batch of 16" in readings["other config"]["text"]
    assert [check["cost_usd"] for check in gap["checks"]][:2] == [0, 0]
    assert any(check["decides"] for check in gap["checks"])
    options = {each["change"]: each for each in found["journey"]["options"]}
    assert abs(options["data.storage"]["duration_s"]) < 60
    assert "worth about nothing" in options["data.storage"]["why"]
    batch = options["train.global_batch_size"]
    assert batch["yours"]
    assert found["job"]["global_batch_size"] == 8


def test_case_d_says_all_of_it_in_words_and_in_markdown(answers: Answers) -> None:
    text = answers("tune", CASE_D, *FORMULA, "--verbose", "--format", "text").stdout
    for words in (
        "From today to the pick", "cannot tell these apart", "cheapest check", "your decision",
        "it cannot be the cause", "worth about nothing",
    ):  # fmt: skip
        assert words in " ".join(text.split())
    typed = "  autotune "  # a command is one line, to be copied
    assert max(len(line) for line in text.splitlines() if not line.startswith(typed)) <= 80
    marked = answers("tune", CASE_D, *FORMULA, "--format", "md").stdout
    assert "## From today to the pick" in marked


def test_case_e_from_t4_to_a100_with_four_variants(tmp_path: Path) -> None:
    code, _ = answer("tune", CASE_E, "--gpu", "t4", "--fidelity", "formula", home=tmp_path)
    assert code == 0
    vary = ("--vary", "rank=8", "--vary", "rank=32", "--vary", "kind=qlora")
    code, found = answer(
        "recompute", "--gpu", "a100-40gb", *vary, "--fidelity", "formula", "--fail-on-change",
        home=tmp_path,
    )  # fmt: skip
    assert code == 6
    parts = {part["variant"]: part for part in found["variants"]}
    assert list(parts) == ["as it is", "rank 8", "rank 32", "qlora"]
    for part in parts.values():
        before, after = part["before"], part["after"]
        assert (before["device"], after["device"]) == ("t4", "a100-sxm4-40gb")
        assert (before["config"]["precision"], after["config"]["precision"]) == ("fp16", "bf16")
        config = after["config"]
        split = config["micro_batch_size"] * config["gradient_accumulation_steps"]
        assert split == 16  # its fallback of 6 x 3 is 18
        memory = after["memory_bytes"]
        parts_sum = math.fsum(v for k, v in memory.items() if k not in {"total", "usable"})
        assert parts_sum == pytest.approx(memory["total"])
        for key in ("duration_s", "cost_usd"):
            gap = after[key]["p50"] - before[key]["p50"]
            assert math.fsum(s[key] for s in part["waterfall"]) == pytest.approx(gap, abs=1e-3)
    # its memory table leaves out the logits: 8 x 768 x 256k in fp32 alone are 5.9 GiB
    plain = parts["as it is"]["after"]["memory_bytes"]
    assert plain["logits"] > 5.9 * 2**30 > plain["weights"]
    assert parts["qlora"]["after"]["memory_bytes"]["weights"] >= 2.0e9  # not 1.2 GB
    slow, fast = (parts[f"rank {rank}"]["after"]["duration_s"]["p50"] for rank in (32, 8))
    assert 1.0 <= slow / fast < 1.1
    why = {each["what"]: each["why"] for each in found["changes"]}
    assert "not valid there" in why["precision"]
    kept = {each["what"]: each["value"] for each in found["unchanged"]}
    assert kept["global_batch_size"] == "16"


def test_case_e_length_is_the_users_and_worth_its_hours(tmp_path: Path) -> None:
    short = ("--set", "data.max_length=512")
    answer("tune", CASE_E, "--gpu", "t4", *short, "--fidelity", "formula", home=tmp_path)
    _, found = answer(
        "recompute", "--gpu", "a100-40gb", "--set", "data.max_length=768", "--fidelity", "formula",
        home=tmp_path,
    )  # fmt: skip
    (step,) = [each for each in found["waterfall"] if each["change"] == "data.max_length"]
    assert step["yours"]
    assert step["duration_s"] > 0  # longer rows take longer on either card
    assert (step["from"], step["to"]) == ("512", "768")


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        ((), "no runs in"),
        (("nowhere",), "no such folder"),
        ((CASE_E, "--gpu", "a1000"), "unknown device"),
        ((CASE_E, "--software", "torch"), "unknown software profile"),
        ((CASE_E, "--vary", "rank"), "KEY=VALUE"),
        ((CASE_E, "--price", "2"), "is not a price"),
    ],
)
def test_mistakes_of_recompute_are_bad_input(
    tmp_path: Path, arguments: tuple[str, ...], says: str
) -> None:
    done = typed("recompute", *arguments, home=tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr

"""Case A's plan, tuned, begun, and verified half-way through the command line."""

from __future__ import annotations

import csv
import io
import json
import os
from typing import TYPE_CHECKING, Any

import pytest
from commandline import Done, typed

from autotune.domain.answer.contract import read
from autotune.domain.answer.recommendation import NextStep
from autotune.report.schema import JobPayload
from autotune.report.screens.verify import verification_screen
from autotune.report.sections.verification import VERIFY_REPORT

if TYPE_CHECKING:
    from pathlib import Path

JOB = "jobs/a100_llama7b_int8.yaml"
STEPS, DONE, STEP_S, SAVE_S = 2375, 1200, 12.5, 7.5


def run(home: Path, *words: str) -> Done:
    return typed(*words, home=home, AUTOTUNE_RUNS=str(home))


def answer(home: Path, *words: str) -> Any:
    done = run(home, *words, "--format", "json")
    assert done.returncode == 0, done.stderr
    return done.json


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A home with case A tuned, and its first run half-way in `out`, saved every 50 steps."""
    home = tmp_path_factory.mktemp("case-a")
    tuned = run(home, "tune", JOB, "--fidelity", "formula", "--run", str(home / "run"), "--quiet")
    assert tuned.returncode == 0
    clock = 1.7e9
    for step in range(50, DONE + 1, 50):
        clock += 50 * STEP_S + SAVE_S
        folder = home / "out" / f"checkpoint-{step}"
        folder.mkdir(parents=True)
        losses = [{"step": n, "epoch": n / STEPS, "loss": 1.2} for n in range(10, step + 1, 10)]
        state = {"global_step": step, "max_steps": STEPS, "num_train_epochs": 1,
                 "epoch": step / STEPS, "train_batch_size": 16, "save_steps": 50,
                 "logging_steps": 10, "log_history": losses}  # fmt: skip
        (folder / "trainer_state.json").write_text(json.dumps(state))
        os.utime(folder / "trainer_state.json", (clock, clock))
    return home


def test_case_a_is_verified_half_way_and_its_next_runs_follow(begun: Path) -> None:
    before = answer(begun, "estimate", JOB)
    found = answer(begun, "verify", str(begun / "run"), str(begun / "out"), "--next-runs", "3")
    assert found["schema_version"] == 1
    assert found["job"]["steps"] == STEPS
    assert found["run_dir"] == str(begun / "run")
    lines = {line["what"]: line for line in found["lines"]}
    assert {"step_time", "tokens_per_s", "checkpoints", "total"} <= set(lines)
    step = lines["step_time"]
    assert step["actual"] == pytest.approx(STEP_S, rel=0.02)
    assert step["predicted"] == pytest.approx(before["row"]["step_time_s"])
    assert step["ratio"] == pytest.approx(step["actual"] / step["predicted"])
    assert lines["timed"]["actual"] == pytest.approx(1150 * STEP_S + 23 * SAVE_S)
    assert "24 saves so far" in lines["checkpoints"]["note"]
    # 48 saves in all, so 24 are left, and the last partial stretch of 25 steps
    left = found["remaining"]
    assert left["duration_s"] == pytest.approx((STEPS - DONE) * STEP_S + 24 * SAVE_S, rel=0.02)
    following = found["next_runs"]
    assert following["count"] == 3
    assert following["total_duration_s"] == pytest.approx(3 * following["duration_s"]["p50"])
    assert following["duration_s"]["p50"] > STEPS * STEP_S
    assert {item["component"] for item in found["calibration"]} >= {"compute"}

    after = answer(begun, "estimate", JOB)["row"]
    assert after["basis"] == "calibrated"
    assert after["step_time_s"] == pytest.approx(step["actual"], rel=0.02)
    spread = after["duration_s"]["p90"] / after["duration_s"]["p10"]
    assert spread < before["row"]["duration_s"]["p90"] / before["row"]["duration_s"]["p10"]


def test_the_last_run_is_taken_and_every_format_says_the_same(begun: Path) -> None:
    arguments = ("verify", str(begun / "out" / "checkpoint-600"))
    found = answer(begun, *arguments)
    found["job"] = read(JobPayload, found["job"])
    found["next"] = [read(NextStep, step) for step in found["next"]]
    text = run(begun, *arguments, "--verbose").stdout
    assert text == VERIFY_REPORT.text(found)
    assert run(begun, *arguments).stdout == verification_screen(found)
    assert "step 600 of 2,375" in text
    assert max(map(len, text.splitlines())) <= 80
    assert "| step |" in run(begun, *arguments, "--format", "md").stdout
    listed = csv.DictReader(io.StringIO(run(begun, *arguments, "--format", "csv").stdout))
    assert [row["what"] for row in listed] == [line["what"] for line in found["lines"]]


@pytest.mark.parametrize(
    ("content", "arguments", "says"),
    [
        ('{"global_step": 5, "max_st', (), "cut short"),
        ('{"global_step": 50, "max_steps": 900, "log_history": []}', (), "and the job has 2,375"),
        ('{"global_step": 50, "max_steps": 2375, "log_history": []}', (), "--elapsed 3h"),
        ('{"global_step": 0, "log_history": []}', (), "no finished step"),
        ('{"global_step": 50, "log_history": []}', ("--gpu", "h101", "--elapsed", "1h"), "h101"),
        ('{"global_step": 50, "log_history": []}', ("--elapsed", "3"), "is not a duration"),
        ("[" * 100_000, (), "nested deeper"),
    ],
)
def test_mistakes_are_bad_input(
    begun: Path, tmp_path: Path, content: str, arguments: tuple[str, ...], says: str
) -> None:
    log = tmp_path / "trainer_state.json"
    log.write_text(content)
    done = run(begun, "verify", str(begun / "run"), str(log), *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr

"""The main job through the command line, on every job that ships."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from commandline import typed

ROOT = Path(__file__).resolve().parents[2]
JOBS = sorted((ROOT / "jobs").glob("*.yaml"))
TIME_PARTS = {
    "load", "prepare", "compile", "train", "data_wait", "evaluation", "checkpoint", "final_save",
    "lost_work",
}  # fmt: skip
MEMORY_PARTS = {
    "weights", "adapters", "gradients", "optimizer", "activations", "logits", "workspace",
    "context", "fragmentation",
}  # fmt: skip


def autotune(home: Path, *words: str) -> tuple[int, Any]:
    done = typed(*words, "--format", "json", home=home)
    return done.returncode, done.json if done.stdout else done.stderr


def rows_of(answer: dict[str, Any]) -> list[dict[str, Any]]:
    single = [answer["best"], answer["today"]]
    return [row for row in [*single, *answer["alternatives"], *answer["pareto"]] if row]


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    found = {}
    for job in JOBS:
        run = tmp_path_factory.mktemp("runs") / job.stem
        code, answer = autotune(run.parent, "tune", str(job), "--run", str(run), "--trials", "20")
        assert code in {0, 3, 4}, (job.name, answer)
        assert (run / "trials.jsonl").exists()
        assert json.loads((run / "recommendation.json").read_text()) == answer
        found[job.stem] = answer
    return found


@pytest.mark.parametrize("name", [job.stem for job in JOBS])
def test_every_job_is_answered_and_its_parts_add_up(
    answers: dict[str, dict[str, Any]], name: str
) -> None:
    answer = answers[name]
    assert answer["best"] is not None
    for row in rows_of(answer):
        assert set(row["time_s"]) == TIME_PARTS
        assert sum(row["time_s"].values()) == pytest.approx(row["duration_s"]["p50"], rel=1e-9)
        memory = row["memory_bytes"]
        assert sum(memory[part] for part in MEMORY_PARTS) == pytest.approx(
            memory["total"], rel=1e-9
        )
        hours = row["duration_s"]["p50"] / 3600
        assert row["cost_usd"]["p50"] == pytest.approx(hours * row["usd_per_hour"], rel=1e-9)
        assert row["duration_s"]["p10"] <= row["duration_s"]["p50"] <= row["duration_s"]["p90"]
        assert 0 <= row["mfu"] < 1


@pytest.mark.parametrize("name", [job.stem for job in JOBS])
def test_the_global_batch_is_never_changed(answers: dict[str, dict[str, Any]], name: str) -> None:
    answer = answers[name]
    for row in rows_of(answer):
        config = row["config"]
        made = config["micro_batch_size"] * config["gradient_accumulation_steps"]
        assert made * row["device_count"] == answer["job"]["global_batch_size"]


@pytest.mark.parametrize("name", [job.stem for job in JOBS])
def test_what_is_recommended_fits(answers: dict[str, dict[str, Any]], name: str) -> None:
    best = answers[name]["best"]
    assert best["memory_bytes"]["total"] <= best["memory_bytes"]["usable"]
    assert best["fits_probability"] >= 0.9
    assert best["verdict"] == "fits"


def test_case_a_has_2375_steps_and_48_checkpoints_every_50(tmp_path: Path) -> None:
    _, answer = autotune(
        tmp_path, "estimate", "jobs/a100_llama7b_int8.yaml", "--set", "checkpoint_every_steps=50"
    )
    assert answer["job"]["steps"] == 2375
    assert answer["row"]["checkpoints"] == 48


def test_case_a_names_the_a10_and_offers_no_incredible_row_length(
    answers: dict[str, dict[str, Any]],
) -> None:
    gap = next(w for w in answers["a100_llama7b_int8"]["warnings"] if "was measured" in w)
    assert "on a10" in gap
    assert "tokens on average" not in gap  # it would take rows of 8 tokens, not 252


@pytest.mark.parametrize(
    ("rows", "steps", "tokens"),
    [(10_000, 3_750, 15.36e6), (50_000, 18_750, 76.8e6), (100_000, 37_500, 153.6e6)],
)
def test_case_b_has_the_steps_and_tokens_of_its_sizes(
    rows: int, steps: int, tokens: float, tmp_path: Path
) -> None:
    _, answer = autotune(
        tmp_path, "estimate", "jobs/rtx5090_llama2_7b.yaml", "--set", f"data.rows={rows}"
    )
    assert (answer["job"]["steps"], answer["job"]["tokens"]) == (steps, tokens)


def test_case_b_takes_the_hours_that_its_own_throughput_implies(
    answers: dict[str, dict[str, Any]],
) -> None:
    best = answers["rtx5090_llama2_7b"]["best"]
    assert best["duration_s"]["p90"] > 15.36e6 / 5000
    assert best["duration_s"]["p10"] < 15.36e6 / 1200


def test_case_c_takes_minutes_and_says_how_far_its_document_is_off(
    answers: dict[str, dict[str, Any]],
) -> None:
    answer = answers["rtx4090_qwen2_05b"]
    assert answer["best"]["duration_s"]["p90"] < 3600
    assert any("times longer" in warning for warning in answer["warnings"])


def test_case_d_has_225000_steps_and_225_saves_every_1000(tmp_path: Path) -> None:
    job = "jobs/h100_38h.yaml"
    _, answer = autotune(tmp_path, "estimate", job, "--set", "checkpoint_every_steps=1000")
    assert (answer["job"]["steps"], answer["row"]["checkpoints"]) == (225_000, 225)
    _, answer = autotune(tmp_path, "estimate", job, "--set", "checkpoint_every_steps=2000")
    assert answer["row"]["checkpoints"] == 113  # 112 and the last step's


@pytest.mark.parametrize(("gpu", "precision"), [("t4", "fp16"), ("a100-40gb", "bf16")])
def test_case_e_picks_the_native_precision_of_each_card(
    tmp_path: Path, gpu: str, precision: str
) -> None:
    run = str(tmp_path / "run")
    code, answer = autotune(
        tmp_path, "tune", "jobs/t4_to_a100_gemma2.yaml", "--gpu", gpu, "--run", run
    )
    assert code in {0, 4}
    assert answer["best"]["config"]["precision"] == precision
    assert answer["best"]["config"]["micro_batch_size"] in {1, 2, 4, 8, 16}


def test_nothing_feasible_is_exit_3_with_near_misses_and_changes(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    code, answer = autotune(
        tmp_path, "tune", "--model", "Llama-3.1-70B", "--method", "lora", "--rows", "1000", "--gpu",
        "rtx-4090", "--run", run,
    )  # fmt: skip
    assert code == 3
    assert answer["best"] is None
    nearest = answer["rejected"]["nearest"]
    assert len(nearest) == 3
    assert all(miss["required_bytes"] > miss["available_bytes"] for miss in nearest)
    assert answer["rejected"]["relaxations"]


def test_a_missed_deadline_is_exit_4_with_the_soonest_candidate(tmp_path: Path) -> None:
    run = str(tmp_path / "run")
    code, answer = autotune(
        tmp_path, "tune", "jobs/h100_38h.yaml", "--deadline", "2h", "--run", run
    )
    assert code == 4
    assert answer["misses"][0]["limit"] == "deadline"
    soonest = min(row["duration_s"]["p50"] for row in rows_of(answer) if row["verdict"] == "fits")
    assert answer["best"]["duration_s"]["p50"] <= soonest * 1.001


def test_doubling_the_price_doubles_the_cost_and_keeps_the_pick(tmp_path: Path) -> None:
    picks = []
    for price in ("2 USD/h", "4 USD/h"):
        run = str(tmp_path / price[0])
        _, answer = autotune(tmp_path, "tune", "jobs/h100_38h.yaml", "--price", price, "--run", run)
        picks.append(answer["best"])
    assert picks[0]["config"] == picks[1]["config"]
    assert picks[1]["cost_usd"]["p50"] == pytest.approx(2 * picks[0]["cost_usd"]["p50"])


def test_the_same_seed_gives_the_same_answer_in_another_process(tmp_path: Path) -> None:
    """Sets are ordered anew in each process."""
    found = []
    for name in ("one", "two"):
        done = subprocess.run(
            [sys.executable, "-m", "autotune", "tune", "jobs/h100_38h.yaml", "--sampler", "tpe",
             "--trials", "25", "--seed", "7", "--run", str(tmp_path / name), "--format", "json"],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        answer = json.loads(done.stdout)
        found.append({key: answer[key] for key in ("best", "alternatives", "pareto")})
    assert found[0] == found[1]


def test_bad_input_writes_nothing(tmp_path: Path) -> None:
    job = str(ROOT / "jobs/h100_38h.yaml")
    done = typed("tune", job, "--gpu", "h10", home=tmp_path, cwd=tmp_path)
    assert done.returncode == 2
    assert "h100" in done.stderr
    assert not done.stdout
    assert list(tmp_path.iterdir()) == []

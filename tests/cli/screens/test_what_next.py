"""What a first screen names to do next: it works when typed, and nothing of it is cut short."""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING

import pytest

from autotune.cli.application import run

if TYPE_CHECKING:
    from pathlib import Path

Capture = pytest.CaptureFixture[str]
FORMULA = ["--fidelity", "formula", "-q"]


@pytest.fixture(autouse=True)
def _of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AUTOTUNE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("COLUMNS", "80")


def typed(line: str, *more: str) -> list[str]:
    return [*shlex.split(line), *more]


def screen(capsys: Capture, line: str, *more: str, leaves: int = 0) -> str:
    assert run(typed(line, *FORMULA, *more)) == leaves
    return capsys.readouterr().out


@pytest.mark.parametrize(
    "line",
    [
        "estimate --model Llama-3.1-70B --method full --rows 10k --gpu h100",
        "estimate --model Llama-3.1-8B --rows 20k --max-length 8192 --gpu rtx-4090",
        (
            "estimate --model Llama-3.1-8B --rows 20k --max-length 2048 --gpu rtx-4090 "
            "--set micro_batch_size=4"
        ),
    ],
)
def test_what_estimate_names_next_finds_an_answer(line: str, capsys: Capture) -> None:
    """`tune` of a job that fits nowhere ends with 3: it was named all the same."""
    shown = screen(capsys, line, leaves=3)
    _, _, last = shown.partition("\nNext\n")
    commands = [each.strip() for each in last.splitlines() if "autotune tune" in each]
    assert commands
    for command in commands:
        assert run([*shlex.split(command)[1:], *FORMULA, "--dry-run"]) == 0, command
        capsys.readouterr()


def test_settings_that_would_make_it_fit_are_counted_and_never_cut_short(capsys: Capture) -> None:
    shown = screen(
        capsys,
        "estimate --model Llama-3.1-8B --rows 20k --max-length 8192 --gpu rtx-4090 "
        "--set micro_batch_size=4",
        leaves=3,
    )
    assert "..." not in shown
    assert " more" in shown


def test_compiling_whole_and_by_layer_have_different_names(capsys: Capture) -> None:
    """ "torch_compile default +1 more" stood beside "torch_compile default would take longer"."""
    shown = screen(
        capsys,
        "tune --model Llama-3.1-70B --method qlora --rows 10k --max-length 2048 --gpu a100-80gb "
        "--dry-run",
    )
    assert "torch_compile default (regional)" in " ".join(shown.split())
    assert "+1 more" not in shown


def test_a_few_machines_are_all_named(capsys: Capture) -> None:
    line = "tune --model Llama-3.1-405B --rows 10k --max-length 4096 --gpu 8xh100,8xb200 --dry-run"
    assert "does not fit on 8x h100-sxm" in screen(capsys, line)
    line = "tune --model Qwen2.5-7B --rows 9k --max-length 512 --gpu l40s,h100,a100-80gb --dry-run"
    assert run(typed(line, *FORMULA, "--format", "json")) == 0
    found = json.loads(capsys.readouterr().out)
    shown = screen(capsys, line)
    for row in found["machines"]:
        assert f"1x {row['device']}" in shown


@pytest.mark.parametrize("limit", ["--deadline 5h", "--deadline 40m", "--budget 12USD"])
def test_a_missed_limit_names_what_would_keep_it(limit: str, capsys: Capture) -> None:
    """Each change is typed, keeps the limit as surely as is asked, and takes what was said."""
    line = f"tune --model Qwen2.5-7B --rows 1M --max-length 512 --gpu h100 --dry-run {limit}"
    assert run(typed(line, *FORMULA, "--format", "json")) == 4
    keeping = json.loads(capsys.readouterr().out)["keeping"]
    assert any(each["quality"] for each in keeping)
    assert all(each["quality"] or each["kind"] == "machine" for each in keeping)
    assert any(each["kind"] == "machine" for each in keeping) is (limit == "--deadline 5h")
    for each in keeping:
        gpu = "" if each["kind"] == "machine" else " --gpu h100"
        other = line.replace(" --gpu h100", gpu) + " " + each["apply"]
        assert run(typed(other, *FORMULA, "--format", "json")) == 0
        found = json.loads(capsys.readouterr().out)
        assert all(odds["kept"] for odds in found["limits"])
        assert found["best"]["duration_s"]["p50"] == pytest.approx(each["duration_s"], rel=0.01)
        assert found["best"]["cost_usd"]["p50"] == pytest.approx(each["cost_usd"], rel=0.01)
    shown = " ".join(screen(capsys, line, leaves=4).split())
    assert "What would keep the limits" in shown
    assert any(each["apply"] in shown for each in keeping)


def test_a_limit_that_nothing_keeps_says_what_was_tried(capsys: Capture) -> None:
    line = "tune --model Qwen2.5-7B --rows 1M --max-length 512 --gpu h100 --dry-run --budget 0.1USD"
    assert run(typed(line, *FORMULA, "--format", "json")) == 4
    found = json.loads(capsys.readouterr().out)
    assert "keeping" not in found
    assert any(
        "no fewer steps that were tried would keep the limits" in t for t in found["decisive"]
    )


def test_experts_that_stay_in_16_bit_are_answered_with_a_version_that_quantises_them(
    capsys: Capture,
) -> None:
    line = (
        "tune --model Mixtral-8x7B --method qlora --rows 20k --max-length 2048 --gpu a100-80gb "
        "--dry-run"
    )
    assert run(typed(line, *FORMULA, "--format", "json")) == 3
    found = json.loads(capsys.readouterr().out)["rejected"]["relaxations"]
    (older,) = [each for each in found if "software.transformers" in each["apply"]
                and not each["quality"]]  # fmt: skip
    assert older["class"] == "neutral"
    assert run(typed(line, *FORMULA, *shlex.split(older["apply"]), "--format", "json")) == 0
    best = json.loads(capsys.readouterr().out)["best"]
    assert best["duration_s"]["p50"] == pytest.approx(older["duration_s"], rel=1e-6)


def test_where_time_is_minimised_alternatives_are_compared_by_time(capsys: Capture) -> None:
    """A slower machine at a third less stood there as "-35%"."""
    line = "tune --model Llama-3.1-8B --rows 3k --max-length 512 --gpu 2xh100,h100 --minimize time"
    assert run(typed(line, *FORMULA, "--dry-run", "--format", "json")) == 0
    found = json.loads(capsys.readouterr().out)
    shown = screen(capsys, line, "--dry-run")
    told = {int(each) for each in re.findall(r" ([+-]\d+)%", shown)}
    best = found["best"]["duration_s"]["p50"]
    assert told
    assert told <= {
        round(100 * (row["duration_s"]["p50"] / best - 1)) for row in found["alternatives"]
    }


def test_a_saving_that_nobody_would_notice_is_not_offered(capsys: Capture) -> None:
    line = "tune --model Qwen2.5-0.5B --method full --rows 100 --max-length 128 --gpu rtx-3090"
    line += " --set data.lengths.p50=90 --set data.lengths.p95=120 --dry-run"
    assert "You could save" not in screen(capsys, line)


def test_a_run_that_was_not_started_says_how_to_start_it(tmp_path: Path, capsys: Capture) -> None:
    folder = tmp_path / "one"
    line = "tune --model Qwen2.5-0.5B --rows 2k --max-length 128 --gpu l4 --trials 3"
    assert run(typed(line, *FORMULA, "--run", str(folder))) == 0
    capsys.readouterr()
    assert run(["verify", str(folder)]) == 2
    told = capsys.readouterr().err
    assert "nothing was trained in" in told
    assert "run.sh" in told


def test_unknown_lengths_and_a_limit_leave_room_for_another_machine(capsys: Capture) -> None:
    """One alternative was left, of the pick's own machine, and beside it the same card again."""
    line = (
        "tune --model Qwen2.5-14B --rows 30000 --max-length 2048 --gpu all --deadline 6h "
        "--budget 20USD"
    )
    shown = screen(capsys, line)
    assert len(shown.splitlines()) <= 30
    _, _, after = shown.partition("Next best")
    rows = [each for each in after.splitlines()[1:4] if "GiB" in each]
    assert len(rows) >= 2
    assert any("x " in each.split(":")[0] for each in rows)
    first = shown.partition("run it on ")[2].split()[1]
    assert f"never measured: {first}" not in " ".join(shown.split())

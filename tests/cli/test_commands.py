from __future__ import annotations

import csv
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.catalog.prices.prices import price_for
from autotune.cli.application import run
from autotune.cli.output import Progress, warn
from autotune.domain.errors import InputError, Interrupted

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.answer.recommendation import Recommendation

    Install = Callable[[Recommendation | BaseException], dict[str, Any]]
    Capture = pytest.CaptureFixture[str]


def test_an_answer_leaves_with_0_and_prints_on_stdout(
    answer_with: Install, recommendation: Recommendation, capsys: Capture
) -> None:
    answer_with(recommendation)
    assert run(["tune", "job.yaml"]) == 0
    assert "h100-38h: run it on 1x h100-sxm" in capsys.readouterr().out


def test_nothing_feasible_leaves_with_3_and_still_reports(
    answer_with: Install, infeasible: Recommendation, capsys: Capture
) -> None:
    answer_with(infeasible)
    assert run(["tune", "job.yaml"]) == 3
    assert "What would fit, with the same training" in capsys.readouterr().out


def test_a_missed_limit_leaves_with_4_and_still_answers(
    answer_with: Install, recommendation: Recommendation, capsys: Capture
) -> None:
    job = recommendation.job
    limits = replace(job.limits, budget_usd=12.5)
    answer_with(replace(recommendation, job=replace(job, limits=limits)))
    assert run(["tune", "job.yaml"]) == 4
    assert "Budget of $12.50 missed (" in capsys.readouterr().out


def test_bad_input_leaves_with_2_and_says_what_to_do(answer_with: Install, capsys: Capture) -> None:
    answer_with(InputError("wrong thing", "right thing"))
    assert run(["tune", "job.yaml"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.endswith("error: wrong thing\nhint: right thing\n")


@pytest.mark.usefixtures("calls")
def test_probe_scoring_without_the_jobs_machine_leaves_with_5_and_says_why(
    capsys: Capture,
) -> None:
    assert run(["tune", "job.yaml", "--score", "probe"]) == 5
    assert "--score probe" in capsys.readouterr().err


@pytest.mark.usefixtures("calls")
def test_probe_options_without_probe_scoring_are_bad_input(capsys: Capture) -> None:
    assert run(["tune", "job.yaml", "--probes", "3", "--probe-on", "cpu"]) == 2
    assert "--probes, --probe-on" in capsys.readouterr().err


def test_probe_options_reach_the_search(answer_with: Install, recommendation: Any) -> None:
    seen = answer_with(recommendation)
    run(["tune", "job.yaml", "--score", "probe", "--probes", "3", "--probe-budget", "10m"])
    assert (seen["probing"]["probes"], seen["probing"]["budget_s"]) == (3, 600.0)


@pytest.mark.parametrize("stop", [KeyboardInterrupt(), Interrupted("stopped")])
def test_an_interruption_leaves_with_130(
    answer_with: Install, capsys: Capture, stop: BaseException
) -> None:
    answer_with(stop)
    assert run(["tune", "job.yaml"]) == 130
    assert "Traceback" not in capsys.readouterr().err


def test_a_bug_leaves_with_1_apologises_and_hides_the_traceback(
    answer_with: Install, capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("AUTOTUNE_DEBUG", raising=False)
    answer_with(KeyError("lost"))
    assert run(["tune", "job.yaml"]) == 1
    error = capsys.readouterr().err
    assert "sorry" in error
    assert "KeyError: 'lost'" in error
    assert "AUTOTUNE_DEBUG=1" in error
    assert "Traceback" not in error


def test_progress_and_warnings_on_stderr_say_no_secret(capsys: Capture) -> None:
    token = "hf_" + "abcdefghijklmnopqrstuv"  # nobody's
    with Progress(quiet=False) as progress:
        progress.line(f"probe 1: OSError: {token} has no access")
    warn([f"postgresql://me:{token}@host does not answer"], quiet=False)
    said = capsys.readouterr().err
    assert token not in said
    assert "probe 1: OSError: LEFT-OUT has no access" in said
    assert "me:LEFT-OUT@host" in said


def test_a_bug_shows_its_traceback_when_asked(
    answer_with: Install, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_DEBUG", "1")
    answer_with(KeyError("lost"))
    with pytest.raises(KeyError, match="lost"):
        run(["tune", "job.yaml"])


@pytest.mark.parametrize(
    "argv",
    [
        ["tune", "job.yaml", "--no-such-flag"],
        ["no-such-command"],
        ["tune", "job.yaml", "--sampler", "nothing"],
        ["tune", "job.yaml", "--trials", "0"],
        ["tune", "job.yaml", "--seed", "-1"],
        ["export"],
    ],
)
def test_usage_errors_leave_with_2(argv: list[str], calls: dict[str, Any]) -> None:
    assert run(argv) == 2
    assert calls == {}


@pytest.mark.parametrize("pair", ["precision", "=bf16", "precision=", ""])
def test_set_without_a_name_or_value_is_refused(
    answer_with: Install, recommendation: Recommendation, capsys: Capture, pair: str
) -> None:
    answer_with(recommendation)
    assert run(["tune", "job.yaml", "--set", pair]) == 2
    assert "must be KNOB=VALUE" in capsys.readouterr().err


def test_a_key_set_twice_is_refused(
    answer_with: Install, recommendation: Recommendation, capsys: Capture
) -> None:
    answer_with(recommendation)
    assert run(["tune", "job.yaml", "--set", "compile=off", "--set", "compile=default"]) == 2
    assert "compile twice" in capsys.readouterr().err


def test_options_reach_the_loader_and_the_search(
    answer_with: Install, recommendation: Recommendation
) -> None:
    calls = answer_with(recommendation)
    argv = (
        "tune job.yaml --gpu h100,a100 --gpu t4:2 --price 2USD/h --max-price 3USD/h "
        "--set precision=bf16 --set data.rows=10 --allow packing --deadline 24h --budget 60USD "
        "--minimize time --sampler tpe --trials 7 --seed 3 --space s.yaml --storage sqlite:///x "
        "--run here --resume --export hf,trl --export trl@1.16 --fidelity formula --dry-run"
    )
    assert run(argv.split()) == 0
    assert calls["source"] == Path("job.yaml")
    assert calls["gpus"] == ("h100", "a100", "t4:2")
    assert (calls["price"], calls["max_price"]) == ("2USD/h", "3USD/h")
    assert calls["set_values"] == {"precision": "bf16", "data.rows": "10"}
    assert calls["allow"] == ("packing",)
    assert (calls["deadline"], calls["budget"]) == ("24h", "60USD")
    assert (calls["objective"], calls["sampler"]) == ("time", "tpe")
    assert (calls["trials"], calls["seed"], calls["space"]) == (7, 3, "s.yaml")
    assert (calls["storage"], calls["run_dir"]) == ("sqlite:///x", Path("here"))
    assert calls["exports"] == ("hf", "trl", "trl@1.16")
    assert (calls["resume"], calls["dry_run"]) == (True, True)
    assert (calls["fidelity"], calls["score"]) == ("formula", "model")


def test_what_a_run_asked_is_asked_again_where_its_folder_is_resumed(
    answer_with: Install, recommendation: Recommendation, tmp_path: Path
) -> None:
    calls = answer_with(recommendation)
    spec = {
        "model": "Qwen/Qwen2.5-7B", "method": {"kind": "lora"}, "hardware": "cpu",
        "data": {"rows": 100, "max_length": 128},
    }  # fmt: skip
    question = ["s", "time", "probe", "cpu"]
    record = {"schema_version": 1, "spec": spec, "base_dir": ".", "question": question}
    (tmp_path / "job.json").write_text(json.dumps(record))
    assert run(["tune", str(tmp_path), "--resume", "--workers", "2"]) == 0
    assert (calls["resume"], calls["run_dir"]) == (True, tmp_path)
    assert (calls["space"], calls["objective"], calls["score"]) == ("s", "time", "probe")
    assert (calls["probing"]["on"], calls["probing"]["workers"]) == ("cpu", 2)


def test_the_one_line_form_needs_no_file(
    answer_with: Install, recommendation: Recommendation
) -> None:
    calls = answer_with(recommendation)
    argv = "tune --model m --method lora --rows 10 --max-length 64 --epochs 2 --global-batch 4"
    assert run([*argv.split(), "--gpu", "t4"]) == 0
    assert calls["stated"] == {
        "model": "m", "method.kind": "lora", "data.rows": 10, "data.max_length": 64,
        "train.epochs": 2.0, "train.global_batch_size": 4,
    }  # fmt: skip
    assert calls["gpus"] == ("t4",)


def test_json_stands_alone_on_stdout_and_warnings_go_to_stderr(
    answer_with: Install, recommendation: Recommendation, capsys: Capture
) -> None:
    answer_with(recommendation)
    assert run(["tune", "job.yaml", "--format", "json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["job"]["steps"] == 225_000
    assert "warning: the checkpoint disk" in captured.err


def test_quiet_leaves_stderr_empty(
    answer_with: Install, recommendation: Recommendation, capsys: Capture
) -> None:
    answer_with(recommendation)
    assert run(["tune", "job.yaml", "--format", "csv", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_a_recorded_run_prints_as_it_did(
    answer_with: Install, recommendation: Recommendation, capsys: Capture, tmp_path: Path
) -> None:
    answer_with(replace(recommendation, run_dir=str(tmp_path)))
    run(["tune", "job.yaml", "--format", "json", "-q"])
    (tmp_path / "recommendation.json").write_text(capsys.readouterr().out, encoding="utf-8")
    run(["tune", "job.yaml", "-q"])
    printed = capsys.readouterr().out
    assert run(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == printed


def test_a_recorded_run_is_printed_as_a_page(
    answer_with: Install, recommendation: Recommendation, capsys: Capture, tmp_path: Path
) -> None:
    answer_with(recommendation)
    run(["tune", "job.yaml", "--format", "json", "-q"])
    (tmp_path / "recommendation.json").write_text(capsys.readouterr().out, encoding="utf-8")
    assert run(["report", str(tmp_path), "--format", "html"]) == 0
    captured = capsys.readouterr()
    assert captured.out.startswith("<!DOCTYPE html>")
    assert captured.out.isascii()
    assert "warning: " in captured.err


def test_a_run_folder_without_an_answer_leaves_with_2(tmp_path: Path, capsys: Capture) -> None:
    assert run(["report", str(tmp_path)]) == 2
    assert "is not a run folder: it has no job.json" in capsys.readouterr().err
    (tmp_path / "job.json").write_text("{}")
    assert run(["report", str(tmp_path)]) == 2
    assert "holds no finished answer" in capsys.readouterr().err


@pytest.mark.parametrize("argv", [["prices"], ["prices", "h100"], ["prices", "rtx"]])
def test_prices_are_a_screen_and_all_of_them_are_in_csv(
    argv: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "120")
    assert run(argv) == 0
    shown = capsys.readouterr().out.splitlines()
    assert run([*argv, "--format", "csv"]) == 0
    every = list(csv.DictReader(capsys.readouterr().out.splitlines()))
    devices = {row["device"] for row in every}
    assert len(shown) <= max(30, len(devices) + 6)
    assert devices == {line.split()[0] for line in shown if line.strip()} & devices
    assert any(f"of {len(every)} prices" in line for line in shown)


@pytest.mark.parametrize("name", ["h100-sxm", "l40s", "rtx-4090"])
def test_the_first_price_of_a_device_is_the_one_that_answers_use(
    name: str, capsys: Capture
) -> None:
    assert run(["prices", name]) == 0
    line = next(line for line in capsys.readouterr().out.splitlines() if line.startswith(name))
    used = price_for(name)
    assert used is not None
    assert f"{used.usd_per_hour:.2f}" in line.split()
    assert used.as_of in line.split()


@pytest.mark.parametrize("chosen", ["text", "json", "csv", "md"])
@pytest.mark.parametrize("command", ["devices", "models", "prices"])
def test_the_catalogue_prints_in_every_format(command: str, chosen: str, capsys: Capture) -> None:
    assert run([command, "--format", chosen]) == 0
    out = capsys.readouterr().out
    assert len(out.splitlines()) > 10
    if chosen == "json":
        assert len(json.loads(out)[command]) > 10


def test_a_provider_that_sells_nothing_known_is_bad_input(capsys: Capture) -> None:
    assert run(["prices", "--provider", "awz"]) == 2
    assert 'unknown provider "awz"; did you mean aws' in capsys.readouterr().err


def test_a_list_can_be_narrowed_by_name(capsys: Capture) -> None:
    assert run(["devices", "T4", "--format", "json"]) == 0
    names = [row["name"] for row in json.loads(capsys.readouterr().out)["devices"]]
    assert names
    assert len(names) < 10


def test_a_data_set_is_counted_and_its_histogram_written(tmp_path: Path, capsys: Capture) -> None:
    rows = tmp_path / "rows.jsonl"
    rows.write_text('{"text": "four"}\n{"text": "seven w"}\n', encoding="utf-8")
    out = tmp_path / "lengths.json"
    command = ["dataset", str(rows), "--tokenizer", "bytes", "--out", str(out)]
    assert run([*command, "--format", "json"]) == 0
    captured = capsys.readouterr()
    assert json.loads(captured.out)["tokens"] == 11
    assert json.loads(out.read_text(encoding="utf-8"))["counts"] == [1, 1]
    assert str(out) in captured.err


def test_progress_off_a_terminal_starts_after_a_second(
    capsys: Capture, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = [100.0]
    monkeypatch.setattr("autotune.cli.output.time.monotonic", lambda: now[0])
    with Progress(quiet=False) as progress:
        progress("early")
        now[0] += 1.5
        progress("late")
        progress("late")
    assert capsys.readouterr().err == "late\n"

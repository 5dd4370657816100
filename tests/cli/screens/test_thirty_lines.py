"""What every command prints by default fits one screen of 80 columns and thirty lines."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.cli.application import run
from autotune.report.screens.screen import MOST_LINES

if TYPE_CHECKING:
    from collections.abc import Callable

    Typed = Callable[..., tuple[int, str]]

ROOT = Path(__file__).parents[3]
JOBS = sorted((ROOT / "jobs").glob("*.yaml"))
CAMPAIGNS = sorted((ROOT / "jobs" / "campaigns").glob("*.yaml"))
SMALL = ("--model", "Qwen2.5-7B", "--rows", "20k")
ONE_LINE = {
    "lora": (*SMALL, "--gpu", "h100"),
    "full": (*SMALL, "--method", "full", "--gpu", "8xh100"),
    "qlora": ("--model", "Llama-3.1-70B", "--method", "qlora", "--rows", "50k", "--gpu", "8xh100"),
    "many": (*SMALL, "--gpu", "h100,l40s,a100-80gb,rtx-4090"),
    "late": (*SMALL, "--gpu", "h100", "--deadline", "1min", "--budget", "0.10USD"),
    "nothing": (*SMALL, "--method", "full", "--gpu", "rtx-4090"),
}
TRAINERS = {
    "axolotl": ("axolotl.yml", "--rows", "52000", "--gpu", "h100-sxm"),
    "hf": ("training_args.json", *SMALL, "--method", "lora", "--gpu", "l40s"),
}
COMMAND = re.compile(r"\s*(\(cd |autotune |MAX_STEPS=|bash |export )")


@pytest.fixture
def typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Typed:
    """A command line in a folder and home of its own: its exit code and what it printed."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AUTOTUNE_RUNS", raising=False)

    def run_it(*words: str, columns: int = 80) -> tuple[int, str]:
        monkeypatch.setenv("COLUMNS", str(columns))
        code = run([*words, "--quiet"])
        return code, capsys.readouterr().out

    return run_it


def held(text: str, columns: int = 80) -> str:
    """The text, once its lines are counted: a command is one line however long it is."""
    lines = text.splitlines()
    assert len(lines) <= MOST_LINES, text
    assert [x for x in lines if len(x) > columns and not COMMAND.match(x)] == []
    return " ".join(text.split())


@pytest.mark.parametrize("job", JOBS, ids=lambda path: path.stem)
def test_each_job_is_answered_on_one_screen_by_every_command(job: Path, typed: Typed) -> None:
    code, text = typed("tune", str(job))
    shown = held(text)
    assert code in {0, 4}
    for part in ("run it on", "It takes", "usable", "Why:", "Next best", "Based on", "To run"):
        assert part in shown
    beside = any(
        words in shown for words in ("Compared with today", "Changed from today", "Today's config")
    )
    assert beside or "evidence" not in job.read_text()
    assert "autotune verify runs/" in shown
    held(typed("report")[1])
    for command in ("estimate", "compare", "recompute"):
        again = held(typed(command, str(job))[1])
        assert "--verbose" in again


@pytest.mark.parametrize("name", ONE_LINE)
def test_one_line_forms_are_answered_on_one_screen(name: str, typed: Typed) -> None:
    code, text = typed("tune", *ONE_LINE[name])
    shown = held(text)
    assert code == {"late": 4, "nothing": 3}.get(name, 0)
    if name == "late":
        assert re.search(r"Deadline of \S+ \S+ missed .* budget of \S+ missed", shown)
    if code == 3:
        assert "nothing fits" in shown or "cannot run here" in shown
    else:
        assert "add `--data FILE`" in shown


@pytest.mark.parametrize("name", TRAINERS)
def test_a_trainers_file_is_answered_on_one_screen(name: str, typed: Typed) -> None:
    file, *options = TRAINERS[name]
    _, text = typed("tune", str(ROOT / "jobs" / "trainers" / file), *options)
    assert "Your file with these settings: runs/" in held(text)


def test_weights_and_moments_in_bf16_are_said_on_the_fullest_screen(typed: Typed) -> None:
    words = ("--rows", "100000", "--set", "data.lengths.mean=500", "--max-length", "2048")
    full = ("tune", "--model", "Qwen3-8B", "--method", "full", *words, "--deadline", "12h")
    for machines in ("all", "rtx-pro-6000-bw-ws"):
        assert "Assumed: method.states bf16" in held(typed(*full, "--gpu", machines)[1])


def test_what_does_not_fit_is_said_with_the_two_smallest_changes(typed: Typed) -> None:
    words = ("estimate", *SMALL, "--method", "full", "--gpu", "rtx-4090")
    code, text = typed(*words)
    shown = held(text)
    assert code == 3
    assert "What is short" in shown
    assert shown.count("autotune estimate --model") == 2


def test_an_estimated_longest_row_is_said_where_it_decides(typed: Typed, tmp_path: Path) -> None:
    """Nothing fits at the upper end of what bytes say: what would settle it stays on the screen."""
    row = '{"text": "%s"}\n' % ("word " * 40_000)
    (tmp_path / "rows.jsonl").write_text(row * 20)
    code, shown = typed(
        "tune", "--model", "Qwen2.5-7B", "--data", "rows.jsonl", "--gpu", "rtx-4090"
    )
    assert code == 3
    said = " ".join(held(shown).split())
    assert "at most: estimated from bytes; data.tokenizer counts it" in said


@pytest.mark.parametrize("campaign", CAMPAIGNS, ids=lambda path: path.stem)
def test_a_campaign_is_planned_on_one_screen(campaign: Path, typed: Typed) -> None:
    code, text = typed("plan", str(campaign), "--parallel", "4")
    shown = held(text)
    assert code == 0
    assert "Phases" in shown
    assert "Schedule" not in shown


def test_the_chart_is_drawn_where_it_is_asked_for(typed: Typed, tmp_path: Path) -> None:
    campaign = str(CAMPAIGNS[0])
    assert "Schedule" in typed("plan", campaign, "--chart")[1]
    assert typed("plan", campaign, "--chart", "drawn.svg")[0] == 0
    assert (tmp_path / "drawn.svg").read_text().startswith("<svg")


def test_a_file_that_is_no_drawing_is_not_overwritten_by_one(typed: Typed, tmp_path: Path) -> None:
    mine = tmp_path / "mine.yaml"
    mine.write_text("dear to me")
    assert typed("plan", str(CAMPAIGNS[0]), "--chart", str(mine))[0] == 2
    assert mine.read_text() == "dear to me"


def test_all_machines_are_compared_on_one_screen(typed: Typed) -> None:
    _, text = typed("compare", str(ROOT / "jobs" / "h100_38h.yaml"), "--gpu", "all")
    held(text)


def test_a_narrow_terminal_gets_narrow_lines(typed: Typed) -> None:
    job = str(ROOT / "jobs" / "h100_38h.yaml")
    for words in (("tune", job), ("tune", job, "--dry-run", "--verbose"), ("estimate", job)):
        for columns in (40, 60):
            lines = typed(*words, columns=columns)[1].splitlines()
            assert [x for x in lines if len(x) > columns and not COMMAND.match(x)] == []


def test_a_log_is_verified_on_one_screen(typed: Typed, tmp_path: Path) -> None:
    typed("tune", str(ROOT / "jobs" / "h100_38h.yaml"))
    rows = "".join(f"{step},0.8\n" for step in range(1, 400))
    (tmp_path / "log.csv").write_text(f"step,seconds\n{rows}")
    code, text = typed("verify", "log.csv")
    shown = held(text)
    assert code == 0
    assert "times as long as predicted" in shown
    assert "Later answers will use" in shown
    assert "autotune tune" in shown


@pytest.mark.parametrize(
    ("terminal", "variables", "coloured"),
    [
        (True, {}, True),
        (True, {"NO_COLOR": "1"}, False),
        (True, {"TERM": "dumb"}, False),
        (False, {}, False),
    ],
)
def test_colour_is_for_terminals_and_never_against_the_users_wish(
    typed: Typed, monkeypatch: pytest.MonkeyPatch, terminal: bool, variables: dict[str, str],
    coloured: bool,
) -> None:  # fmt: skip
    for name in ("NO_COLOR", "TERM"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(type(sys.stdout), "isatty", lambda _: terminal)
    _, text = typed("estimate", str(ROOT / "jobs" / "tiny_cpu.yaml"))
    assert ("\x1b[" in text) is coloured


def test_what_the_user_opened_is_not_called_closed(typed: Typed, tmp_path: Path) -> None:
    """Row lengths are unknown, and packing is on in the user's own script."""
    (tmp_path / "sft.py").write_text(
        "from peft import LoraConfig\nfrom trl import SFTConfig, SFTTrainer\n"
        'args = SFTConfig("out", per_device_train_batch_size=4, max_length=1024, packing=True)\n'
        'SFTTrainer("Qwen/Qwen3-1.7B", args, peft_config=LoraConfig(r=32)).train()\n'
    )
    shown = typed("tune", "sft.py", "--rows", "20000", "--gpu", "l40s")[1]
    assert "packing on" in shown
    assert "packing" not in shown.partition("May save more")[2].partition("`.")[0]

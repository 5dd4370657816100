"""Whatever is wrong with a command line is said in one form, with what to type instead."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import typer.main

from autotune.cli.application import application, run
from autotune.cli.typed import with_values
from autotune.domain.config import knob, own_name
from autotune.domain.typed.other_words import WORDS

if TYPE_CHECKING:
    Capture = pytest.CaptureFixture[str]

JOB = str(Path(__file__).parents[2] / "jobs" / "tiny_cpu.yaml")
CAMPAIGN = str(Path(__file__).parents[2] / "jobs" / "campaigns" / "a100_llama7b.yaml")
# What is typed, and what must be said of it.
WRONG: list[tuple[str, str]] = [
    ("tun job.yaml", r'unknown command "tun"; did you mean tune'),
    ("explain", r'unknown command "explain"\nhint: `autotune report --verbose` has the reasons'),
    ("job.yaml", r'"job\.yaml" is no command\nhint: autotune tune job\.yaml'),
    ("--nope", r'unknown option "--nope" of autotune'),
    ("--versoin", r"did you mean --version"),
    ("tune job.yaml --verbos", r"of autotune tune; did you mean --verbose"),
    ("tune job.yaml --max_length 5", r"did you mean --max-length"),
    ("tune job.yaml -x", r'unknown option "-x" of autotune tune'),
    ("tune a b c", r"more words than it takes: b c"),
    ("help memroy", r'unknown topic "memroy"; did you mean memory'),
    ("prices refrsh", r'device or instance "refrsh"; did you mean refresh\?\nhint: `autotune pri'),
    ("plan job.yaml --mix", r"of autotune plan; did you mean --mixed"),
    ("worker --storge x", r"of autotune worker; did you mean --storage"),
    ("tune job.yaml --score modle", r"'modle' must be one of: model, probe\nhint: --score model"),
    ("tune job.yaml --score=foo", r"--score 'foo' must be one of: model, probe\nhint: --score: "),
    ("tune job.yaml --probes x", r"--probes 'x' must be a whole number"),
    ("tune job.yaml --probes 0", r"--probes '0' must be at least 1"),
    ("tune job.yaml --epochs many", r"--epochs 'many' must be a number"),
    ("tune job.yaml --gpu", r"--gpu needs a value\nhint: --gpu NAME"),
    ("tune job.yaml --rank 64", r'option "--rank" of autotune tune\nhint: --set method\.rank'),
    ("estimate job.yaml --spot", r'option "--spot" of autotune estimate\nhint: --gpu "NAME spot"'),
    (f"tune {JOB} --allow 8bit", r'unknown knob "8bit"; --allow optimizer'),
    (f"tune {JOB} --set spot=true", r'in --set\nhint: --gpu "NAME spot"'),
    ("tune no-such-file.yaml", r"no-such-file\.yaml"),
    ("plan no-such-file.yaml", r"no-such-file\.yaml does not exist\nhint: a campaign states"),
    ("tune --model Qwen2.5-7B", r"--rows"),
    (f"tune {JOB} --gpu h10", r'unknown device "h10"; did you mean h100'),
    (f"tune {JOB} --set nonsense", r"--set 'nonsense' must be KNOB=VALUE"),
    (f"tune {JOB} --deadline soon", r"'soon'"),
    ("estimate job.yaml --score probe", r'"--score" of autotune estimate; it is one of tune'),
    (f"estimate {JOB} --full-trace --fidelity formula", r"contradict each other"),
    ("estimate", r"--model"),
    ("compare", r"--model"),
    ("tune --model Qwen2.5-0.5B --rows 9 --gpu t4 --objective grpo", r"learning, wh.*; sft prices"),
    ("estimate --model Qwen2.5-0.5B --rows 9", r"lacks --gpu NAME\nhint: .*`--gpu all` compares"),
    ("tune --model Qwen2.5-0.5B --rows 9 --gpu 16xh100", r'--gpu "2x8xh100-sxm over infiniband-nd'),
    ("tune --model Qwen2.5-0.5B --rows 9 --gpu h100@0", r"'0' is not a price; .*, or free"),
    ("tune --model Qwen2.5-0.5B --rows 9 --gpu 4090 --spot", r"known of rtx-4090\nhint: .*spot@0"),
    (f"tune {JOB} --set micro_batch=4", r"\nhint: --set micro_batch_size=4$"),
    (f"tune {JOB} --set method.modules_to_save=norm", r"too small to matter"),
    (f"tune {JOB} --set method.modules_to_save=all", r'unknown module to save "all"\nhint: '),
    (f"tune {JOB} --set modules_to_save=lm_head", r"method\.modules_to_save=lm_head"),
    ("prices h100 l40s", r"more words than it takes: l40s"),
    ("tune --model Qwen2.5-0.5B --rows 9 --gpu a10", r"of 1x a10.*\nhint: .*a10@2\.50USD/h"),
    ("tune --model Qwen2.5-0.5B --rows 9 --gpu l4 --objective dpo --export axolotl", r"your own"),
    ("tune --model jamba-v0.1 --rows 9 --gpu 8xh200", r"state-space [^\n]*\nhint: [^(]*NAME$"),
    ("compare job.yaml --minimize speed", r"--minimize 'speed' must be one of: cost, time"),
    ("recompute --fidelity tracing", r"one of: auto, formula, trace\nhint: --fidelity trace"),
    ("recompute no-such-run", r"no-such-run"),
    ("verify --next-runs 0 log.csv", r"--next-runs '0' must be at least 1"),
    ("verify no-such-log.csv", r"no-such-log\.csv|no runs"),
    ("plan", r"autotune plan needs CAMPAIGN"),
    (f"plan {CAMPAIGN} --parallel two", r"--parallel 'two' must be a whole number"),
    (f"plan {CAMPAIGN} --chart schedule.png", r"schedule\.png is no \.svg file"),
    ("dataset", r"autotune dataset needs"),
    ("init --modle x", r"of autotune init; did you mean --model"),
    ("export", r"autotune export needs --to\nhint: --to NAME\[@VERSION\]"),
    ("report no-such-run", r"no-such-run"),
    ("runs --format xml", r"--format 'xml' must be one of: text, json, csv, md"),
    ("devices --formt json", r"of autotune devices; did you mean --format"),
    ("models --quiet", r'unknown option "--quiet" of autotune models'),
    ("prices --provder aws", r"did you mean --provider"),
    ("validate --data", r"--data needs a value"),
    ("calibrate --out", r"--out needs a value"),
    ("doctor --folders x", r"did you mean --folder"),
    ("learn no-such-outputs", r"no-such-outputs is neither a folder nor a file"),
]  # fmt: skip


@pytest.mark.parametrize(("line", "said"), WRONG, ids=[line for line, _ in WRONG])
def test_a_wrong_command_line_is_told_in_one_form(
    line: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AUTOTUNE_RUNS", raising=False)
    (tmp_path / "job.yaml").write_text("{}")
    assert run(line.split()) == 2
    out, err = capsys.readouterr()
    assert out == ""
    told = re.sub(r"^(?:reading|pricing)[^\n]*\n", "", err)
    assert re.fullmatch(r"error: [^\n]+\n(hint: [^\n]+\n)?", told), err
    assert re.search(said, told), err


def test_every_command_is_tried_with_something_wrong() -> None:
    commands = set(getattr(typer.main.get_command(application()), "commands"))  # noqa: B009 - typed away
    assert commands <= {word for line, _ in WRONG for word in line.split()}


def test_what_was_typed_cannot_steer_the_terminal(capsys: Capture) -> None:
    assert run(["tune", "--\x1b[31mred"]) == 2
    err = capsys.readouterr().err
    assert "\x1b" not in err
    assert r"\x1b[31mred" in err


def test_a_family_is_answered_with_its_own_models(capsys: Capture) -> None:
    assert run(["tune", "--model", "Gemma", "--rows", "9", "--gpu", "l4"]) == 2
    first = capsys.readouterr().err.partition("did you mean ")[2].partition(" or ")[0]
    assert all(re.match(r"(google/)?gemma-?[0-9]", name) for name in first.split(", ")), first


def test_an_empty_command_line_is_answered_with_the_help(capsys: Capture) -> None:
    assert run([]) == 2
    assert "Commands:" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "read"),
    [
        (["plan", "a.yaml", "--chart"], ["plan", "a.yaml", "--chart", "-"]),
        (["plan", "--chart", "--share", "a"], ["plan", "--chart", "-", "--share", "a"]),
        (["plan", "a", "--chart", "b.svg"], ["plan", "a", "--chart", "b.svg"]),
        (["plan", "a", "--chart", "-"], ["plan", "a", "--chart", "-"]),
        ([], []),
    ],
)
def test_a_chart_without_a_file_is_drawn_here(typed: list[str], read: list[str]) -> None:
    assert with_values(typed) == read


def test_a_word_longer_than_any_path_is_no_command(capsys: Capture) -> None:
    assert run(["a" * 5000]) == 2
    said = capsys.readouterr().err
    assert "unknown command" in said
    assert len(said) < 500


@pytest.mark.parametrize("typed", [["tune"], ["recompute"], ["init"], ["tune", "j", "--space"]])
def test_a_name_that_no_file_can_have_is_told(
    typed: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture
) -> None:
    monkeypatch.chdir(tmp_path)
    job = "model: qwen2.5-0.5b\ndata: {rows: 7}\nhardware: {gpu: l4}\n"
    (tmp_path / "j").write_text(job, encoding="utf-8")
    assert run([*typed, "a" * 300]) == 2
    assert "File name too long" in capsys.readouterr().err


@pytest.mark.parametrize("here", sorted(set(WORDS.values())))
def test_what_is_said_for_a_word_of_another_program_can_be_typed(
    here: str, capsys: Capture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    (tmp_path / "rows.jsonl").write_text('{"text": "one row of some words"}\n' * 64)
    typed = here.replace("NAME", "l40s").replace("FILE", str(tmp_path / "rows.jsonl"))
    words = shlex.split(typed)
    line = ["estimate" if "--set" in here else "tune", "--model", "Qwen2.5-0.5B"]
    line += [] if "--data" in words else ["--rows", "2000"]
    line += [] if "--gpu" in words else ["--gpu", "l40s"]
    line += ["--dry-run"] if line[0] == "tune" else []
    assert run([*line, "--fidelity", "formula", *words, "-q"]) == 0, capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "here"),
    [
        ("--lora-rank 64", "--set method.rank=64"),
        ("--seq-len=2048", "--max-length 2048"),
        ("--gpus 4", "--gpu 4xNAME"),
        ("--batch-size x", "--set micro_batch_size=1"),
        ("--tokens 5", "--set data.lengths.mean=350 --rows 20k"),
        ("--lr 2e-4", "leave it out: it changes neither time nor memory"),
    ],
)
def test_an_option_of_another_program_is_told_with_the_number_that_was_typed(
    typed: str, here: str, capsys: Capture
) -> None:
    assert run(["tune", "--model", "Qwen2.5-0.5B", "--rows", "9", *typed.split()]) == 2
    assert f"\nhint: {here}\n" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("typed", "value"),
    [
        ("packing=true", "on"), ("gradient_checkpointing=true", "full"), ("compile=yes", "default"),
        ("gradient_checkpointing=False", "none"), ("compile=0", "off"), ("precision=BF16", "bf16"),
        ("sharding=zero-3", "zero3"), ("sharding=deepspeed_zero2", "zero2"),
    ],
)  # fmt: skip
def test_a_value_may_be_written_in_other_words(typed: str, value: str) -> None:
    name, _, text = typed.partition("=")
    assert knob(own_name(name)).parse(text) == value

"""The flags are an interface: adding or removing one changes this file on purpose."""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest
import typer.main

from autotune.cli.application import application, run

FORMAT = {"--format"}
QUIET = {"--quiet", "-q"}
VERBOSE = {"--verbose", "-v"}
LINE = {
    "--model", "--method", "--rows", "--data", "--max-length", "--epochs", "--global-batch",
    "--objective",
}  # fmt: skip
SOURCE = {"--from-args", "--variant", "--beside"}
CHANGES = {"--gpu", "--price", "--set", "--allow", "--as"}
LIMITS = {"--max-price", "--deadline", "--budget"}
FLAGS = {
    "tune": {
        "--space", "--minimize", "--score", "--fidelity", "--sampler", "--trials", "--seed",
        "--storage", "--run", "--resume", "--export", "--dry-run", "--probes", "--probe-budget",
        "--probe-on", "--trust-remote-code", "--in-place", "--workers", "--executor",
        "--ray-address", "--rendezvous", "--spot",
        *SOURCE, *LINE, *CHANGES, *LIMITS, *FORMAT, *QUIET, *VERBOSE,
    },
    "compare": {
        "--spot", "--space", "--minimize", "--fidelity",
        *SOURCE, *LINE, *CHANGES, *LIMITS, *FORMAT, *QUIET, *VERBOSE,
    },
    "estimate": {
        "--claim", "--fidelity", "--full-trace", "--trust-remote-code",
        *SOURCE, *LINE, *CHANGES, *FORMAT, *QUIET, *VERBOSE,
    },
    "recompute": {
        "--software", "--vary", "--space", "--minimize", "--fidelity", "--run", "--fail-on-change",
        "--beside", *LINE, *CHANGES, *LIMITS, *FORMAT, *QUIET, *VERBOSE,
    },
    "plan": {
        "--parallel", "--budget", "--deadline", "--hours", "--hours-per-day", "--barrier",
        "--share", "--mixed", "--gpu", "--price", "--minimize", "--space", "--fidelity", "--chart",
        *FORMAT,
        *QUIET, *VERBOSE,
    },
    "verify": {"--gpu", "--set", "--elapsed", "--next-runs", *LINE, *FORMAT, *QUIET, *VERBOSE},
    "learn": {"--gpu", "--export", "--dry-run", *FORMAT, *QUIET, *VERBOSE},
    "worker": {"--storage", "--study", *QUIET},
    "devices": FORMAT,
    "models": FORMAT,
    "prices": {"--provider", *FORMAT, *QUIET},
    "dataset": {"--model", "--tokenizer", "--column", "--max-length", "--out", *FORMAT, *QUIET},
    "init": {"--out", "--model", "--data", *QUIET},
    "validate": {"--data", "--fidelity", *FORMAT, *QUIET},
    "calibrate": {"--out", *FORMAT, *QUIET},
    "runs": FORMAT,
    "report": {*FORMAT, *QUIET, *VERBOSE},
    "export": {"--to", *QUIET},
    "doctor": {"--folder", "--out", "--measure", "--job", *FORMAT},
    "help": set(),
}  # fmt: skip


def _flags(command: object) -> set[str]:
    parameters = getattr(command, "params", [])
    return {
        flag
        for parameter in parameters
        for flag in (*parameter.opts, *parameter.secondary_opts)
        if flag.startswith("-")
    } - {"--help", "-h"}


def test_the_commands_are_these() -> None:
    assert set(getattr(typer.main.get_command(application()), "commands")) == set(FLAGS)  # noqa: B009 - typed away


@pytest.mark.parametrize("name", FLAGS)
def test_the_flags_of_a_command_are_these(name: str) -> None:
    commands = getattr(typer.main.get_command(application()), "commands")  # noqa: B009 - typed away
    assert _flags(commands[name]) == FLAGS[name]


@pytest.mark.parametrize("name", FLAGS)
def test_every_flag_says_what_it_does(name: str) -> None:
    commands = getattr(typer.main.get_command(application()), "commands")  # noqa: B009 - typed away
    undocumented = [p.name for p in commands[name].params if not getattr(p, "help", "")]
    assert undocumented == []
    assert commands[name].help


@pytest.mark.parametrize("flag", sorted(LINE | CHANGES | LIMITS | SOURCE))
def test_an_option_of_a_job_says_the_same_in_every_command(flag: str) -> None:
    commands = getattr(typer.main.get_command(application()), "commands")  # noqa: B009 - typed away
    other = {("verify", "--gpu")}  # there it is where the log was made
    texts = {
        getattr(parameter, "help", "")
        for name in ("tune", "estimate", "compare", "recompute", "verify")
        for parameter in commands[name].params
        if flag in parameter.opts and (name, flag) not in other
    }
    assert len(texts) == 1


def test_the_help_of_export_names_every_format() -> None:
    from autotune.cli.commands.tune import EXPORT_HELP
    from autotune.trainers.registry import FORMATS

    assert all(f"{name}," in EXPORT_HELP for name in FORMATS)


def _examples() -> list[str]:
    """What every command's help gives as an example."""
    commands = getattr(typer.main.get_command(application()), "commands")  # noqa: B009 - typed away
    parts = (
        " ".join(command.help.split()).split("For example: ")[1:] for command in commands.values()
    )
    told = (example for part in parts for text in part for example in _SEVERAL.split(text))
    return [example.removesuffix(".") for example in told]


_SEVERAL = re.compile(r", or(?: in one line)?: ")


def test_the_commands_that_take_a_job_have_an_example() -> None:
    named = {shlex.split(example)[1] for example in _examples()}
    assert named >= {"tune", "estimate", "compare", "recompute", "verify", "plan"}


@pytest.mark.parametrize("example", _examples())
def test_the_examples_of_the_help_can_be_typed(example: str) -> None:
    program, name, *argv = shlex.split(example)
    commands = getattr(typer.main.get_command(application()), "commands")  # noqa: B009 - typed away
    assert program == "autotune"
    assert commands[name].make_context(name, argv).params


@pytest.mark.parametrize(
    "example", [text for text in _examples() if text.split()[1] in {"tune", "estimate", "compare"}]
)
def test_the_examples_that_need_nothing_else_give_an_answer(
    example: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    shutil.copy(Path(__file__).parents[2] / "jobs" / "h100_38h.yaml", tmp_path / "job.yaml")
    _, name, *argv = shlex.split(example)
    more = ["--dry-run"] if name == "tune" else []
    assert run([name, *argv, *more, "--fidelity", "formula", "-q"]) in {0, 4}

"""action.yml and the pre-commit hook: their own commands, run as the runner runs them."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from commandline import ROOT, typed
from ruamel.yaml import YAML

if TYPE_CHECKING:
    from collections.abc import Callable

ACTION: dict[str, Any] = YAML(typ="safe").load(ROOT / "action.yml")
STEPS = {step.get("name"): step for step in ACTION["runs"]["steps"]}


@pytest.fixture
def programs(tmp_path: Path) -> Path:
    """`autotune` of this checkout, and a `gh` that notes what it was told."""
    folder = tmp_path / "bin"
    folder.mkdir()
    python = shlex.quote(sys.executable)
    for name, line in {
        "autotune": f'exec {python} -m autotune "$@"',
        "gh": 'echo "$@" >> "$HOME/gh"; [ "$1 $2" = "pr comment" ] && [ "$6" != "--edit-last" ]',
    }.items():
        (folder / name).write_text(f"#!/bin/sh\n{line}\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture
def step(tmp_path: Path, programs: Path) -> Callable[..., tuple[int, dict[str, str]]]:
    """Runs a step's script as a runner does: with -e, in a checkout, outputs by file."""

    def run(name: str, **environment: str) -> tuple[int, dict[str, str]]:
        out = tmp_path / "output"
        out.write_text("")
        done = subprocess.run(
            ["bash", "-eo", "pipefail", "-c", STEPS[name]["run"]], check=False, cwd=tmp_path,
            env={
                "PATH": f"{programs}:{os.environ['PATH']}", "PYTHONPATH": str(ROOT),
                "HOME": str(tmp_path), "AUTOTUNE_HOME": str(tmp_path / "home"),
                "AUTOTUNE_OFFLINE": "1", "RUNNER_TEMP": str(tmp_path), "GITHUB_OUTPUT": str(out),
                "GITHUB_STEP_SUMMARY": str(tmp_path / "summary"), **environment,
            },
        )  # fmt: skip
        lines = (line.partition("=") for line in out.read_text().splitlines())
        return done.returncode, {key: value for key, _, value in lines}

    return run


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    """A run folder that is in the repository."""
    folder = tmp_path / "pick"
    done = typed("tune", "jobs/h100_38h.yaml", "--run", str(folder), home=tmp_path)
    assert done.returncode == 4, done.stderr
    return folder


def test_the_same_answer_is_no_change(kept: Path, step: Any, tmp_path: Path) -> None:
    code, told = step("recompute", JOB=str(kept), ARGUMENTS="", REFRESH="false")
    assert (code, told["changed"]) == (0, "false")
    assert "h100" in (tmp_path / "summary").read_text()


def test_another_answer_is_a_change_and_its_report_is_told(
    kept: Path, step: Any, tmp_path: Path
) -> None:
    code, told = step("recompute", JOB=str(kept), ARGUMENTS="--gpu l4", REFRESH="false")
    assert (code, told["changed"]) == (0, "true")
    assert Path(told["report"]).read_text() == (tmp_path / "summary").read_text()
    assert step("comment", REPORT=told["report"], NUMBER="7")[0] == 0
    asked = (tmp_path / "gh").read_text().splitlines()
    assert asked[0].endswith("--edit-last")  # its own earlier comment, and else a new one
    assert asked[1] == f"pr comment 7 --body-file {told['report']}"
    assert step("fail")[0] == 6


def test_a_mistake_fails_the_step(step: Any) -> None:
    assert step("recompute", JOB="nowhere", ARGUMENTS="", REFRESH="false")[0] == 2


def test_the_hook_stops_what_does_not_fit(tmp_path: Path, programs: Path) -> None:
    (hook,) = YAML(typ="safe").load(ROOT / ".pre-commit-hooks.yaml")
    words = shlex.split(hook["entry"])[1:]
    job = "jobs/h100_38h.yaml"
    assert programs
    assert typed(*words, job, home=tmp_path).returncode == 0
    assert typed(*words, job, "--gpu", "t4", home=tmp_path).returncode == 3
    assert typed(*words, job, "--gpu", "h10", home=tmp_path).returncode == 2

"""Commands as people type them: relative paths, default folders, other folders, odd names."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_job
from autotune.app.runs.folder import runs_root
from autotune.catalog.files import home_dir
from autotune.cli.application import run
from autotune.domain.errors import InputError
from autotune.domain.paths import near, whole
from autotune.evidence.runs_seen import store_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from commandline import Done

    Typed = Callable[..., Done]

FEW = ("--set", "precision=fp32", "--set", "compile=off", "--set", "attention=sdpa")


@pytest.mark.usefixtures("fake_probes")
def test_probes_run_in_a_relative_folder(here: Path, typed: Typed) -> None:
    """In the folder that nobody named they run in the walk (tests/walk)."""
    for module in ("torch", "transformers", "peft"):
        pytest.importorskip(module)
    command = ("tune", "jobs/tiny_cpu.yaml", "--score", "probe", "--probes", "1", *FEW)
    done = typed(*command, "--run", "out/mein Lauf", "--format", "json")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["best"]["basis"] == "measured"
    folder = Path(answer["run_dir"])
    assert folder.is_absolute()
    assert folder == here / "out" / "mein Lauf"
    lines = (folder / "probes.jsonl").read_text().splitlines()
    statuses = [json.loads(line)["status"] for line in lines]
    assert set(statuses) == {"ok"}


def test_homes_and_run_folders_are_whole_paths_wherever_they_were_typed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("AUTOTUNE_HOME", "my home")
    monkeypatch.setenv("AUTOTUNE_RUNS", "../runs")
    assert home_dir() == tmp_path / "my home"
    assert runs_root() == tmp_path.parent / "runs"
    monkeypatch.delenv("AUTOTUNE_RUNS")
    assert runs_root() == tmp_path / "runs"
    assert near(runs_root() / "a") == "runs/a"
    assert near("/elsewhere") == "/elsewhere"


def test_a_path_through_a_link_means_what_the_file_system_means(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "far" / "deep").mkdir(parents=True)
    (tmp_path / "far" / "file").write_text("the right one")
    (tmp_path / "file").write_text("the wrong one")
    (tmp_path / "link").symlink_to(tmp_path / "far" / "deep")
    monkeypatch.chdir(tmp_path)
    assert whole("link/../file").read_text() == "the right one"
    assert whole("link") == tmp_path / "link"
    with pytest.raises(InputError, match="null character"):
        whole("a\0b")


def test_a_run_folder_stands_for_its_job_and_with_resume_for_the_run_itself(
    typed: Typed, here: Path
) -> None:
    made = ("--fidelity", "formula", "--trials", "5", "--quiet")
    asked = ("--set", "train.epochs=3", "--minimize", "time")
    assert typed("tune", "jobs/tiny_cpu.yaml", *asked, "--run", "out/one", *made).returncode == 0
    (here / "out" / "one" / "recommendation.json").unlink()
    shutil.move(here / "jobs" / "tiny_cpu.yaml", here / "moved.yaml")
    done = typed("tune", "--resume", "out/one", *made)
    assert done.returncode == 0, done.stderr
    answer = json.loads((here / "out" / "one" / "recommendation.json").read_text())
    assert answer["job"]["epochs"] == 3
    assert answer["search"]["objective"] == "time"
    trials = (here / "out" / "one" / "trials.jsonl").read_text().splitlines()
    assert f"{len(trials)} finished trials were taken over" in " ".join(answer["warnings"])
    assert [path.name for path in (here / "out").iterdir()] == ["one"]
    again = typed("tune", "--run", "out/one", "--resume", *made)
    assert again.returncode == 0, again.stderr
    assert (
        json.loads((here / "out" / "one" / "recommendation.json").read_text())["job"]
        == (answer["job"])
    )
    anew = typed("tune", "out/one", "--run", "out/two", *made)
    assert anew.returncode == 0, anew.stderr
    assert typed("estimate", "out/one", "--format", "json").returncode == 0
    wrong = typed("tune", "out/one", "--resume", "--run", "out/two", *made)
    assert wrong.returncode == 2
    assert "--resume goes on with out/one, and --run names out/two" in wrong.stderr


def test_one_model_is_one_model_however_its_path_was_typed(
    here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    monkeypatch.setenv("AUTOTUNE_HOME", str(here / "home"))
    typed_as = (
        "data/tiny_model",
        "./data/tiny_model/config.json",
        str(here / "jobs/data/tiny_model"),
    )
    jobs = [load_job("jobs/tiny_cpu.yaml", set_values={"model": name}) for name in typed_as]
    monkeypatch.chdir(here / "jobs")
    jobs.append(load_job("tiny_cpu.yaml"))
    shutil.move(here / "jobs", here / "moved")
    jobs.append(load_job(here / "moved" / "tiny_cpu.yaml"))
    assert len({store_of(job) for job in jobs}) == 1
    assert len({job.model.fingerprint for job in jobs}) == 1
    other = here / "moved" / "data" / "tiny_model" / "config.json"
    other.write_text(other.read_text().replace('"num_hidden_layers": 2', '"num_hidden_layers": 3'))
    changed = load_job(here / "moved" / "tiny_cpu.yaml")
    assert changed.model.num_layers == 3
    assert store_of(changed) != store_of(jobs[0])


def test_a_folder_whose_name_is_no_text_is_refused_before_anything_is_written(
    here: Path, typed: Typed
) -> None:
    odd = here / os.fsdecode(b"caf\xe9")
    odd.mkdir()
    shutil.copytree(here / "jobs", odd / "jobs")
    (here / "to").mkdir()
    for command in (
        ("tune", f"{odd.name}/jobs/tiny_cpu.yaml", "--run", "to/one"),
        ("tune", "jobs/tiny_cpu.yaml", "--run", f"{odd.name}/run"),
    ):
        done = typed(*command)
        assert done.returncode == 2, done.stderr
        assert "caf\\udce9" in done.stderr
        assert "is not UTF-8" in done.stderr
        assert "LC_ALL=C.UTF-8" in done.stderr
    assert not list((here / "to").iterdir())
    assert not (odd / "run").exists()
    assert typed("tune", f"{odd.name}/jobs/tiny_cpu.yaml", "--dry-run").returncode == 0


def test_a_shell_whose_folder_was_deleted_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    assert run(["tune", "job.yaml"]) == 2
    assert "the folder that this shell is in was deleted" in capsys.readouterr().err

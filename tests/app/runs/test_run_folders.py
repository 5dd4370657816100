"""Run folders as they are found: files, other versions, damage, a process that died in them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rights import of_an_ordinary_user

from autotune.app.job.load import load_job
from autotune.app.recompute.recompute import RecomputeOptions, recompute
from autotune.app.runs.export import export_run
from autotune.app.runs.find import last_answered, list_runs
from autotune.app.runs.folder import load_record, load_run_job
from autotune.app.runs.ownership import new_run_dir
from autotune.app.tune.tune import Options, tune
from autotune.app.verify.verify import verify
from autotune.domain.errors import InputError
from autotune.evidence.log.read import read_log
from autotune.report.recorded import recorded_payload

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.job import Job

pytestmark = pytest.mark.usefixtures("home")

ROOT = Path(__file__).parents[3]
LITTLE = Options(fidelity="formula", trials=3)


@pytest.fixture(scope="session")
def job() -> Job:
    return load_job(ROOT / "jobs" / "rtx4090_qwen2_05b.yaml")


@pytest.fixture(scope="session")
def template(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("template") / "run"
    tune(job, Options(run_dir=folder, fidelity="formula", trials=3))
    return folder


@pytest.fixture
def run(template: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(template, tmp_path / "runs" / "one"))


READERS: dict[str, Callable[[Path], Any]] = {
    "job": load_run_job,
    "export": lambda run: export_run(run, "trl"),
    "recompute": lambda run: recompute(run, RecomputeOptions(fidelity="formula")),
    "verify": lambda run: verify(run, run),
    "resume": lambda run: tune(
        load_job(ROOT / "jobs" / "rtx4090_qwen2_05b.yaml"),
        Options(run_dir=run, resume=True, fidelity="formula", trials=3),
    ),
}


def test_a_run_folder_that_is_a_file_is_named_as_one(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_text("mine")
    for read in READERS.values():
        with pytest.raises(InputError, match=r"file"):
            read(path)
    with pytest.raises(InputError, match=r"is a file, and a run needs a folder"):
        tune(job, Options(run_dir=path, fidelity="formula"))
    assert path.read_text() == "mine"


def test_an_export_of_another_trainer_leaves_the_runs_own_run_sh(run: Path) -> None:
    own = (run / "run.sh").read_text()
    assert "train.py" in own
    paths, _ = export_run(run, "axolotl")
    assert {path.parent for path in paths} == {(run / "axolotl").resolve()}
    assert "axolotl train" in (run / "axolotl" / "run.sh").read_text()
    again, _ = export_run(run, "hf")
    assert {path.parent for path in again} == {run.resolve()}
    assert (run / "run.sh").read_text() == own


def test_the_log_of_an_export_is_found_in_its_run(run: Path) -> None:
    export_run(run, "trl")
    state = run / "trl" / "output" / "trainer_state.json"
    state.parent.mkdir()
    shutil.copy(
        ROOT / "tests" / "learn" / "fixtures" / "llamafactory" / "trainer_state.json", state
    )
    assert read_log(run) == read_log(state)


def test_a_folder_of_another_version_is_refused_in_words(run: Path) -> None:
    record = json.loads((run / "job.json").read_text())
    (run / "job.json").write_text(json.dumps(record | {"schema_version": 99}))
    for name in ("job", "export", "recompute", "verify"):
        with pytest.raises(InputError, match="schema version 99, not 1"):
            READERS[name](run)


def test_a_run_of_an_earlier_version_is_not_called_another_job_and_what_to_do_is_said(
    run: Path,
) -> None:
    record = json.loads((run / "job.json").read_text())
    (run / "job.json").write_text(json.dumps(record | {"job_key": "0123456789abcdef"}))
    with pytest.raises(InputError, match="a run of an earlier version") as error:
        READERS["resume"](run)
    assert "autotune recompute" in str(error.value.hint)


def test_an_unreadable_folder_is_refused_in_words(run: Path) -> None:
    run.chmod(0)
    try:
        with of_an_ordinary_user():
            for read in READERS.values():
                with pytest.raises(InputError, match="Permission denied"):
                    read(run)
            (found,) = list_runs()
        assert (found.state, found.summary) == ("damaged", "cannot be read: Permission denied")
    finally:
        run.chmod(0o755)


DAMAGE = st.one_of(
    st.binary(max_size=40),
    st.sampled_from(
        [
            b"",
            b"[]",
            b"null",
            b"7",
            b"{}",
            b"[" * 100_000,
            b"1" * 5000,
            b'{"job_key": 1',
            b"\xff\xfe",
        ]
    ),
)


@pytest.mark.parametrize("name", ["job.json", "recommendation.json"])
@given(content=DAMAGE)
@settings(
    max_examples=12, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_a_damaged_file_is_an_error_in_words_for_every_reader(
    name: str, content: bytes, template: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    run = Path(shutil.copytree(template, tmp_path_factory.mktemp("runs") / "one"))
    (run / name).write_bytes(content)
    for reader in ("export", "recompute", "verify"):
        with pytest.raises(InputError):
            READERS[reader](run)
    (found,) = list_runs(run.parent)
    assert found.state == "damaged"
    with pytest.raises(InputError):
        last_answered(run.parent)


def test_values_of_the_wrong_kind_in_a_record_are_errors_in_words(run: Path) -> None:
    record = json.loads((run / "job.json").read_text())
    wrong: list[dict[str, Any]] = [
        {"spec": value} for value in (5, None, {"nonsense": [1]}, record["spec"] | {"data": 3})
    ]
    wrong += [{"base_dir": 7}, {"base_dir": None}]
    for changes in (*wrong, {"spec": record["spec"] | {"hardware": {"gpu": []}}}):
        (run / "job.json").write_text(json.dumps(record | changes))
        with pytest.raises(InputError):
            load_run_job(run)
    (run / "job.json").write_text(json.dumps(record | {"question": {"a": 1}, "name": [1]}))
    assert load_record(run).question == ()
    answer = json.loads((run / "recommendation.json").read_text())
    for best in (7, [], {}, {"duration_s": None}, {"duration_s": {"p50": "x"}}):
        (run / "recommendation.json").write_text(json.dumps(answer | {"best": best}))
        with pytest.raises(InputError):
            recorded_payload(json.loads((run / "recommendation.json").read_text()), str(run))
        assert [found.state for found in list_runs()] == ["damaged"]


def test_of_two_runs_of_one_second_the_later_is_the_last(template: Path, tmp_path: Path) -> None:
    for name, begun_ns in (("zebra", 10**18), ("ant", 10**18 + 10**6)):
        run = Path(shutil.copytree(template, tmp_path / name))
        os.utime(run / "job.json", ns=(begun_ns, begun_ns))
    assert last_answered(tmp_path).name == "ant"


def test_a_pipe_in_the_place_of_a_record_is_not_waited_for(run: Path) -> None:
    (run / "job.json").unlink()
    os.mkfifo(run / "job.json")
    with pytest.raises(InputError, match="not a regular file"):
        load_run_job(run)
    assert list_runs() == []


def test_a_folder_in_which_a_process_died_before_it_wrote_the_job_is_used_again(
    job: Job, tmp_path: Path
) -> None:
    for left in ((), (".job.json.4711",), (".job.json.abc", ".recommendation.json.x1")):
        folder = tmp_path / f"run{len(left)}"
        folder.mkdir()
        for name in left:
            (folder / name).write_text('{"schema_ver')
        assert tune(job, Options(run_dir=folder, fidelity="formula", trials=3)).run_dir == str(
            folder
        )
        assert list_runs(tmp_path)[0].answered
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("x")
    with pytest.raises(InputError, match="exists and is not a run folder"):
        tune(job, Options(run_dir=mine, fidelity="formula"))
    assert (mine / "thesis.tex").read_text() == "x"


def test_runs_begun_at_the_same_moment_get_a_folder_each(job: Job) -> None:
    from datetime import UTC, datetime

    now, found = datetime(2026, 1, 1, tzinfo=UTC), []
    threads = [
        threading.Thread(target=lambda: found.append(new_run_dir(job, now))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(set(found)) == len(found) == 8


def test_of_processes_that_start_in_one_folder_one_answers_and_the_others_say_why(
    tmp_path: Path,
) -> None:
    command = [
        sys.executable, "-m", "autotune", "tune", str(ROOT / "jobs" / "rtx4090_qwen2_05b.yaml"),
        "--fidelity", "formula", "--run", "same", "--quiet",
    ]  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    started = [
        subprocess.Popen(
            command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE
        )
        for _ in range(3)
    ]
    ends = [
        (process.communicate(timeout=900)[1].decode(), process.returncode) for process in started
    ]
    assert min(code for _, code in ends) == 0, ends
    for said, code in ends:
        assert code in {0, 2}, said
        assert "Traceback" not in said
    assert (tmp_path / "same" / "recommendation.json").is_file()


def test_a_moved_folder_resumes_and_its_space_file_counts_by_what_it_holds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tmp_path / "project"
    shutil.copytree(ROOT / "jobs" / "data", here / "data")
    shutil.copy(ROOT / "jobs" / "tiny_cpu.yaml", here)
    (here / "space.yaml").write_text("knobs: {num_dataloader_workers: [0, 1]}\n")
    monkeypatch.chdir(here)
    options: dict[str, Any] = {"space": "space.yaml", "fidelity": "formula", "trials": 3}
    tune(load_job("tiny_cpu.yaml"), Options(run_dir=Path("run"), **options))
    assert json.loads((here / "run" / "job.json").read_text())["question"][0] == str(
        here / "space.yaml"
    )
    monkeypatch.chdir(tmp_path)
    again = recompute(Path("project/run"), RecomputeOptions(fidelity="formula"))
    assert again.parts
    shutil.move(here, tmp_path / "moved")
    options["space"] = "moved/space.yaml"
    job = load_job("moved/tiny_cpu.yaml")
    found = tune(job, Options(run_dir=Path("moved/run"), resume=True, **options))
    assert found.run_dir == str(tmp_path / "moved" / "run")
    (tmp_path / "moved" / "space.yaml").write_text("knobs: {num_dataloader_workers: [0, 2]}\n")
    with pytest.raises(InputError, match="holds another job"):
        tune(job, Options(run_dir=Path("moved/run"), resume=True, **options))


def test_a_run_goes_on_with_its_own_sampler_and_seed_unless_others_are_stated(
    job: Job, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    nobody_stated = frozenset({"sampler", "seed"})
    asked = replace(LITTLE, run_dir=folder, trials=4)

    def proposed(run_dir: Path) -> list[dict[str, Any]]:
        lines = (run_dir / "trials.jsonl").read_text(encoding="utf-8").splitlines()
        return [json.loads(line)["params"] for line in lines]

    def gone_on(**changes: Any) -> tuple[str, ...]:
        return tune(job, replace(asked, resume=True, trials=8, **changes)).warnings

    tune(job, replace(asked, sampler="random", seed=7))
    assert not any("from here on" in note for note in gone_on(usual=nobody_stated))
    whole = replace(LITTLE, run_dir=tmp_path / "whole", trials=8, sampler="random", seed=7)
    tune(job, whole)
    assert proposed(folder) == proposed(tmp_path / "whole")
    said = gone_on(sampler="tpe", usual=frozenset({"seed"}))
    assert "--sampler tpe from here on; before it was random" in said
    assert load_record(folder).proposed_by == {"sampler": "tpe", "seed": 7}
    gone_on()
    assert load_record(folder).proposed_by == {"sampler": "calibrated", "seed": 0}
    assert "proposed_by" not in json.loads((folder / "job.json").read_text(encoding="utf-8"))

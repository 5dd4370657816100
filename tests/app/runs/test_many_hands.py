"""Processes that start at once: each has its own folder, and nobody loses what another learned."""

from __future__ import annotations

import errno
import json
import multiprocessing
import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.job.load import load_job
from autotune.app.runs.find import list_runs
from autotune.app.runs.ownership import new_run_dir, working_in
from autotune.app.tune.priced import asked_of, price
from autotune.app.tune.tune import Options, tune
from autotune.catalog.files import SCRATCH
from autotune.catalog.locks import LOCK_FILE, is_held, take
from autotune.domain.device import Fact, MachineFacts
from autotune.domain.errors import InputError
from autotune.domain.observation import Observation
from autotune.evidence import runs_seen
from autotune.probe.device import cpu
from autotune.probe.machine import kept

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from autotune.domain.job import Job

ROOT = Path(__file__).parents[3]
LITTLE: dict[str, Any] = {"fidelity": "formula", "trials": 3}
PROCESSES, EACH = 8, 5

pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes"),
]


@pytest.fixture(scope="module")
def job() -> Job:
    return load_job(ROOT / "jobs" / "rtx4090_qwen2_05b.yaml")


@pytest.fixture(autouse=True)
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AUTOTUNE_RUNS", str(tmp_path / "runs"))
    return tmp_path / "runs"


def at_once(work: Callable[[int], str], count: int = PROCESSES) -> list[str]:
    """What each of several processes says that begin at the same moment."""
    context: Any = multiprocessing.get_context("fork")
    gate, answers = context.Barrier(count), context.SimpleQueue()

    def run(number: int) -> None:
        gate.wait()
        try:
            answers.put(work(number))
        except InputError as error:
            answers.put(f"refused: {error.message}")
        except BaseException as error:  # noqa: BLE001 - told by the parent
            answers.put(f"broke: {error!r}")

    processes = [context.Process(target=run, args=(number,)) for number in range(count)]
    for process in processes:
        process.start()
    said = [answers.get() for _ in processes]
    for process in processes:
        process.join()
    return said


def test_of_eight_that_start_in_one_folder_one_answers_and_nothing_of_it_is_lost(
    job: Job, root: Path
) -> None:
    folder = root / "same"
    said = at_once(lambda _: str(tune(job, Options(run_dir=folder, **LITTLE)).run_dir))
    assert said.count(str(folder)) == 1, said
    others = [text for text in said if text != str(folder)]
    assert all(text.startswith("refused: ") for text in others), others
    assert all("in use by" in text or "holds" in text for text in others), others
    assert [run.state for run in list_runs(root)] == ["answered"]
    assert not (folder / LOCK_FILE).exists()


def test_a_run_that_begins_while_its_folder_is_looked_at_is_no_strangers_folder(
    job: Job, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = Path(str(tune(job, Options(run_dir=root / "first", **LITTLE)).run_dir))
    folder, listed = root / "same", Path.iterdir
    folder.mkdir()

    def begun_meanwhile(path: Path) -> Iterator[Path]:
        if path == folder:
            shutil.copy(first / "job.json", folder)
        return listed(path)

    monkeypatch.setattr(Path, "iterdir", begun_meanwhile)
    assert tune(job, Options(run_dir=folder, **LITTLE)).run_dir == str(folder)


def test_of_eight_that_name_no_folder_each_answers_in_its_own(job: Job, root: Path) -> None:
    said = at_once(lambda _: str(tune(job, Options(**LITTLE)).run_dir))
    assert sorted(said) == sorted(str(run.path) for run in list_runs(root))
    assert len(set(said)) == PROCESSES
    assert all(run.answered for run in list_runs(root))


def test_a_folder_of_ours_without_a_job_is_taken_away_unless_somebody_works_in_it(
    job: Job, root: Path
) -> None:
    unborn, empty = new_run_dir(job), new_run_dir(job)
    (unborn / LOCK_FILE).touch()
    (unborn / f".job.json.x{SCRATCH}").write_text("{")
    mine = root / "20260101-101010-mine"
    mine.mkdir()
    (mine / "thesis.tex").write_text("x")
    stranger = new_run_dir(job)
    lock = take(stranger / LOCK_FILE)
    assert lock is not None
    with lock:
        mine_now = Path(str(tune(job, Options(**LITTLE)).run_dir))
    assert set(root.iterdir()) == {mine, stranger, mine_now}
    assert empty.exists() == (empty == mine_now)
    assert (mine / "thesis.tex").exists()


def test_a_folder_is_locked_from_before_its_first_file_to_after_its_last(
    job: Job, root: Path
) -> None:
    options = Options(**LITTLE)
    asked = asked_of(price(job, options.space, lambda _: None), options)
    folder = root / "run"
    with working_in(asked, folder, resume=False):
        assert is_held(folder / LOCK_FILE)
        assert list_runs(root)[0].state == "running"
        with (
            pytest.raises(InputError, match="in use by another process"),
            working_in(asked, folder, resume=True),
        ):
            pytest.fail("two processes in one folder")
        assert is_held(folder / LOCK_FILE), "whoever was refused takes nothing away"
        assert (folder / "job.json").exists()


@pytest.mark.parametrize("name", [None, "trials.jsonl"])
def test_a_disk_that_fills_up_is_named_with_what_to_do_and_nothing_is_discarded(
    job: Job, root: Path, name: str | None
) -> None:
    options = Options(**LITTLE)
    asked = asked_of(price(job, options.space, lambda _: None), options)
    folder = root / "run"
    place = name and str(folder / name)
    with (
        pytest.raises(InputError, match="the disk is full") as refused,
        working_in(asked, folder, resume=False),
    ):
        raise OSError(errno.ENOSPC, "No space left on device", place)
    assert refused.value.message.endswith("trials.jsonl" if name else "full")
    assert "--resume" in str(refused.value.hint)
    assert json.loads((folder / "failure.json").read_text())["message"] == refused.value.message
    with working_in(asked, folder, resume=True):
        pass


def test_whoever_is_refused_discards_only_a_folder_of_its_own(job: Job, root: Path) -> None:
    options = Options(**LITTLE)
    asked = asked_of(price(job, options.space, lambda _: None), options)

    def refused(folder: Path) -> None:
        with pytest.raises(InputError, match="no folder"), working_in(asked, folder, resume=False):
            load_job(root / "no folder")

    refused(root / "new")
    assert not (root / "new").exists()
    with working_in(asked, root / "older", resume=False):
        pass
    refused(root / "older")
    assert json.loads((root / "older" / "failure.json").read_text())["message"]


def seen(number: int) -> tuple[Observation, ...]:
    return (Observation(str(number), "step_time_s", 1.0 + number, "a test", None, {}, {}),)


def kept_of(job: Job) -> list[float]:
    known = runs_seen.with_verified(job).evidence
    return [each.value for each in known if each.provenance == "a test"]


def test_what_forty_runs_taught_eight_processes_at_once_is_all_kept(job: Job) -> None:
    def keep(number: int) -> str:
        for each in range(EACH):
            runs_seen.remember(job, f"{number}-{each}", seen(number * EACH + each))
        return "kept"

    assert at_once(keep) == ["kept"] * PROCESSES
    assert len(kept_of(job)) == PROCESSES * EACH


def test_forty_facts_that_eight_processes_measured_at_once_are_all_kept() -> None:
    def keep(number: int) -> str:
        for each in range(EACH):
            side = 1 + number * EACH + each
            fact = Fact("matmul", 1e9, 0.02, 1, "fp32", (side, side, side))
            kept.remember(cpu(), MachineFacts((fact,), "2026-11-20", (), 1, ""))
        return "kept"

    assert at_once(keep) == ["kept"] * PROCESSES
    known, damage = kept.read(kept.store_of(cpu()))
    assert (len(known.facts), damage) == (PROCESSES * EACH, "")


def test_a_damaged_file_of_verified_runs_is_kept_beside_the_new_one_and_said(
    job: Job,
) -> None:
    path, note = runs_seen.remember(job, "first", seen(1))
    assert note == ""
    path.write_text(path.read_text()[:-40])
    _, note = runs_seen.remember(job, "second", seen(2))
    assert "was damaged" in note
    assert len(list(path.parent.glob(f"{path.name}.damaged-*"))) == 1
    assert kept_of(job) == [3.0]


def test_one_damaged_training_of_a_store_costs_no_other(job: Job) -> None:
    path, _ = runs_seen.remember(job, "first", seen(1))
    runs_seen.remember(job, "second", seen(2))
    content = json.loads(path.read_text())
    content["runs"][0]["observations"][0]["value"] = "fast"
    path.write_text(json.dumps(content))
    told = runs_seen.with_verified(job).assumed
    assert any("1 of 2 runs cannot be read" in str(assumed.why) for assumed in told)
    assert kept_of(job) == [3.0]
    path.write_text(path.read_text()[:-2])  # and its end is torn off
    _, note = runs_seen.remember(job, "third", seen(3))
    assert "1 of 2 runs cannot be read" in note
    assert "the 1 that can be read are used on" in note
    assert kept_of(job) == [3.0, 4.0]
    assert len(list(path.parent.glob(f"{path.name}.damaged-*"))) == 1

from __future__ import annotations

import json
import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import optuna
import pytest

from autotune.domain.errors import InputError
from autotune.domain.job import Limits
from autotune.search.alternatives import neighbours, pareto_front
from autotune.search.selection import best_index
from autotune.search.study import journal as journals
from autotune.search.study import samplers
from autotune.search.study.calibrated import CalibratedSampler
from autotune.search.study.journal import JOURNAL_FILE
from autotune.search.study.record import TrialLog, TrialRecord
from autotune.search.study.storage import finished_trial, open_study, quiet
from autotune.search.study.study import Search, explore

if TYPE_CHECKING:
    from autotune.cost.bill import Bill
    from autotune.domain.job import Job

OPEN = Limits(0.08, 1800.0)
STOCK = ["tpe", "nsga2", "random"]


def lines(folder: Path) -> list[dict[str, Any]]:
    text = (folder / "trials.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


def journal(folder: Path) -> optuna.Study:
    backend = optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL_FILE))
    with quiet():
        storage = optuna.storages.JournalStorage(backend)
    return optuna.load_study(study_name="autotune", storage=storage)


def test_the_calibrated_order_is_optimum_then_runner_ups_front_and_neighbours(
    small_bill: Bill,
) -> None:
    found = explore(small_bill, trials=40)
    selection = best_index(small_bill, "cost", OPEN)
    assert found.tried[0] == selection.optimum
    assert found.best == selection.optimum
    assert selection.runner_up in found.tried[:3]
    assert set(pareto_front(small_bill)) <= set(found.tried)
    assert selection.index is not None
    assert {n.index for n in neighbours(small_bill, selection.index)} <= set(found.tried)
    assert len(set(found.tried)) == found.trials == 40


@pytest.mark.parametrize("sampler", ["calibrated", *STOCK])
def test_the_same_seed_gives_the_same_trials(tight_bill: Bill, sampler: str) -> None:
    first = explore(tight_bill, sampler=sampler, trials=15, seed=7)
    again = explore(tight_bill, sampler=sampler, trials=15, seed=7)
    assert first.records == again.records
    if sampler != "calibrated":
        other = explore(tight_bill, sampler=sampler, trials=15, seed=8)
        assert first.tried != other.tried


@pytest.mark.parametrize("sampler", ["calibrated", *STOCK])
def test_a_resumed_search_goes_on_as_if_never_stopped(
    small_bill: Bill, tmp_path: Path, sampler: str
) -> None:
    whole = explore(small_bill, sampler=sampler, trials=30, seed=3)
    explore(small_bill, sampler=sampler, trials=12, seed=3, run_dir=tmp_path, job_key="a")
    before = lines(tmp_path)
    resumed = explore(
        small_bill, sampler=sampler, trials=30, seed=3, run_dir=tmp_path, job_key="a", resume=True
    )
    assert resumed.resumed == len(before) >= 12
    assert lines(tmp_path)[: len(before)] == before
    assert [r.params for r in resumed.records] == [r.params for r in whole.records]
    assert resumed.best == whole.best


@pytest.mark.parametrize("seed", range(3))
def test_tpe_comes_within_five_percent_of_the_optimum_in_a_hundred_trials(
    tight_bill: Bill, seed: int
) -> None:
    optimum = best_index(tight_bill, "cost", OPEN).optimum
    assert optimum is not None
    found = explore(tight_bill, sampler="tpe", trials=100, seed=seed)
    assert found.trials <= 100
    assert found.best is not None
    assert tight_bill.cost_usd[found.best] <= 1.05 * tight_bill.cost_usd[optimum]


def test_infeasible_candidates_are_complete_trials_with_a_constraint(
    tight_bill: Bill, tmp_path: Path
) -> None:
    explore(tight_bill, sampler="random", trials=60, run_dir=tmp_path)
    trials = journal(tmp_path).trials
    assert all(trial.state == optuna.trial.TrialState.COMPLETE for trial in trials)
    missing = [trial for trial in trials if not trial.user_attrs["fits"]]
    assert missing, "the job must have candidates that do not fit"
    for trial in trials:
        fits = all(value <= 0 for value in trial.constraints.values())
        assert trial.user_attrs["fits"] is fits
        assert set(trial.constraints) == {"memory", "disk"}
        invalid = trial.user_attrs["reason"].startswith("no candidate")
        assert invalid or trial.user_attrs["reason"] == ("fits" if fits else "memory")


def test_the_study_agrees_with_the_record_and_finds_the_same_best(
    small_bill: Bill, tmp_path: Path
) -> None:
    found = explore(small_bill, sampler="tpe", trials=25, run_dir=tmp_path)
    study = journal(tmp_path)
    recorded = lines(tmp_path)
    assert [trial.params for trial in study.trials] == [line["params"] for line in recorded]
    assert [trial.value for trial in study.trials] == [line["value"] for line in recorded]
    assert found.best is not None
    assert study.best_value == small_bill.cost_usd[found.best]


def test_invalid_and_repeated_proposals_are_told_but_not_counted(small_bill: Bill) -> None:
    found = explore(small_bill, sampler="random", trials=50)
    kinds = [record.kind for record in found.records]
    assert kinds.count("trial") == found.trials == 50
    invalid = [record for record in found.records if record.kind == "invalid"]
    assert invalid, "the offers must have different valid settings"
    assert all(min(record.constraints.values()) >= 1 for record in invalid)
    assert not any(record.fits for record in invalid)


@pytest.mark.parametrize("sampler", ["calibrated", "random"])
def test_figures_that_are_not_finite_never_reach_the_study(
    small_bill: Bill, tmp_path: Path, sampler: str
) -> None:
    cost, memory = small_bill.cost_usd.copy(), small_bill.memory_bytes.copy()
    cost[::2] = np.nan
    memory[1::4] = np.nan
    broken = replace(small_bill, cost_usd=cost).with_memory(memory_bytes=memory)
    found = explore(broken, sampler=sampler, trials=30, run_dir=tmp_path)
    states = {trial.state for trial in journal(tmp_path).trials}
    for trial in journal(tmp_path).trials:
        failed = trial.state == optuna.trial.TrialState.FAIL
        assert failed or (trial.value is not None and np.isfinite(trial.value))
        assert all(np.isfinite(value) for value in trial.constraints.values())
    assert all(np.isfinite(cost[i]) and np.isfinite(memory[i]) for i in found.tried)
    if sampler == "random":
        assert optuna.trial.TrialState.FAIL in states


def test_a_space_is_left_when_every_candidate_was_tried(build: Any, priced: Any) -> None:
    job = build.job(lock={"num_dataloader_workers": 1, "attention": "sdpa", "compile": "off"})
    bill = priced(job)
    found = explore(bill, sampler="random", trials=10_000)
    assert found.trials == len(bill)
    assert found.stopped_because == "every candidate was tried"


def test_a_single_candidate_is_a_search_too(build: Any, priced: Any) -> None:
    job = build.job(
        lock={
            "num_dataloader_workers": 1, "attention": "sdpa", "compile": "off",
            "micro_batch_size": 2, "activation_checkpointing": "none",
        }
    )  # fmt: skip
    bill = priced(job)
    assert len(bill) == 1
    for sampler in ("calibrated", "tpe"):
        assert explore(bill, sampler=sampler, trials=5).tried == (0,)


def test_when_nothing_fits_the_nearest_misses_are_tried(
    build: Any, tight_job: Job, priced: Any
) -> None:
    bill = priced(replace(tight_job, offers=(build.offer("t4"),)))
    found = explore(bill, trials=5)
    assert found.best is None
    assert 1 <= found.trials <= 5
    assert not any(record.fits for record in found.records)


def test_a_torn_last_line_is_cut_off_and_its_trial_done_again(
    small_bill: Bill, tmp_path: Path
) -> None:
    explore(small_bill, sampler="tpe", trials=8, run_dir=tmp_path)
    path = tmp_path / "trials.jsonl"
    content = path.read_bytes()
    path.write_bytes(content[: len(content) - 25])
    resumed = explore(small_bill, sampler="tpe", trials=8, run_dir=tmp_path, resume=True)
    assert path.read_bytes() == content
    assert resumed.trials == 8


def test_damage_inside_the_record_is_an_input_error(small_bill: Bill, tmp_path: Path) -> None:
    explore(small_bill, trials=4, run_dir=tmp_path)
    path = tmp_path / "trials.jsonl"
    whole = path.read_text(encoding="utf-8").splitlines(keepends=True)
    for damage in ("{nonsense\n", "[1, 2]\n", '{"number": 1}\n'):
        path.write_text(whole[0] + damage + whole[2], encoding="utf-8")
        with pytest.raises(InputError, match="line 2"):
            explore(small_bill, trials=4, run_dir=tmp_path, resume=True)


def test_another_job_or_score_in_the_folder_is_an_input_error(
    small_bill: Bill, tmp_path: Path
) -> None:
    explore(small_bill, trials=3, run_dir=tmp_path, job_key="a")
    with pytest.raises(InputError, match="another job"):
        explore(small_bill, trials=3, run_dir=tmp_path, job_key="b", resume=True)
    with pytest.raises(InputError, match="something else"):
        explore(small_bill, trials=3, run_dir=tmp_path, job_key="a", objective="time", resume=True)
    with pytest.raises(InputError, match="holds 3 trials") as caught:
        explore(small_bill, trials=3, run_dir=tmp_path, job_key="a")
    assert "--resume" in (caught.value.hint or "")
    assert len(lines(tmp_path)) == 3


def test_trials_of_another_space_are_an_input_error(
    small_bill: Bill, tight_bill: Bill, tmp_path: Path
) -> None:
    explore(small_bill, trials=3, run_dir=tmp_path, job_key="a")
    with pytest.raises(InputError, match="search space"):
        explore(tight_bill, trials=3, run_dir=tmp_path, job_key="a", resume=True)


def test_a_folder_in_use_or_not_writable_is_an_input_error(
    small_bill: Bill, tmp_path: Path
) -> None:
    def inside(_record: TrialRecord) -> None:
        with pytest.raises(InputError, match="in use"):
            explore(small_bill, trials=2, run_dir=tmp_path, resume=True)

    explore(small_bill, trials=2, run_dir=tmp_path, on_trial=inside)
    blocked = tmp_path / "file"
    blocked.write_text("", encoding="utf-8")
    with pytest.raises(InputError, match="cannot hold a run"):
        explore(small_bill, trials=2, run_dir=blocked / "run")


def test_a_trial_is_on_the_disk_before_anybody_hears_of_it(
    small_bill: Bill, tmp_path: Path
) -> None:
    heard: list[int] = []

    def check(record: TrialRecord) -> None:
        heard.append(record.number)
        assert lines(tmp_path)[-1]["number"] == record.number

    explore(small_bill, sampler="random", trials=5, run_dir=tmp_path, on_trial=check)
    assert heard == [line["number"] for line in lines(tmp_path)]


def test_modelled_trials_reach_the_disk_together(
    small_bill: Bill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, synced = os.fsync, []

    def counted(handle: int) -> None:
        synced.append(handle)
        real(handle)

    monkeypatch.setattr(os, "fsync", counted)
    found = explore(small_bill, trials=40, run_dir=tmp_path)
    assert found.trials == len(lines(tmp_path)) == len(journal(tmp_path).trials) == 40
    assert len(synced) <= 3, "the header, the folder that names it, and all trials"


def entries(folder: Path) -> list[dict[str, Any]]:
    """A journal without what names the process and the time."""
    own = {"worker_id", "datetime_start", "datetime_complete"}
    text = (folder / JOURNAL_FILE).read_text(encoding="utf-8")
    found = [json.loads(line) for line in text.splitlines()]
    assert all(own <= set(entry) for entry in found if "value" in entry)
    return [{key: value for key, value in entry.items() if key not in own} for entry in found]


def test_the_journal_of_modelled_trials_is_line_for_line_what_optuna_writes(
    small_bill: Bill, tmp_path: Path
) -> None:
    own, theirs = tmp_path / "own", tmp_path / "theirs"
    found = explore(small_bill, trials=12, run_dir=own, job_key="a")
    search = Search(small_bill, "cost", "calibrated", 0)
    distributions = search.distributions
    last = found.records[-1]
    failed = replace(last, number=12, kind="failed", value=None, constraints={}, fits=False)
    with TrialLog(own, {"job_key": "a", "score": found.score}, resume=True) as log:
        log.append(failed)
    explore(small_bill, trials=12, run_dir=own, job_key="a", resume=True)
    theirs.mkdir()
    study = open_study(run_dir=theirs, storage=None, name="autotune", job_key="a", resume=False)
    sampler = search._sampler_maker()(0)
    assert isinstance(sampler, CalibratedSampler)
    sampler.modelled(study, 1)  # names what is measured
    study.add_trials(finished_trial(each, distributions) for each in (*found.records, failed))
    assert entries(own) == entries(theirs)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no device that is always full")
def test_a_journal_that_the_disk_has_no_room_for_is_named(
    small_bill: Bill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / JOURNAL_FILE).symlink_to("/dev/full")
    monkeypatch.setattr(journals, "clear", lambda folder: folder / JOURNAL_FILE)
    with pytest.raises(OSError, match="No space") as refused:
        explore(small_bill, run_dir=tmp_path)
    assert refused.value.filename == str(tmp_path / JOURNAL_FILE)


def test_what_is_proposed_together_is_what_would_be_asked_for_one_by_one(small_bill: Bill) -> None:
    together = explore(small_bill, trials=25)
    search = Search(small_bill, "cost", "calibrated", 0)
    distributions = search.distributions
    with quiet():
        study = optuna.create_study(sampler=search._sampler_maker()(0))
    asked = []
    for _ in range(25):
        trial = study.ask(distributions)
        asked.append(dict(trial.params))
        study.tell(trial, 1.0)
    assert [record.params for record in together.records] == asked


def test_a_measured_trial_ends_what_is_proposed_together(small_bill: Bill) -> None:
    search = Search(small_bill, "cost", "calibrated", 0)
    distributions = search.distributions
    sampler = search._sampler_maker()(0)
    assert isinstance(sampler, CalibratedSampler)
    study = optuna.create_study(sampler=sampler)
    first, *_ = modelled = sampler.modelled(study, 5)
    assert len(modelled) == 5
    part = next(part for part in sampler._priced.parts if part.name == "compute")
    seconds = float(part.predicted[part.row_of[first]])
    params, learned = search.space.params(first), {"measured": {"compute": seconds}}
    study.add_trial(
        optuna.trial.create_trial(
            value=1.0, params=params, distributions=distributions, user_attrs=learned
        )
    )
    assert sampler.modelled(study, 5) == []


def test_a_database_of_the_users_keeps_the_study(small_bill: Bill, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    whole = explore(small_bill, sampler="tpe", trials=9, seed=1)
    explore(small_bill, sampler="tpe", trials=4, seed=1, storage=url, job_key="a")
    with pytest.raises(InputError, match="already holds"):
        explore(small_bill, trials=4, storage=url, job_key="a")
    with pytest.raises(InputError, match="another job"):
        explore(small_bill, trials=4, storage=url, job_key="b", resume=True)
    resumed = explore(
        small_bill, sampler="tpe", trials=9, seed=1, storage=url, job_key="a", resume=True
    )
    assert resumed.resumed >= 4
    assert resumed.tried == whole.tried
    study = optuna.load_study(study_name="autotune", storage=url)
    assert len(study.trials) == len(resumed.records)


def test_a_database_that_lost_trials_gets_them_from_the_record(
    small_bill: Bill, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    explore(small_bill, trials=5, run_dir=run)
    url = f"sqlite:///{tmp_path / 'study.db'}"
    explore(small_bill, trials=7, run_dir=run, storage=url, resume=True)
    study = optuna.load_study(study_name="autotune", storage=url)
    assert [t.user_attrs["record"]["number"] for t in study.trials] == list(range(7))


@pytest.mark.parametrize(
    "url", ["sqlite:////nowhere/at/all/study.db", "nonsense", "postgresql://u:secret@h/db", "x://y"]
)
def test_a_storage_that_cannot_be_opened_is_an_input_error(small_bill: Bill, url: str) -> None:
    with pytest.raises(InputError) as caught:
        explore(small_bill, trials=2, storage=url)
    assert "cannot be opened" in caught.value.message
    assert "secret" not in caught.value.message


def test_a_database_whose_driver_is_absent_is_named(
    small_bill: Bill, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InputError, match="needs psycopg") as caught:
        explore(small_bill, trials=2, storage="postgresql://u:secret@h/db")
    assert "driver" in str(caught.value.hint)


@pytest.mark.parametrize("directions", [["maximize"], ["minimize", "minimize"]])
def test_a_study_of_somebody_else_is_not_taken_over(
    small_bill: Bill, tmp_path: Path, directions: list[str]
) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    theirs = optuna.create_study(storage=url, study_name="autotune", directions=directions)
    theirs.tell(theirs.ask(), [1.0] * len(directions))
    with pytest.raises(InputError, match="that autotune did not make"):
        explore(small_bill, trials=2, storage=url, resume=True)
    kept = optuna.load_study(study_name="autotune", storage=url)
    assert len(kept.trials) == 1
    assert not kept.user_attrs


def test_unknown_and_uninstalled_samplers_are_input_errors(
    small_bill: Bill, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError) as caught:
        explore(small_bill, sampler="tpi")
    assert "tpe" in caught.value.message
    monkeypatch.setattr(samplers, "find_spec", lambda _name: None)
    with pytest.raises(InputError) as missing:
        explore(small_bill, sampler="gp")
    assert "scipy and torch" in missing.value.message
    assert missing.value.hint is not None
    assert "scipy>=1.14" in missing.value.hint


@pytest.mark.slow
def test_the_gp_sampler_explores_when_its_packages_are_there(tight_bill: Bill) -> None:
    pytest.importorskip("scipy")
    pytest.importorskip("torch")
    found = explore(tight_bill, sampler="gp", trials=12)
    assert found.trials == 12
    assert found.best is not None


def test_a_record_refuses_nan() -> None:
    record = TrialRecord(0, "trial", {}, float("nan"), {}, fits=True, reason="fits")
    with pytest.raises(ValueError, match="JSON"):
        record.line()

"""`tune --score probe`: the answer is a configuration that ran, and nothing that ran is lost."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from builders import needs

from autotune.app.job.load import load_job
from autotune.app.probing.plan import IMPORT_S, ProbeOptions
from autotune.app.tune.tune import Options, tune
from autotune.catalog.files import home_dir
from autotune.domain.errors import InputError, NoLocalDevice
from autotune.probe.record import PROBES_FILE, read_records
from autotune.report.payload import recommendation_payload
from autotune.report.screens.tune import recommendation_screen
from autotune.report.sections.answer import TUNE_REPORT

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.answer.recommendation import Recommendation
    from autotune.domain.job import Job
    from autotune.probe.record import ProbeRecord

    Tune = Callable[..., Recommendation]

needs("torch", "transformers", "peft")
ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).with_name("fake_worker.py")


@pytest.fixture
def tuned(job: Job, tmp_path: Path) -> Tune:
    def run(mode: str = "machine", **changes: Any) -> Any:
        subject = changes.pop("job", job)
        own = {name: changes.pop(name) for name in ("probes", "budget_s", "on") if name in changes}
        probing = ProbeOptions(worker=(str(FAKE), mode), **own)
        options = Options(
            score="probe",
            run_dir=changes.pop("run_dir", tmp_path / "run"),
            probing=probing,
            **changes,
        )
        return tune(subject, options)

    return run


@dataclass(frozen=True)
class Searched:
    """One search of the machine that nobody changes afterwards: its answer, words and records."""

    answer: Recommendation
    told: list[str]
    records: list[ProbeRecord]


def searched(job: Job, folder: Path, probes: int) -> Searched:
    told: list[str] = []
    probing = ProbeOptions(worker=(str(FAKE), "machine"), probes=probes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_HOME", str(folder / "home"))
        options = Options(score="probe", run_dir=folder / "run", probing=probing)
        answer = tune(job, options, told.append)
    return Searched(answer, told, read_records(folder / "run" / PROBES_FILE))


@pytest.fixture(scope="module")
def of_four(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Searched:
    return searched(job, tmp_path_factory.mktemp("four"), 4)


@pytest.fixture(scope="module")
def of_eight(job: Job, tmp_path_factory: pytest.TempPathFactory) -> Searched:
    return searched(job, tmp_path_factory.mktemp("eight"), 8)


def test_the_pick_ran_and_is_the_best_of_what_ran(of_eight: Searched) -> None:
    answer, records = of_eight.answer, of_eight.records
    assert answer.best.basis == "measured"
    assert answer.best.measured is not None
    ran = [record for record in records if record.ok]
    assert answer.best.config.as_dict()["micro_batch_size"] == max(
        record.config["micro_batch_size"] for record in ran
    )
    assert {record.role for record in records} >= {"search", "confirm"}
    assert answer.search.probes == len({record.key for record in records})
    assert answer.search.probe_runs == len(records)
    assert sum(answer.best.time_s.as_dict().values()) == pytest.approx(answer.best.duration_s.p50)


def test_the_users_own_choices_are_priced_beside_what_was_measured(of_four: Searched) -> None:
    answer = of_four.answer
    assert answer.best is not None
    assert answer.sensitivities
    for each in answer.sensitivities:
        assert each.basis == "calibrated"
        assert each.duration_s + each.saved_s == pytest.approx(answer.best.duration_s.p50)


def test_out_of_memory_is_an_infeasible_trial_and_no_failure(tuned: Tune, tmp_path: Path) -> None:
    locks = {"precision": "fp32", "compile": "off", "attention": "sdpa"}
    tuned(probes=8, job=load_job(ROOT / "jobs" / "tiny_cpu.yaml", set_values=locks))
    lines = (tmp_path / "run" / "trials.jsonl").read_text().splitlines()
    trials = [json.loads(line) for line in lines]
    oom = [trial for trial in trials if trial["reason"] == "oom_device"]
    assert oom
    assert all(t["kind"] == "trial" and t["constraints"]["memory"] > 0 for t in oom)
    assert not any(trial["fits"] for trial in oom)


def test_a_broken_kernel_is_found_once_and_never_run_again(of_eight: Searched) -> None:
    broken = [record for record in of_eight.records if record.config["attention"] == "eager"]
    assert len(broken) <= 2
    assert all(record.status == "crash" for record in broken)


def test_one_line_a_probe_says_what_was_measured_and_what_is_left(of_four: Searched) -> None:
    lines = [line for line in of_four.told if line.startswith("probe ")]
    assert len(lines) >= 2
    assert any("/step" in line and "best" in line for line in lines)
    assert all("left" in line for line in lines)


def test_a_second_study_reuses_what_the_first_measured(tuned: Tune, tmp_path: Path) -> None:
    """Without what the first one learned it asks for the same, and none of that is run again."""
    whole = {"precision": "fp32", "attention": "sdpa"}  # eager attention is broken there
    job = load_job(ROOT / "jobs" / "tiny_cpu.yaml", set_values=whole)
    tuned(probes=6, job=job)
    shutil.rmtree(home_dir() / "residuals")
    tuned(probes=6, job=job, run_dir=tmp_path / "other")
    first, again = (
        [r for r in read_records(tmp_path / run / PROBES_FILE) if r.role == "search"]
        for run in ("run", "other")
    )
    assert [r.key for r in again[:6]] == [r.key for r in first]
    assert all(r.reused for r in again[:6])
    assert not {r.key for r in first} & {r.key for r in again if not r.reused}


def test_resuming_goes_on_after_what_is_recorded(tuned: Tune, tmp_path: Path) -> None:
    tuned(probes=2)
    before = read_records(tmp_path / "run" / PROBES_FILE)
    tuned(probes=4, resume=True)
    after = read_records(tmp_path / "run" / PROBES_FILE)
    assert after[: len(before)] == before
    assert len(after) > len(before)


def test_a_budget_smaller_than_one_probe_is_refused_and_leaves_nothing(
    tuned: Tune, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match="smaller than one probe"):
        tuned(probes=50, budget_s=0.5, mode="good")
    assert not (tmp_path / "run").exists()


def test_a_storage_that_cannot_be_opened_leaves_nothing(tuned: Tune, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be opened"):
        tuned(probes=2, mode="good", storage="sqlite:////nowhere/at/all.db")
    assert not (tmp_path / "run").exists()


def test_a_storage_with_the_study_of_another_job_is_refused(tuned: Tune, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'study.db'}"
    tuned(probes=1, mode="good", storage=url)
    other = load_job(ROOT / "jobs" / "tiny_cpu.yaml", set_values={"compile": "off"})
    folder = tmp_path / "elsewhere" / "run"
    with pytest.raises(InputError, match="of another job"):
        tuned(probes=1, mode="good", storage=url, job=other, run_dir=folder)


def test_nothing_is_run_in_a_dry_run(tuned: Tune, tmp_path: Path) -> None:
    answer = tuned(probes=3, dry_run=True)
    assert any("3 configurations would be probed" in note for note in answer.warnings)
    assert not (tmp_path / "run").exists()


def test_without_a_matching_device_the_exit_code_is_five(tuned: Tune) -> None:
    elsewhere = load_job(ROOT / "jobs" / "h100_38h.yaml")
    with pytest.raises(NoLocalDevice, match="h100") as caught:
        tuned(job=elsewhere)
    assert caught.value.exit_code == 5
    with pytest.raises(NoLocalDevice, match="not here"):
        tuned(on="a100")


def test_a_worker_that_always_crashes_is_told_with_its_own_words(tuned: Tune) -> None:
    with pytest.raises(NoLocalDevice, match="an unexpected end"):
        tuned("exit", probes=2)


def test_a_bad_row_is_bad_input(tuned: Tune) -> None:
    with pytest.raises(InputError, match="line 7"):
        tuned("bad-data", probes=2)


def test_when_nothing_fits_there_is_no_pick(tuned: Tune) -> None:
    answer = tuned("oom", probes=2)
    assert answer.best is None
    payload = recommendation_payload(answer)
    for show in (recommendation_screen, TUNE_REPORT.text):
        text = " ".join(show(payload, width=100).split())
        assert f"2 of {answer.search.priced} possible configurations were probed, and none" in text
        assert "None of the changes" not in text, "no change was tried: the model says that all fit"


def test_probing_another_device_calibrates_the_jobs_own(tuned: Tune) -> None:
    elsewhere = load_job(ROOT / "jobs" / "tiny_cpu.yaml", gpus=("t4",), price="1 USD/h")
    answer = tuned("good", probes=2, on="cpu", job=elsewhere)
    assert answer.best.basis == "calibrated"
    assert answer.best.offer.device.name.startswith("t4")


@pytest.mark.usefixtures("fake_probes")
def test_the_command_answers_with_what_ran(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from autotune.cli.application import run

    arguments = ["tune", str(ROOT / "jobs" / "tiny_cpu.yaml"), "--score", "probe", "--probes", "2"]
    locks = ["--set", "precision=fp32", "--set", "compile=off"]
    code = run([*arguments, *locks, "--run", str(tmp_path / "run"), "--format", "json"])
    assert code == 0
    out = capsys.readouterr().out
    answer = json.loads(out)
    assert answer["best"]["basis"] == "measured"
    records = read_records(tmp_path / "run" / PROBES_FILE)
    assert all(record.ok for record in records), [record.message for record in records]
    configs = [
        {k: v for k, v in record.config.items() if k != "checkpoint_every_steps"}
        for record in records
        if record.ok
    ]
    best = {k: v for k, v in answer["best"]["config"].items() if k != "checkpoint_every_steps"}
    assert best in configs
    assert answer["best"]["duration_s"]["p50"] > 0
    assert answer["search"]["probes"] == len({record.key for record in records}) == 2
    assert answer["search"]["probe_runs"] == len(records)
    assert (tmp_path / "run" / "train.py").exists()


def test_the_first_probe_and_the_picks_own_run_are_expected_to_import_and_no_other(
    of_four: Searched,
) -> None:
    records = of_four.records
    expected = {r.role + r.key: r.predicted["probe_s"] for r in reversed(records)}
    picked = next(r.key for r in records if r.role == "confirm")
    first = next(r.key for r in records if r.role == "search")
    more = 0.0 if picked == first else IMPORT_S
    found = expected["confirm" + picked] - expected["search" + picked]
    assert found == pytest.approx(more), "a process of its own, beside one of the server's"
    later = [s for key, s in expected.items() if key != "search" + first and key[0] == "s"]
    assert len(later) == 3
    assert max(later) + IMPORT_S / 2 < expected["search" + first]

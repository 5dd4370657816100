"""A knob of the user's own: what no formula knows is measured, picked, kept and written out."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from simulatedmachine import (
    TINY,
    Machine,
    bill_of,
    dies_before_the_second,
    search,
    search_in_pieces,
    sequence,
    step_of,
)

from autotune.app.job.load import load_job
from autotune.app.probing.notes import unproven_levels
from autotune.app.probing.plan import ProbeOptions
from autotune.app.recompute.recompute import RecomputeOptions, recompute
from autotune.app.runs.export import export, export_run
from autotune.app.tune.tune import Options, tune
from autotune.domain.errors import InputError
from autotune.probe.outcomes import check_arguments, trainer_arguments
from autotune.probe.record import PROBES_FILE, read_records
from autotune.probe.request import request_for
from autotune.report.payload import recommendation_payload
from autotune.search.axes import ParameterSpace
from autotune.search.billed import BilledCandidates
from autotune.search.measured.finals import measured_as_today, untried_as_today
from autotune.search.posterior.acquisition import Posterior
from autotune.search.posterior.measurements import History
from autotune.search.posterior.stopping import ProbeBudget

if TYPE_CHECKING:
    from autotune.cost.bill import Bill
    from autotune.domain.job import Job

pytestmark = pytest.mark.usefixtures("home")

FAKE = Path(__file__).parents[2] / "probe" / "fake_worker.py"
THREADS, LIGER = "env.OMP_NUM_THREADS", "args.use_liger_kernel"


@pytest.fixture(scope="module")
def job() -> Job:
    return load_job(TINY, set_values={"compile": "off", "precision": "fp32", "attention": "sdpa"})


@pytest.fixture(scope="module")
def space(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("space") / "mine.yaml"
    path.write_text("extra: {env.OMP_NUM_THREADS: [1, 2], args.use_liger_kernel: [false, true]}")
    return path


@pytest.fixture(scope="module")
def bill(job: Job, space: Path) -> Bill:
    return bill_of(job, space)


def quicker(config: dict[str, Any]) -> float:
    """Two threads take 30 % off a step; the other knob does nothing."""
    return step_of(config) * (0.7 if config[THREADS] == "2" else 1.0)


def test_a_level_that_is_30_percent_faster_is_found(bill: Bill, tmp_path: Path) -> None:
    found = search(bill, Machine(step=quicker), tmp_path)
    pick = found.explored.pick
    assert pick is not None
    config = bill.candidates.config(pick)
    assert config.extra == ((THREADS, "2"), (LIGER, False))
    best = min(quicker(bill.candidates.config(i).as_record()) for i in range(len(bill)))
    assert quicker(config.as_record()) <= best * 1.05
    assert pick in found.explored.confirmed
    assert sum(record.role == "search" for record in found.records) <= 12


def believed(bill: Bill, times: dict[int, float]) -> tuple[Posterior, ParameterSpace]:
    """What is believed once these candidates computed for so many times what is predicted."""
    space = ParameterSpace(bill.candidates)
    priced, history = BilledCandidates(bill, space, "cost"), History()
    for index, slower in times.items():
        predicted = {p.name: float(p.predicted[p.row_of[index]]) for p in priced.parts}
        history.learn(priced, index, predicted | {"compute": slower * predicted["compute"]})
    return Posterior(priced, history), space


def levels_of_one(bill: Bill) -> tuple[int, int, int, int]:
    """One candidate at both levels of either knob: as today, Liger, two threads, both."""
    threads = next(i for i in range(len(bill)) if bill.candidates.codes[THREADS][i] == 1)
    return threads - 2, threads - 1, threads, threads + 1


def test_a_level_that_does_nothing_is_asked_for_as_today_and_then_picked(bill: Bill) -> None:
    today, liger, threads, both = levels_of_one(bill)
    known = {today: 1.0, liger: 1.0, both: 0.7}
    known |= {i + 4: 0.7 if i >= threads else 1.0 for i in range(today, both + 1)}  # the next one
    posterior, space = believed(bill, known)
    assert measured_as_today(posterior, space, bill.candidates, both) == both
    assert untried_as_today(posterior, space, bill.candidates, both) == threads
    posterior, space = believed(bill, {**known, threads: 0.7})
    assert measured_as_today(posterior, space, bill.candidates, both) == threads
    assert untried_as_today(posterior, space, bill.candidates, both) is None


def test_levels_that_do_nothing_together_are_asked_for_in_one_probe(bill: Bill) -> None:
    today, liger, threads, both = levels_of_one(bill)
    other = dict.fromkeys(range(today + 4, both + 5), 1.0)  # the next one, at all four
    posterior, space = believed(bill, {**other, both: 1.0})
    assert untried_as_today(posterior, space, bill.candidates, both) == today
    posterior, space = believed(bill, {**other, both: 1.0, today: 1.0})
    assert not {liger, threads} & set(posterior.fitting)
    assert measured_as_today(posterior, space, bill.candidates, both) == today


def test_the_last_probe_that_is_allowed_is_known_by_number_and_by_budget() -> None:
    room = ProbeBudget(1.0, spent=7.0, limit=10.0, unit="s", aside=0.5)
    assert not room.ends_here
    assert replace(room, last=True).ends_here
    assert replace(room, spent=8.0).ends_here
    assert not replace(room, spent=9.0, last=True).ends_here, "not even that one is affordable"
    assert not ProbeBudget(1.0, spent=7.0).ends_here


def test_levels_that_do_nothing_stay_at_the_present_one(bill: Bill, tmp_path: Path) -> None:
    found = search(bill, Machine(), tmp_path)
    pick = found.explored.pick
    assert pick is not None
    assert bill.candidates.config(pick).extra == ((THREADS, "1"), (LIGER, False))
    assert not any("never ran with" in note for note in found.notes)


def test_a_level_that_did_not_run_beside_the_present_one_is_said(bill: Bill) -> None:
    threads = next(i for i in range(len(bill)) if bill.candidates.codes[THREADS][i] == 1)
    present = threads - 2  # two levels of the other knob lie between
    assert not unproven_levels(bill, {threads, present}, threads)
    assert not unproven_levels(bill, {present}, present)
    (said,) = unproven_levels(bill, {threads, present + 1}, threads)
    assert said.startswith(f"the pick has {THREADS} 2")


def test_a_resumed_search_goes_on_with_the_same_levels(bill: Bill, tmp_path: Path) -> None:
    search(bill, Machine(step=quicker), tmp_path / "straight")
    kills = search_in_pieces(
        bill, tmp_path / "pieces", lambda _: Machine(quicker, dies_before_the_second)
    )
    assert kills >= 4
    assert sequence(tmp_path / "pieces") == sequence(tmp_path / "straight")


def test_a_folder_of_other_levels_is_refused(job: Job, bill: Bill, tmp_path: Path) -> None:
    search(bill, Machine(), tmp_path / "run", probes=2)
    other = tmp_path / "other.yaml"
    other.write_text("extra: {env.OMP_NUM_THREADS: [1, 2, 4], args.use_liger_kernel: [no, yes]}")
    for space in (other, None):
        with pytest.raises(InputError, match="a search of another space"):
            search(bill_of(job, space), Machine(), tmp_path / "run", resume=True)


def test_what_was_measured_at_one_level_is_not_believed_of_another(
    job: Job, bill: Bill, tmp_path: Path
) -> None:
    search(bill, Machine(step=quicker), tmp_path / "first", reuse=True)
    (tmp_path / "home" / PROBES_FILE).unlink()
    again = search(bill, Machine(step=quicker), tmp_path / "again", reuse=True)
    assert any("the search began with" in note for note in again.notes)
    (tmp_path / "home" / PROBES_FILE).unlink()
    plain = search(bill_of(job), Machine(), tmp_path / "plain", reuse=True)
    assert not any("the search began with" in note for note in plain.notes)
    assert any("no setting in common" in note for note in plain.notes)


def test_a_request_carries_the_levels_and_is_told_by_them(job: Job, bill: Bill) -> None:
    offer = job.offers[0]
    asked = [request_for(job, offer, bill.candidates.config(i)) for i in range(4)]
    assert len({request["key"] for request in asked}) == 4
    assert [r["environment"]["OMP_NUM_THREADS"] for r in asked] == ["1", "1", "2", "2"]
    assert [r["arguments"]["use_liger_kernel"] for r in asked] == [False, True, False, True]
    plain = request_for(job, offer, bill_of(job).candidates.config(0))
    assert not {"environment", "arguments"} & set(plain)


@pytest.mark.parametrize("trainer", ["hf", "trl"])
def test_what_is_written_to_run_states_the_levels(job: Job, bill: Bill, trainer: str) -> None:
    config = bill.estimate(3).config
    files = export(trainer, job, job.offers[0], config).files
    assert "\nexport OMP_NUM_THREADS=2\n" in files["run.sh"]
    name = {"hf": "training_args.json", "trl": "sft_config.json"}[trainer]
    assert json.loads(files[name])["use_liger_kernel"] is True


def test_unset_takes_away_what_the_shell_or_the_job_would_set(job: Job, tmp_path: Path) -> None:
    path = tmp_path / "unset.yaml"
    path.write_text(
        "extra: {env.OMP_NUM_THREADS: [unset, 2], args.dataloader_pin_memory_device: [unset, x]}"
    )
    config = bill_of(job, path).estimate(0).config
    files = export("hf", job, job.offers[0], config).files
    assert "\nunset OMP_NUM_THREADS\n" in files["run.sh"]
    assert "unset" not in files["training_args.json"]


def test_other_trainers_are_told_what_their_file_cannot_carry(job: Job, bill: Bill) -> None:
    offer = load_job(TINY, gpus=("a100-80gb",), price="1 USD/h").offers[0]
    made = export("axolotl", job, offer, bill.estimate(3).config)
    assert "export OMP_NUM_THREADS=2\n" in made.files["run.sh"]
    assert any("args.use_liger_kernel" in note for note in made.notes)


def test_without_probes_the_present_levels_are_taken_and_said(
    job: Job, space: Path, tmp_path: Path
) -> None:
    answer = tune(job, Options(space=str(space), run_dir=tmp_path / "run"))
    assert dict(answer.best.config.extra) == {THREADS: "1", LIGER: False}
    assert any("--score probe measures the others" in text for text in answer.warnings)
    text = (tmp_path / "run" / "run.sh").read_text()
    assert "export OMP_NUM_THREADS=1" in text
    export_run(tmp_path / "run", "trl")
    exported = tmp_path / "run" / "trl" / "sft_config.json"
    assert json.loads(exported.read_text())[LIGER[5:]] is False


def test_a_recomputed_run_keeps_the_levels_that_were_picked(
    job: Job, space: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    tune(job, Options(space=str(space), run_dir=folder, present=((THREADS, "2"),)))
    (part,) = recompute(folder, RecomputeOptions()).parts
    assert dict(part.after.best.config.extra) == {THREADS: "2", LIGER: False}


def test_an_argument_that_the_trainer_has_not_is_refused_with_close_ones() -> None:
    pytest.importorskip("transformers")
    assert "use_liger_kernel" in trainer_arguments()
    with pytest.raises(InputError, match="use_liger_kernel") as caught:
        check_arguments(["env.ANYTHING", "args.use_liger_kernels"])
    assert "exact names" in str(caught.value.hint)
    check_arguments(["args.use_liger_kernel"])


def test_figures_of_the_extra_levels_are_finite_and_equal(bill: Bill) -> None:
    rows = [bill.estimate(i) for i in range(4)]
    assert len({row.duration_s.p50 for row in rows}) == 1
    assert all(math.isfinite(row.duration_s.p50) for row in rows)


ONE = (
    "knobs: {attention: [sdpa], precision: [fp32], activation_checkpointing: [none],\n"
    "        compile: ['off'], num_dataloader_workers: [0], micro_batch_size: [8]}\n"
    "extra: {env.OMP_NUM_THREADS: [1, 2], args.dataloader_in_order: [false, true]}\n"
)


def test_workers_run_at_their_levels_and_the_answer_says_which(tmp_path: Path) -> None:
    """Of processes that report their threads: torch's do in tests/probe/worker/test_worker.py."""
    for package in ("torch", "transformers", "peft"):
        pytest.importorskip(package)
    path, folder = tmp_path / "own.yaml", tmp_path / "run"
    path.write_text(ONE)
    probing = ProbeOptions(probes=1, worker=(str(FAKE), "good"))
    options = Options(score="probe", space=str(path), run_dir=folder, probing=probing)
    answer = tune(load_job(TINY), options)
    records = [r for r in read_records(folder / PROBES_FILE) if r.ok]
    assert records
    assert all(r.result["device"]["threads"] == int(r.config[THREADS]) for r in records)
    assert {r.config["args.dataloader_in_order"] for r in records} == {False}
    chosen = dict(answer.best.config.extra)
    assert f"export OMP_NUM_THREADS={chosen[THREADS]}\n" in (folder / "run.sh").read_text()
    arguments = json.loads((folder / "training_args.json").read_text())
    assert arguments["dataloader_in_order"] is chosen["args.dataloader_in_order"]
    trials = [json.loads(line) for line in (folder / "trials.jsonl").read_text().splitlines()]
    assert all(trial["params"][THREADS] in {"1", "2"} for trial in trials)
    assert set(recommendation_payload(answer)["probed"][0]["config"]) >= set(chosen)


@pytest.mark.slow
def test_the_worker_refuses_an_argument_that_its_version_has_not(job: Job, bill: Bill) -> None:
    pytest.importorskip("transformers")
    from autotune.probe.worker.arguments import Unsupported, training_arguments

    request = request_for(job, job.offers[0], bill.candidates.config(1))
    kept = training_arguments(request, output_dir="x", max_steps=1, on_cpu=True)
    assert kept["use_liger_kernel"] is True
    absent = {**request, "arguments": {"no_such_thing": 1}}
    with pytest.raises(Unsupported, match="no_such_thing"):
        training_arguments(absent, output_dir="x", max_steps=1, on_cpu=True)
    unset = {**request, "arguments": {"disable_tqdm": "unset"}}
    assert "disable_tqdm" not in training_arguments(unset, output_dir="x", max_steps=1, on_cpu=True)

"""A plan for this machine's processor, its smoke runs, and what a run on it teaches `tune`."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.job.evidence import default_config
from autotune.app.job.load import load_job
from autotune.app.tune.tune import Options, tune
from autotune.app.verify.verify import verify
from autotune.domain.errors import InputError
from autotune.domain.outcome import Z90
from autotune.evidence.runs_seen import store_of
from autotune.pricing import Pricing
from autotune.report.screens.verify import verification_screen
from autotune.report.sections.verification import VERIFY_REPORT, verification_payload

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.answer.verification import Verification

pytestmark = pytest.mark.usefixtures("home")

JOBS = Path(__file__).parents[3] / "jobs"
STEPS, PER_EPOCH = 50, 25


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tiny job, its model and its rows, and a run of it."""
    top = tmp_path_factory.mktemp("own machine")
    shutil.copytree(JOBS / "data", top / "data")
    shutil.copy(JOBS / "tiny_cpu.yaml", top)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_HOME", str(top / "home"))
        job = load_job(top / "tiny_cpu.yaml")
        tune(job, Options(fidelity="formula", trials=5, run_dir=top / "run"))
    return top


def planned_step_s(made: Path) -> float:
    answer = json.loads((made / "run" / "recommendation.json").read_text())
    return float(answer["best"]["step_time_s"])


def start(**changes: Any) -> dict[str, Any]:
    return {
        "event": "start", "device": "cpu", "device_count": 1, "max_steps": STEPS, "epochs": 2,
        "micro_batch_size": 8, "gradient_accumulation_steps": 1, "checkpoint_every_steps": 50,
        "model": {"num_layers": 2, "hidden_size": 64, "intermediate_size": 160, "vocab_size": 260},
        "method": {"kind": "lora", "rank": 8, "base": "32bit"},
    } | changes  # fmt: skip


def record(path: Path, times: Sequence[float], *more: dict[str, Any], **changes: Any) -> Path:
    done = len(times)
    events = [
        start(**changes),
        *({"event": "step", "step": n, "duration_s": t} for n, t in enumerate(times, start=1)),
        {"event": "epoch", "step": done, "epoch": done / PER_EPOCH},
        *more,
    ]
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(event) + "\n" for event in events))
    return path


def smoke(steps: int) -> dict[str, Any]:
    return {"max_steps": steps, "epochs": -(-steps // PER_EPOCH)}


def step(found: Verification) -> Any:
    return next(line for line in found.lines if line.what == "step_time")


def again(made: Path, **lock: str) -> Any:
    """The pick of another `tune` of the job, with some knobs locked."""
    job = load_job(made / "tiny_cpu.yaml", set_values=lock)
    return tune(job, Options(fidelity="formula", trials=5)).best


@pytest.mark.parametrize("steps", [12, 60])
def test_a_smoke_run_is_accepted_and_marked_as_one(made: Path, tmp_path: Path, steps: int) -> None:
    found = verify(made / "run", record(tmp_path / "o.jsonl", [0.05] * steps, **smoke(steps)))
    payload = verification_payload(found)
    assert payload["log"]["smoke_steps"] == steps
    assert payload["log"]["steps"] == STEPS
    assert payload["log"]["finished"]
    assert step(found).actual == pytest.approx(0.05)
    assert next(line for line in found.lines if line.what == "total").actual is None
    assert found.remaining.steps == 0
    assert found.next_runs.duration_s.p50 > STEPS * 0.05
    text = " ".join(VERIFY_REPORT.text(payload).split())
    assert f"of {steps} steps (the job has 50)" in text
    assert "It shows how long a step takes" in text


def test_a_smoke_run_in_the_trainers_own_state_is_accepted_too(made: Path, tmp_path: Path) -> None:
    end = {"step": 12, "epoch": 0.48, "train_runtime": 1.2, "train_loss": 1.0,
           "train_steps_per_second": 10.0, "train_samples_per_second": 80.0}  # fmt: skip
    state = {"global_step": 12, "max_steps": 12, "num_train_epochs": 1, "epoch": 0.48,
             "train_batch_size": 8, "save_steps": 50, "log_history": [end]}  # fmt: skip
    log = tmp_path / "trainer_state.json"
    log.write_text(json.dumps(state))
    assert verify(made / "run", log).kind.smoke_steps == 12
    log.write_text(json.dumps(state | {"epoch": 0.24}))
    with pytest.raises(InputError, match="an epoch of it has 50 steps, and of the job 25"):
        verify(made / "run", log)


def test_the_shorter_a_smoke_run_the_wider_what_it_says_of_the_next(
    made: Path, tmp_path: Path
) -> None:
    widths = []
    for steps in (4, 16, 50):
        log = record(tmp_path / f"{steps}.jsonl", [0.05] * steps, **smoke(steps))
        spread = verify(made / "run", log).step_s
        assert spread.p10 < 0.05 < spread.p90
        widths.append(spread.p90 / spread.p10)
    assert widths[0] > widths[1] > widths[2]


def test_steps_in_which_a_compiler_worked_are_not_taken_for_the_step(
    made: Path, tmp_path: Path
) -> None:
    times = [9.0, 4.0, 3.0, *[0.05] * 27]
    found = verify(made / "run", record(tmp_path / "o.jsonl", times, **smoke(30)))
    assert step(found).actual == pytest.approx(0.05)


def test_a_plan_for_the_cpu_has_a_prediction_for_a_log_of_the_cpu(
    made: Path, tmp_path: Path
) -> None:
    found = verify(made / "run", record(tmp_path / "o.jsonl", [0.05] * STEPS))
    assert found.offer == found.planned
    assert step(found).predicted == pytest.approx(planned_step_s(made))


@pytest.mark.parametrize("ratio", [0.5, 1.6, 3.0])
def test_after_verify_tune_is_closer_to_the_measured_step_and_surer(
    made: Path, tmp_path: Path, ratio: float
) -> None:
    before = again(made)
    measured = ratio * planned_step_s(made)
    found = verify(made / "run", record(tmp_path / "o.jsonl", [measured] * STEPS))
    after = again(made)
    assert (before.basis, after.basis) == ("modelled", "calibrated")
    planned = again(made, micro_batch_size="8")  # a run mostly of loading ties with others
    assert planned.step_time_s == pytest.approx(measured, rel=0.02)
    learned = {item.component: item for item in found.learned}
    assert learned["compute"].log_sd == pytest.approx(0.08)  # a processor's own is 0.6


def test_a_gap_that_nothing_explains_makes_the_next_answer_less_sure(
    made: Path, tmp_path: Path
) -> None:
    measured, before = 30.0 * planned_step_s(made), again(made)
    verify(made / "run", record(tmp_path / "o.jsonl", [measured] * STEPS))
    after = again(made)
    assert after.step_time_s == pytest.approx(planned_step_s(made))
    assert after.duration_s.p90 > before.duration_s.p90
    assert after.duration_s.p10 < before.duration_s.p10


def test_what_was_learned_is_found_by_content_wherever_the_model_lies_and_however_it_is_typed(
    made: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verify(made / "run", record(tmp_path / "o.jsonl", [0.05] * STEPS))
    copied = tmp_path / "a copy of it"
    shutil.copytree(made / "data", copied / "data")
    shutil.copy(made / "tiny_cpu.yaml", copied)
    store = store_of(load_job(made / "tiny_cpu.yaml"))
    monkeypatch.chdir(copied)
    for typed in (
        "data/tiny_model",
        "./data/tiny_model/config.json",
        str(copied / "data/tiny_model"),
    ):
        job = load_job("tiny_cpu.yaml", set_values={"model": typed})
        assert store_of(job) == store
        assert [item.value for item in job.assumed if item.key == "evidence"] == ["1 verified run"]
    config = copied / "data" / "tiny_model" / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"num_hidden_layers": 3}))
    assert store_of(load_job("tiny_cpu.yaml")) != store


def busy(waited_s: float) -> dict[str, Any]:
    return {"event": "host", "step": STEPS, "ran_s": 10.0, "waited_s": waited_s}


def test_a_busy_machine_teaches_nothing_and_says_so(made: Path, tmp_path: Path) -> None:
    log = record(tmp_path / "o.jsonl", [2.0] * STEPS, busy(30.0))
    found = verify(made / "run", log)
    text = " ".join(VERIFY_REPORT.text(verification_payload(found)).split())
    assert "its threads waited 75 % of their time for a busy processor" in text
    assert {item.after for item in found.learned} <= {1.0}
    assert found.step_s.p10 <= 0.51  # what it would have taken alone
    plain, after = planned_step_s(made), again(made)
    assert (after.step_time_s, after.basis) == (pytest.approx(plain), "modelled")
    job = load_job(made / "tiny_cpu.yaml")
    (told,) = [item for item in job.assumed if item.key == "evidence"]
    assert told.value == "the times of 1 verified run left out"
    assert "75 %" in told.why


def test_waiting_a_little_is_no_busy_machine(made: Path, tmp_path: Path) -> None:
    log = record(tmp_path / "o.jsonl", [0.05] * STEPS, busy(1.0))
    found = verify(made / "run", log)
    assert not found.kind.spoiled
    assert again(made).basis == "calibrated"


def test_a_log_whose_parts_disagree_is_left_out_and_a_steady_one_is_surer(
    made: Path, tmp_path: Path
) -> None:
    disturbed = [0.04] * 20 + [0.16] * 15 + [0.05] * 15
    found = verify(made / "run", record(tmp_path / "a.jsonl", disturbed))
    assert "longer in some parts than in others" in found.kind.spoiled
    assert again(made).basis == "modelled"
    uneven = [0.04, 0.05, 0.06, 0.05, 0.045] * 10
    steady = verify(made / "run", record(tmp_path / "b.jsonl", [0.05] * STEPS))
    wavy = verify(made / "run", record(tmp_path / "c.jsonl", sorted(uneven)))
    assert not wavy.kind.spoiled
    assert wavy.step_s.p90 / wavy.step_s.p10 > 1.2 * steady.step_s.p90 / steady.step_s.p10


def test_a_noisy_log_moves_the_next_answer_less_than_a_steady_one(
    made: Path, tmp_path: Path
) -> None:
    plain = planned_step_s(made)
    times = sorted(plain * ratio for ratio in [1.4, 1.7, 2.0, 2.3, 2.6] * 10)
    verify(made / "run", record(tmp_path / "o.jsonl", times))
    noisy = again(made)
    assert plain < noisy.step_time_s < 0.98 * sum(times) / len(times)
    verify(made / "run", record(tmp_path / "o.jsonl", [2.0 * plain] * STEPS))
    assert again(made).step_time_s == pytest.approx(2.0 * plain, rel=0.02)


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"model": {"num_layers": 4}}, "num_layers 4, and {model} has 2 (2 times)"),
        ({"model": {"vocab_size": 32000}}, "vocab_size 32,000, and {model} has 260"),
        ({"method": {"kind": "full"}}, "its method is full, and the job's is LoRA of rank 8"),
        ({"method": {"kind": "lora", "rank": 32}}, "rank is 32, and the job's is 8 (4 times)"),
        ({"method": {"base": "nf4"}}, "stored as nf4, and the job's as 32bit (0.125 times the"),
        ({"micro_batch_size": 16}, "its global batch is 16, and the job's is 8 (2 times)"),
        ({"max_steps": 500, "epochs": 2}, "max_steps is 500, and the job has 50 steps (10 times)"),
    ],
)
def test_of_another_training_is_said_what_differs_and_by_how_much(
    made: Path, tmp_path: Path, home: Path, changes: dict[str, Any], says: str
) -> None:
    log = record(tmp_path / "o.jsonl", [0.05] * 20, **changes)
    if "micro_batch_size" in changes:  # its epochs are of that batch
        log.write_text(log.read_text().replace(f'"epoch": {20 / PER_EPOCH}', '"epoch": 1.6'))
    with pytest.raises(InputError) as refused:
        verify(made / "run", log)
    assert says.format(model="data/tiny_model") in refused.value.message
    assert not home.exists()


@pytest.mark.parametrize(
    ("saved", "says"),
    [
        ({"adapter_config.json": {"peft_type": "LORA", "r": 4}}, "LoRA rank is 4"),
        ({"config.json": {"num_hidden_layers": 2, "hidden_size": 64}}, "its method is full"),
        ({"adapter_config.json": {"peft_type": "LORA", "r": 8}}, ""),
        ({"adapter_config.json": [1], "config.json": "x"}, ""),
    ],
)
def test_the_files_saved_beside_a_state_say_the_method(
    made: Path, tmp_path: Path, saved: dict[str, Any], says: str
) -> None:
    history = [{"step": n, "train_runtime": 0.05 * n} for n in (10, 20)]
    state = {"global_step": 20, "max_steps": STEPS, "num_train_epochs": 2, "epoch": 0.8,
             "train_batch_size": 8, "save_steps": 50, "log_history": history}  # fmt: skip
    (tmp_path / "trainer_state.json").write_text(json.dumps(state))
    for name, content in saved.items():
        (tmp_path / name).write_text(json.dumps(content))
    if not says:
        assert verify(made / "run", tmp_path).steps_done == 20
        return
    with pytest.raises(InputError, match=says):
        verify(made / "run", tmp_path)


@pytest.mark.parametrize(
    ("end", "says"),
    [
        ((), "no end was recorded: it still runs, or it was killed"),
        (({"event": "end", "step": 20, "error": "OutOfMemoryError: CUDA"},), "OutOfMemoryError"),
        (({"event": "end", "step": 20, "duration_s": 9.0},), "the program ended at that point"),
    ],
)
def test_an_unfinished_log_is_compared_and_says_how_it_ended(
    made: Path, tmp_path: Path, end: tuple[dict[str, Any], ...], says: str
) -> None:
    found = verify(made / "run", record(tmp_path / "o.jsonl", [0.05] * 20, *end))
    assert says in found.kind.ended
    assert not found.finished
    assert found.remaining.steps == 30
    text = " ".join(VERIFY_REPORT.text(verification_payload(found)).split())
    assert "step 20 of 50" in text
    assert says in text
    ended = ({"event": "end", "step": STEPS, "duration_s": 9.0},)
    whole = verify(made / "run", record(tmp_path / "o.jsonl", [0.05] * STEPS, *ended))
    assert whole.kind.ended == ""


def started(path: Path, before_s: float = 4.0, **more: Any) -> Path:
    """The record of a whole run of the tiny job, as run.sh's train.py writes it."""
    told = {"before_s": before_s, "prepare_s": 2.0, "ran_s": 3.0, "waited_s": 0.1} | more
    end = {"event": "end", "duration_s": before_s + 2.0 + STEPS * 0.04 + 0.1}
    return record(path, [0.04] * STEPS, end, **told)


def line(found: Verification, what: str) -> Any:
    return next(line for line in found.lines if line.what == what)


def load_s(made: Path) -> float:
    job = load_job(made / "tiny_cpu.yaml")
    return Pricing(job).one(job.offers[0], default_config(job, job.offers[0])).time_s.load


def test_a_start_that_a_log_tells_is_what_the_next_answer_here_takes_for_one(
    made: Path, tmp_path: Path
) -> None:
    before = load_s(made)
    found = verify(made / "run", started(tmp_path / "observations.jsonl"))
    assert line(found, "load").actual == 4.0
    assert line(found, "prepare").actual == 2.0
    assert found.start is not None
    assert found.start.after == pytest.approx(4.0, rel=0.02)
    assert load_s(made) == pytest.approx(4.0, rel=0.02) != before
    job = load_job(made / "tiny_cpu.yaml")
    assert any("1 start on this machine" in item.why for item in job.assumed)
    elsewhere = load_job(JOBS / "h100_38h.yaml")
    assert [offer.host.start for offer in elsewhere.offers] == [None]


def test_a_run_is_compared_with_what_it_did_and_the_next_one_takes_as_long(
    made: Path, tmp_path: Path
) -> None:
    found = verify(made / "run", started(tmp_path / "observations.jsonl"))
    row = json.loads((made / "run" / "recommendation.json").read_text())["best"]
    evaluation = row["time_s"]["evaluation"]
    assert line(found, "evaluation").note == "the run had none"
    assert line(found, "total").predicted == pytest.approx(row["duration_s"]["p50"] - evaluation)
    assert found.next_runs.duration_s.p50 == line(found, "total").actual == pytest.approx(8.1)


def test_evaluations_that_a_run_timed_are_priced_so_in_the_next_bill_of_the_job(
    made: Path, tmp_path: Path
) -> None:
    events = [
        {"event": "evaluation", "step": n, "duration_s": t} for n, t in ((25, 3.0), (50, 5.0))
    ]
    found = verify(made / "run", record(tmp_path / "observations.jsonl", [0.1] * STEPS, *events))

    def evaluation_s(**sets: str) -> float:
        job = load_job(made / "tiny_cpu.yaml", set_values=sets)
        return Pricing.learned(job).one(job.offers[0], found.config).time_s.evaluation

    assert line(found, "evaluation").actual == 8.0
    assert next(item for item in found.learned if item.component == "evaluation").after > 1.0
    times = load_job(made / "tiny_cpu.yaml").evaluation.times(STEPS)
    assert evaluation_s() == pytest.approx(4.0 * times)
    assert 4.0 * times < evaluation_s(**{"evaluation.rows": "32"}) < 8.0 * times
    told = " ".join(verification_screen(verification_payload(found)).split())
    assert "an evaluation takes" in told[told.index("Later answers will use: steps take") :]


def test_a_log_that_tells_its_rows_is_not_taken_for_an_evaluation_of_the_planned(
    made: Path, tmp_path: Path
) -> None:
    event = {"event": "evaluation", "step": 25, "duration_s": 8.0, "rows": 160}
    verify(made / "run", record(tmp_path / "observations.jsonl", [0.1] * STEPS, event))
    job = load_job(made / "tiny_cpu.yaml")
    (told,) = [own for own in job.evidence if own.quantity == "evaluation_s"]
    assert told.facts["evaluation_rows"] == 160 != job.evaluation.rows
    bill = Pricing.learned(job).one(job.offers[0], default_config(job, job.offers[0]))
    assert bill.time_s.evaluation < 8.0 * job.evaluation.times(STEPS)


def test_the_range_of_a_start_that_nobody_watched_holds_a_quick_one(made: Path) -> None:
    """Two quiet cores start in 5 to 6 s from a warm page cache."""
    job = load_job(made / "tiny_cpu.yaml")
    bill = Pricing(job).of([(job.offers[0], default_config(job, job.offers[0]))])
    reach = math.exp(Z90 * bill.at("startup", "log_sd", 0))
    middle = bill.at("startup", "load_s", 0)
    assert middle / reach < 5.0
    assert middle * reach > 6.0


@pytest.mark.parametrize(
    ("told", "why"),
    [
        ({"waited_s": 3.0}, "a busy machine"),
        ({"prepare_s": None, "before_s": 3.0}, "tokenising may be most of it"),
    ],
)
def test_a_start_that_says_little_of_the_machine_is_not_kept(
    made: Path, tmp_path: Path, told: dict[str, Any], why: str
) -> None:
    found = verify(made / "run", started(tmp_path / "observations.jsonl", **told))
    assert found.start is None, why
    assert load_job(made / "tiny_cpu.yaml").offers[0].host.start is None


def test_a_later_log_of_a_training_replaces_its_start_and_others_count(
    made: Path, tmp_path: Path
) -> None:
    verify(made / "run", started(tmp_path / "a" / "observations.jsonl", 40.0))
    verify(made / "run", started(tmp_path / "a" / "observations.jsonl", 4.0))
    assert load_s(made) == pytest.approx(4.0, rel=0.02)
    found = verify(made / "run", started(tmp_path / "b" / "observations.jsonl", 9.0))
    assert found.start is not None
    assert found.start.before == pytest.approx(4.0, rel=0.02)
    assert load_s(made) == pytest.approx(6.0, rel=0.02)


def test_a_damaged_file_of_starts_is_set_aside_and_said(
    made: Path, tmp_path: Path, home: Path
) -> None:
    verify(made / "run", started(tmp_path / "a" / "observations.jsonl"))
    (file,) = (home / "machines" / "starts").glob("*.json")
    file.write_text(file.read_text().replace('"seconds"', '"second"'))
    job = load_job(made / "tiny_cpu.yaml")
    assert any(item.value == "left out" and "damaged" in item.why for item in job.assumed)
    found = verify(made / "run", started(tmp_path / "b" / "observations.jsonl"))
    assert any("was damaged" in text for text in found.warnings)
    assert len(list(file.parent.glob("*.damaged-*"))) == 1


def test_a_program_that_tokenises_itself_is_compared_with_both(made: Path, tmp_path: Path) -> None:
    found = verify(made / "run", started(tmp_path / "observations.jsonl", 9.0, prepare_s=None))
    row = json.loads((made / "run" / "recommendation.json").read_text())["best"]["time_s"]
    assert line(found, "load").predicted == pytest.approx(row["load"] + row["prepare"])
    assert found.start is not None
    assert found.start.seconds == pytest.approx(9.0 - row["prepare"], rel=0.02)

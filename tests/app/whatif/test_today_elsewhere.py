"""Today's config keeps its own machine and its own global batch, whatever is asked for instead."""

from __future__ import annotations

import json
import math
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.app.estimate import estimate
from autotune.app.job.load import load_job, resolve_spec
from autotune.app.tune.tune import Options, tune
from autotune.app.verify.verify import verify
from autotune.domain.errors import InputError
from autotune.domain.job import Batch
from autotune.evidence.reference import reference_of
from autotune.report.payload import recommendation_payload
from autotune.report.sections.answer import TUNE_REPORT

if TYPE_CHECKING:
    from autotune.domain.answer.recommendation import Recommendation
    from autotune.domain.job import Job

pytestmark = pytest.mark.usefixtures("home")

H100 = Path(__file__).parents[3] / "jobs" / "h100_38h.yaml"
OTHER = ("a100-40gb:4@4.80USD/h",)
EIGHT = {"micro_batch_size": 4, "gradient_accumulation_steps": 2}
SLOW_DISK = 25e6  # [bytes/s] that the file states of its own machine
JOB = {
    "model": "Qwen/Qwen2-0.5B", "method": "lora", "data": {"rows": 800, "max_length": 64},
    "train": {"epochs": 2, "global_batch_size": 16},
    "hardware": [{"gpu": "l4", "price": "1 USD/h"}],
}  # fmt: skip


def answered(job: Job) -> Recommendation:
    return tune(job, Options(dry_run=True, fidelity="formula", trials=1))


@cache
def plain_answer() -> Recommendation:
    """The H100 job as its file has it, which every drawn batch is compared with."""
    return answered(load_job(H100))


def adds_up(answer: Recommendation) -> None:
    fall, best, today = answer.journey.waterfall, answer.best, answer.today
    assert fall.start_s == pytest.approx(today.duration_s.p50)
    assert fall.end_usd == pytest.approx(best.cost_usd.p50)
    gap_s, gap_usd = fall.end_s - fall.start_s, fall.end_usd - fall.start_usd
    assert math.fsum(step.duration_s for step in fall.steps) == pytest.approx(gap_s, abs=1e-3)
    assert math.fsum(step.cost_usd for step in fall.steps) == pytest.approx(gap_usd, abs=1e-6)


def written(folder: Path, **changes: Any) -> Path:
    path = folder / "job.json"
    path.write_text(json.dumps({**JOB, **changes}))
    return path


@pytest.mark.parametrize("gpus", [(), OTHER])
def test_what_was_measured_is_read_with_the_disk_of_its_own_machine(gpus: tuple[str, ...]) -> None:
    job = load_job(H100, gpus=gpus)
    (seen,) = [reference_of(job, observation) for observation in job.evidence]
    assert seen.elsewhere is bool(gpus)
    assert seen.offer.host.checkpoint_write_bytes_per_s == SLOW_DISK


def test_the_own_machine_is_kept_in_what_a_run_records() -> None:
    job = load_job(H100, gpus=OTHER)
    again = resolve_spec(json.loads(job.spec), H100.parent)
    assert [offer.host for offer in again.seen_on] == [offer.host for offer in job.seen_on]
    assert again.seen_on[0].host.checkpoint_write_bytes_per_s == SLOW_DISK


def test_from_todays_machine_to_another_is_a_step_of_the_waterfall() -> None:
    answer = answered(load_job(H100, gpus=OTHER))
    assert answer.today.offer.device.name == "h100-sxm"
    assert answer.today.offer.usd_per_hour == 2.50
    assert any("machine" in step.change for step in answer.journey.waterfall.steps)
    adds_up(answer)
    assert not any(row.offer.device.name == "h100-sxm" for row in answer.pareto)


def test_estimate_prices_no_config_of_another_machine_or_batch() -> None:
    there = estimate(load_job(H100, gpus=("t4",)), fidelity="formula").row
    assert there.config.precision == "fp16"
    batch = load_job(H100, set_values={"train.global_batch_size": "16"})
    config = estimate(batch, fidelity="formula").row.config
    assert config.micro_batch_size * config.gradient_accumulation_steps == 16


@settings(max_examples=6, deadline=None)
@given(batch=st.sampled_from([1, 2, 4, 16, 32, 64]), there=st.booleans())
def test_another_global_batch_is_a_step_that_is_yours(batch: int, there: bool) -> None:
    values = {"train.global_batch_size": str(batch)}
    gpus = ("h100-sxm:1@3USD/h", "l40s@1USD/h") if there else ()
    job = load_job(H100, gpus=gpus, set_values=values)
    assert job.today_batch == Batch(8, 225_000)
    answer = answered(job)
    (step,) = [s for s in answer.journey.waterfall.steps if "train.global_batch_size" in s.change]
    assert step.yours
    assert step.change == "train.global_batch_size"
    assert not any(s.yours for s in answer.journey.waterfall.steps if s is not step)
    adds_up(answer)
    plain = plain_answer().today
    assert answer.today.steps == 225_000
    assert answer.today.config == plain.config
    assert answer.today.duration_s.p50 == pytest.approx(plain.duration_s.p50, rel=1e-6)


def test_the_report_says_that_the_batch_was_changed_and_whose_decision_it_is() -> None:
    answer = answered(load_job(H100, set_values={"train.global_batch_size": "16"}))
    text = " ".join(TUNE_REPORT.text(recommendation_payload(answer), width=100).split())
    assert "(the global batch changes from 8, too)" in text
    assert "train.global_batch_size: your decision" in text


@pytest.mark.parametrize(("gpus", "values"), [(OTHER, {}), ((), {"train.global_batch_size": "16"})])
def test_a_log_of_today_is_held_against_today(
    tmp_path: Path, gpus: tuple[str, ...], values: dict[str, str]
) -> None:
    job = load_job(H100, gpus=gpus, set_values=values)
    run = tmp_path / "run"
    tune(job, Options(run_dir=run, fidelity="formula", trials=1))
    log = tmp_path / "trainer_state.json"
    log.write_text(json.dumps({
        "global_step": 225_000, "max_steps": 225_000, "num_train_epochs": 3, "epoch": 3.0,
        "train_batch_size": 4, "save_steps": 1000, "log_history": [
            {"step": 225_000, "train_runtime": 136_000.0, "train_loss": 1.0,
             "train_steps_per_second": 1.654, "train_samples_per_second": 13.235}],
    }))  # fmt: skip
    found = verify(run, log)
    assert any("today's config, not from the pick" in text for text in found.warnings)
    assert (found.offer.device.name, found.job.global_batch_size) == ("h100-sxm", 8)
    total = next(line for line in found.lines if line.what == "total")
    assert total.ratio == pytest.approx(1.0, abs=0.05)


def test_a_price_ceiling_that_drops_the_machine_leaves_the_evidence_with_it(tmp_path: Path) -> None:
    machines = [{"gpu": "h100-sxm", "price": "2.50 USD/h"}, {"gpu": "l4", "price": "1 USD/h"}]
    entry = {"today": True, "measured": {"step_time": "0.1 s"}, "config": {}}
    job = load_job(written(tmp_path, hardware=machines, evidence=[entry]), max_price="2 USD/h")
    assert [offer.device.name for offer in job.offers] == ["l4"]
    assert job.evidence[0].facts["gpu"] == "h100-sxm"
    assert job.today_offer.usd_per_hour == 2.50


def test_an_entry_may_state_the_batch_that_it_ran(tmp_path: Path) -> None:
    entry = {"today": True, "global_batch_size": 8, "config": EIGHT}
    job = load_job(written(tmp_path, evidence=[entry]))
    assert job.today_batch == Batch(8, 200)
    adds_up(answered(job))


def test_steps_that_the_file_states_are_those_of_today(tmp_path: Path) -> None:
    train = {"steps": 500, "global_batch_size": 16}
    path = written(tmp_path, train=train, evidence=[{"today": True, "config": {}}])
    job = load_job(path, set_values={"train.global_batch_size": "32"})
    assert (job.today_batch, job.steps) == (Batch(16, 500), 500)


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"config": EIGHT}, "global_batch_size"),
        ({"config": EIGHT, "global_batch_size": 32}, "4 x 2 x 1 = 8"),
        ({"global_batch_size": 0}, "global_batch_size"),
        ({"hardware": "h100:x"}, "NAME:N"),
        ({"hardware": {"gpu": "h100", "host": {"checkpoint_write": "fast"}}}, "checkpoint_write"),
        ({"hardware": {"gpu": "h1000"}}, "h1000"),
        ({"hardware": 7}, 'unknown device "7"'),  # as 4090 is one
        ({"hardware": 7.5}, "hardware"),
    ],
)  # fmt: skip
def test_an_entry_that_cannot_be_is_an_error(
    tmp_path: Path, entry: dict[str, Any], says: str
) -> None:
    path = written(tmp_path, evidence=[{"today": True, "measured": {"duration": "1h"}, **entry}])
    with pytest.raises(InputError) as caught:
        load_job(path)
    assert says in f"{caught.value.message} {caught.value.hint}"

"""`estimate` prices what the user states, and refuses what cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import autotune
from autotune.app.estimate import estimate
from autotune.app.job.load import load_job
from autotune.domain.errors import InputError

if TYPE_CHECKING:
    from autotune.domain.job import Job

JOB = """\
model: {model}
method: lora
data: {{rows: 64, max_length: 64, padding: max_length}}
train: {{global_batch_size: 8}}
hardware: [{{gpu: l4, count: {count}, price: 1 USD/h, host: {{cores: 8}}}}]
{rest}
"""


def job_of(folder: Path, *, model: str = "Qwen/Qwen2-0.5B", count: int = 1, rest: str = "") -> Job:
    path = folder / "job.yaml"
    path.write_text(JOB.format(model=model, count=count, rest=rest))
    return load_job(path)


@pytest.mark.parametrize(
    ("model", "count", "knob", "value", "why"),
    [
        ("google/gemma-2-2b", 1, "attention", "sdpa", "does not have the kernel"),
        ("Qwen/Qwen2-0.5B", 1, "precision", "fp32", "need base 32bit"),
        ("Qwen/Qwen2-0.5B", 1, "sharding", "fsdp", "one device is not sharded"),
        ("Qwen/Qwen2-0.5B", 4, "sharding", "none", "several always are"),
        ("Qwen/Qwen2-0.5B", 1, "num_dataloader_workers", 1000, "than the host has cores"),
    ],
)
def test_a_value_that_cannot_run_is_refused(
    tmp_path: Path, model: str, count: int, knob: str, value: object, why: str
) -> None:
    job = job_of(tmp_path, model=model, count=count)
    with pytest.raises(InputError, match=why) as caught:
        autotune.estimate(job, **{knob: value})
    assert f"{knob} {value}" in caught.value.message


@pytest.mark.parametrize(
    ("knob", "value"), [("precision", "fp16"), ("packing", "on"), ("adapter_dtype", "bf16")]
)
def test_a_value_that_the_search_only_passes_over_is_priced(
    tmp_path: Path, knob: str, value: str
) -> None:
    assert autotune.estimate(job_of(tmp_path), **{knob: value}).config.as_dict()[knob] == value


def test_a_config_of_today_that_cannot_run_is_priced_and_doubted(tmp_path: Path) -> None:
    found = estimate(job_of(tmp_path, rest="evidence: [{today: true, config: {precision: fp32}}]"))
    assert found.row.config.precision == "fp32"
    assert any("cannot run as it stands" in note for note in found.warnings)


def test_an_evaluation_has_one_batch_and_saves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: Qwen/Qwen2-0.5B\nmethod: lora\ntrain: none\nhardware: l4\n"
        "data: {rows: 64, max_length: 64}\nevaluation: {rows: 64, batch_size: 12}\n"
    )
    answer = autotune.tune(load_job(path), fidelity="formula")
    config = answer.best.config
    assert (config.micro_batch_size, config.gradient_accumulation_steps) == (12, 1)
    assert answer.reasons["checkpoint_every_steps"].startswith("nothing is saved")


def test_reasons_of_saves_say_what_decided(tmp_path: Path) -> None:
    short = autotune.tune(job_of(tmp_path), fidelity="formula")
    assert short.reasons["checkpoint_every_steps"].startswith("one save, at the end")
    locked = autotune.tune(job_of(tmp_path, rest="lock: {save_total_limit: 1}"), fidelity="formula")
    assert locked.reasons["save_total_limit"] == "locked by the job"


def test_a_stock_samplers_pick_is_not_called_a_tie_with_what_it_never_tried() -> None:
    job = load_job(Path(__file__).parents[2] / "jobs" / "h100_38h.yaml")
    answer = autotune.tune(job, fidelity="formula", sampler="random", trials=3, seed=1)
    assert answer.best is not None
    assert any("by the formula; nobody measured it" in why for why in answer.reasons.values())


OPEN = {"attention", "activation_checkpointing", "micro_batch_size", "method.targets", "software"}


def test_a_run_that_stands_as_it_is_may_have_settings_that_nobody_stated(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    text = JOB.format(model="Qwen/Qwen2-0.5B", count=1, rest="")
    text = text.replace("padding: max_length", "lengths: {p50: 20, p95: 50}")
    path.write_text(text.replace("rows: 64", "rows: 50000"))
    job = load_job(path)
    found = estimate(job)
    assert set(found.job.unsaid) == OPEN
    listed = {item.key: item for item in found.job.assumed}
    assert listed["lock.attention"].value == found.row.config.attention == "sdpa"
    assert any("if one more thing were said" in text for text in found.warnings)
    said = {"attention": "sdpa", "activation_checkpointing": "none", "micro_batch_size": 8}
    told = autotune.estimate(job, **said)
    assert told.duration_s.p50 == pytest.approx(found.row.duration_s.p50)
    assert told.duration_s.p90 < found.row.duration_s.p90
    assert told.duration_s.p10 >= found.row.duration_s.p10


def test_what_a_search_picks_and_what_a_trainers_file_says_is_said(tmp_path: Path) -> None:
    assert not autotune.tune(job_of(tmp_path)).job.unsaid
    own = tmp_path / "train.sh"
    own.write_text(
        "torchrun train.py --model_name_or_path Qwen/Qwen2-0.5B --dataset_name tatsu-lab/alpaca "
        "--per_device_train_batch_size 4 --num_train_epochs 1 --output_dir out\n"
    )
    read = load_job(own, gpus=["l4@1USD/h"], set_values={"method.kind": "lora"})
    assert not estimate(read).job.unsaid
    today = job_of(tmp_path, rest="evidence: [{today: true, config: {precision: bf16}}]")
    assert not estimate(today).job.unsaid

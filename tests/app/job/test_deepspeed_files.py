"""DeepSpeed configs that a trainer's file names and that do not lie where it says."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_jobs
from autotune.domain.config import ZERO_STAGE
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.space.requirements import states_as_today

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

SHARDINGS = ("none", "ddp", "fsdp", *ZERO_STAGE)
ZERO = {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}}


def named(folder: Path, deepspeed: str, beside: tuple[str, ...] = ()) -> Job:
    """The job of arguments that name a DeepSpeed config, in a folder of a repository."""
    path = folder / "repo" / "jobs" / "args.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps({
        "output_dir": "out", "per_device_train_batch_size": 1, "deepspeed": deepspeed,
        "model_name_or_path": "Qwen/Qwen2.5-0.5B", "use_peft": True, "lora_r": 8, "bf16": True,
    }))  # fmt: skip
    overrides = Overrides(gpus=("h100:4",), stated={"data.rows": 1000}, beside=beside)
    return load_jobs(path, overrides)[0].job


@pytest.mark.parametrize("place", ["repo/jobs", "repo", "repo/configs", "repo/jobs/ds_configs"])
@pytest.mark.parametrize("stated", ["zero.json", "/cluster/shared/zero.json", "train/ds/zero.json"])
def test_a_config_is_found_where_repositories_keep_it(
    tmp_path: Path, place: str, stated: str
) -> None:
    file = tmp_path / place / "zero.json"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(ZERO))
    job = named(tmp_path, stated)
    assert (job.today.sharding, job.today.offload) == ("zero2", "optimizer")
    assert any(each.key == "read beside the file" for each in job.assumed)
    assert not job.origin or not job.origin.uncounted


def test_of_two_that_differ_none_is_taken(tmp_path: Path) -> None:
    for place, stage in (("repo/configs", 2), ("repo/jobs/deepspeed", 3)):
        (tmp_path / place).mkdir(parents=True)
        text = json.dumps({"zero_optimization": {"stage": stage}})
        (tmp_path / place / "ds.json").write_text(text)
    with pytest.raises(InputError, match="no such file is found") as refused:
        named(tmp_path, "other/ds.json")
    assert "--beside" in str(refused.value.hint)


@pytest.mark.parametrize(("stated", "sharding"), [
    ("configs/zero3.json", "zero3"), ("ds_z2_config.json", "zero2"), ("stage-3_bf16.json", "zero3"),
    ("/x/ds_config_zero1.json", "zero2"),
])  # fmt: skip
def test_a_config_that_is_nowhere_is_counted_by_its_name_and_said_first(
    tmp_path: Path, stated: str, sharding: str
) -> None:
    job = named(tmp_path, stated)
    assert (job.today.sharding, job.today.offload) == (sharding, "none")
    (told,) = job.origin.uncounted
    assert told.key == "deepspeed"
    assert "--beside" in told.why


@pytest.mark.parametrize(
    "stated", ["ds.json", "ds_z3_offload_config.json", "x\0zero.json", "q3.json"]
)
def test_a_config_that_is_nowhere_and_whose_name_says_too_little_is_asked_for(
    tmp_path: Path, stated: str
) -> None:
    with pytest.raises(InputError, match="no such file is found") as refused:
        named(tmp_path, stated)
    assert "--beside" in str(refused.value.hint)


def test_a_config_that_is_given_stands_for_the_one_that_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.json").write_text(json.dumps(ZERO))
    job = named(tmp_path, "nowhere/ds.json", (str(tmp_path / "mine.json"),))
    assert job.today.offload == "optimizer"


def test_what_the_trainer_is_told_of_deepspeed_divides_under_a_launcher_of_processes(
    tmp_path: Path,
) -> None:
    (tmp_path / "acc.yaml").write_text("distributed_type: MULTI_GPU\nnum_processes: 4\n")
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": {"stage": 2}}))
    run = tmp_path / "run.sh"
    run.write_text(
        "accelerate launch --config_file acc.yaml sft.py --model_name_or_path Qwen/Qwen2.5-0.5B "
        "--deepspeed zero.json --per_device_train_batch_size 2 --num_train_epochs 1 --use_peft\n"
    )
    found = load_jobs(run, Overrides(gpus=("h100",), stated={"data.rows": 1000}))[0].job
    assert found.today is not None
    assert (found.today.sharding, found.offers[0].count) == ("zero2", 4)


def test_deepspeed_makes_16_bit_of_a_frozen_base_in_any_dtype(tmp_path: Path) -> None:
    (tmp_path / "zero.json").write_text(
        json.dumps({"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}})
    )
    run = tmp_path / "run.sh"
    text = (
        "deepspeed --num_gpus 2 sft.py --model_name_or_path Qwen/Qwen2.5-0.5B --dtype float32 "
        "--bf16 True %s --per_device_train_batch_size 2 --num_train_epochs 1 --use_peft\n"
    )
    bases = []
    for flag in ("--deepspeed zero.json", ""):
        run.write_text(text % flag)
        found = load_jobs(run, Overrides(gpus=("h100",), stated={"data.rows": 1000}))[0].job
        bases.append(found.method.base)
    assert bases == ["16bit", "32bit"]


@pytest.mark.parametrize("machine", ["h100:8", "h100:4"])
def test_masters_that_deepspeed_keeps_today_are_kept_on_every_machine(
    tmp_path: Path, machine: str
) -> None:
    (tmp_path / "zero.json").write_text(json.dumps({"zero_optimization": {"stage": 3}}))
    run = tmp_path / "run.sh"
    run.write_text(
        "deepspeed --num_gpus 8 train.py --model_name_or_path Qwen/Qwen2.5-7B --bf16 True "
        "--deepspeed zero.json --per_device_train_batch_size 2 --num_train_epochs 1 "
        "--dtype bfloat16\n"
    )
    stated = {"data.rows": 1000, "method.kind": "full", "data.max_length": 1024}
    job = load_jobs(run, Overrides(gpus=(machine,), stated=stated))[0].job
    assert job.method.base == "16bit"
    open_to = {name for name in SHARDINGS if states_as_today(job, job.offers[0], name)}
    assert open_to == set(ZERO_STAGE)

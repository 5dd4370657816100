"""A launch command starts as many processes as the pick has devices."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import jobs_of_command, load_jobs
from autotune.app.runs.user_file import same_export
from autotune.domain.typed.overrides import Overrides
from autotune.trainers.launch.processes import processes_of, with_processes
from autotune.trainers.syntax.command_line import parse_command

if TYPE_CHECKING:
    from autotune.domain.config import Config

FLAGS = (
    "train.py --model_name_or_path Qwen/Qwen2.5-7B --use_peft --lora_r 16 "
    "--per_device_train_batch_size 4 --max_length 1024 --bf16"
)
STATED = {"data.rows": 1000}
OWN = Path(__file__).parents[1] / "own"


@pytest.mark.parametrize(
    ("before", "devices", "after"),
    [
        ("torchrun --nproc_per_node=8", 4, "torchrun --nproc_per_node=4"),
        ("torchrun --nproc-per-node 2 -m", 4, "torchrun --nproc-per-node 4 -m"),
        ("deepspeed --num_gpus 8", 4, "deepspeed --num_gpus 4"),
        ("deepspeed --include localhost:4,5", 4, "deepspeed --include localhost:0,1,2,3"),
        (
            "accelerate launch --multi_gpu --num_processes 8", 2,
            "accelerate launch --multi_gpu --num_processes 2",
        ),
        (
            "accelerate launch --multi_gpu --num_processes 8", 1,
            "accelerate launch --num_processes 1",
        ),
        (
            "CUDA_VISIBLE_DEVICES=0,1 torchrun --nproc_per_node 2", 4,
            "CUDA_VISIBLE_DEVICES=0,1,2,3 torchrun --nproc_per_node 4",
        ),
        ("python", 4, "torchrun --nproc_per_node 4"),
        ("A=1 python3 -u -m", 2, "A=1 torchrun --nproc_per_node 2 -m"),
        ("/opt/bin/python", 2, "/opt/bin/torchrun --nproc_per_node 2"),
        ("torchrun", 2, "torchrun --nproc_per_node 2"),
    ],
)  # fmt: skip
def test_a_command_starts_one_process_a_device(before: str, devices: int, after: str) -> None:
    text, changes = with_processes(f"{before} {FLAGS}", devices, launched=True)
    assert text == f"{after} {FLAGS}"
    assert changes
    assert processes_of(parse_command(text)) == devices
    assert with_processes(text, devices, launched=True) == (text, {})


@pytest.mark.parametrize(
    "start",
    [
        "torchrun --nproc_per_node 4", "torchrun --nproc_per_node $N", "accelerate launch",
        "torchrun --nnodes 2 --nproc_per_node 8", "python -m torch.distributed.run",
        "python -m accelerate.commands.launch", "deepspeed",
    ],
)  # fmt: skip
def test_a_command_that_finds_its_number_elsewhere_stays(start: str) -> None:
    assert with_processes(f"{start} {FLAGS}", 4, launched=True) == (f"{start} {FLAGS}", {})


def test_a_program_that_starts_its_processes_itself_stays() -> None:
    assert with_processes(f"python {FLAGS}", 4) == (f"python {FLAGS}", {})


def test_a_script_of_the_shell_comes_back_with_the_number_of_the_pick(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text(f"#!/bin/bash\npython prepare.py\ndeepspeed --num_gpus 8 {FLAGS}\n")
    job = load_jobs(path, Overrides(gpus=("h100:4",), stated=STATED))[0].job
    today = load_jobs(path, Overrides(gpus=("h100:8",), stated=STATED))[0].job.today
    config = today.with_knobs(sharding="ddp", gradient_accumulation_steps=2)
    files = same_export("same", job, job.offers[0], config).files
    assert f"python prepare.py\ndeepspeed --num_gpus 4 {FLAGS}" in files["launch.sh"]
    assert "+deepspeed --num_gpus 4" in files["launch.sh.diff"]


def test_a_typed_command_for_one_device_is_launched_on_several() -> None:
    job = jobs_of_command(f"python {FLAGS}", Overrides(gpus=("h100:2",), stated=STATED))[0].job
    made = same_export("same", job, job.offers[0], job.today.with_knobs(sharding="ddp"))
    assert "exec torchrun --nproc_per_node 2 train.py --model_name" in made.files["run.sh"]


def test_deepspeed_s_launcher_reads_no_config_that_shards_by_fsdp() -> None:
    typed = f"deepspeed --num_gpus 2 {FLAGS}"
    job = jobs_of_command(typed, Overrides(gpus=("h100:2",), stated=STATED))[0].job
    made = same_export("same", job, job.offers[0], job.today.with_knobs(sharding="fsdp"))
    assert "accelerate launch --config_file" in made.files["run.sh"]
    assert "deepspeed" not in made.files["run.sh"]
    assert any("starts without accelerate" in note for note in made.notes)


def test_an_unsloth_script_starts_once_a_card(tmp_path: Path) -> None:
    path = tmp_path / "train.py"
    path.write_text((OWN / "unsloth_script.txt").read_text())
    job = load_jobs(path, Overrides(gpus=("h100:2",), stated=STATED))[0].job
    made = same_export("same", job, job.offers[0], job.today.with_knobs(sharding="ddp"))
    assert "accelerate launch --config_file" in made.files["run.sh"]
    assert "num_processes: 2" in made.files["accelerate.yaml"]


def test_a_number_that_stands_elsewhere_is_said(tmp_path: Path) -> None:
    path = tmp_path / "launch.sh"
    path.write_text((OWN / "swift.sh").read_text())
    job = load_jobs(path, Overrides(gpus=("h100:1",)))[0].job
    config = jobs_today(path).with_knobs(sharding="none", gradient_accumulation_steps=8)
    made = same_export("same", job, job.offers[0], config)
    assert "CUDA_VISIBLE_DEVICES=0,1" in made.files["launch.sh"]
    told = "launch.sh starts 2 processes and the pick has 1: change it yourself"
    assert told in made.notes


def jobs_today(path: Path) -> Config:
    """The config that a file has on its own machine."""
    return load_jobs(path, Overrides(gpus=("h100",)))[0].job.today

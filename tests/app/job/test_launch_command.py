"""A launch command as JOB: launchers, environments, files that it names, and what contradicts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import jobs_of_command, load_jobs
from autotune.app.runs.user_file import patched
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.trainers.syntax.command_line import parse_command, rewrite_command
from autotune.trainers.syntax.shell_script import parse_shell, shell_names

if TYPE_CHECKING:
    from autotune.domain.job import Job

OWN = Path(__file__).parents[2] / "trainers" / "own"
FLAGS = (
    "train.py --model_name_or_path Qwen/Qwen2.5-7B --use_peft --per_device_train_batch_size 4 "
    "--gradient_accumulation_steps 2"
)


def job_of(command: str, **stated: object) -> Job:
    keys = {"data.rows": 1000, **stated}
    return jobs_of_command(command, Overrides(gpus=("h100-sxm",), stated=keys))[0].job


def refused(command: str) -> str:
    with pytest.raises(InputError) as caught:
        job_of(command)
    return f"{caught.value.message} {caught.value.hint}"


@pytest.mark.parametrize(("launcher", "devices"), [
    ("python", 1), ("python -u", 1), ("python3 -m accelerate.commands.launch", 1),
    ("torchrun --nproc_per_node 4", 4), ("torchrun --nproc-per-node=4 --nnodes=2", 8),
    ("torchrun --standalone --nproc_per_node=2", 2),
    ("python -m torch.distributed.launch --nproc_per_node=4", 4),
    ("accelerate launch --num_processes 4 --multi_gpu", 4),
    ("deepspeed --num_gpus=4", 4), ("deepspeed --include localhost:0,2,3", 3),
    ("CUDA_VISIBLE_DEVICES=0,1 deepspeed", 2), ("CUDA_VISIBLE_DEVICES=0,1 python", 1),
    ("CUDA_VISIBLE_DEVICES=0,1 accelerate launch", 2),
    ("CUDA_VISIBLE_DEVICES=0,1 accelerate launch --num_processes 1", 1),
    ("cd work && torchrun --nproc_per_node 2", 2),
])  # fmt: skip
def test_the_words_before_the_script_say_how_many_devices(launcher: str, devices: int) -> None:
    job = job_of(f"{launcher} {FLAGS}")
    assert (job.offers[0].count, job.global_batch_size) == (devices, 8 * devices)


@pytest.mark.parametrize(("launcher", "sharding"), [
    ("--use_fsdp", "fsdp"), ("--use_deepspeed --zero_stage 3", "zero3"), ("--multi_gpu", "ddp"),
])  # fmt: skip
def test_flags_of_accelerate_launch_say_the_sharding(launcher: str, sharding: str) -> None:
    job = job_of(f"accelerate launch --num_processes 2 {launcher} {FLAGS}")
    assert job.today.sharding == sharding


@pytest.mark.parametrize("typed", [
    "--gradient_accumulation_steps 2", "--gradient-accumulation-steps=2",
    "--gradient_accumulation_steps \\\n  2", "--gradient_accumulation_steps '2'",
    "--gradient_accumulation_steps 2  # note", "--gradient_accumulation_steps 2 > log 2>&1 &",
    "--gradient_accumulation_steps 2 | tee log.txt", "--gradient_accumulation_steps 2; echo done",
])  # fmt: skip
def test_a_flag_is_read_however_it_is_typed(typed: str) -> None:
    found = parse_command(f"python train.py --per_device_train_batch_size 4 {typed}")
    assert found.values["gradient_accumulation_steps"] == "2"


@pytest.mark.parametrize(("typed", "value"), [
    ("--bf16", True), ("--bf16 True", True), ("--bf16=false", False), ("--no_bf16", False),
])  # fmt: skip
def test_a_switch_is_read_however_it_is_typed(typed: str, value: bool) -> None:
    assert parse_command(f"python t.py --save_steps 1 {typed}").values["bf16"] is value


def test_a_new_flag_stands_before_what_is_redirected() -> None:
    command = "nohup python t.py --save_steps 1 > log.txt 2>&1 &"
    changed = rewrite_command(command, {"save_steps": 7, "save_total_limit": 2})
    wanted = "nohup python t.py --save_steps 7 --save_total_limit 2 > log.txt 2>&1 &"
    assert changed == wanted


def test_a_variable_that_a_script_binds_once_is_put_in() -> None:
    text = (
        "#!/bin/bash\nexport BATCH=4\nSTEPS=8 # rows\nLOOP=1\nLOOP=2\nN=$(nproc)\n"
        "python train.py --per_device_train_batch_size $BATCH --max_steps ${STEPS} \\\n"
        "  --gradient_accumulation_steps ${ACCUMULATION:-2} --save_steps $LOOP --seed '$BATCH'\n"
    )
    assert shell_names(text) == {"BATCH": "4", "STEPS": "8"}
    values = parse_shell(text, "run.sh").values
    assert values["per_device_train_batch_size"] == "4"
    assert (values["max_steps"], values["gradient_accumulation_steps"]) == ("8", "2")
    assert (values["save_steps"], values["seed"]) == ("$LOOP", "$BATCH")


@pytest.mark.parametrize("command", [
    "axolotl train {axolotl.yml}", "accelerate launch -m axolotl.cli.train {axolotl.yml}",
    "FORCE_TORCHRUN=1 llamafactory-cli train {llamafactory.yaml}",
    "trl sft --config {sft_config.yaml}", "litgpt finetune_lora --config {litgpt.yaml}",
])  # fmt: skip
def test_the_file_that_a_command_names_is_the_job(command: str) -> None:
    name = command[command.index("{") + 1 : command.index("}")]
    found = job_of(command.replace("{" + name + "}", str(OWN / name)))
    direct = load_jobs(OWN / name, Overrides(gpus=("h100-sxm",), stated={"data.rows": 1000}))[0].job
    assert (found.global_batch_size, found.epochs, found.max_length, found.method) == (
        direct.global_batch_size, direct.epochs, direct.max_length, direct.method,
    )  # fmt: skip
    assert found.origin.path == str(OWN / name)


def test_a_flag_over_the_commands_file_counts_before_it() -> None:
    job = job_of(f"axolotl train {OWN / 'axolotl.yml'} --micro_batch_size 8")
    assert job.today is not None
    assert job.today.micro_batch_size == 8


def test_flags_beside_the_file_are_listed() -> None:
    job = job_of(f"axolotl train {OWN / 'axolotl.yml'} --output_dir out")
    said = [each.value for each in job.assumed if each.key == "flags beside the file"]
    assert said == ["output_dir 'out'"]


def test_dotted_flags_are_read_and_given_back() -> None:
    command = "litgpt finetune_lora Qwen/Qwen2.5-7B --train.micro_batch_size 2 --train.epochs 1"
    job = job_of(command)
    assert (job.global_batch_size, job.epochs, job.method.rank) == (16, 1.0, 8)
    config = job.today.with_knobs(micro_batch_size=4, gradient_accumulation_steps=4)
    text = patched("same", job, job.offers[0], config).text
    assert text.startswith(command.replace("micro_batch_size 2", "micro_batch_size 4"))


def test_a_misspelt_key_that_decides_the_job_is_refused(tmp_path: Path) -> None:
    text = (OWN / "axolotl.yml").read_text(encoding="utf-8").replace("micro_batch", "micro_bach")
    path = tmp_path / "config.yml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(InputError, match=r"micro_bach_size \(close to micro_batch_size\)"):
        load_jobs(path, Overrides(gpus=("h100-sxm",), stated={"data.rows": 1000}))


@pytest.mark.parametrize(("model", "targets"), [
    ("meta-llama/Llama-3.1-8B", ("q_proj", "v_proj")), ("gpt2", ("c_attn",)),
    ("tiiuae/falcon-7b", ("query_key_value",)),
])  # fmt: skip
def test_an_adapter_without_targets_is_pefts_own_for_that_model(
    tmp_path: Path, model: str, targets: tuple[str, ...]
) -> None:
    path = tmp_path / "args.json"
    values = {"output_dir": "o", "per_device_train_batch_size": 1, "max_length": 64,
              "model_name_or_path": model, "use_peft": True}  # fmt: skip
    path.write_text(json.dumps(values), encoding="utf-8")
    job = load_jobs(path, Overrides(gpus=("h100-sxm",), stated={"data.rows": 1000}))[0].job
    method = job.method
    assert (method.rank, method.alpha, method.dropout) == (16, 32.0, 0.05)  # trl's ModelConfig
    assert method.targets == targets


def test_a_launchers_config_says_how_many_of_the_visible_devices_it_starts(tmp_path: Path) -> None:
    config = tmp_path / "two.json"
    config.write_text(json.dumps({"distributed_type": "MULTI_GPU", "num_processes": 2}))
    job = job_of(f"CUDA_VISIBLE_DEVICES=0,1 accelerate launch --config_file {config} {FLAGS}")
    assert (job.offers[0].count, job.global_batch_size) == (2, 16)


@pytest.mark.parametrize(("lines", "nodes"), [
    ("NODES=2", 2), ("NODES=${SLURM_NNODES:-3}", 3), ("#SBATCH --nodes=2\nNODES=$SLURM_NNODES", 2),
    ("#SBATCH -N 4\nNODES=$SLURM_JOB_NUM_NODES", 4), ("NODES=$SLURM_NNODES", 0),
    ("NODES=$(wc -l < hosts)", 0),
])  # fmt: skip
def test_machines_that_a_variable_counts(tmp_path: Path, lines: str, nodes: int) -> None:
    """0: nothing says how many, one is counted, and the first warnings say so."""
    path = tmp_path / "run.sh"
    path.write_text(f"#!/bin/bash\n{lines}\ntorchrun --nnodes $NODES --nproc_per_node 2 {FLAGS}\n")
    job = load_jobs(path, Overrides(gpus=("h100-sxm",), stated={"data.rows": 1000}))[0].job
    assert job.global_batch_size == 8 * 2 * (nodes or 1)
    (said,) = job.origin.uncounted
    assert said.key == "machines"
    assert said.value == (str(nodes) if nodes else "$NODES")


def test_devices_of_a_machine_are_those_that_slurm_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "run.sh"
    asked = "#SBATCH --gres=gpu:a100:4\n"
    path.write_text(f"#!/bin/bash\n{asked}torchrun --nproc_per_node $SLURM_GPUS_ON_NODE {FLAGS}\n")
    job = load_jobs(path, Overrides(gpus=("h100-sxm",), stated={"data.rows": 1000}))[0].job
    assert (job.offers[0].count, job.global_batch_size) == (4, 32)

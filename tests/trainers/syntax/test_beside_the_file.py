"""What a command says beside the file that it names, and a user of what a shell decides."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from ruamel.yaml import YAML

from autotune.app.job.load import jobs_of_command, load_jobs
from autotune.app.runs.user_file import SAME, check_in_place, patched
from autotune.domain.errors import InputError
from autotune.trainers.syntax.rewrite import stated_in
from tests.strangers import asked, file, today, warnings

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

QWEN = "Qwen/Qwen2.5-0.5B"
FACTORY = f"""\
model_name_or_path: {QWEN}
stage: sft
do_train: true
finetuning_type: lora
lora_rank: 8  # small
dataset: mine
cutoff_len: 512
per_device_train_batch_size: 2
gradient_accumulation_steps: 1
learning_rate: 1.0e-4
num_train_epochs: 1.0
bf16: true
"""
AXOLOTL = f"""\
base_model: {QWEN}
adapter: lora
lora_r: 8
lora_target_linear: true
sequence_len: 512
micro_batch_size: 2
gradient_accumulation_steps: 4
num_epochs: 1
bf16: true
datasets:
  - path: own/rows
    type: alpaca
"""
TUNE = """\
model:
  _component_: torchtune.models.qwen2_5.lora_qwen2_5_0_5b
  lora_attn_modules: [q_proj, v_proj]
  lora_rank: 8
  lora_alpha: 16
checkpointer:
  _component_: torchtune.training.FullModelHFCheckpointer
  checkpoint_dir: models/Qwen2.5-0.5B
tokenizer:
  max_seq_len: 512
dataset:
  _component_: torchtune.datasets.chat_dataset
  packed: False
batch_size: 2
epochs: 1
gradient_accumulation_steps: 8
optimizer:
  _component_: torch.optim.AdamW
  lr: 3e-4
enable_activation_checkpointing: True
dtype: bf16
"""
LAUNCH = f"""\
SIZE=$1
accelerate launch train.py \\
  --model_name_or_path {QWEN} --use_peft --lora_r $RANK \\
  --per_device_train_batch_size $SIZE \\
  --gradient_accumulation_steps "${{AGAIN}}" \\
  --num_train_epochs $EPOCHS --max_length 256 --bf16
"""
SAID = {
    "micro_batch_size": "4", "gradient_accumulation_steps": "2", "train.epochs": "3",
    "method.rank": "32",
}  # fmt: skip


def command(folder: Path, text: str, of: str, start: str) -> Job:
    """The job of a command that names this file; `start` has a gap for its name."""
    named = folder / "a.yaml"
    named.write_text(of)
    return jobs_of_command(start % named if "%s" in start else f"{start} {named} {text}", asked())[
        0
    ].job


def given_back(found: Job) -> str:
    return patched(SAME, found, found.offers[0], today(found)).text


def test_words_behind_a_file_count_before_it_and_are_given_back_in_it(tmp_path: Path) -> None:
    text = "learning_rate=1e-5 lora_rank=32 per_device_train_batch_size=4"
    found = command(tmp_path, text, FACTORY, "llamafactory-cli train")
    assert (found.method.rank, today(found).micro_batch_size) == (32, 4)
    back = given_back(found)
    assert "lora_rank: 32  # small" in back
    assert YAML(typ="safe", pure=True).load(back)["learning_rate"] == 1e-5
    assert "1.0e-05" in back  # which YAML 1.1 reads as a number too


def test_flags_of_axolotl_count_before_its_file(tmp_path: Path) -> None:
    text = "--micro-batch-size 4 --num-epochs 3 --val-set-size 0.1"
    found = command(tmp_path, text, AXOLOTL, "axolotl train")
    assert (today(found).micro_batch_size, found.epochs, found.rows) == (4, 3.0, 900)


def test_overrides_of_torchtune_reach_into_its_sections(tmp_path: Path) -> None:
    start = "tune run lora_finetune_single_device --config %s batch_size=1 model.lora_rank=64"
    found = command(tmp_path, "", TUNE, f"{start} dataset.packed=True")
    assert (found.method.rank, today(found).micro_batch_size) == (64, 1)
    assert today(found).packing == "on"
    assert "  lora_rank: 64\n" in given_back(found)


def test_what_a_command_trains_beside_its_file_is_what_is_priced(tmp_path: Path) -> None:
    found = command(tmp_path, "stage=dpo", FACTORY, "llamafactory-cli train")
    assert found.objective == "dpo"
    with pytest.raises(InputError, match="reinforcement learning"):
        command(tmp_path, "stage=ppo", FACTORY, "llamafactory-cli train")


def test_a_flag_that_is_no_key_of_the_trainer_is_said_unless_it_moves_no_price(
    tmp_path: Path,
) -> None:
    said = warnings(command(tmp_path, "--speed-steps 9", AXOLOTL, "axolotl train"))
    assert "flags speed_steps '9'" in said
    quiet = warnings(command(tmp_path, "--wandb-tag mine", AXOLOTL, "axolotl train"))
    assert "flags" not in quiet


def test_a_file_that_lacks_the_commands_flags_is_not_changed_in_place(tmp_path: Path) -> None:
    plain = command(tmp_path, "", FACTORY, "llamafactory-cli train")
    check_in_place(plain)
    found = command(tmp_path, "lora_rank=32", FACTORY, "llamafactory-cli train")
    with pytest.raises(InputError, match="lora_rank was stated beside"):
        check_in_place(found)


def test_flags_are_written_into_json_as_well() -> None:
    text, values = stated_in('{\n  "a": 1\n}\n', "json", {"a": 1}, {"a": "2", "b.c": "x"}, "a.json")
    assert json.loads(text) == values == {"a": 2, "b": {"c": "x"}}


def test_what_a_shell_decides_is_asked_for_all_at_once(tmp_path: Path) -> None:
    with pytest.raises(InputError) as refused:
        file(tmp_path / "run.sh", LAUNCH)
    assert "--per_device_train_batch_size $SIZE" in refused.value.message
    assert "--lora_r $RANK" in refused.value.message
    for wanted in SAID:
        assert f"--set {wanted}=" in (refused.value.hint or "")
    with pytest.raises(InputError) as fewer:
        file(tmp_path / "run.sh", LAUNCH, **{"micro_batch_size": "4", "method.rank": "32"})
    assert "SIZE" not in fewer.value.message


def test_what_the_user_states_stands_for_what_a_shell_decides(tmp_path: Path) -> None:
    found = file(tmp_path / "run.sh", LAUNCH, **SAID)
    assert (today(found).micro_batch_size, today(found).gradient_accumulation_steps) == (4, 2)
    assert (found.method.rank, found.epochs, found.global_batch_size) == (32, 3.0, 8)
    back = given_back(found)
    assert "--per_device_train_batch_size 4" in back
    assert "$" not in back.partition("accelerate")[2]


def test_steps_in_place_of_epochs_that_a_shell_decides(tmp_path: Path) -> None:
    said = {key: value for key, value in SAID.items() if key != "train.epochs"}
    assert file(tmp_path / "run.sh", LAUNCH, **said, **{"train.steps": "50"}).steps == 50


def test_a_value_that_another_run_of_the_script_fills_in_is_no_longer_asked_for(
    tmp_path: Path,
) -> None:
    text = LAUNCH.replace("SIZE=$1\n", "SIZE=${1:-8}\nEPOCHS=2\nAGAIN=1\nRANK=16\n")
    found = file(tmp_path / "run.sh", text)
    assert (today(found).micro_batch_size, found.method.rank) == (8, 16)


@pytest.mark.parametrize(
    ("between", "said"),
    [
        ("  # half of it\n", True), ("  # half \\\n  # and more\n", True),
        ("  `# half of it` \\\n", False), ("  `\n  # half of it\n  ` \\\n", False),
    ],
)  # fmt: skip
def test_flags_behind_a_comment_inside_a_command_are_read(
    tmp_path: Path, between: str, said: bool
) -> None:
    text = (
        f"python train.py --model_name_or_path {QWEN} \\\n{between}"
        "  --per_device_train_batch_size 6 --num_train_epochs 2 --use_peft --lora_r 4 \\\n"
        f"{between}  --max_length 128 --bf16\n"
    )
    found = file(tmp_path / "run.sh", text)
    assert (today(found).micro_batch_size, found.max_length, found.method.rank) == (6, 128, 4)
    assert ("a comment between its lines" in warnings(found)) is said


def test_a_comment_at_the_end_of_a_command_takes_nothing_of_the_next(tmp_path: Path) -> None:
    text = LAUNCH.replace("SIZE=$1\n", "SIZE=8\nEPOCHS=2\nAGAIN=1\nRANK=16\n")
    found = file(tmp_path / "run.sh", f"{text}# --max_length 64\necho --max_length 32\n")
    assert found.max_length == 256


def test_a_command_that_prepares_data_is_no_training(tmp_path: Path) -> None:
    prepares = f"python scripts/prepare_data.py --model_name_or_path {QWEN} --batch_size 100\n"
    with pytest.raises(InputError, match="prepares data and trains nothing"):
        file(tmp_path / "prepare.sh", prepares)
    with pytest.raises(InputError, match="prepares data and trains nothing"):
        command(tmp_path, "", AXOLOTL, "python -m axolotl.cli.preprocess")
    trains = (
        f"python train.py --model_name_or_path {QWEN} --per_device_train_batch_size 4 --bf16 "
        "--num_train_epochs 1 --use_peft --lora_r 4 --max_length 128\n"
    )
    both = file(tmp_path / "both.sh", f"{prepares}{trains}python eval.py --batch_size 8\n")
    assert today(both).micro_batch_size == 4
    assert "another launch" not in warnings(both)


def test_the_deepspeed_config_that_accelerates_names_is_found_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "configs").mkdir()
    accelerate = "distributed_type: DEEPSPEED\nnum_processes: 2\nmixed_precision: bf16\n"
    accelerate += "deepspeed_config:\n  deepspeed_config_file: /home/them/configs/own.json\n"
    (tmp_path / "configs" / "start.yaml").write_text(accelerate)
    start = "accelerate launch --config_file configs/start.yaml train.py"
    flags = f"--model_name_or_path {QWEN} --per_device_train_batch_size 2 --num_train_epochs 1"
    (tmp_path / "go.sh").write_text(f"{start} {flags}\n")
    said = asked(**{"method.kind": "full", "data.max_length": "512"})
    with pytest.raises(InputError, match=r"own\.json', and no such file is found"):
        load_jobs(tmp_path / "go.sh", said)
    zero = {"zero_optimization": {"stage": 3}, "bf16": {"enabled": True}}
    (tmp_path / "configs" / "own.json").write_text(json.dumps(zero))
    found = load_jobs(tmp_path / "go.sh", said)[0].job
    assert (today(found).sharding, found.offers[0].count) == ("zero3", 2)


def test_a_launchers_config_that_is_not_here_counts_by_its_name_or_is_asked_for(
    tmp_path: Path,
) -> None:
    flags = f"--model_name_or_path {QWEN} --per_device_train_batch_size 2 --num_train_epochs 1"
    said = asked("h100:2", **{"method.kind": "full", "data.max_length": "512"})
    path = tmp_path / "go.sh"
    path.write_text(f"accelerate launch --config_file their/deepspeed_zero3.yaml train.py {flags}")
    found = load_jobs(path, said)[0].job
    assert today(found).sharding == "zero3"
    assert "counted as zero3 by its name" in warnings(found)
    path.write_text(f"accelerate launch --config_file their/own.yaml train.py {flags}")
    with pytest.raises(InputError, match="no such file is found") as refused:
        load_jobs(path, said)
    assert "--beside FILE names it" in str(refused.value.hint)

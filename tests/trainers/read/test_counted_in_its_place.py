"""What is counted where a file says something that nothing here means, or says nothing."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_jobs
from autotune.app.runs.user_file import SAME, patched
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from tests.strangers import command, today, warnings

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

QWEN = "Qwen/Qwen2.5-0.5B"
TUNE = {
    "model": {"_component_": "torchtune.models.qwen2_5.qwen2_5_0_5b"},
    "checkpointer": {"checkpoint_dir": "models/Qwen2.5-0.5B"},
    "tokenizer": {"max_seq_len": 512},
    "dataset": {"_component_": "torchtune.datasets.chat_dataset", "packed": False},
    "batch_size": 2, "epochs": 1, "gradient_accumulation_steps": 8, "dtype": "bf16",
    "optimizer": {"_component_": "torch.optim.AdamW"},
    "enable_activation_checkpointing": True,
}  # fmt: skip
HANDBOOK = {
    "model_name_or_path": QWEN, "use_peft": True, "lora_r": 16, "lora_target_modules": ["q_proj"],
    "max_seq_length": 512, "per_device_train_batch_size": 4, "num_train_epochs": 1,
    "gradient_checkpointing": True, "dataset_mixer": {"own/rows": 1.0},
    "dataset_splits": ["train", "test"],
}  # fmt: skip
SCRIPT = f"""\
from transformers import AutoModelForCausalLM
from trl import IMPORTED
model = AutoModelForCausalLM.from_pretrained("{QWEN}")
args = CONFIG("out", per_device_train_batch_size=2, num_train_epochs=1, max_length=256)
trainer = TRAINER(model=model, args=args, train_dataset=rows)
STARTED
"""


def file(path: Path, values: object, gpu: str = "h100") -> Job:
    text = values if isinstance(values, str) else json.dumps(values)
    path.write_text(text)
    stated: dict[str, object] = {"data.rows": 1000}
    if path.suffix == ".py" and "peft" not in text:
        stated |= {"method.kind": "full"}
    return load_jobs(path, Overrides((gpu,), stated=stated))[0].job


def test_a_value_that_no_word_means_is_said(tmp_path: Path) -> None:
    found = file(tmp_path / "a.yaml", {**TUNE, "dtype": "fp16"})
    assert "dtype 'fp16': no value that is read" in warnings(found)
    assert "no value" not in warnings(file(tmp_path / "b.yaml", TUNE))


@pytest.mark.parametrize("optimizer", ["torch.optim.AdamW", "torchao.optim.AdamW8bit"])
def test_torchtune_offloads_activations_of_a_full_run_as_well(
    tmp_path: Path, optimizer: str
) -> None:
    more = {"enable_activation_offloading": True, "optimizer": {"_component_": optimizer}}
    found = file(tmp_path / "a.yaml", {**TUNE, **more})
    assert today(found).offload == "activations"
    assert "cannot run as it stands" not in warnings(found)


def test_torchtunes_offloading_is_written_where_a_pick_changes_it(tmp_path: Path) -> None:
    from dataclasses import replace

    found = file(tmp_path / "a.json", {**TUNE, "enable_activation_offloading": True})
    plain = replace(today(found), offload="none")
    back = json.loads(patched(SAME, found, found.offers[0], plain).text)
    assert back["enable_activation_offloading"] is False


def test_ms_swift_offloads_by_deepspeed() -> None:
    text = f"swift sft --model {QWEN} --tuner_type full --deepspeed zero3_offload --max_length 512"
    found = command(f"NPROC_PER_NODE=2 {text} --dataset own/rows", "2xh100")
    assert today(found).offload == "optimizer"
    assert "cannot run as it stands" not in warnings(found)
    assert "parameters in the host's memory too" in warnings(found)


def test_rows_that_nothing_cuts_are_said_where_nobody_knows_their_lengths(tmp_path: Path) -> None:
    uncut = {**TUNE, "tokenizer": {"max_seq_len": None}}
    assert "the longest row not stated" in warnings(file(tmp_path / "a.yaml", uncut))
    assert "the longest row" not in warnings(file(tmp_path / "b.yaml", TUNE))
    counted = {**uncut, "dataset": {"_component_": "torchtune.datasets.alpaca_dataset"}}
    assert "the longest row" not in warnings(file(tmp_path / "c.yaml", counted))


def test_alignment_handbooks_script_packs_whatever_its_file_says(tmp_path: Path) -> None:
    found = file(tmp_path / "a.yaml", HANDBOOK)
    assert today(found).packing == "on"
    assert "packing on" in warnings(found)
    assert today(file(tmp_path / "b.yaml", {**HANDBOOK, "packing": False})).packing == "off"
    preference = {**HANDBOOK, "beta": 0.1, "loss_type": "sigmoid"}
    assert today(file(tmp_path / "dpo.yaml", preference)).packing == "off"
    alone = {key: value for key, value in HANDBOOK.items() if key != "dataset_splits"}
    assert (
        today(file(tmp_path / "c.yaml", alone)).packing == "off"
    )  # open-instruct's has one of two


def test_pefts_targets_are_said_where_another_program_reads_the_file(tmp_path: Path) -> None:
    silent = {key: value for key, value in HANDBOOK.items() if key != "lora_target_modules"}
    assert "lora_target_modules" not in warnings(file(tmp_path / "a.yaml", silent))
    theirs = {**silent, "think_mode": "keep"}
    assert "lora_target_modules not stated" in warnings(file(tmp_path / "b.yaml", theirs))


def test_padding_free_is_said_where_rows_would_be_filled_up() -> None:
    text = f"swift sft --model {QWEN} --dataset own/rows --max_length 512 --attn_impl flash_attn"
    for flags, said in (
        ("--per_device_train_batch_size 4", True), ("--per_device_train_batch_size 1", False),
        ("--per_device_train_batch_size 4 --packing true", False),
    ):  # fmt: skip
        assert ("padding_free" in warnings(command(f"{text} --padding_free true {flags}"))) is said


def test_a_rank_that_is_left_over_does_not_refuse_a_full_run(tmp_path: Path) -> None:
    full = {
        "model_name_or_path": QWEN, "stage": "sft", "finetuning_type": "full", "lora_rank": 0,
        "dataset": "mine", "cutoff_len": 512, "per_device_train_batch_size": 1, "do_train": True,
    }  # fmt: skip
    assert file(tmp_path / "a.yaml", full).method.kind == "full"
    with pytest.raises(InputError, match="lora_rank is 0"):
        file(tmp_path / "b.yaml", {**full, "finetuning_type": "lora"})


def test_what_trains_decides_before_the_config_that_it_is_handed(tmp_path: Path) -> None:
    def made(config: str, trainer: str) -> Job:
        text = SCRIPT.replace("IMPORTED", f"{config}, {trainer}").replace("CONFIG", config)
        text = text.replace("TRAINER", trainer).replace("STARTED", "trainer.train()")
        return file(tmp_path / "run.py", text)

    assert made("RewardConfig", "SFTTrainer").objective == "sft"
    assert made("RewardConfig", "RewardTrainer").objective == "reward"
    assert made("DPOConfig", "DPOTrainer").objective == "dpo"


@pytest.mark.parametrize(
    "started",
    [
        "TorchTrainer(step, scaling_config=ScalingConfig(num_workers=4, use_gpu=True)).fit()",
        "notebook_launcher(step, num_processes=4); trainer.train()",
        "torch.multiprocessing.spawn(step, nprocs=4); trainer.train()",
    ],
)
def test_processes_that_a_script_starts_itself_are_said(tmp_path: Path, started: str) -> None:
    text = SCRIPT.replace("IMPORTED", "SFTConfig, SFTTrainer").replace("CONFIG", "SFTConfig")
    text = text.replace("TRAINER", "SFTTrainer").replace("STARTED", started)
    assert "devices 4" in warnings(file(tmp_path / "run.py", text))


def test_a_way_of_training_that_a_flag_names_leaves_out_the_scripts_adapter(
    tmp_path: Path,
) -> None:
    (tmp_path / "train.py").write_text(
        "import argparse\n"
        "from transformers import AutoModelForCausalLM\n"
        "from peft import LoraConfig, get_peft_model\n"
        "parser = argparse.ArgumentParser()\n"
        'for name in ("--model_name", "--train_type", "--context_length"):\n'
        "    parser.add_argument(name)\n"
        'parser.add_argument("--batch_size", type=int)\n'
        "args = parser.parse_args()\n"
        "model = AutoModelForCausalLM.from_pretrained(args.model_name)\n"
        'if args.train_type == "lora":\n'
        "    model = get_peft_model(model, LoraConfig(r=16))\n"
        "for row in rows:\n"
        "    model(**row).loss.backward()\n"
    )
    text = (
        f"python train.py --model_name {QWEN} --batch_size 4 --num_epochs 1 --context_length 256 "
        "--use_gradient_checkpointing true --train_type "
    )
    full = file(tmp_path / "run.sh", f"{text}full\n")
    assert (full.method.kind, today(full).activation_checkpointing) == ("full", "full")
    assert file(tmp_path / "run.sh", f"{text}lora\n").method.kind == "lora"
    plain = text.replace("checkpointing true", "checkpointing false")
    found = file(tmp_path / "run.sh", f"{plain}full\n")
    assert today(found).activation_checkpointing == "none"


def test_several_machines_of_a_command_are_said() -> None:
    flags = f"train.py --model_name_or_path {QWEN} --per_device_train_batch_size 1 --bf16 "
    flags += "--num_train_epochs 1 --use_peft --lora_r 4 --max_length 128"
    one = command(f"torchrun --nproc_per_node=4 --nnodes=1 {flags}", "4xh100")
    assert "machines" not in warnings(one)
    two = command(f"torchrun --nproc_per_node=2 --nnodes=2 {flags}", "4xh100")
    assert today(two).micro_batch_size * two.offers[0].count == two.global_batch_size == 4
    assert "machines 2: counted as one" in warnings(two)


def test_a_few_words_of_llama_factorys_do_not_make_another_program_that() -> None:
    text = f"train_ood.py --model_name {QWEN} --pure_bf16 --batch_size_training 8 --dataset own "
    text += "--num_epochs 1 --gradient_accumulation_steps 2 --max_length 128"
    with pytest.raises(InputError):  # neither LoRA by LLaMA-Factory's default, nor anything else
        command(f"torchrun {text}")
    factory = f"--model_name_or_path {QWEN} --stage sft --finetuning_type lora --dataset own "
    factory += "--per_device_train_batch_size 8 --cutoff_len 128 --num_train_epochs 1"
    for program in ("python src/train_bash.py", "python ours.py", "llamafactory-cli train"):
        assert command(f"{program} {factory}").origin.trainer == "llamafactory"


def test_sections_of_a_torchtune_recipe_that_nobody_reads_are_said(tmp_path: Path) -> None:
    early = {"early_exit_loss": {"layers": "0::4", "scale": 1.0}, "layer_dropout": {"prob": 0.2}}
    said = warnings(file(tmp_path / "a.yaml", {**TUNE, **early}))
    assert "early_exit_loss.layers '0::4'" in said
    plain = {**TUNE, "seed": 14, "dataset": {**TUNE["dataset"], "source": "json", "split": "train"}}
    found = file(tmp_path / "b.yaml", plain)
    assert "of the program's own" not in warnings(found)
    assert not [each for each in found.assumed if "takes  there" in each.why]


def test_what_is_put_into_a_calls_arguments_further_on_is_said(tmp_path: Path) -> None:
    text = (
        "from unsloth import FastLanguageModel\n"
        "from trl import SFTConfig, SFTTrainer\n"
        f'model, tok = FastLanguageModel.from_pretrained("{QWEN}", max_seq_length=256)\n'
        'adapter = {"r": 8, "lora_alpha": 16, "target_modules": ["q_proj"]}\n'
        'adapter["PUT"] = "int4"\n'
        "model = FastLanguageModel.get_peft_model(model, **adapter)\n"
        'args = SFTConfig("out", per_device_train_batch_size=2, num_train_epochs=1)\n'
        "SFTTrainer(model=model, args=args, train_dataset=rows).train()\n"
    )
    assert "qat_scheme" in warnings(file(tmp_path / "a.py", text.replace("PUT", "qat_scheme")))
    assert "bias" not in warnings(file(tmp_path / "b.py", text.replace("PUT", "bias")))


def test_a_file_that_is_a_trainer_itself_starts_none(tmp_path: Path) -> None:
    text = (
        "from transformers import TrainingArguments\n"
        "class Trainer:\n"
        "    def __init__(self, model, args=None):\n"
        '        self.args = args or TrainingArguments(output_dir="out")\n'
        "    def search(self):\n"
        "        self.train()\n"
    )
    with pytest.raises(InputError, match="holds no TrainingArguments"):
        file(tmp_path / "trainer.py", text)

"""A command is read together with the script that it starts, where that is at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_jobs
from autotune.app.runs.user_file import patched, same_export
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from tests.strangers import asked, today, warnings

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

QWEN = "Qwen/Qwen2.5-0.5B"
OWN = f"""\
import argparse
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--name", default="{QWEN}")
parser.add_argument("--rows-a-step", dest="micro", type=int, default=2)
parser.add_argument("--micro", type=int, default=2)
parser.add_argument("--steps_before", type=int, default=16)
parser.add_argument("--peft_rank", type=int, default=64)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained(args.name)
lora = LoraConfig(r=args.peft_rank, lora_alpha=16, target_modules=["q_proj", "v_proj"])
config = SFTConfig(
    "out", per_device_train_batch_size=args.micro, gradient_accumulation_steps=args.steps_before,
    num_train_epochs=1, max_length=512, packing=False,
)
SFTTrainer(model=model, args=config, peft_config=lora, train_dataset=rows).train()
"""
BY_FLAGS = """\
from dataclasses import dataclass, field
import transformers
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer

@dataclass
class Arguments(transformers.TrainingArguments):
    model_max_length: int = field(default=777)
    optim: str = field(default="adamw_torch")

@dataclass
class LoraArguments:
    lora_r: int = 24

parser = transformers.HfArgumentParser((Arguments, LoraArguments))
training_args, lora_args = parser.parse_args_into_dataclasses()
model = AutoModelForCausalLM.from_pretrained(training_args.model_name_or_path)
model = get_peft_model(model, LoraConfig(r=lora_args.lora_r, target_modules=["k_proj"]))
Trainer(model=model, args=training_args, train_dataset=rows).train()
"""
ALPACA = """\
import os
import fire
import transformers
from peft import LoraConfig, get_peft_model
from transformers import LlamaForCausalLM

def train(base_model: str = "", batch_size: int = 128, micro_batch_size: int = 4,
          num_epochs: int = 3, cutoff_len: int = 256,
          lora_target_modules: list = ["q_proj", "v_proj"]):
    gradient_accumulation_steps = batch_size // micro_batch_size
    world_size = int(os.environ.get("WORLD_SIZE", 1))
    if world_size != 1:
        gradient_accumulation_steps = gradient_accumulation_steps // world_size
    model = LlamaForCausalLM.from_pretrained(base_model, load_in_8bit=True)
    model = get_peft_model(model, LoraConfig(r=8, target_modules=lora_target_modules))
    rows = data.map(lambda row: tokenizer(row, truncation=True, max_length=cutoff_len))
    args = transformers.TrainingArguments(
        per_device_train_batch_size=micro_batch_size,
        gradient_accumulation_steps=gradient_accumulation_steps, num_train_epochs=num_epochs)
    transformers.Trainer(model=model, args=args, train_dataset=rows).train()

if __name__ == "__main__":
    fire.Fire(train)
"""


def job(folder: Path, script: str, command: str, gpu: str = "h100") -> Job:
    (folder / "train.py").write_text(script)
    (folder / "go.sh").write_text(f"{command}\n")
    return load_jobs(folder / "go.sh", Overrides((gpu,), stated={"data.rows": 6400}))[0].job


def test_the_options_of_a_script_are_what_it_makes_of_them(tmp_path: Path) -> None:
    found = job(tmp_path, OWN, "python train.py --peft_rank 32 --micro 4 --num_epochs_unused 9")
    assert (found.model.name, found.method.rank, found.max_length) == (QWEN, 32, 512)
    assert found.method.targets == ("q_proj", "v_proj")
    assert (today(found).micro_batch_size, found.global_batch_size) == (4, 64)
    assert "peft_rank" not in warnings(found)


def test_a_script_that_is_started_by_its_name_alone_is_read(tmp_path: Path) -> None:
    found = job(tmp_path, OWN, "srun python train.py")
    assert (found.method.rank, found.global_batch_size, found.epochs) == (64, 32, 1.0)


def test_a_script_that_alone_decides_the_run_must_write_it_out(tmp_path: Path) -> None:
    text = OWN.replace("num_train_epochs=1", "max_steps=len(rows) // args.micro")
    with pytest.raises(InputError, match=r"train\.py: max_steps must be written out"):
        job(tmp_path, text, "python train.py")
    found = job(tmp_path, text, "python train.py --num_train_epochs 2")
    assert "max_steps computed" in warnings(found)


def test_the_devices_that_a_file_of_litgpt_states_stay_those_of_its_command(tmp_path: Path) -> None:
    settings = f"checkpoint_dir: checkpoints/{QWEN}\nlora_r: 8\ndevices: 4\ntrain:\n"
    settings += "  global_batch_size: 16\n  micro_batch_size: 2\n  epochs: 1\n"
    (tmp_path / "lora.yaml").write_text(settings)
    (tmp_path / "go.sh").write_text("litgpt finetune_lora --config lora.yaml\n")
    found = load_jobs(tmp_path / "go.sh", Overrides(("h100",), stated={"data.rows": 6400}))[0].job
    assert (found.offers[0].count, today(found).gradient_accumulation_steps) == (4, 2)


def test_a_script_that_cannot_be_found_is_named_by_what_is_lacking(tmp_path: Path) -> None:
    (tmp_path / "go.sh").write_text("python train_all.py\n")
    with pytest.raises(InputError, match="0 launch commands"):
        load_jobs(tmp_path / "go.sh", Overrides(("h100",)))
    (tmp_path / "train_all.py").write_text("print('nothing is trained here')\n")
    with pytest.raises(InputError) as refused:
        load_jobs(tmp_path / "go.sh", Overrides(("h100",)))
    assert "it starts train_all.py" in str(refused.value.hint)


def test_a_file_that_a_variable_names_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "go.sh").write_text("python src/$TASK.py --num_train_epochs 1\n")
    with pytest.raises(InputError, match=r"starts src/\$TASK\.py, and does not say what that is"):
        load_jobs(tmp_path / "go.sh", Overrides(("h100",)))


@pytest.mark.parametrize(
    ("flags", "rank", "length", "optimizer"),
    [
        ("", 24, 777, "adamw_torch"),
        ("--lora_r 4 --model_max_length 256 --optim adamw_bnb_8bit", 4, 256, "adamw_bnb_8bit"),
    ],
)
def test_where_arguments_are_made_of_flags_the_scripts_own_defaults_count(
    tmp_path: Path, flags: str, rank: int, length: int, optimizer: str
) -> None:
    start = f"torchrun --nproc_per_node 1 train.py --model_name_or_path {QWEN}"
    found = job(tmp_path, BY_FLAGS, f"{start} --per_device_train_batch_size 2 {flags}")
    assert (found.method.rank, found.max_length) == (rank, length)
    assert found.method.targets == ("k_proj",)
    assert today(found).optimizer == optimizer


def test_arguments_of_a_function_are_flags_and_a_total_is_shared_by_the_devices(
    tmp_path: Path,
) -> None:
    command = f"train.py --base_model {QWEN} --batch_size 64 --micro_batch_size 8"
    command += " --cutoff_len 512 --lora_target_modules '[k_proj,v_proj]'"
    found = job(tmp_path, ALPACA, f"python {command}")
    assert (found.global_batch_size, found.max_length, found.method.base) == (64, 512, "int8")
    assert found.method.targets == ("k_proj", "v_proj")
    two = job(tmp_path, ALPACA, f"torchrun --nproc_per_node 2 {command}")
    assert (two.global_batch_size, today(two).gradient_accumulation_steps) == (64, 4)


def test_what_no_flag_of_the_script_says_stays_and_is_not_written(tmp_path: Path) -> None:
    found = job(tmp_path, OWN, "python train.py --peft_rank 32")
    assert found.origin is not None
    assert {"micro_batch_size", "optimizer", "num_dataloader_workers"} <= set(found.origin.kept)
    other = today(found).with_knobs(micro_batch_size=8, gradient_accumulation_steps=4)
    made = patched("same", found, found.offers[0], other)
    assert made.changes == {}
    assert any("left as it is" in note for note in made.notes)


def test_a_flag_that_the_script_has_is_written(tmp_path: Path) -> None:
    text = OWN.replace('"--micro", type', '"--per_device_train_batch_size", type')
    text = text.replace("=args.micro", "=args.per_device_train_batch_size")
    text = text.replace('"--steps_before"', '"--gradient_accumulation_steps"')
    text = text.replace("=args.steps_before", "=args.gradient_accumulation_steps")
    found = job(tmp_path, text, "python train.py --peft_rank 32")
    other = today(found).with_knobs(micro_batch_size=4, gradient_accumulation_steps=8)
    made = patched("same", found, found.offers[0], other)
    assert "--per_device_train_batch_size 4 --gradient_accumulation_steps 8" in made.text
    assert "bash" in same_export("same", found, found.offers[0], other).files["run.sh"]


def test_a_program_that_loads_the_model_elsewhere_is_asked_for_its_method(tmp_path: Path) -> None:
    text = "from models import load\nfrom trl import SFTConfig, SFTTrainer\n"
    text += "config = SFTConfig('out', per_device_train_batch_size=2, num_train_epochs=1)\n"
    text += "SFTTrainer(model=load(), args=config, train_dataset=rows).train()\n"
    (tmp_path / "train.py").write_text(text)
    with pytest.raises(InputError, match="how it is trained"):
        load_jobs(tmp_path / "train.py", Overrides(("h100",), stated={"data.rows": 10}))


def test_a_script_of_unsloth_is_unsloths_whoever_starts_it(tmp_path: Path) -> None:
    text = "from unsloth import FastLanguageModel\nfrom trl import SFTConfig, SFTTrainer\n"
    text += f"model, tok = FastLanguageModel.from_pretrained('{QWEN}', max_seq_length=2048)\n"
    text += "model = FastLanguageModel.get_peft_model(model, r=16)\n"
    text += "config = SFTConfig('out', per_device_train_batch_size=2, max_steps=60)\n"
    text += "SFTTrainer(model=model, args=config, train_dataset=rows).train()\n"
    found = job(tmp_path, text, "torchrun --nproc_per_node 1 train.py --max_steps 60")
    assert found.origin is not None
    assert (found.origin.trainer, found.method.base) == ("unsloth", "nf4")


@pytest.mark.parametrize(
    "start",
    ["CUDA_VISIBLE_DEVICES=0,1 python train.py", "#SBATCH --gres=gpu:a100:2\nsrun python train.py"],
)
def test_devices_beside_the_one_process_are_said(tmp_path: Path, start: str) -> None:
    found = job(tmp_path, OWN, start)
    assert found.offers[0].count == 1
    assert "devices 2 visible: priced on one" in warnings(found)


OPTIONS = """\
import argparse

def get_parser():
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B")
    parser.add_argument("--use_lora", action="store_true")
    parser.add_argument("--quantize", action="store_true")
    parser.add_argument("--optimizer", default="adamw_torch")
    parser.add_argument("--cut_at", type=int, default=384)
    parser.add_argument("--per_device_train_batch_size", type=int, default=2)
    return parser
"""
BY_CONDITION = """\
from options import *
from peft import LoraConfig
from transformers import AutoModelForCausalLM, BitsAndBytesConfig
from trl import SFTConfig, SFTTrainer

def main(args):
    if args.quantize:
        bits = BitsAndBytesConfig(load_in_4bit=True)
    else:
        bits = None
    model = AutoModelForCausalLM.from_pretrained(args.model, quantization_config=bits)
    lora = None
    if args.use_lora:
        lora = LoraConfig(r=32, target_modules=["q_proj"])
    config = SFTConfig(
        "out", per_device_train_batch_size=args.per_device_train_batch_size, num_train_epochs=1,
        max_length=args.cut_at, optim=args.optimizer, gradient_accumulation_steps=1,
    )
    SFTTrainer(model=model, args=config, peft_config=lora, train_dataset=rows).train()

if __name__ == "__main__":
    main(get_parser().parse_args())
"""
START = "python train.py --per_device_train_batch_size 4 "


def test_options_that_a_module_of_the_script_s_own_describes_are_known(tmp_path: Path) -> None:
    (tmp_path / "options.py").write_text(OPTIONS)
    found = job(tmp_path, BY_CONDITION, START + "--use_lora --quantize --optimizer sgd")
    assert (found.method.rank, found.method.base, found.max_length) == (32, "nf4", 384)
    assert not any(word in warnings(found) for word in ("in a branch", "computed"))


def test_adapters_whose_condition_fails_are_none(tmp_path: Path) -> None:
    (tmp_path / "options.py").write_text(OPTIONS)
    found = job(tmp_path, BY_CONDITION, START + "--optimizer adamw_bnb_8bit")
    assert (found.method.kind, found.method.base) == ("full", "16bit")
    assert today(found).optimizer == "adamw_bnb_8bit"
    assert "load_in_4bit" not in warnings(found)


def test_adapters_whose_condition_is_not_read_are_counted_and_said(tmp_path: Path) -> None:
    text = BY_CONDITION.replace("args.cut_at", "384").replace("args.optimizer", "'adamw_torch'")
    found = job(tmp_path, text, START + "--model Qwen/Qwen2.5-0.5B")
    assert found.method.rank == 32
    assert "LoraConfig in a branch" in warnings(found)
    assert "BitsAndBytesConfig in a branch" in warnings(found)
    sure = text.replace("if args.use_lora:", "if True:").replace("if args.quantize:", "if True:")
    assert "in a branch" not in warnings(job(tmp_path, sure, START + "--model Qwen/Qwen2.5-0.5B"))


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("[p.requires_grad_() for n, p in model.named_parameters() if 'norm' in n]", True),
        ("model.lm_head.weight.requires_grad = True", True),
        ("for n, p in model.named_parameters():\n    p.requires_grad = 'lora' in n", False),
        (
            "for n, p in model.named_parameters():\n    if 'lora' in n: p.requires_grad = True",
            False,
        ),
        ("output.requires_grad_(True)", False),
    ],
)
def test_weights_of_the_base_that_train_beside_adapters_are_said(
    tmp_path: Path, line: str, *, said: bool
) -> None:
    text = OWN.replace("lora = LoraConfig", f"{line}\nlora = LoraConfig")
    found = job(tmp_path, text, "python train.py --peft_rank 32")
    assert ("trains beside its adapters" in warnings(found)) is said


def test_the_loader_of_either_kind_of_model_is_no_sign_that_it_sees(tmp_path: Path) -> None:
    text = OWN.replace(
        "lora = ",
        "if name in MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES:\n"
        "    from transformers import AutoModelForImageTextToText\n"
        "    other = AutoModelForImageTextToText.from_pretrained(args.name)\nlora = ",
    )
    assert job(tmp_path, text, "python train.py").objective == "sft"
    with pytest.raises(InputError, match="vision"):
        job(tmp_path, text.replace("MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES", "LIST"),
            "python train.py")  # fmt: skip


def test_a_script_whose_own_module_makes_the_arguments_says_which(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(OWN)
    main = "from model import train\nimport argparse\ntrain(argparse.ArgumentParser())\n"
    start = f"python train.py --model_name_or_path {QWEN} --lora_r 16 --use_lora "
    start += "--per_device_train_batch_size 4 --num_train_epochs 2"
    assert "trains in model.py" in warnings(job(tmp_path, main, start))
    assert "trains in" not in warnings(job(tmp_path, OWN, "python train.py --micro 4"))


def test_a_script_of_several_tasks_is_priced_where_it_trains(tmp_path: Path) -> None:
    script = """\
import argparse
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

def fit(size):
    model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B")
    args = TrainingArguments("out", per_device_train_batch_size=size, num_train_epochs=1)
    trainer = Trainer(model=model, args=args)
    trainer.train()

if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--fit", action="store_true")
    parser.add_argument("--answer", action="store_true")
    parser.add_argument("--batch_size", type=int, default=4)
    args = parser.parse_args()
    if args.fit:
        fit(args.batch_size)
    if args.answer:
        answer()
"""
    (tmp_path / "tasks.py").write_text(script)
    run = tmp_path / "run.sh"
    run.write_text("python tasks.py --answer --batch_size 2\n")
    with pytest.raises(InputError, match=r"trains only where args\.fit"):
        load_jobs(run, asked())
    run.write_text("python tasks.py --fit --batch_size 2\n")
    assert today(load_jobs(run, asked())[0].job).micro_batch_size == 2

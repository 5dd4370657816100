"""Settings that a script hands on through classes, and commands that start it without a flag."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.domain.errors import InputError
from tests.strangers import command, file, today, warnings

if TYPE_CHECKING:
    from pathlib import Path

OWN_CLASS = """
import argparse
from peft import LoraConfig, get_peft_model
from torch.utils.data import Dataset
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

class Rows(Dataset):
    def __init__(self, path, tokenizer, max_length):
        self.max_length = max_length

    def encode(self, row):
        full_ids = self.tokenizer.apply_chat_template(row)
        return full_ids[: self.max_length]

parser = argparse.ArgumentParser()
parser.add_argument("--max_length", type=int, default=512)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16")
model = get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]))
arguments = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1, bf16=True)
rows = Rows("train.jsonl", tokenizer, args.max_length)
held = Rows("held.jsonl", tokenizer, {held})
Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=held).train()
"""


def test_the_length_that_a_class_is_made_with_is_where_it_cuts(tmp_path: Path) -> None:
    """Every row set is made with one length: the option's default, or the flag."""
    found = file(tmp_path / "train.py", OWN_CLASS.replace("{held}", "args.max_length"))
    assert found.max_length == 512
    assert "cuts rows at" not in warnings(found)


def test_two_lengths_of_one_class_leave_it_open(tmp_path: Path) -> None:
    """Which of them is trained on nobody says."""
    found = file(tmp_path / "train.py", OWN_CLASS.replace("{held}", "64"))
    assert found.max_length != 64
    assert "the length that the script cuts rows at" in warnings(found)


def test_a_command_without_a_flag_is_the_scripts_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Typed as such, with the launcher's processes; a script that is not here is refused."""
    (tmp_path / "train.py").write_text(OWN_CLASS.replace("{held}", "args.max_length"))
    monkeypatch.chdir(tmp_path)
    found = command("torchrun --nproc_per_node 2 train.py")
    assert today(found).micro_batch_size == 2
    assert found.offers[0].count == 2
    told = command("python -m train --max_length 128")
    assert told.max_length == 128
    with pytest.raises(InputError, match="the script that it starts is not here"):
        command("python other.py")
    (tmp_path / "loop.py").write_text("loss.backward()\n")
    with pytest.raises(InputError, match=r"no --flags of a trainer$") as refused:
        command("python loop.py")
    assert refused.value.hint.startswith("give loop.py as JOB")


PREPARED = """
from dataclasses import dataclass, field
from peft import LoraConfig, get_peft_model, prepare_model_for_kbit_training
from transformers import AutoModelForCausalLM, BitsAndBytesConfig, HfArgumentParser
from transformers import TrainingArguments as TheirArguments
from loop import Loop

@dataclass
class ModelArguments:
    model_name_or_path: str = field(default="Qwen/Qwen2.5-0.5B")
    quantization_bit: int = field(default=8)

@dataclass
class TrainingArguments(TheirArguments):
    deepspeed: str = field(default=None)

def make(model_args):
    kwargs = {}
    if model_args.quantization_bit in [4, 8]:
        kwargs["quantization_config"] = BitsAndBytesConfig(load_in_8bit=True)
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, **kwargs)
    model = prepare_model_for_kbit_training(model)
    return get_peft_model(model, LoraConfig(r=8, target_modules=["q_proj"]))

parser = HfArgumentParser((ModelArguments, TrainingArguments))
model_args, training_args = parser.parse_args_into_dataclasses()
Loop(make(model_args), training_args).train()
"""
LOOP = """
from transformers import Trainer

class Loop:
    def encode(self, rows):
        return self.tokenizer(rows["text"], truncation=True, max_length=384, padding="max_length")

    def train(self):
        Trainer(model=self.model, args=self.args, train_dataset=self.rows).train()
"""
FLAGS = "--per_device_train_batch_size 4 --num_train_epochs 1 --fp16"


@pytest.mark.parametrize(("bits", "recomputes"), [("8", "full"), ("16", "none")])
def test_weights_that_flags_hold_in_few_bits_recompute_once_prepared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, bits: str, recomputes: str
) -> None:
    """PEFT switches it on for those alone; the length is another module's of the program."""
    (tmp_path / "train.py").write_text(PREPARED)
    (tmp_path / "loop.py").write_text(LOOP)
    monkeypatch.chdir(tmp_path)
    found = command(f"python train.py --quantization_bit {bits} {FLAGS}")
    assert today(found).activation_checkpointing == recomputes
    assert found.max_length == 384
    assert found.padding == "max_length"


def test_a_deepspeed_file_that_a_program_names_by_default_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A class of arguments that has one shards without a flag; without the file it is refused."""
    named = PREPARED.replace("field(default=None)", 'field(default="./zero.json")')
    (tmp_path / "train.py").write_text(named)
    monkeypatch.chdir(tmp_path)
    with pytest.raises(InputError, match="zero"):
        command(f"torchrun --nproc_per_node 2 train.py {FLAGS}")
    (tmp_path / "zero.json").write_text('{"zero_optimization": {"stage": 2}}')
    assert today(command(f"torchrun --nproc_per_node 2 train.py {FLAGS}")).sharding == "zero2"


SWIFT = (
    "swift sft --model Qwen/Qwen2.5-7B --train_type full --per_device_train_batch_size 1 "
    "--gradient_accumulation_steps 4 --max_length 512"
)


def test_models_that_swift_lays_over_several_devices_each_are_refused() -> None:
    """Fewer processes than devices: each model lies over some of them, and none is priced."""
    start = "CUDA_VISIBLE_DEVICES=0,1,2,3 NPROC_PER_NODE={} " + SWIFT
    assert command(start.format(4)).offers[0].count == 4
    with pytest.raises(InputError, match="2 processes on 4 devices") as refused:
        command(start.format(2))
    assert "NPROC_PER_NODE=4" in str(refused.value.hint)


@pytest.mark.parametrize(
    "folder",
    [
        "/root/.cache/huggingface/hub/models--Qwen--Qwen2.5-7B/snapshots/d149729",
        "/root/.cache/modelscope/hub/models/Qwen/Qwen2___5-7B",
    ],
)
def test_a_folder_of_a_cache_is_the_repository_that_it_is_called_after(folder: str) -> None:
    """On another machine than the one that trains there is no such folder."""
    found = command(f"python train.py --model_name_or_path {folder} --use_peft --lora_r 8 {FLAGS}")
    assert found.model.name == "Qwen/Qwen2.5-7B"

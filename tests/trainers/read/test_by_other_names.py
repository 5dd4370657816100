"""Trainers under other names, and models that a trainer names or a recipe makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_jobs
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.trainers.torchtune import built_by
from tests.strangers import command, file, today, warnings

if TYPE_CHECKING:
    from pathlib import Path

TWO_STAGES = """
from peft import LoraConfig
from transformers import AutoModelForCausalLM
from trl import GRPOConfig as TheirConfig, GRPOTrainer as TheirTrainer, SFTConfig, SFTTrainer

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16")
first = SFTConfig(per_device_train_batch_size=2, num_train_epochs=1, max_length=512)
SFTTrainer(model=model, args=first, train_dataset=rows, peft_config=LoraConfig(r=8)).train()
second = TheirConfig(per_device_train_batch_size=8, max_steps=1000, num_generations=8)
TheirTrainer(model=model, args=second, train_dataset=rows, reward_funcs=[score]).train()
"""


def test_a_second_training_under_another_name_is_said(tmp_path: Path) -> None:
    """The class is what it is, whatever the file imports it as."""
    assert "another training on line 9" in warnings(file(tmp_path / "a.py", TWO_STAGES))


def test_a_training_under_another_name_alone_is_refused(tmp_path: Path) -> None:
    """Reinforcement learning, not supervised fine-tuning with the same arguments."""
    alone = "\n".join(
        line for line in TWO_STAGES.splitlines() if not line.startswith(("first", "SFTT"))
    )
    with pytest.raises(InputError, match=r"reinforcement learning \(rl\) \(GRPOConfig"):
        file(tmp_path / "a.py", alone)


def test_a_second_trainer_with_arguments_of_a_class_of_its_own_is_said(tmp_path: Path) -> None:
    """Its arguments are not read, and the trainer stands there all the same."""
    own = TWO_STAGES.replace("GRPOConfig as TheirConfig, ", "").replace("TheirConfig(", "Mine(")
    assert "another training on line 10" in warnings(
        file(tmp_path / "a.py", f"class Mine: ...{own}")
    )


BY_NAME = """
from peft import LoraConfig
from transformers import AutoModelForCausalLM, TrainingArguments
from trl import SFTTrainer

model_id = "Qwen/Qwen2.5-0.5B"
loading = dict(attn_implementation="flash_attention_2", device_map={"": where()})
arguments = TrainingArguments("out", per_device_train_batch_size=2, num_train_epochs=1, bf16=True)
trainer = SFTTrainer(
    model=model_id, model_init_kwargs=loading, args=arguments, train_dataset=rows,
    max_seq_length=512, peft_config=LoraConfig(r=8),
)
trainer.train()
model = AutoModelForCausalLM.from_pretrained("out", load_in_4bit=True)
"""


def test_the_model_is_the_one_that_the_trainer_is_told_by_name(tmp_path: Path) -> None:
    """Not what the file loads behind its training, nor in as many bits: TRL loads in fp32."""
    found = file(tmp_path / "a.py", BY_NAME)
    assert found.model.name == "Qwen/Qwen2.5-0.5B"
    assert found.method.base == "32bit"
    assert today(found).attention == "flash_attention_2"


FOREIGN = """
import argparse
from transformers import AutoModelForCausalLM, TrainingArguments
from %s import %s

parser = argparse.ArgumentParser()
parser.add_argument("--gradient_checkpointing", type=as_bool, default=True)
args = parser.parse_args()
model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16")
model.config.gradient_checkpointing = True
arguments = TrainingArguments(
    "out", per_device_train_batch_size=2, num_train_epochs=1, bf16=True,
    gradient_checkpointing=args.gradient_checkpointing,
)
%s(model=model, args=arguments, train_dataset=rows).train()
"""


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [("sliced", "SliceTrainer", True), ("transformers", "Trainer", False)],
)
def test_a_trainer_of_another_program_is_said(
    tmp_path: Path, module: str, name: str, *, said: bool
) -> None:
    """What it does in a step stands in a file that is not here."""
    found = file(tmp_path / "a.py", FOREIGN % (module, name, name), stated={"method.kind": "full"})
    assert (f"{name} imported" in warnings(found)) == said


@pytest.mark.parametrize(
    ("module", "name", "said"),
    [
        ("modeling_mine", "MineForCausalLM", True), (".models", "LlamaForCausalLM", True),
        ("transformers", "LlamaForCausalLM", False),
        ("liger_kernel.transformers", "AutoLigerKernelForCausalLM", False),
    ],
)  # fmt: skip
def test_a_model_of_another_program_is_said(
    tmp_path: Path, module: str, name: str, *, said: bool
) -> None:
    """Its layers stand in a file that is not here; those of known packages are what is counted."""
    text = FOREIGN % ("transformers", "Trainer", "Trainer")
    text = text.replace("AutoModelForCausalLM.", f"{name}.")
    text = f"from {module} import {name}\n{text}"
    found = file(tmp_path / "a.py", text, stated={"method.kind": "full"})
    assert (f"{name} imported" in warnings(found)) == said


def test_what_is_set_on_the_models_config_is_no_option(tmp_path: Path) -> None:
    """`model.config.gradient_checkpointing = True` leaves `args.gradient_checkpointing` alone."""
    found = file(
        tmp_path / "a.py",
        FOREIGN % ("transformers", "Trainer", "Trainer"),
        stated={"method.kind": "full"},
    )
    assert today(found).activation_checkpointing == "full"
    assert "computed" not in warnings(found)


COMPREHENDED = """
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments

model = AutoModelForCausalLM.from_pretrained("Qwen/Qwen2.5-0.5B", dtype="bfloat16")
adapter = LoraConfig(r=8, target_modules=["q_proj"])
model = get_peft_model(model, adapter)
config = {"adapter": adapter, "num_train_epochs": 2, "per_device_train_batch_size": 3}
arguments = TrainingArguments("out", bf16=True, **{k: v for k, v in config.items() if %s})
Trainer(model=model, args=arguments, train_dataset=rows).train()
"""


@pytest.mark.parametrize("kept", ['k != "adapter"', 'k not in ("adapter", "other")'])
def test_what_is_left_of_a_mapping_is_read(tmp_path: Path, kept: str) -> None:
    """Of a mapping that stands there, without what its comprehension leaves out."""
    found = file(tmp_path / "a.py", COMPREHENDED % kept)
    assert today(found).micro_batch_size == 3
    assert found.epochs == 2


@pytest.mark.parametrize("kept", ["k in allowed", 'k != "adapter" and v', "len(k) > 3"])
def test_what_is_left_by_another_condition_is_refused(tmp_path: Path, kept: str) -> None:
    """Nothing is executed: what such a condition keeps is not known."""
    with pytest.raises(InputError, match=r"\*\* must be written out"):
        file(tmp_path / "a.py", COMPREHENDED % kept)


@pytest.mark.parametrize(
    ("builder", "model"),
    [
        ("torchtune.models.llama2.qlora_llama2_7b", "Llama-2-7B-hf"),
        ("torchtune.models.llama3_2.lora_llama3_2_1b", "Llama-3.2-1B"),
        ("torchtune.models.qwen2_5.qwen2_5_0_5b", "Qwen2.5-0.5B"),
        ("torchtune.models.gemma2.lora_gemma2_9b", "gemma-2-9b"),
        ("torchtune.models.phi4.phi4_14b", "phi-4"),
        ("torchtune.models.mistral.mistral_classifier_7b", ""),
        ("mine.models.lora_llama3_8b", ""),
    ],
)
def test_a_builder_of_torchtune_says_its_model(builder: str, model: str) -> None:
    """A classifier, and a builder of somebody's own, make another."""
    assert built_by(builder) == model


@pytest.mark.parametrize("flag", ["base_model_id", "base_model_name", "base_model_name_or_path"])
def test_a_base_model_by_any_name_is_the_model(flag: str) -> None:
    """Of a command whose script is not here."""
    sizes = "--per_device_train_batch_size 8 --num_train_epochs 2 --lora_r 8"
    found = command(f"python gone.py --{flag} Qwen/Qwen2.5-0.5B {sizes}")
    assert (found.model.name, found.method.rank) == ("Qwen/Qwen2.5-0.5B", 8)


def test_a_model_that_is_not_known_is_named_with_what_is_missing(tmp_path: Path) -> None:
    """One more command is enough."""
    path = tmp_path / "a.py"
    path.write_text(BY_NAME.replace("Qwen/Qwen2.5-0.5B", "./mine/checkpoint"))
    with pytest.raises(
        InputError, match=r"rows there are, and its model '\./mine/checkpoint' is"
    ) as e:
        load_jobs(path, Overrides(("h100",)))
    assert e.value.hint == "add --rows N or --data FILE --set model=NAME"

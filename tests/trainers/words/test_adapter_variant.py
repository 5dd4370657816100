"""The variant of LoRA in every trainer's words: read, written, read back, and kept in own files."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from exportcases import LORA, config, job, offer, values_of
from ownfiles import AXOLOTL, FACTORY

from autotune.app.job.load import load_jobs
from autotune.app.runs.export import export
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.trainers.registry import TRAINERS
from autotune.trainers.schema import schema_of
from autotune.trainers.syntax.python_source import parse_script

if TYPE_CHECKING:
    from pathlib import Path

VARIANTS = ("dora", "rslora")
TUNE = {
    "model": {
        "_component_": "torchtune.models.llama3.lora_llama3_8b", "lora_attn_modules": ["q_proj"],
        "lora_rank": 8, "lora_alpha": 16, "use_dora": True,
    },
    "checkpointer": {"checkpoint_dir": "models/Meta-Llama-3-8B-Instruct"}, "batch_size": 2,
    "epochs": 1, "gradient_accumulation_steps": 8, "dtype": "bf16",
}  # fmt: skip
SCRIPT = """\
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

args = SFTConfig(per_device_train_batch_size=2, gradient_accumulation_steps=4, max_length=1024)
lora = LoraConfig(r=16, lora_alpha=32, target_modules="all-linear", use_{variant}=True)
trainer = SFTTrainer("meta-llama/Llama-3.1-8B", args=args, peft_config=lora)
"""
UNSLOTH = """\
from unsloth import FastLanguageModel
from trl import SFTConfig

model, tok = FastLanguageModel.from_pretrained("unsloth/Llama-3.1-8B", max_seq_length=2048)
model = FastLanguageModel.get_peft_model(model, r=16, lora_alpha=16, use_{variant}=True)
args = SFTConfig(per_device_train_batch_size=2, gradient_accumulation_steps=4)
"""


def variant_of(trainer: str, values: dict[str, Any]) -> object:
    return TRAINERS[trainer].read(values, trainer).values["method"].get("variant")


@pytest.mark.parametrize(
    ("trainer", "values", "prefix"),
    [("axolotl", AXOLOTL, "peft_"), ("llamafactory", FACTORY, "")],
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_own_keys_of_a_trainer_state_the_variant(
    trainer: str, values: dict[str, Any], prefix: str, variant: str
) -> None:
    key = f"{prefix}use_{variant}"
    assert schema_of(trainer).find(key), key
    assert variant_of(trainer, {**values, key: True}) == variant
    assert variant_of(trainer, {**values, key: False}) is None
    assert variant_of(trainer, values) is None


def test_torchtunes_component_states_dora() -> None:
    assert variant_of("torchtune", TUNE) == "dora"


@pytest.mark.parametrize("text", [SCRIPT, UNSLOTH])
@pytest.mark.parametrize("variant", VARIANTS)
def test_scripts_state_the_variant_in_their_call(text: str, variant: str) -> None:
    made = parse_script(text.replace("{variant}", variant), "train.py")
    assert variant_of(made.trainer, made.values) == variant


@pytest.mark.parametrize("variant", VARIANTS)
def test_trls_command_line_states_the_variant(tmp_path: Path, variant: str) -> None:
    path = tmp_path / "run.sh"
    path.write_text(
        "trl sft --model_name_or_path meta-llama/Llama-3.1-8B --dataset_name x --use_peft "
        f"--lora_r 16 --lora_target_modules all-linear --use_{variant} --max_steps 100 "
        "--per_device_train_batch_size 4\n",
        encoding="utf-8",
    )
    (found,) = load_jobs(path, Overrides(gpus=["h100-sxm"], stated={"data.rows": 1000}))
    assert found.job.method.variant == variant


@pytest.mark.parametrize("target", ["axolotl", "llamafactory"])
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_export_is_read_back_as_the_same_variant(target: str, variant: Any) -> None:
    made = export(target, job(replace(LORA, variant=variant)), offer(), config())
    assert variant_of(target, values_of(target, made)) == variant
    plain = export(target, job(LORA), offer(), config())
    assert not any("rslora" in text or "use_dora" in text for text in plain.files.values())


@pytest.mark.parametrize(
    ("target", "file"), [("hf", "train.py"), ("trl", "train.py"), ("unsloth", "unsloth_train.py")]
)
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_exported_script_trains_the_variant(target: str, file: str, variant: Any) -> None:
    text = export(target, job(replace(LORA, variant=variant)), offer(), config()).files[file]
    assert f'"use_{variant}": True' in text or f"use_{variant}=True" in text
    plain = export(target, job(LORA), offer(), config()).files[file]
    assert "use_dora" not in plain
    assert "use_rslora" not in plain


def test_litgpt_is_refused_what_it_cannot_train() -> None:
    with pytest.raises(InputError, match="litgpt has no dora"):
        export("litgpt", job(replace(LORA, variant="dora")), offer(), config())


def test_both_switches_are_priced_as_dora_and_the_scale_is_told() -> None:
    made = TRAINERS["llamafactory"].read({**FACTORY, "use_dora": True, "use_rslora": True}, "f")
    assert made.values["method"]["variant"] == "dora"
    assert any("scale alone" in note.why for note in made.notes)


def test_what_a_run_says_of_its_adapters_is_its_variant() -> None:
    from types import SimpleNamespace

    from autotune.training.arguments import _method

    class Model:
        peft_config = {  # noqa: RUF012 - as peft has it
            "default": SimpleNamespace(peft_type="LORA", r=8, use_dora=True, use_rslora=False)
        }

        @staticmethod
        def parameters() -> list[object]:
            return []

    assert _method(Model(), "none")["variant"] == "dora"

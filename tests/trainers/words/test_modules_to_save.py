"""Modules that train whole, in every trainer's words: read, written, read back, run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from exportcases import LORA, config, job, offer, values_of, with_base
from ownfiles import AXOLOTL, FACTORY

from autotune.app.job.load import load_jobs
from autotune.app.runs.export import export, write_export
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.trainers.registry import TRAINERS
from autotune.trainers.schema import schema_of
from autotune.trainers.syntax.python_source import parse_script
from tests.trainers.hf.test_smoke import run

if TYPE_CHECKING:
    from pathlib import Path

    from forked import Forking

    from autotune.domain.job import Job

BOTH = ("embed_tokens", "lm_head")
SAVED = replace(LORA, modules_to_save=BOTH)
SWIFT = {
    "model": "Qwen/Qwen2.5-7B-Instruct", "train_type": "lora", "lora_rank": 8,
    "dataset": ["x#500"], "max_length": 2048, "num_train_epochs": 1,
    "per_device_train_batch_size": 1, "gradient_accumulation_steps": 16,
}  # fmt: skip
TRL = (
    "trl sft --model_name_or_path meta-llama/Llama-3.1-8B --dataset_name x --use_peft --lora_r 16 "
    "--lora_target_modules all-linear --dtype bfloat16 --bf16 --max_steps 100 "
    "--per_device_train_batch_size 4 "
)
SCRIPT = """\
from peft import LoraConfig
from trl import SFTConfig, SFTTrainer

args = SFTConfig(per_device_train_batch_size=2, gradient_accumulation_steps=4, max_length=1024)
lora = LoraConfig(r=16, target_modules="all-linear", modules_to_save=["embed_tokens", "lm_head"])
trainer = SFTTrainer("meta-llama/Llama-3.1-8B", args=args, peft_config=lora)
"""
UNSLOTH = """\
from unsloth import FastLanguageModel
from trl import SFTConfig

model, tok = FastLanguageModel.from_pretrained("unsloth/Llama-3.1-8B", max_seq_length=2048)
model = FastLanguageModel.get_peft_model(
    model, r=16, lora_alpha=16, target_modules=["q_proj", "v_proj", "embed_tokens", "lm_head"])
args = SFTConfig(per_device_train_batch_size=2, gradient_accumulation_steps=4)
"""


def saved_of(trainer: str, values: dict[str, Any]) -> object:
    return TRAINERS[trainer].read(values, trainer).values["method"].get("modules_to_save")


def command(tmp_path: Path, text: str) -> Job:
    path = tmp_path / "run.sh"
    path.write_text(f"{text}\n", encoding="utf-8")
    (found,) = load_jobs(path, Overrides(gpus=["h100-sxm"], stated={"data.rows": 1000}))
    return found.job


@pytest.mark.parametrize(
    ("trainer", "values", "key"),
    [
        ("axolotl", AXOLOTL, "lora_modules_to_save"),
        ("llamafactory", FACTORY, "additional_target"),
        ("swift", SWIFT, "modules_to_save"),
    ],
)
@pytest.mark.parametrize("stated", [list(BOTH), "embed_tokens,lm_head"])
def test_own_keys_of_a_trainer_state_them(
    trainer: str, values: dict[str, Any], key: str, stated: object
) -> None:
    assert schema_of(trainer).find(key), key
    made = TRAINERS[trainer].read({**values, key: stated}, trainer)
    assert made.values["method"]["modules_to_save"] == list(BOTH)
    assert not [each for each in made.uncounted if each.key == key]
    assert saved_of(trainer, values) is None


@pytest.mark.parametrize("text", [SCRIPT, UNSLOTH])
def test_scripts_state_them_in_their_call(text: str) -> None:
    made = parse_script(text, "train.py")
    assert saved_of(made.trainer, made.values) == list(BOTH)


def test_an_adapter_on_what_unsloth_trains_whole_is_not_counted_beside_it() -> None:
    made = parse_script(UNSLOTH, "train.py")
    method = TRAINERS["unsloth"].read(made.values, "train.py").values["method"]
    assert method["targets"] == ["q_proj", "v_proj"]


@pytest.mark.parametrize("spelled", ["--lora_modules_to_save", "--modules_to_save"])
def test_trls_command_line_states_them(tmp_path: Path, spelled: str) -> None:
    found = command(tmp_path, f"{TRL}{spelled} embed_tokens lm_head")
    assert found.method.modules_to_save == BOTH
    assert found.software.saves_as_loaded  # PEFT makes fp32 of the adapters alone
    assert found.uncounted_sd == (0.0, 0.0)


def test_llamafactory_trains_them_in_the_dtype_of_the_adapters(tmp_path: Path) -> None:
    path = tmp_path / "f.yaml"
    path.write_text(json.dumps({**FACTORY, "additional_target": "lm_head"}), encoding="utf-8")
    (found,) = load_jobs(path, Overrides(gpus=["h100-sxm"], stated={"data.rows": 1000}))
    assert found.job.method.modules_to_save == ("lm_head",)
    assert not found.job.software.saves_as_loaded


@pytest.mark.parametrize(
    ("names", "told", "widens"),
    [
        ("lm_head norm", "norm (too small to matter", False),
        (
            "lm_head wte",
            "wte (no modules of meta-llama/Llama-3.1-8B, which PEFT passes over",
            False,
        ),
        ("lm_head q_proj", "", True),
    ],
)
def test_what_else_a_file_names_is_told(
    tmp_path: Path, names: str, told: str, widens: bool
) -> None:
    found = command(tmp_path, f"{TRL}--lora_modules_to_save {names}")
    assert found.method.modules_to_save == ("lm_head",)
    said = "; ".join(f"{each.value} ({each.why}" for each in found.assumed)
    assert told in said
    assert (found.uncounted_sd > (0.0, 0.0)) == widens


@pytest.mark.parametrize("target", ["axolotl", "llamafactory"])
def test_an_export_is_read_back_as_the_same(target: str) -> None:
    made = export(target, job(SAVED), offer(), config())
    assert saved_of(target, values_of(target, made)) == list(BOTH)
    plain = export(target, job(LORA), offer(), config())
    assert not any("lm_head" in text for text in plain.files.values())


@pytest.mark.parametrize(
    ("target", "file"), [("hf", "train.py"), ("trl", "train.py"), ("unsloth", "unsloth_train.py")]
)
def test_an_exported_script_trains_them(target: str, file: str) -> None:
    text = export(target, job(SAVED), offer(), config()).files[file]
    assert '["embed_tokens", "lm_head"]' in text
    assert "lm_head" not in export(target, job(LORA), offer(), config()).files[file]


@pytest.mark.parametrize(
    ("target", "as_loaded", "told"),
    [
        ("axolotl", False, "in the dtype they are loaded in: expect less memory"),
        ("axolotl", True, ""),
        ("llamafactory", True, "in fp32: expect more memory"),
        ("llamafactory", False, ""),
    ],
)
def test_another_dtype_than_is_counted_is_told(target: str, as_loaded: bool, told: str) -> None:
    planned = job(SAVED)
    planned = replace(planned, software=replace(planned.software, saves_as_loaded=as_loaded))
    notes = export(target, planned, offer(), config()).notes
    found = [note for note in notes if "lm_head" in note]
    assert bool(found) == bool(told)
    assert all(told in note for note in found)


def test_litgpt_is_refused_what_it_cannot_train() -> None:
    with pytest.raises(InputError, match="litgpt trains embed_tokens, lm_head"):
        export("litgpt", job(SAVED), offer(), config())


@pytest.mark.slow
def test_the_exported_script_saves_what_it_trained_whole(
    model_and_data: Path, tmp_path: Path, forks: Forking
) -> None:
    from safetensors.numpy import load_file

    cpu = job(with_base(SAVED, "32bit"))
    write_export(export("hf", cpu, offer(cpu=True), config(precision="fp32")), tmp_path)
    # Started with accelerate: test_smoke.py.
    done = run(model_and_data, tmp_path, forks, MAX_STEPS="2", USE_CPU="1")
    assert done.returncode == 0, done.stderr[-3000:]
    final = tmp_path / "output/final"
    assert json.loads((final / "adapter_config.json").read_text())["modules_to_save"] == list(BOTH)
    saved = [name for name in load_file(final / "adapter_model.safetensors") if "lora_" not in name]
    assert len(saved) == len(BOTH)

"""The knob `offload` in every trainer's words: written, started by the launcher, and read back."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from exportcases import FULL, LORA, SOFTWARE, config, job, offer, values_of
from ruamel.yaml import YAML

from autotune.app.estimate import estimate
from autotune.app.job.load import load_jobs
from autotune.app.runs.export import export
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.typed.overrides import Overrides
from autotune.trainers.contract import Target
from autotune.trainers.launch.config import add_beside
from autotune.trainers.parsed import Parsed
from autotune.trainers.registry import TRAINERS
from autotune.trainers.schema import schema_of

if TYPE_CHECKING:
    from pathlib import Path


def launched(text: str) -> dict[str, Any]:
    found: dict[str, Any] = YAML(typ="safe", pure=True).load(text)
    return found


def read_with(values: dict[str, Any], name: str) -> Parsed:
    made = Parsed("hf", defaults={"micro_batch_size": 1, "gradient_accumulation_steps": 1})
    add_beside(made, values, name)
    return made


@pytest.mark.parametrize("target", ["hf", "trl"])
@pytest.mark.parametrize("count", [1, 2])
def test_an_offloaded_optimizer_is_started_by_deepspeed_also_on_one_device(
    target: str, count: int
) -> None:
    knobs = config(
        sharding="zero2", offload="optimizer", micro_batch_size=4,
        gradient_accumulation_steps=2 // count,
    )  # fmt: skip
    made = export(target, job(FULL, offers=(offer(count),)), offer(count), knobs)
    found = launched(made.files["accelerate.yaml"])
    assert found["distributed_type"] == "DEEPSPEED"
    assert found["num_processes"] == count
    assert found["deepspeed_config"]["offload_optimizer_device"] == "cpu"
    assert found["deepspeed_config"]["offload_param_device"] == "none"
    assert 'needed+=" deepspeed"' in made.files["run.sh"]
    if count > 1:
        assert read_with(found, "accelerate.yaml").knobs["offload"] == "optimizer"


@pytest.mark.parametrize("target", ["axolotl", "llamafactory"])
def test_a_trainers_own_deepspeed_json_offloads_the_optimizer(target: str) -> None:
    knobs = config(sharding="zero3", offload="optimizer", gradient_accumulation_steps=1)
    made = export(target, job(LORA, offers=(offer(2),)), offer(2), knobs)
    text = next(text for name, text in made.files.items() if name.endswith(".json"))
    zero = json.loads(text)["zero_optimization"]
    assert zero["offload_optimizer"] == {"device": "cpu", "pin_memory": True}
    schema = schema_of("deepspeed")
    assert all(schema.find(f"zero_optimization.{key}") for key in zero)
    plain = export(
        target, job(LORA, offers=(offer(2),)), offer(2), knobs.with_knobs(offload="none")
    )
    assert not any("offload" in text for text in plain.files.values())


def test_fsdps_shards_are_offloaded_by_the_names_of_the_launcher_and_the_trainer() -> None:
    knobs = config(sharding="fsdp", offload="all", gradient_accumulation_steps=1)
    made = export("hf", job(FULL, offers=(offer(2),)), offer(2), knobs)
    found = launched(made.files["accelerate.yaml"])["fsdp_config"]
    assert found["fsdp_offload_params"] is True
    assert "fsdp_cpu_offload" not in found
    arguments = json.loads(made.files["training_args.json"])
    assert arguments["fsdp_config"]["cpu_offload"] is True
    assert TRAINERS["hf"].read(arguments, "args").meaning["offload"] == "all"


@pytest.mark.parametrize("target", ["hf@5.23", "trl@1.16", "axolotl@0.21"])
def test_offloaded_activations_are_written_and_read_back(target: str) -> None:
    knobs = config(activation_checkpointing="full", offload="activations")
    values = values_of(target, export(target, job(), offer(), knobs))
    trainer = target.partition("@")[0]
    assert TRAINERS[trainer].read(values, target).meaning["offload"] == "activations"
    plain = values_of(target, export(target, job(), offer(), knobs.with_knobs(offload="none")))
    assert TRAINERS[trainer].read(plain, target).meaning["offload"] == "none"


def test_an_older_transformers_cannot_offload_activations_and_trl_can() -> None:
    knobs = config(activation_checkpointing="full", offload="activations")
    made = export("hf@5.10", job(), offer(), knobs)
    assert any(isinstance(note, Decisive) and "5.23" in note for note in made.notes)
    from dataclasses import replace

    older = replace(SOFTWARE, transformers=(5, 10, 0))
    values = values_of("trl", export("trl@1.12", job(software=older), offer(), knobs))
    assert values["activation_offloading"] is True


AXOLOTL = """\
base_model: Qwen/Qwen2.5-7B
adapter: lora
lora_r: 16
lora_target_linear: true
sequence_len: 4096
micro_batch_size: 1
gradient_accumulation_steps: 8
num_epochs: 1
learning_rate: 0.0002
gradient_checkpointing: true
activation_offloading: true
datasets: [{path: rows.jsonl, type: completion}]
"""


@pytest.mark.parametrize(
    ("version", "optimizer", "offload", "writes"),
    [
        (1, "paged_adamw_8bit", "all", False),
        (1, "adamw_bnb_8bit", "all", False),
        (1, "adamw_torch_fused", "all", True),
        (1, "paged_adamw_8bit", "none", True),
        (2, "adamw_bnb_8bit", "none", False),
        (2, "paged_adamw_8bit", "all", True),
    ],
)
def test_axolotls_fsdp_gets_no_8_bit_optimizer_that_it_refuses(
    version: int, optimizer: str, offload: str, *, writes: bool
) -> None:
    values = {"fsdp_config": {"offload_params": offload == "all", "fsdp_version": version}}
    chosen = config(sharding="fsdp", optimizer=optimizer, offload=offload)
    target = Target(values, chosen, (5, 20, 1), "yaml", 8)
    spelled = TRAINERS["axolotl"].spell("optimizer", optimizer, target)
    assert isinstance(spelled, dict) is writes


def test_torchtune_without_recomputing_offloads_no_activations() -> None:
    trainer = TRAINERS["torchtune"]
    stated = Target({"enable_activation_offloading": True}, config(), (5, 20, 1), "yaml", 1)
    spelled = trainer.spell("activation_checkpointing", "none", stated)
    assert spelled == {
        "enable_activation_checkpointing": False, "enable_activation_offloading": False,
    }  # fmt: skip
    unsaid = Target({}, config(), (5, 20, 1), "yaml", 1)
    spelled = trainer.spell("activation_checkpointing", "none", unsaid)
    assert spelled == {"enable_activation_checkpointing": False}


def test_a_file_that_offloads_is_priced_so_and_may_leave_it(tmp_path: Any) -> None:
    path = tmp_path / "axolotl.yml"
    path.write_text(AXOLOTL)
    found = load_jobs(path, Overrides(gpus=("h100:1",), stated={"data.rows": 1000}))[0].job
    assert "offload" not in found.lock
    assert not found.allow  # opened where nothing fits without
    assert found.today.offload == "activations"


TUNE = """\
model: {_component_: torchtune.models.llama3_2.llama3_2_1b}
tokenizer: {max_seq_len: 512}
checkpointer: {checkpoint_dir: /tmp/Llama-3.2-1B-Instruct}
batch_size: 2
epochs: 1
gradient_accumulation_steps: 1
compile: true
enable_activation_checkpointing: true
enable_activation_offloading: true
"""


def test_torchtune_compiles_layers_and_offloads_around_them(tmp_path: Any) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(TUNE)
    found = load_jobs(path, Overrides(gpus=("h100:1",), stated={"data.rows": 1000}))[0].job
    assert found.today is not None
    assert (found.today.offload, found.today.compile) == ("activations", "default")
    priced = estimate(found, fidelity="formula")
    assert (priced.row.config.offload, priced.row.config.compile) == ("activations", "default")
    assert not any("cannot run" in warning for warning in priced.warnings)


@pytest.mark.parametrize(("stated", "stays"), [("", False), ('"unsloth"', False), ("True", True)])
def test_unsloths_own_checkpointing_is_told_from_that_of_transformers(
    tmp_path: Path, stated: str, stays: bool
) -> None:
    words = f", use_gradient_checkpointing={stated}" if stated else ""
    (tmp_path / "train.py").write_text(
        "from unsloth import FastLanguageModel\n"
        "from trl import SFTConfig, SFTTrainer\n"
        "model, tokenizer = FastLanguageModel.from_pretrained('unsloth/Qwen2.5-0.5B')\n"
        f"model = FastLanguageModel.get_peft_model(model, r=8{words})\n"
        "SFTTrainer(model=model, args=SFTConfig(output_dir='out'), train_dataset=rows).train()\n"
    )
    stated_rows = Overrides(gpus=("l4",), stated={"data.rows": 100})
    found = load_jobs(tmp_path / "train.py", stated_rows)[0].job
    assert found.software.keeps_inputs is stays
    assert found.today.activation_checkpointing == "full"

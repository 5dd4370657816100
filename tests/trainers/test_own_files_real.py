"""What is written back or exported is taken by the parsers of the installed packages."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace
from typing import Any

import pytest
from exportcases import FULL, LORA, config, job, offer, values_of, with_base
from ownfiles import origin, read
from ruamel.yaml import YAML

from autotune.app.runs.export import export
from autotune.domain.errors import InputError
from autotune.trainers.own_file.patch import patch
from autotune.trainers.registry import FORMATS, TRAINERS

CHANGED = {
    "num_dataloader_workers": 2, "checkpoint_every_steps": 77, "save_total_limit": 3,
    "compile": "default", "activation_checkpointing": "full", "attention": "sdpa",
    "precision": "bf16",
}  # fmt: skip


def rewritten(name: str, **changes: object) -> str:
    made, values = read(name)
    knobs: dict[str, Any] = {**made.meaning, **CHANGED, **changes}
    found = patch(origin(name), values, made, config(**knobs), (5, 23), 1)
    return found.text


@pytest.mark.slow
def test_transformers_reads_the_json_that_came_back() -> None:
    transformers = pytest.importorskip("transformers")
    values = json.loads(rewritten("training_args.json"))
    values["eval_strategy"] = values.pop("evaluation_strategy")  # the user's own old spelling
    parser = transformers.HfArgumentParser(transformers.TrainingArguments)
    (found,) = parser.parse_dict({**values, "use_cpu": True})
    assert (found.per_device_train_batch_size, found.gradient_accumulation_steps) == (4, 4)
    assert (found.save_steps, found.save_total_limit, found.bf16, found.fp16) == (
        77,
        3,
        True,
        False,
    )
    assert found.activation_checkpointing


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.gradient_checkpointing:FutureWarning")
def test_trl_reads_the_yaml_and_the_flags_that_came_back() -> None:
    transformers = pytest.importorskip("transformers")
    trl = pytest.importorskip("trl")
    parser = transformers.HfArgumentParser((trl.SFTConfig, trl.ModelConfig))
    values = YAML(typ="safe", pure=True).load(rewritten("sft_config.yaml"))
    del values["dataset_name"]  # of TRL's ScriptArguments
    values = {"dtype": values.pop("torch_dtype"), **values, "bf16": True, "output_dir": "out"}
    arguments, model = parser.parse_dict({**values, "use_cpu": True})
    assert (arguments.max_length, arguments.save_steps, model.lora_r) == (2048, 77, 16)
    flags = shlex.split(rewritten("launch.sh").replace("\\\n", " "))
    flags = flags[flags.index("train.py") + 1 : flags.index("echo")]
    flags = ["--max_length" if flag == "--max_seq_length" else flag for flag in flags]
    arguments, model = parser.parse_args_into_dataclasses([*flags, "--use_cpu", "True"])
    assert (arguments.per_device_train_batch_size, arguments.save_steps) == (4, 77)
    assert (arguments.dataloader_num_workers, model.lora_alpha) == (2, 32)
    off = rewritten("launch.sh", activation_checkpointing="none")
    assert "--gradient_checkpointing False" in off
    (arguments,) = transformers.HfArgumentParser(trl.SFTConfig).parse_args_into_dataclasses(
        ["--output_dir", "out", "--use_cpu", "True", "--gradient_checkpointing", "False"]
    )
    assert not arguments.activation_checkpointing


@pytest.mark.slow
@pytest.mark.parametrize("sharding", ["ddp", "fsdp", "zero2", "zero3"])
def test_accelerate_reads_what_lies_beside_and_so_do_we(sharding: str) -> None:
    accelerate = pytest.importorskip("accelerate.commands.config.config_args")
    from autotune.trainers.launch.config import add_beside

    two = offer(2)
    plan = config(sharding=sharding, micro_batch_size=4, gradient_accumulation_steps=1)
    files = export("hf", job(FULL, offers=(two,)), two, plan).files
    values = YAML(typ="safe", pure=True).load(files["accelerate.yaml"])
    assert accelerate.ClusterConfig(**{**values, "debug": False}).num_processes == 2
    arguments = json.loads(files["training_args.json"])
    made = TRAINERS["hf"].read(arguments, "training_args.json")
    add_beside(made, values, "accelerate.yaml")
    assert (made.devices, made.knobs["sharding"], made.batch_on(2)) == (2, sharding, 8)


@pytest.mark.parametrize("target", FORMATS)
@pytest.mark.parametrize("base", ["16bit", "nf4", "int8", "full"])
@pytest.mark.parametrize("steps", [24, 17])
def test_every_export_is_read_back_as_the_same_job_and_config(
    target: str, base: str, steps: int
) -> None:
    targets = ("q_proj",) if target == "litgpt" else LORA.targets  # it has no down_proj alone
    method = FULL if base == "full" else replace(LORA, base=base, targets=targets)
    what = job(method, steps=steps, epochs=3.0 if steps == 24 else 2.0)
    knobs = config(
        num_dataloader_workers=4, save_total_limit=5, compile="default", length_grouping="on",
        activation_checkpointing="full",
    )  # fmt: skip
    written = export(target, what, what.offers[0], knobs)
    made = TRAINERS[target].read(values_of(target, written), target)
    assert made.batch_on(1) == what.global_batch_size
    train = made.values["train"]
    assert train == ({"epochs": 3.0} if steps == 24 else {"steps": steps})
    if target != "hf":  # Trainer leaves these to the script
        assert made.values["data"]["max_length"] == what.max_length
    if target not in {"hf", "trl"}:
        stated = made.values["method"]
        assert stated["kind"] == method.kind
        if method.is_lora:
            assert (stated["rank"], stated["alpha"]) == (8, 16.0)
            assert stated.get("base") in {base, None if base == "16bit" else base}
            assert tuple(stated["targets"]) == method.targets
    said = " ".join(written.notes)
    differs = {
        knob for knob, value in made.meaning.items()
        if getattr(knobs, knob) != value and knob != "sharding"  # which means nothing on one device
    }  # fmt: skip
    assert {knob for knob in differs if knob not in said} == set()


@pytest.mark.parametrize("target", ["axolotl", "llamafactory"])
@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_deepspeed_gets_its_own_config_beside_the_file(target: str, sharding: str) -> None:
    two = offer(2)
    knobs = config(sharding=sharding, gradient_accumulation_steps=1)
    made = export(target, job(FULL, offers=(two,)), two, knobs)
    name = values_of(target, made)["deepspeed"]
    assert json.loads(made.files[name])["zero_optimization"]["stage"] == int(sharding[-1])
    assert any("DeepSpeed must be installed" in note for note in made.notes)


@pytest.mark.parametrize("target", ["axolotl", "llamafactory"])
def test_a_base_that_the_trainer_cannot_load_is_refused(target: str) -> None:
    with pytest.raises(InputError, match="cannot be 32bit"):
        export(target, job(with_base(LORA, "32bit")), offer(), config(precision="bf16"))

"""The trainers' keys as package data: what is read and what is written is really theirs."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import replace
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import pytest
from exportcases import FULL, LORA, config, job, offer, with_base
from hypothesis import given, settings
from hypothesis import strategies as st
from ownfiles import FILES, origin, read
from ruamel.yaml import YAML
from test_own_files import CONFIGS, SPLITS

from autotune.app.runs.export import export
from autotune.domain.config import Config
from autotune.domain.errors import InputError
from autotune.trainers.contract import GONE
from autotune.trainers.hf.adapter import NESTED, OWN_FLAGS
from autotune.trainers.hf.keys import MODEL
from autotune.trainers.hf.read import HELD_OUT
from autotune.trainers.own_file.patch import patch
from autotune.trainers.registry import TRAINERS
from autotune.trainers.schema import Schema, schema_of
from autotune.trainers.syntax.python_source import parse_script

if TYPE_CHECKING:
    from collections.abc import Iterator

SCHEMAS = ("hf", "trl", "axolotl", "llamafactory", "torchtune", "litgpt", "unsloth", "swift",
           "peft", "accelerate", "deepspeed")  # fmt: skip
# Read although no release in the data has them: names that people's own scripts use, and
# transformers before 4.40.
FOLKLORE = {"model_id", "model_name", "model", "use_lora", "lora_rank", "model_max_length"}
FOLKLORE |= {"use_qlora"}  # LLamaTuner's
FOLKLORE |= set(MODEL)  # of many people's own
FOLKLORE |= {"sft_type", "model_id_or_path"}  # of ms-swift 2, older than its schema
FOLKLORE |= {"dataset_test_ratio", "custom_val_dataset_path", "use_flash_attn", "dtype"}  # as well
FOLKLORE |= {"compute_metrics"}  # of the Trainer itself, which a script calls
FOLKLORE |= {"prepare_model_for_kbit_training"}  # of PEFT, which a script calls
FOLKLORE |= {"beta", "max_prompt_length"}  # of TRL's DPOConfig; the schemas are those of SFT
FOLKLORE |= {"run_val_every_n_steps", "batch_size_val"}  # of torchtune's recipes after 0.6.1
FOLKLORE |= {flag for flags in OWN_FLAGS.values() for flag in flags} | {*NESTED, *HELD_OUT}
WRITTEN_BOOL = {"fsdp"}  # text on a command line, and true in a file: transformers 5.10 takes both


def flat(values: dict[str, Any], schema: Schema, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Keys as the schema names them: inside a mapping where its keys are listed."""
    for key, value in values.items():
        name = f"{prefix}{key}"
        listed = any(known.startswith(f"{name}.") for known in schema.keys)
        if isinstance(value, dict) and listed:
            yield from flat(value, schema, f"{name}.")
        else:
            yield name, value


def problems(values: dict[str, Any], trainer: str) -> list[str]:
    """Keys that the newest version does not have, or does not take that value for."""
    schema, found = schema_of(trainer), []
    for name, value in flat(values, schema):
        key = schema.find(name)
        if key is None:
            found.append(f"{name} is no key of {schema.newest}")
        elif key.until:
            found.append(f"{name} left after {key.until}")
        elif not key.admits(value) and name.rpartition(".")[2] not in WRITTEN_BOOL:
            found.append(f"{name} {value!r} is not {key.says}")
    return found


@pytest.mark.parametrize("trainer", SCHEMAS)
def test_a_schema_says_what_it_was_read_from(trainer: str) -> None:
    schema = schema_of(trainer)
    assert schema.trainer == trainer
    assert len(schema.keys) > 30
    assert all(built[:2] == "20" for built in schema.versions.values())
    assert all(key.kinds for key in schema.keys.values())


@pytest.mark.parametrize("name", FILES)
def test_every_key_that_is_read_is_one_that_some_trainer_has(name: str) -> None:
    schemas = [schema_of(trainer) for trainer in SCHEMAS]
    mappings = {"model_init_kwargs", "model", "tokenizer", "checkpointer", "dataset", "data"}
    asked = {key for key in read(name)[0].asked if key.split(".")[0] not in mappings} - FOLKLORE
    assert {key for key in asked if all(schema.find(key) is None for schema in schemas)} == set()


@pytest.mark.parametrize("name", FILES)
def test_the_example_files_are_real_files_of_their_trainers(name: str) -> None:
    made, _ = read(name)
    assert made.misspelt == {}


COUNTS = {"none": 1, "ddp": 2, "fsdp": 2, "zero2": 2, "zero3": 2}


@settings(max_examples=50, deadline=None)
@given(
    target=st.sampled_from(["axolotl", "llamafactory", "litgpt", "hf", "trl"]),
    knobs=CONFIGS,
    base=st.sampled_from(["16bit", "nf4", "int8", "full"]),
    sharding=st.sampled_from(sorted(COUNTS)),
)
def test_every_key_that_an_export_writes_is_one_of_its_trainer(
    target: str, knobs: dict[str, Any], base: str, sharding: str
) -> None:
    count = COUNTS[sharding]
    method = with_base(FULL, "32bit") if base == "full" else with_base(LORA, base)
    where = offer(count)
    chosen = config(**{**knobs, "precision": "bf16", "sharding": sharding,
                       "gradient_accumulation_steps": 2 // count})  # fmt: skip
    if target == "axolotl" and base == "full":
        method = FULL
    if target == "axolotl" and sharding == "fsdp":
        chosen = chosen.with_knobs(optimizer="adamw_torch_fused")
    if target == "litgpt" and count > 1:
        where, chosen = offer(), chosen.with_knobs(sharding="none", gradient_accumulation_steps=2)
    if target == "litgpt" and method.is_lora:
        method = replace(method, targets=("q_proj", "v_proj"))
    try:
        files = export(target, job(method, offers=(where,)), where, chosen).files
    except InputError:
        return  # what a format has no words for is refused
    for name, text in files.items():
        values = YAML(typ="safe", pure=True).load(text) if name.endswith(SUFFIXES) else {}
        kind = "accelerate" if name == "accelerate.yaml" else target
        if "zero_optimization" in values:
            kind, values = "deepspeed", without_auto(values)
        assert problems(values, kind) == [], name


def without_auto(values: dict[str, Any]) -> dict[str, Any]:
    """A DeepSpeed config as transformers fills it in."""
    inner = {k: without_auto(v) if isinstance(v, dict) else v for k, v in values.items()}
    return {key: value for key, value in inner.items() if value != "auto"}


SUFFIXES = (".yml", ".yaml", ".json")


@settings(max_examples=50, deadline=None)
@given(name=st.sampled_from(sorted(FILES)), knobs=CONFIGS, divisor=st.integers(0, 2))
def test_every_key_that_is_written_into_an_own_file_is_one_of_its_trainer(
    name: str, knobs: dict[str, Any], divisor: int
) -> None:
    made, values = read(name)
    micro = 2**divisor
    chosen = Config(
        micro_batch_size=micro, gradient_accumulation_steps=SPLITS[name] // micro, **knobs
    )
    runs_on = schema_of(made.trainer).runs_on.get("transformers", "5.23.0")
    spelling = tuple(int(part) for part in runs_on.split("."))
    changes = patch(origin(name), values, made, chosen, spelling, 1).changes
    written = {key: value for key, value in changes.items() if value is not GONE}
    written.pop("attn_implementation", None)  # in a script it belongs to from_pretrained
    schema, launcher = schema_of(made.trainer), schema_of("accelerate")
    for key, value in written.items():
        found = schema.find(key) or launcher.find(key)
        assert found is not None, key
        inside = key not in schema.keys and "dict" in found.kinds  # arguments of a class
        assert inside or found.admits(value), (key, value)


@pytest.mark.parametrize("text", [
    "SFTConfig(per_device_train_batch_size=4, **{'bf16': True, 'save_steps': 9})",
    "BASE = dict(bf16=True, save_steps=9)\nSFTConfig(per_device_train_batch_size=4, **BASE)",
    "STEPS = 9\nSFTConfig(per_device_train_batch_size=4, bf16=True, save_steps=STEPS)",
])  # fmt: skip
def test_a_dict_literal_that_is_unpacked_is_read(text: str) -> None:
    values = parse_script(text, "train.py").values
    assert (values["bf16"], values["save_steps"], values["per_device_train_batch_size"]) == (
        True, 9, 4,
    )  # fmt: skip


def test_a_misspelt_key_is_named_with_the_one_it_means() -> None:
    made = TRAINERS["axolotl"].read({"base_model": "x", "gradient_acumulation_steps": 8}, "a.yml")
    told = [f"{note.key} {note.value}" for note in made.notes]
    assert "a.yml: gradient_acumulation_steps gradient_accumulation_steps?" in told


def test_a_key_of_an_older_version_is_said_to_be_one() -> None:
    values = {"output_dir": "x", "per_device_train_batch_size": 1, "half_precision_backend": "apex"}
    made = TRAINERS["hf"].read(values, "a.json")
    told = [f"{note.key} {note.value}: {note.why}" for note in made.notes]
    assert any("half_precision_backend of an older version" in line for line in told)


@pytest.mark.slow
@pytest.mark.parametrize(("trainer", "package", "module", "name"), [
    ("hf", "transformers", "transformers", "TrainingArguments"),
    ("trl", "trl", "trl", "SFTConfig"),
    ("peft", "peft", "peft", "LoraConfig"),
])  # fmt: skip
def test_the_data_are_what_the_installed_class_takes(
    trainer: str, package: str, module: str, name: str
) -> None:
    found = pytest.importorskip(module)
    schema = schema_of(trainer)
    if version(package) != list(schema.versions)[-1]:
        pytest.skip(f"{package} {version(package)} is installed, and {schema.newest} was read")
    fields = {each.name: each for each in dataclasses.fields(getattr(found, name)) if each.init}
    now = {key for key, value in schema.keys.items() if not value.until}
    assert set(fields) <= now
    for key, each in fields.items():
        default = schema.keys[key].default
        if default is not None and isinstance(each.default, bool | int | float | str):
            assert json.loads(json.dumps(default)) == each.default, key

"""A script's settings in a file of their own: read however it loads them, and what they decide."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_jobs
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from tests.strangers import today

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

QWEN = "Qwen/Qwen2.5-0.5B"
SETTINGS = f"""\
name: {QWEN}
size: 16
rows: 4
again: 2
passes: 3
length: 768
way: lora
"""
SCRIPT = """\
import argparse, json, os, yaml
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer
parser = argparse.ArgumentParser()
parser.add_argument("--config")
options = parser.parse_args()
BEFORE
model = AutoModelForCausalLM.from_pretrained(NAME)
ADAPTED
args = SFTConfig(per_device_train_batch_size=ROWS, gradient_accumulation_steps=AGAIN,
                 num_train_epochs=PASSES, max_length=LENGTH)
SFTTrainer(model=model, args=args).train()
"""
ADAPTS = 'model = get_peft_model(model, LoraConfig(r=SIZE, target_modules=["q_proj"]))'
OPENED = "yaml.safe_load(open(options.config))"
CHOSEN = """\
def adapt(model):
    return get_peft_model(model, LoraConfig(r=SIZE, target_modules=["q_proj"]))
if cfg["way"].lower() in ("lora", "qlora"):
    model = adapt(model)
"""


def script(before: str, entry: str = 'cfg["{}"]', adapted: str = ADAPTS) -> str:
    """The script with its settings loaded so, and entries of them taken so."""
    text = SCRIPT.replace("BEFORE", before).replace("ADAPTED", adapted)
    for name in ("NAME", "SIZE", "ROWS", "AGAIN", "PASSES", "LENGTH"):
        text = text.replace(name, entry.format(name.lower()))
    return text


def job(
    folder: Path, text: str, settings: str = SETTINGS, suffix: str = "yaml", **stated: object
) -> Job:
    (folder / "train.py").write_text(text)
    beside = folder / f"settings.{suffix}"
    beside.write_text(settings)
    asked = Overrides(("h100",), stated={"data.rows": 1000, **stated}, beside=(str(beside),))
    return load_jobs(folder / "train.py", asked)[0].job


def says(found: Job) -> tuple[object, ...]:
    split = today(found)
    return (found.model.name, found.method.rank, found.max_length, found.epochs,
            split.micro_batch_size, split.gradient_accumulation_steps)  # fmt: skip


SAID = (QWEN, 16, 768, 3.0, 4, 2)
DATACLASS = """\
class TrainConfig:
    rows: int = 1
def load_config(path):
    return TrainConfig(**yaml.safe_load(open(path)))
if options.config:
    config = load_config(options.config)
else:
    config = TrainConfig()
"""


@pytest.mark.parametrize(
    ("before", "entry"),
    [
        (f"cfg = {OPENED} or {{}}", 'cfg["{}"]'),
        (f"cfg = {OPENED} if options.config else None", 'cfg["{}"]'),
        (f"cfg = {OPENED}\nours = Ours(**cfg)", "ours.{}"),
        ("held = json.load(open(options.config))\nours = Ours(**held)", "ours.{}"),
        (f"cfg = {OPENED}\nours, n = cfg, 1", 'ours["{}"]'),
        (DATACLASS, "config.{}"),
        (f'held = {OPENED}\nours = {{**{{"rows": 9, "more": 1}}, **(held or {{}})}}', 'ours["{}"]'),
    ],
)
def test_settings_are_read_however_a_script_loads_them(
    tmp_path: Path, before: str, entry: str
) -> None:
    assert says(job(tmp_path, script(before, entry))) == SAID


def test_a_name_that_is_bound_to_something_else_as_well_is_not_the_files(tmp_path: Path) -> None:
    before = f"if options.config:\n    cfg = {OPENED}\nelse:\n    cfg = ours(1)"
    with pytest.raises(InputError, match="must be written out"):
        job(tmp_path, script(before))


def test_settings_in_toml_are_read_and_stay_as_they_are(tmp_path: Path) -> None:
    toml = "".join(
        f"{key} = {value if value.isdecimal() else repr(value)}\n"
        for key, value in (line.split(": ") for line in SETTINGS.splitlines())
    )
    found = job(tmp_path, script(f"cfg = {OPENED}"), toml, "toml")
    assert says(found) == SAID
    assert found.origin is not None
    assert [each.syntax for each in found.origin.beside] == ["toml"]


def test_what_is_no_toml_is_told_as_such(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="not valid TOML"):
        job(tmp_path, script(f"cfg = {OPENED}"), "rows: 4\n", "toml")


@pytest.mark.parametrize(("way", "kind"), [("LoRA", "lora"), ("full", "full")])
def test_a_function_that_the_settings_do_not_call_does_nothing(
    tmp_path: Path, way: str, kind: str
) -> None:
    settings = SETTINGS.replace("way: lora", f"way: {way}")
    found = job(tmp_path, script(f"cfg = {OPENED}", adapted=CHOSEN), settings)
    assert found.method.kind == kind


def test_full_training_asks_nothing_of_adapters(tmp_path: Path) -> None:
    """A script that trains either way, by a condition that is not known."""
    text = script(f"cfg = {OPENED}").replace('r=cfg["size"]', "r=size()")
    with pytest.raises(InputError, match="lora_r must be written out") as refused:
        job(tmp_path, text)
    assert "--method full, where it puts none on" in str(refused.value.hint)
    assert job(tmp_path, text, **{"method.kind": "full"}).method.kind == "full"


def test_an_entry_of_a_mapping_is_known_whatever_its_others_are_worth(tmp_path: Path) -> None:
    entries = ", ".join(f'"{key}": {value!r}' for key, value in zip(
        ("name", "size", "rows", "again", "passes", "length"), (QWEN, 16, 4, 2, 3, 768),
        strict=True,
    ))  # fmt: skip
    text = script(f'ours = {{{entries}, "half": torch.cuda.is_bf16_supported()}}', 'ours["{}"]')
    assert says(job(tmp_path, text)) == SAID


TRAIN_YAML = """\
training: {per_device_train_batch_size: 4, gradient_accumulation_steps: 2, num_train_epochs: 3}
sft: {max_length: 768}
"""
LORA_YAML = "lora: {r: 16, target_modules: [q_proj]}\n"
MODEL_YAML = f"model: {{name: {QWEN}}}\n"
PARTS = """\
import yaml
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM
from trl import SFTConfig, SFTTrainer

def load_yaml_config(path):
    return yaml.safe_load(open(path))

def prepare(model_config, lora_config):
    low = lora_config["lora"]
    model = AutoModelForCausalLM.from_pretrained(model_config["model"]["name"])
    return get_peft_model(model, LoraConfig(r=low["r"], target_modules=["q_proj"]))

def main(folder="config"):
    model_config = load_yaml_config(f"{folder}/model.yaml")
    lora_config = load_yaml_config(f"{folder}/lora.yaml")
    train_config = load_yaml_config(f"{folder}/train.yaml")
    part = train_config["training"]
    args = SFTConfig(per_device_train_batch_size=part["per_device_train_batch_size"],
                     gradient_accumulation_steps=part["gradient_accumulation_steps"],
                     num_train_epochs=part["num_train_epochs"],
                     max_length=train_config["sft"].get("max_length", 512))
    SFTTrainer(model=prepare(model_config, lora_config), args=args).train()

main()
"""


def parts(folder: Path, text: str = PARTS, **files: str) -> Job:
    """The job of a script whose settings lie in several files beside it."""
    for name, content in {
        "model": MODEL_YAML,
        "lora": LORA_YAML,
        "train": TRAIN_YAML,
        **files,
    }.items():
        (folder / f"{name}.yaml").write_text(content)
    path = folder / "train.py"
    path.write_text(text)
    beside = tuple(str(folder / f"{name}.yaml") for name in ("model", "lora", "train"))
    asked = Overrides(("h100",), stated={"data.rows": 1000}, beside=beside)
    return load_jobs(path, asked)[0].job


def test_settings_of_several_files_are_read_each_from_its_own(tmp_path: Path) -> None:
    found = parts(tmp_path)
    assert (found.model.name, found.method.rank, found.max_length) == (QWEN, 16, 768)
    assert (today(found).micro_batch_size, found.epochs, found.global_batch_size) == (4, 3, 8)


# The settings are handed over by a file that is not here.
GIVEN = PARTS.partition("def main")[0]
GIVEN += """\
def run(part, config, model_config, lora_config):
    args = SFTConfig(per_device_train_batch_size=part["per_device_train_batch_size"],
                     gradient_accumulation_steps=part["gradient_accumulation_steps"],
                     num_train_epochs=part["num_train_epochs"],
                     max_length=config.get("max_length", 512))
    SFTTrainer(model=prepare(model_config, lora_config), args=args).train()
"""


def test_what_a_function_is_given_is_read_by_its_keys(tmp_path: Path) -> None:
    found = parts(tmp_path, GIVEN)
    assert (found.method.rank, found.max_length) == (16, 768)
    assert (today(found).micro_batch_size, found.epochs) == (4, 3)


def test_a_key_that_two_places_have_is_not_known(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="num_train_epochs must be written out"):
        parts(tmp_path, GIVEN, lora=f"{LORA_YAML}warm: {{num_train_epochs: 1}}\n")


def test_a_default_stands_for_no_key_of_a_mapping_that_is_unknown(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="max_length must be written out"):
        parts(tmp_path, GIVEN, train=TRAIN_YAML.replace("sft: {max_length: 768}\n", ""))


def test_what_a_call_makes_of_the_settings_is_not_what_they_say(tmp_path: Path) -> None:
    text = PARTS.replace('part = train_config["training"]', "part = merged(train_config)")
    with pytest.raises(InputError, match=r"per_device_train_batch_size.* must be written out"):
        parts(tmp_path, text)


def test_constants_of_an_own_module_are_read_by_its_name(tmp_path: Path) -> None:
    (tmp_path / "settings.py").write_text(f'name = "{QWEN}"\nrows = 4\npasses = 3\nlength = 640\n')
    path = tmp_path / "train.py"
    path.write_text(
        "import settings as s\nfrom transformers import AutoModelForCausalLM\n"
        "from trl import SFTConfig, SFTTrainer\n"
        "model = AutoModelForCausalLM.from_pretrained(s.name)\n"
        "args = SFTConfig(per_device_train_batch_size=s.rows, num_train_epochs=s.passes,\n"
        "                 max_length=s.length)\n"
        "SFTTrainer(model=model, args=args).train()\n"
    )
    found = load_jobs(path, Overrides(("h100",), stated={"data.rows": 1000}))[0].job
    assert (found.model.name, found.max_length) == (QWEN, 640)
    assert (today(found).micro_batch_size, found.epochs) == (4, 3)


def test_a_rank_of_zero_in_the_settings_is_full_training(tmp_path: Path) -> None:
    """Source: peft 0.21 tuners/lora/layer.py, update_layer: a rank of 0 is refused."""
    lines = [
        "adapter = LoraConfig(r=SIZE, target_modules=named(model))",
        "if SIZE != 0:",
        "    model = get_peft_model(model, adapter)",
    ]
    settings = SETTINGS.replace("size: 16", "size: 0")
    text = script(f"cfg = {OPENED}", adapted="\n".join(lines))
    assert job(tmp_path, text, settings).method.kind == "full"
    assert job(tmp_path, text).method.kind == "lora"

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

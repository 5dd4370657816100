"""The knob `kernels` in every trainer's words: written with keys that it has, and read back."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from exportcases import SOFTWARE, config, job, offer, values_of

from autotune.app.job.load import load_jobs
from autotune.app.runs.export import export
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.typed.overrides import Overrides
from autotune.trainers.axolotl.keys import CUT, LIGER
from autotune.trainers.registry import TRAINERS
from autotune.trainers.schema import schema_of

INSTALLED = replace(SOFTWARE, liger_kernel=(0, 8, 5))


def written(target: str, kernels: str) -> tuple[dict[str, Any], tuple[str, ...]]:
    made = export(target, job(software=INSTALLED), offer(), config(kernels=kernels))
    return values_of(target, made), made.notes


@pytest.mark.parametrize("target", ["hf", "trl", "axolotl", "llamafactory"])
def test_liger_is_written_and_read_back_as_the_knob(target: str) -> None:
    values, _ = written(target, "liger")
    schema = schema_of(target)
    assert all(schema.find(key) for key in values)
    assert TRAINERS[target].read(values, target).meaning["kernels"] == "liger"
    plain, _ = written(target, "none")
    assert not any("liger" in key or key == "plugins" for key in plain)
    assert TRAINERS[target].read(plain, target).meaning["kernels"] == "none"


def test_the_exported_run_says_that_liger_kernel_must_be_installed() -> None:
    for target in ("hf", "trl"):
        made = export(target, job(software=INSTALLED), offer(), config(kernels="liger"))
        assert 'needed+=" liger_kernel"' in made.files["run.sh"]
        plain = export(target, job(software=INSTALLED), offer(), config())
        assert "liger" not in plain.files["run.sh"]


def test_axolotl_gets_the_plugin_of_the_value_and_its_switches() -> None:
    liger, _ = written("axolotl", "liger")
    assert liger["plugins"] == [LIGER]
    assert liger["liger_fused_linear_cross_entropy"] is True
    cut, _ = written("axolotl", "chunked_loss")
    assert cut["plugins"] == [CUT]
    assert cut["cut_cross_entropy"] is True
    assert TRAINERS["axolotl"].read(cut, "axolotl.yml").meaning["kernels"] == "chunked_loss"


def test_the_trainer_without_a_chunked_loss_is_told_so_where_the_pick_rests_on_it() -> None:
    _, notes = written("hf", "chunked_loss")
    assert any(isinstance(note, Decisive) and "trl" in note for note in notes)
    _, notes = written("llamafactory", "chunked_loss")
    assert any("kernels chunked_loss" in note for note in notes)
    _, notes = written("trl", "chunked_loss")
    assert not any(isinstance(note, Decisive) for note in notes)
    assert any("kernels chunked_loss" in note for note in notes)


@pytest.mark.parametrize(
    ("stated", "knob", "kept"),
    [
        ({"plugins": [LIGER], "liger_fused_linear_cross_entropy": True}, "liger", False),
        ({"plugins": [CUT]}, "chunked_loss", False),
        ({"plugins": [CUT], "cut_cross_entropy": False}, "none", False),
        ({"plugins": [LIGER, CUT], "liger_rms_norm": True}, "liger", True),
        ({"plugins": [LIGER], "liger_rms_norm": True}, "none", True),
        ({"plugins": ["axolotl.integrations.spectrum.SpectrumPlugin"]}, "none", False),
        ({"liger_rms_norm": True}, "none", False),
    ],
)
def test_axolotls_plugins_are_read_as_the_knob(
    stated: dict[str, Any], knob: str, kept: bool
) -> None:
    made = TRAINERS["axolotl"].read({"base_model": "m", "adapter": "lora", **stated}, "file")
    assert made.meaning["kernels"] == knob
    assert ("kernels" in made.kept) == kept


KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")
ON = dict.fromkeys(KERNELS, True)


@pytest.mark.parametrize(
    ("stated", "fused"),
    [
        ({}, True),
        (ON, True),
        (dict.fromkeys(KERNELS, False), False),
        ({"lora_mlp_kernel": True}, False),
        ({**ON, "lora_dropout": 0.05}, False),
        ({"lora_target_linear": False, "lora_target_modules": ["q_proj", "v_proj"]}, False),
        ({"trust_remote_code": True}, False),
        ({"load_in_8bit": True}, False),
        ({"fsdp_config": {"fsdp_version": 1}}, False),
        ({"fsdp_config": {"auto_wrap_policy": "TRANSFORMER_BASED_WRAP"}, "fsdp_version": 2}, True),
        ({"adapter": None}, False),
    ],
)
def test_axolotl_fuses_adapters_by_itself_or_as_stated(stated: dict[str, Any], fused: bool) -> None:
    file = {"base_model": "m", "adapter": "lora", "lora_target_linear": True, **stated}
    made = TRAINERS["axolotl"].read(file, "file")
    assert made.fused_adapters == fused
    left = {each.key for each in made.uncounted if each.key in KERNELS}
    assert left == (set() if fused else {key for key in KERNELS if stated.get(key)})


AXOLOTL = """\
base_model: Qwen/Qwen2.5-7B
plugins:
  - axolotl.integrations.spectrum.SpectrumPlugin
  - {plugin}
{switches}
adapter: lora
lora_r: 16
lora_target_linear: true
sequence_len: 4096
micro_batch_size: 1
gradient_accumulation_steps: 8
num_epochs: 1
learning_rate: 0.0002
datasets: [{{path: rows.jsonl, type: completion}}]
"""
SWITCHES = "liger_fused_linear_cross_entropy: true\nliger_rms_norm: true"


def test_a_file_with_liger_keeps_it_unless_the_user_opens_the_knob(tmp_path: Any) -> None:
    path = tmp_path / "axolotl.yml"
    path.write_text(AXOLOTL.format(plugin=LIGER, switches=SWITCHES))
    stated = {"data.rows": 1000}
    found = load_jobs(path, Overrides(gpus=("h100:1",), stated=stated))[0].job
    assert found.lock["kernels"] == "liger"
    assert found.today.kernels == "liger"
    assert found.software.kernels == "eager"
    opened = Overrides(gpus=("h100:1",), stated=stated, allow=("kernels",))
    assert "kernels" not in load_jobs(path, opened)[0].job.lock


def test_the_users_axolotl_file_changes_its_plugin_and_keeps_the_others(tmp_path: Any) -> None:
    from autotune.app.runs.user_file import same_export

    path = tmp_path / "axolotl.yml"
    path.write_text(AXOLOTL.format(plugin=LIGER, switches=SWITCHES))
    stated = {"data.rows": 1000}
    own = load_jobs(path, Overrides(gpus=("h100:1",), stated=stated, allow=("kernels",)))[0].job
    assert own.today is not None
    for value, expected in (("chunked_loss", CUT), ("none", None)):
        pick = own.today.with_knobs(kernels=value)
        made = same_export("same", own, own.offers[0], pick, "", "")
        text = next(text for name, text in made.files.items() if name.endswith("axolotl.yml"))
        assert "SpectrumPlugin" in text
        assert LIGER not in text
        assert "liger_" not in text
        assert (expected is None) or expected in text


def test_a_stated_liger_that_the_family_lacks_is_given_up_and_told(tmp_path: Any) -> None:
    path = tmp_path / "args.json"
    path.write_text(
        '{"model_name_or_path": "openai-community/gpt2", "use_liger_kernel": true, '
        '"per_device_train_batch_size": 2, "output_dir": "out", "num_train_epochs": 1}'
    )
    stated = {"data.rows": 1000, "method.kind": "full", "data.max_length": 512}
    found = load_jobs(path, Overrides(gpus=("a100:1",), stated=stated))[0].job
    assert (found.today.kernels, found.lock.get("kernels")) == ("liger", None)
    (note,) = [each for each in found.assumed if each.value == "liger is not kept"]
    assert "Liger has no kernels for the model's family" in note.why

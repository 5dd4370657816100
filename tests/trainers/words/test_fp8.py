"""precision fp8 in the words of each trainer that has it."""

from __future__ import annotations

import json

import pytest
from exportcases import FULL, SOFTWARE, config, job, offer, values_of
from ruamel.yaml import YAML

from autotune.app.runs.export import export
from autotune.domain.errors import InputError
from autotune.trainers.registry import TRAINERS
from autotune.trainers.schema import schema_of

FP8 = config(precision="fp8", compile="default")


@pytest.mark.parametrize("target", ["hf", "trl"])
def test_the_launcher_turns_fp8_on_and_no_argument_turns_it_off(target: str) -> None:
    made = export(target, job(FULL, software=SOFTWARE), offer(), FP8)
    launcher = YAML(typ="safe", pure=True).load(made.files["accelerate.yaml"])
    assert launcher["mixed_precision"] == "fp8"
    assert launcher["fp8_config"] == {"fp8_backend": "AO"}
    assert schema_of("accelerate").find("fp8_config.fp8_backend")
    name = "training_args.json" if target == "hf" else "sft_config.json"
    arguments = json.loads(made.files[name])
    assert arguments["bf16"] is arguments["fp16"] is False
    assert 'WEIGHTS_DTYPE = "bfloat16"' in made.files["train.py"]
    assert 'needed+=" torchao"' in made.files["run.sh"]


def test_axolotls_key_says_fp8_and_is_read_back() -> None:
    target = "axolotl"
    values = values_of(target, export(target, job(FULL), offer(), FP8))
    assert values["fp8"] is True
    assert schema_of(target).find("fp8")
    assert TRAINERS[target].read(values, target).meaning["precision"] == "fp8"
    plain = values_of(target, export(target, job(FULL), offer(), config()))
    assert "fp8" not in plain


@pytest.mark.parametrize("target", ["litgpt", "unsloth", "llamafactory"])
def test_a_trainer_without_fp8_over_16_bit_weights_refuses_it(target: str) -> None:
    with pytest.raises(InputError, match="fp8"):
        export(target, job(FULL), offer(), FP8)

"""What is exported is what was priced: bytes a parameter, from the launcher's own settings."""

from __future__ import annotations

import json
from typing import Any

import pytest
from exportcases import config, job, offer
from ruamel.yaml import YAML

from autotune.app.runs.export import export
from autotune.cost.columns import Columns
from autotune.cost.deepspeed import BUCKET_ELEMENTS
from autotune.cost.memory.component import READS
from autotune.cost.memory.states import sizes, static_bytes
from autotune.domain.job import Method

COUNT = 2
DEFAULT_BUCKET = 500_000_000  # deepspeed 0.18.9, runtime/zero/config.py
FULL = {"method": Method("full")}


def chosen(sharding: str) -> Any:
    return config(sharding=sharding, gradient_accumulation_steps=1, precision="bf16")


def launcher(sharding: str) -> dict[str, Any]:
    found = export("hf", job(**FULL), offer(COUNT), chosen(sharding))
    settings: dict[str, Any] = YAML(typ="safe", pure=True).load(found.files["accelerate.yaml"])
    return settings


def priced(sharding: str) -> Any:
    machine, knobs = offer(COUNT), chosen(sharding).as_dict()
    values = {**knobs, "offer.device": machine.device, "offer.count": machine.count,
              "offer.network": None}  # fmt: skip
    columns = Columns({name: [values[name]] for name in READS}, 1)
    return static_bytes(job(**FULL), columns, sizes(job(**FULL).model))


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_deepspeeds_bytes_a_parameter_are_those_its_exported_config_asks_for(sharding: str) -> None:
    settings, found = launcher(sharding), priced(sharding)
    zero = settings["deepspeed_config"]
    assert settings["mixed_precision"] == "bf16"  # the engine casts weights and gradients
    assert "bf16_optimizer_states" not in json.dumps(settings)  # so masters and moments are fp32
    assert {zero["offload_optimizer_device"], zero["offload_param_device"]} == {"none"}
    stage, elements = zero["zero_stage"], found.trainable[0]
    processes = settings["num_processes"]
    assert found.weights[0] == 2.0 * elements / (processes if stage == 3 else 1)
    assert found.gradients[0] == 2.0 * elements / processes
    assert found.optimizer[0] == (4.0 + 4.0 + 4.0) * elements / processes


@pytest.mark.parametrize("sharding", ["zero2", "zero3"])
def test_deepspeeds_own_file_has_the_buckets_and_dtypes_that_are_priced(sharding: str) -> None:
    files = export("axolotl", job(**FULL), offer(COUNT), chosen(sharding)).files
    written = json.loads(files[f"deepspeed_{sharding}.json"])
    zero = written["zero_optimization"]
    buffers = 2 if zero["overlap_comm"] and zero["stage"] == 2 else 1
    assert buffers * zero["reduce_bucket_size"] == BUCKET_ELEMENTS == DEFAULT_BUCKET
    assert written["bf16"] == {"enabled": "auto"}
    assert not {"offload_optimizer", "offload_param"} & set(zero)


def test_fsdp_is_exported_and_priced_in_the_dtype_of_the_weights() -> None:
    found = priced("fsdp")
    assert launcher("fsdp")["mixed_precision"] == "no"  # else accelerate would make fp32 of them
    elements = found.trainable[0]
    assert found.weights[0] == found.gradients[0] == 2.0 * elements / COUNT
    assert found.optimizer[0] == 4.0 * elements / COUNT


def test_axolotl_trains_under_fsdp_in_the_dtype_that_is_priced() -> None:
    """`bf16: true` is mixed precision, under which accelerate makes fp32 of what is trained."""
    written = YAML(typ="safe", pure=True).load(
        export("axolotl", job(**FULL), offer(COUNT), chosen("fsdp")).files["axolotl.yml"]
    )
    assert (written["bf16"], written["bfloat16"]) == (False, True)
    wide = {"method": Method("full", "32bit")}
    mixed = YAML(typ="safe", pure=True).load(
        export("axolotl", job(**wide), offer(COUNT), chosen("fsdp")).files["axolotl.yml"]
    )
    assert mixed["bf16"] is True
    assert "bfloat16" not in mixed


def test_llamafactory_leaves_the_cast_to_deepspeeds_engine() -> None:
    files = export("llamafactory", job(**FULL), offer(COUNT), chosen("zero2")).files
    text = "".join(files.values())
    assert "pure_bf16" not in text  # which would leave DeepSpeed's bf16 engine off
    assert "bf16: true" in text

"""Configs of accelerate and DeepSpeed beside a trainer's file, and shipped files: in, out, in."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from ownfiles import BESIDE, FILES, beside, read, values_of
from ruamel.yaml import YAML

from autotune.app.job.load import load_jobs
from autotune.app.runs.user_file import same_export
from autotune.domain.errors import InputError
from autotune.domain.typed.overrides import Overrides
from autotune.trainers.launch.config import add_beside
from autotune.trainers.launch.user_start import patch_launcher
from autotune.trainers.registry import TRAINERS

if TYPE_CHECKING:
    from autotune.domain.config import Config
    from autotune.trainers.parsed import Parsed

ARGUMENTS = {
    "output_dir": "out", "per_device_train_batch_size": 4, "gradient_accumulation_steps": 4,
    "num_train_epochs": 2, "bf16": True,
}  # fmt: skip


def with_beside(name: str) -> Parsed:
    made = TRAINERS["hf"].read(ARGUMENTS, "args.json")
    add_beside(made, values_of(name), name)
    return made


@pytest.mark.parametrize("name", BESIDE)
def test_what_a_config_beside_the_file_says_is_read(name: str) -> None:
    made = with_beside(name)
    assert made.devices == 4
    assert made.batch_on(4) == 64
    sharding = {"zero3": "zero3", "zero2": "zero2", "fsdp": "fsdp"}
    assert made.knobs["sharding"] == next(v for k, v in sharding.items() if k in name)


# The lines that a person would change by hand for micro-batch 8 x accumulation 2 on four devices.
CHANGED = {
    "beside/zero3.json": [
        '-  "gradient_accumulation_steps": 4,',
        '+  "gradient_accumulation_steps": 2,',
        '-  "train_batch_size": 64, "train_micro_batch_size_per_gpu": 4,',
        '+  "train_batch_size": 64, "train_micro_batch_size_per_gpu": 8,',
    ],
    "beside/accelerate_zero2.yaml": [
        "-  gradient_accumulation_steps: 4   # as in the arguments",
        "+  gradient_accumulation_steps: 2   # as in the arguments",
    ],
    "beside/accelerate_fsdp.yaml": [],
}


def lines(diff: str) -> list[str]:
    return [line for line in diff.splitlines()[2:] if line[0] in "+-"]


@pytest.mark.parametrize("name", BESIDE)
def test_another_split_changes_those_lines_of_the_config_beside_it(name: str) -> None:
    made = with_beside(name)
    config = whole(made, micro_batch_size=8, gradient_accumulation_steps=2)
    found = patch_launcher(beside(name), values_of(name), config, 4)
    assert lines(found.diff) == CHANGED[name]
    again = TRAINERS["hf"].read(
        {**ARGUMENTS, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 2}, "a.json"
    )
    kind = YAML(typ="safe", pure=True).load(found.text)
    add_beside(again, kind, name)
    assert (again.devices, again.batch_on(4), again.knobs["sharding"]) == (
        4, 64, made.knobs["sharding"],
    )  # fmt: skip


def whole(made: Parsed, **changes: Any) -> Config:
    from autotune.domain.config import Config

    knobs = {"checkpoint_every_steps": 500, "precision": "bf16", **made.meaning, **changes}
    return Config(**knobs)


@pytest.mark.parametrize(("name", "sharding", "gone", "new"), [
    ("beside/zero3.json", "zero2", '-    "stage": 3,', '+    "stage": 2,'),
    ("beside/accelerate_zero2.yaml", "zero3", "-  zero_stage: 2", "+  zero_stage: 3"),
    ("beside/accelerate_fsdp.yaml", "ddp",
     "-distributed_type: FSDP", "+distributed_type: MULTI_GPU"),
])  # fmt: skip
def test_another_sharding_changes_the_stage_or_the_kind(
    name: str, sharding: str, gone: str, new: str
) -> None:
    config = whole(with_beside(name), sharding=sharding)
    changed = lines(patch_launcher(beside(name), values_of(name), config, 4).diff)
    assert gone in changed
    assert new in changed


def test_what_an_accelerate_config_has_no_section_for_is_said() -> None:
    name = "beside/accelerate_fsdp.yaml"
    found = patch_launcher(
        beside(name), values_of(name), whole(with_beside(name), sharding="zero3"), 4
    )
    assert found.diff == ""
    assert "no section for zero3" in " ".join(found.notes)


def test_auto_in_a_deepspeed_config_is_left_alone() -> None:
    from autotune.domain.job import Beside

    values = {"zero_optimization": {"stage": 3}, "train_batch_size": "auto",
              "train_micro_batch_size_per_gpu": "auto", "gradient_accumulation_steps": "auto",
              "bf16": {"enabled": "auto"}}  # fmt: skip
    made = TRAINERS["hf"].read(ARGUMENTS, "args.json")
    add_beside(made, values, "ds.json")
    config = whole(made, micro_batch_size=1, gradient_accumulation_steps=16, precision="fp16")
    found = patch_launcher(Beside("ds.json", "json", json.dumps(values)), values, config, 1)
    assert found.changes == {}


def test_a_default_that_a_deepspeed_config_contradicts_is_refused() -> None:
    made = TRAINERS["hf"].read({"output_dir": "o", "num_train_epochs": 1}, "args.json")
    values = {"zero_optimization": {"stage": 2}, "train_micro_batch_size_per_gpu": 4}
    with pytest.raises(InputError, match="does not state it, which means 8"):
        add_beside(made, values, "ds.json")


def test_what_is_read_of_a_file_is_what_its_text_says_twice() -> None:
    for name in FILES:
        made, values = read(name)
        again, _ = read(name)
        assert (made.values, made.meaning) == (again.values, again.meaning)
        assert values


EXAMPLES = Path(__file__).parents[2] / "jobs" / "trainers"
FLAGS: dict[str, dict[str, object]] = {
    "axolotl.yml": {}, "llamafactory.yaml": {},
    "training_args.json": {"model": "Qwen/Qwen2.5-7B", "method.kind": "full",
                           "data.max_length": 1024},
}  # fmt: skip


@pytest.mark.parametrize("name", FLAGS)
def test_a_shipped_file_comes_back_as_the_same_job_with_what_lies_beside_it(
    name: str, tmp_path: Path
) -> None:
    count = 4 if name == "training_args.json" else 1
    given = Overrides(gpus=(f"h100-sxm:{count}",), stated={"data.rows": 1000, **FLAGS[name]})
    job = load_jobs(EXAMPLES / name, given)[0].job
    assert job.today.sharding == ("zero3" if count > 1 else "none")
    each = job.global_batch_size // count
    config = job.today.with_knobs(micro_batch_size=1, gradient_accumulation_steps=each)
    if count > 1:
        config = config.with_knobs(sharding="zero2")
    for file, text in same_export("same", job, job.offers[0], config).files.items():
        (tmp_path / file).write_text(text, encoding="utf-8")
    again = load_jobs(tmp_path / name, given)[0].job
    assert (again.global_batch_size, again.epochs, again.max_length, again.method) == (
        job.global_batch_size, job.epochs, job.max_length, job.method,
    )  # fmt: skip
    assert again.today is not None
    stated = ("micro_batch_size", "gradient_accumulation_steps", "sharding", "precision")
    assert [getattr(again.today, k) for k in stated] == [getattr(config, k) for k in stated]


ZERO = {"zero_optimization": {"stage": 3, "offload_optimizer": {"device": "cpu"}}}
BARE = {"zero_optimization": {"stage": 3, "offload_param": {"device": "nvme"}}}
ACCELERATE = {"distributed_type": "DEEPSPEED", "deepspeed_config": {
    "zero_stage": 3, "offload_optimizer_device": "cpu", "offload_param_device": "none",
}}  # fmt: skip
FSDP = {"distributed_type": "FSDP", "fsdp_config": {"fsdp_offload_params": True}}


@pytest.mark.parametrize(("values", "sharding", "offload", "changes"), [
    (ZERO, "zero3", "none", {"zero_optimization.offload_optimizer.device": "none"}),
    (ZERO, "zero3", "optimizer", {}),
    (BARE, "zero3", "none", {}),
    (BARE, "zero3", "all", {"zero_optimization.offload_optimizer.device": "cpu"}),
    (ACCELERATE, "zero3", "none", {"deepspeed_config.offload_optimizer_device": "none"}),
    (ACCELERATE, "zero3", "all", {"deepspeed_config.offload_param_device": "cpu"}),
    (FSDP, "fsdp", "none", {"fsdp_config.fsdp_offload_params": False}),
    (FSDP, "fsdp", "all", {}),
])  # fmt: skip
def test_where_states_lie_is_said_in_the_config_beside_it(
    values: dict[str, Any], sharding: str, offload: str, changes: dict[str, Any]
) -> None:
    from autotune.domain.job import Beside

    made = TRAINERS["hf"].read(ARGUMENTS, "args.json")
    config = whole(made, sharding=sharding, offload=offload)
    found = patch_launcher(Beside("c.json", "json", json.dumps(values)), values, config, 4)
    assert found.changes == changes

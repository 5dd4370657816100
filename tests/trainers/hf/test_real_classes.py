"""The installed TrainingArguments, SFTConfig and accelerate read what is exported."""

from __future__ import annotations

import itertools
import json
import warnings
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from exportcases import FULL, LORA, SOFTWARE, config, evaluation, job, offer, with_base

from autotune.app.runs.export import Export, export

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow

MICRO = 4


def variants(**axes: list[Any]) -> list[dict[str, Any]]:
    """Every combination of the axes named."""
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]


PRECISION_AND_SPEED = variants(
    precision=["bf16", "fp16", "fp32", "tf32"],
    compile=["off", "default", "reduce-overhead", "max-autotune"],
    attention=["eager", "sdpa", "flash_attention_2"],
)
MEMORY_AND_DATA = variants(
    activation_checkpointing=["none", "full"],
    optimizer=["adamw_torch_fused", "adamw_torch", "adamw_bnb_8bit", "paged_adamw_8bit"],
    sharding=["none", "ddp", "fsdp", "zero2", "zero3"],
    packing=["off", "on"],
    length_grouping=["off", "on"],
    num_dataloader_workers=[0, 4],
)


def exported(target: str, knobs: dict[str, Any], *, cpu: bool = False, **changes: Any) -> Export:
    chosen = config(**knobs)
    count = 1 if chosen.sharding == "none" else 2
    full_width = chosen.precision in {"fp32", "tf32"}
    method = with_base(LORA, "32bit") if full_width else LORA
    chosen = chosen.with_knobs(gradient_accumulation_steps=2 // count)
    return export(
        target, job(method, evaluation=evaluation(), **changes), offer(count, cpu=cpu), chosen
    )


def accept(target: str, files: Export, tmp_path: Path) -> Any:
    """The real class's instance. On this machine: no GPU, so use_cpu, and tf32 cannot be on."""
    (name,) = [name for name in files.files if name.endswith(".json")]
    arguments = json.loads(files.files[name])
    if arguments.get("tf32"):
        arguments.pop("tf32")
    arguments |= {"use_cpu": True, "output_dir": str(tmp_path)}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        if target == "hf":
            from transformers import TrainingArguments

            return TrainingArguments(**arguments)
        from trl import SFTConfig

        return SFTConfig(**arguments)


@pytest.mark.parametrize("target", ["hf", "trl"])
@pytest.mark.parametrize("cpu", [False, True])
def test_precision_compile_and_attention_are_accepted(
    target: str, cpu: bool, tmp_path: Path
) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("trl")
    for knobs in PRECISION_AND_SPEED:
        args = accept(target, exported(target, knobs, cpu=cpu), tmp_path)
        assert args.bf16 is (knobs["precision"] == "bf16")
        assert args.fp16 is (knobs["precision"] == "fp16")
        assert args.torch_compile is (knobs["compile"] != "off")
        assert args.torch_compile_mode == (None if knobs["compile"] == "off" else knobs["compile"])
        if target == "trl":
            assert args.model_init_kwargs["attn_implementation"] == knobs["attention"]


@pytest.mark.parametrize("target", ["hf", "trl"])
def test_memory_sharding_and_data_are_accepted(target: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("trl")
    for knobs in MEMORY_AND_DATA:
        args = accept(target, exported(target, knobs), tmp_path)
        fsdp = knobs["sharding"] == "fsdp"
        checkpointing = knobs["activation_checkpointing"] == "full"
        assert args.activation_checkpointing is (checkpointing and not fsdp)
        if fsdp:
            assert args.fsdp_plugin_args["fsdp_version"] == 2
            assert args.fsdp_plugin_args["activation_checkpointing"] is checkpointing
        assert args.optim.value == knobs["optimizer"]
        assert args.per_device_train_batch_size == MICRO
        assert args.train_sampling_strategy == (
            "group_by_length" if knobs["length_grouping"] == "on" else "random"
        )
        if target == "trl":
            assert args.packing is (knobs["packing"] == "on")
            assert args.max_length == 48


@pytest.mark.parametrize("target", ["hf", "trl"])
def test_evaluation_only_spot_and_liger_are_accepted(target: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("trl")
    liger = replace(SOFTWARE, kernels="liger", loss="fused")
    for changes in ({"steps": 0, "epochs": 0.0}, {"software": liger}, {"padding": "max_length"}):
        accept(target, exported(target, {}, **changes), tmp_path)
    spot = export(target, job(FULL), offer(spot=True), config())
    assert accept(target, spot, tmp_path).enable_jit_checkpoint is True


@pytest.mark.parametrize("target", ["hf", "trl"])
def test_levers_are_accepted_and_mean_what_was_priced(target: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    pytest.importorskip("trl")
    away = accept(
        target,
        exported(target, {"activation_checkpointing": "full", "offload": "activations"}),
        tmp_path,
    )
    assert away.activation_checkpointing_kwargs["offload"] is True
    shards = accept(target, exported(target, {"sharding": "fsdp", "offload": "all"}), tmp_path)
    assert shards.fsdp_plugin_args["cpu_offload"] is True
    kernels = accept(target, exported(target, {"kernels": "liger"}), tmp_path)
    assert kernels.use_liger_kernel is True


def test_accelerate_reads_the_levers_of_the_launcher_file(tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    for knobs, name, value in (
        ({"sharding": "zero2", "offload": "optimizer"}, "offload_optimizer_device", "cpu"),
        ({"sharding": "fsdp", "offload": "all"}, "fsdp_offload_params", "true"),
        ({"precision": "fp8", "compile": "default"}, "fp8_backend", "AO"),
    ):
        path = tmp_path / "accelerate.yaml"
        path.write_text(exported("hf", knobs).files["accelerate.yaml"])
        assert load_config_from_file(str(path))
        parsed = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
        args, _, _ = _validate_launch_command(parsed)
        assert str(getattr(args, name)).casefold() == value.casefold()


def test_the_default_learning_rates_are_the_installed_ones() -> None:
    transformers, trl = pytest.importorskip("transformers"), pytest.importorskip("trl")
    from autotune.trainers.hf import hf
    from autotune.trainers.hf import trl as ours

    assert transformers.TrainingArguments.learning_rate == hf.LEARNING_RATE
    assert trl.SFTConfig.learning_rate == ours.LEARNING_RATE


@pytest.mark.parametrize("sharding", ["none", "ddp", "fsdp", "zero2", "zero3"])
@pytest.mark.parametrize("precision", ["bf16", "fp16", "fp32"])
def test_accelerate_reads_the_launcher_file(sharding: str, precision: str, tmp_path: Path) -> None:
    pytest.importorskip("accelerate")
    from accelerate.commands.config.config_args import load_config_from_file
    from accelerate.commands.launch import _validate_launch_command, launch_command_parser

    path = tmp_path / "accelerate.yaml"
    files = exported("hf", {"sharding": sharding, "precision": precision}).files
    path.write_text(files["accelerate.yaml"])
    loaded = load_config_from_file(str(path))
    assert loaded.mixed_precision == ("no" if precision == "fp32" else precision)
    parsed = launch_command_parser().parse_args(["--config_file", str(path), "train.py"])
    args, _, _ = _validate_launch_command(parsed)
    assert args.num_processes == (1 if sharding == "none" else 2)
    assert args.multi_gpu is (sharding == "ddp")
    assert args.use_fsdp is (sharding == "fsdp")
    assert args.use_deepspeed is sharding.startswith("zero")
    if sharding == "fsdp":
        assert (args.fsdp_version, args.fsdp_state_dict_type) == (2, "SHARDED_STATE_DICT")
        assert args.fsdp_reshard_after_forward is True
    if sharding.startswith("zero"):
        assert args.zero_stage == int(sharding[-1])
        assert args.gradient_accumulation_steps == 1


def test_every_key_of_the_fsdp_block_is_an_option_of_accelerate() -> None:
    pytest.importorskip("accelerate")
    from accelerate.commands.launch import launch_command_parser

    known = set(vars(launch_command_parser().parse_args(["train.py"])))
    for sharding in ("fsdp", "zero3"):
        text = exported("hf", {"sharding": sharding}).files["accelerate.yaml"]
        nested = {line.split(":")[0].strip() for line in text.splitlines() if line[0] == " "}
        assert nested
        assert nested <= known


@pytest.mark.parametrize("stage", [2, 3])
def test_accelerate_reads_the_deepspeed_file_of_other_trainers(stage: int, tmp_path: Path) -> None:
    utils = pytest.importorskip("accelerate.utils.deepspeed")
    path = tmp_path / "deepspeed.json"
    path.write_text(
        exported("axolotl", {"sharding": f"zero{stage}"}).files[f"deepspeed_zero{stage}.json"]
    )
    read = utils.HfDeepSpeedConfig(str(path))
    assert (read.is_zero2(), read.is_zero3()) == (stage == 2, stage == 3)
    assert read.get_value("train_micro_batch_size_per_gpu") == "auto"

"""axolotl's, LLaMA-Factory's and litgpt's YAML written from nothing: the contract, then each knob.

Knobs are spelled as in the dialects of these trainers, so that what is written is read back as the
same job and config.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from autotune.cost.time.data import MOST_PROCESSES
from autotune.domain.config import KNOBS
from autotune.domain.errors import InputError
from autotune.trainers.adapter_variant import variant_keys
from autotune.trainers.detect import DIALECTS
from autotune.trainers.dialect import Target
from autotune.trainers.format import Export
from autotune.trainers.hf.arguments import counts_by_epochs
from autotune.trainers.hf.launch import accelerate_yaml, deepspeed_json
from autotune.trainers.hf.notes import trainer_notes
from autotune.trainers.hf.precision import is_pure_16bit
from autotune.trainers.hf.trl import LEARNING_RATE
from autotune.trainers.launch.run_script import prepares, trainer_sh
from autotune.trainers.syntax.rewrite import changed_values
from autotune.trainers.versions import (
    AXOLOTL_ONE_ATTENTION,
    JIT_CHECKPOINT,
    KNOWN,
    check_known,
    show,
)

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.domain.job import Job
    from autotune.trainers.format import Plan
    from autotune.trainers.versions import Version

# The transformers that a release of the trainer runs on: what axolotl pins and the newest that
# LLaMA-Factory allows. Source: requirements.txt and pyproject.toml of their tags; from axolotl
# 0.19.0 on the wheels.
_AXOLOTL_RUNS: dict[Version, Version] = {
    (0, 12): (4, 55, 2), (0, 13): (4, 57, 1), (0, 14): (5, 0, 0), (0, 15): (5, 3, 0),
    (0, 16): (5, 5, 0), (0, 17): (5, 9, 0), (0, 18): (5, 14, 1), (0, 19): (5, 16, 1),
    (0, 20): (5, 17, 0), (0, 21): (5, 20, 1),
}  # fmt: skip
_LLAMAFACTORY_RUNS: dict[Version, Version] = {(0, 9, 4): (4, 57, 1), (0, 9, 5): (5, 6, 0)}
_SOME = "path/or/hub-name"
_ONE_SWITCH = {
    "flash_attention_2": "flash_attention", "sdpa": "sdp_attention", "eager": "eager_attention",
}  # fmt: skip
_ZERO = {"zero2", "zero3"}


class AxolotlFile:
    """axolotl.yml and the commands that start it; a version after @ is axolotl's."""

    name = "axolotl"

    def plan_versions(self, job: Job, version: Version | None) -> tuple[Version, Version | None]:
        """The transformers that axolotl pins."""
        stated = _stated(job, self.name, version)
        runs = [runs for first, runs in _AXOLOTL_RUNS.items() if first <= stated]
        return max(runs), job.software.trl

    def write(self, plan: Plan) -> Export:
        """The YAML and run.sh, and what the YAML cannot say."""
        _refuse_wide_base(plan, self.name, trains_wide=plan.config.sharding == "fsdp")
        _refuse_sharded_states(plan)
        values, notes = with_knobs(_axolotl_contract(plan), plan, self.name)
        if is_pure_16bit(plan):  # mixed precision would make fp32 of what is trained
            values |= {"bf16": False, "bfloat16": True}
        notes.append(
            f"learning_rate {LEARNING_RATE:g} is TRL's default: axolotl has none, and refuses to "
            "start without one"
        )
        version = plan.trainer or KNOWN[self.name][1]
        if version < AXOLOTL_ONE_ATTENTION and plan.config.attention not in _ONE_SWITCH:
            msg = f"axolotl {show(version)} cannot say attention {plan.config.attention}"
            raise InputError(msg, f"{show(AXOLOTL_ONE_ATTENTION)} can, or take flash_attention_2")
        if version < AXOLOTL_ONE_ATTENTION:
            values[_ONE_SWITCH[values.pop("attn_implementation")]] = True
        files: dict[str, str] = {}
        if plan.config.sharding in _ZERO:
            files = _zero_file(plan, values)
        if plan.offer.spot or plan.job.limits.max_session_s is not None:
            values["auto_resume_from_checkpoints"] = True
        commands = ["axolotl train axolotl.yml"]
        if prepares(plan):
            commands.insert(0, 'CUDA_VISIBLE_DEVICES="" axolotl preprocess axolotl.yml')
        files |= {
            "axolotl.yml": as_yaml(values),
            "run.sh": trainer_sh(plan, commands, ["axolotl.yml"]),
        }
        notes += trainer_notes(plan, self.name, evaluates=False, pads=True)
        return Export(files, tuple(notes))


def _refuse_sharded_states(plan: Plan) -> None:
    """Source: utils/schemas/validation.py of axolotl 0.19.0 and 0.21.0."""
    if plan.config.sharding == "fsdp" and plan.config.optimizer == "adamw_bnb_8bit":
        msg = "axolotl refuses adamw_bnb_8bit under FSDP2"
        raise InputError(msg, "--set optimizer=adamw_torch_fused, or --set sharding=zero2")


class LlamaFactoryFile:
    """llamafactory.yaml and the command that starts it; a version after @ is LLaMA-Factory's."""

    name = "llamafactory"

    def plan_versions(self, job: Job, version: Version | None) -> tuple[Version, Version | None]:
        """The newest transformers that LLaMA-Factory allows."""
        stated = _stated(job, self.name, version)
        return _LLAMAFACTORY_RUNS[stated[:3]], job.software.trl

    def write(self, plan: Plan) -> Export:
        """The YAML, the launcher's config where it shards, run.sh, and what cannot be said."""
        _refuse_wide_base(plan, self.name, trains_wide=True)
        if plan.config.precision == "fp8" and plan.job.method.base == "16bit":
            msg = "LLaMA-Factory trains fp32 weights beside fp8, and 16-bit ones were priced"
            raise InputError(msg, "export hf, trl or axolotl, or take bf16")
        values, notes = with_knobs(_llamafactory_contract(plan), plan, self.name)
        notes = [*notes, *_llamafactory_dtypes(plan, values)]
        files: dict[str, str] = {}
        command = "llamafactory-cli train llamafactory.yaml"
        if plan.config.sharding in _ZERO:
            files = _zero_file(plan, values)
        if plan.config.sharding == "fsdp":
            files = {"accelerate.yaml": accelerate_yaml(plan)}
            launcher = "accelerate launch --config_file accelerate.yaml -m llamafactory.launcher"
            command = f"{launcher} llamafactory.yaml"
        if plan.offer.spot and plan.transformers >= JIT_CHECKPOINT:
            values["enable_jit_checkpoint"] = True
        files |= {
            "llamafactory.yaml": as_yaml(values),
            "run.sh": trainer_sh(plan, [command], ["llamafactory.yaml"]),
        }
        notes.append("template: default must be the one of your model")
        notes += trainer_notes(plan, self.name, evaluates=False, pads=False)
        return Export(files, tuple(notes))


def _stated(job: Job, name: str, version: Version | None) -> Version:
    """The version asked for, or the newest known. Raises InputError for one that is not known."""
    if version:
        check_known(name, version)
    if job.steps == 0:
        msg = f"{name} has no run that only evaluates"
        raise InputError(msg, "export hf or trl")
    return version or KNOWN[name][1]


def _refuse_wide_base(plan: Plan, name: str, *, trains_wide: bool) -> None:
    """Raise InputError for 32-bit weights under 16-bit arithmetic, which the trainer cannot load.

    trains_wide: whether it keeps trained weights in fp32 by itself.
    """
    half = plan.config.precision in {"bf16", "fp16"}
    if plan.job.method.base != "32bit" or not half or (trains_wide and not plan.job.method.is_lora):
        return
    msg = f"{name} loads the base in the compute dtype, {plan.config.precision}: it cannot be 32bit"
    raise InputError(msg, "export hf or trl: how the base is stored is part of the job")


def _llamafactory_dtypes(plan: Plan, values: dict[str, Any]) -> list[str]:
    """Say what is trained in which dtype; what remains unsaid.

    Under bf16 LLaMA-Factory turns what is trained into fp32 unless pure_bf16 is set, which leaves
    DeepSpeed's bf16 engine off; without bf16 and fp16 it computes in the checkpoint's dtype unless
    infer_dtype is set.
    Source: llamafactory 0.9.5 model/adapter.py init_adapter, model/patcher.py patch_config.
    """
    config, method = plan.config, plan.job.method
    if config.precision in {"fp32", "tf32"}:
        values["infer_dtype"] = "float32"
    narrow = config.adapter_dtype == "bf16" if method.is_lora else method.base == "16bit"
    if config.precision != "bf16" or not narrow:
        return []
    if config.sharding in _ZERO:  # its engine casts the model to bf16 and trains fp32 masters
        return []
    values.pop("bf16", None)
    values["pure_bf16"] = True
    return []


def length_of_run(plan: Plan, epochs: str) -> dict[str, Any]:
    """Epochs where they are whole steps of the job; max_steps where the job is stated in steps."""
    if counts_by_epochs(plan):
        return {epochs: plan.job.epochs}
    return {"max_steps": plan.job.steps}


def _axolotl_contract(plan: Plan) -> dict[str, Any]:
    job, method = plan.job, plan.job.method
    values: dict[str, Any] = {
        "base_model": plan.model,
        "datasets": [{"path": job.dataset_path or _SOME, "type": "completion"}],
        "dataset_prepared_path": "last_run_prepared",
        "output_dir": plan.out_dir,
        "sequence_len": job.max_length,
        "pad_to_sequence_len": job.padding == "max_length",
        "learning_rate": LEARNING_RATE,
    }
    if method.is_lora:
        values |= {
            "adapter": "qlora" if method.base == "nf4" else "lora",
            "load_in_4bit": method.base == "nf4",
            "load_in_8bit": method.base == "int8",
            "lora_r": method.rank, "lora_alpha": plain(method.alpha),
            "lora_dropout": method.dropout, "lora_target_modules": list(method.targets),
            **variant_keys(method, "peft_"),
        }  # fmt: skip
    return {**values, **length_of_run(plan, "num_epochs")}


def _llamafactory_contract(plan: Plan) -> dict[str, Any]:
    job, method = plan.job, plan.job.method
    values: dict[str, Any] = {
        "model_name_or_path": plan.model, "stage": "sft", "do_train": True,
        "finetuning_type": method.kind, "dataset": _SOME, "template": "default",
        "output_dir": plan.out_dir, "cutoff_len": job.max_length,
        "preprocessing_num_workers": min(plan.offer.host.cores, MOST_PROCESSES),
    }  # fmt: skip
    if method.is_lora:
        values |= {
            "lora_rank": method.rank, "lora_alpha": plain(method.alpha),
            "lora_dropout": method.dropout, "lora_target": ",".join(method.targets),
            **variant_keys(method),
        }  # fmt: skip
    if plan.quantized:
        values |= {"quantization_bit": 4 if method.base == "nf4" else 8}
    return {**values, **length_of_run(plan, "num_train_epochs")}


def plain(number: float) -> float:
    """16 instead of 16.0."""
    return int(number) if number == int(number) else number


def with_knobs(
    values: dict[str, Any], plan: Plan, trainer: str, done: Mapping[str, KnobValue] | None = None
) -> tuple[dict[str, Any], list[str]]:
    """The contract with every knob in it, and what the format has no word for.

    done: what the contract says already, or the trainer does unasked.
    """
    dialect = DIALECTS[trainer]
    if plan.config.precision == "fp32" and trainer != "litgpt":
        values = {**values, "tf32": False}  # torch.compile would switch it on
    as_is = {**dialect.read(values, trainer).defaults, **(done or {})}
    unsaid: dict[str, list[str]] = {}
    for knob in KNOBS:
        value = getattr(plan.config, knob)
        target = Target(values, plan.config, plan.transformers, "yaml", plan.offer.count)
        if knob == "sharding" and _is_launched(trainer, value):
            continue
        if knob == "adapter_dtype" and _is_pure(trainer, plan):
            continue
        spelled = dialect.spell(knob, value, target)
        if not isinstance(spelled, str):
            values = changed_values(values, spelled)
        elif as_is.get(knob) != value:
            unsaid.setdefault(spelled, []).append(f"{knob} {value}")
    notes = [
        f"{dialect.title} cannot say {', '.join(knobs)}: {why}" for why, knobs in unsaid.items()
    ]
    notes += [
        f"{dialect.title} was given no args.{name} {value}: add it if the trainer has it"
        for name, value in plan.config.arguments.items()
    ]
    return values, notes


def _is_pure(trainer: str, plan: Plan) -> bool:
    """Whether pure_bf16 says the adapters' dtype."""
    return trainer == "llamafactory" and (plan.config.precision, plan.config.adapter_dtype) == (
        "bf16", "bf16",
    )  # fmt: skip


def _is_launched(trainer: str, sharding: str) -> bool:
    """Whether the files beside the YAML, or the number of processes, say the sharding."""
    if trainer == "litgpt":
        return sharding == "none"
    return sharding in {"none", "ddp"} | _ZERO or trainer == "llamafactory"


def _zero_file(plan: Plan, values: dict[str, Any]) -> dict[str, str]:
    """DeepSpeed's config beside the YAML, which names it."""
    name = f"deepspeed_{plan.config.sharding}.json"
    values["deepspeed"] = name
    return {name: deepspeed_json(plan)}


def as_yaml(values: dict[str, Any]) -> str:
    """A key a line; values as JSON, which YAML 1.1 and 1.2 both read."""
    return "".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items())

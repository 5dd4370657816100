"""Configs of accelerate and DeepSpeed beside a trainer's file: processes, precision, sharding.

What both files state must agree: DeepSpeed and accelerate refuse to start where it does not. Of
accelerate's precision the trainer's own comes first.
Source: accelerate 1.15 commands/config, transformers 5.23 integrations/deepspeed.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.config import ZERO_STAGE
from autotune.domain.errors import InputError
from autotune.domain.typed.values import shown
from autotune.trainers.parsed import Keys, Parsed
from autotune.trainers.schema import leave_rest

if TYPE_CHECKING:
    from collections.abc import Mapping

ACCELERATE_KEYS = {"compute_environment", "distributed_type", "num_machines", "machine_rank"}
DEEPSPEED_KEYS = {"zero_optimization", "train_micro_batch_size_per_gpu", "train_batch_size"}
_ACCELERATE = ACCELERATE_KEYS | {"mixed_precision", "num_processes"}
KINDS = {  # accelerate's distributed_type of each sharding
    "none": "NO", "ddp": "MULTI_GPU", "fsdp": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED",
}  # fmt: skip
COUNTS = {  # DeepSpeed's keys -> the knobs
    "train_micro_batch_size_per_gpu": "micro_batch_size",
    "gradient_accumulation_steps": "gradient_accumulation_steps",
}
STAGES = {0: "ddp", 1: "zero2", 2: "zero2", 3: "zero3"}


def is_deepspeed(values: Mapping[str, Any]) -> bool:
    """Whether it is a config of DeepSpeed, and not one of accelerate."""
    return bool(set(values) & DEEPSPEED_KEYS)


def is_settings(values: Mapping[str, Any]) -> bool:
    """Whether it is neither: a file of settings that a script loads."""
    return not is_deepspeed(values) and not set(values) & _ACCELERATE


def add_accelerate(parsed: Parsed, values: Mapping[str, Any], name: str) -> None:
    """Complete what was read with an accelerate config. Raises InputError where they disagree."""
    keys = Keys(values, name)
    processes = keys.whole("num_processes", low=1)
    _agree(parsed, "devices", parsed.devices, processes, name)
    parsed.devices = processes or parsed.devices
    kind = (keys.word("distributed_type") or "").upper()
    precision = keys.get("mixed_precision")
    if isinstance(precision, str) and precision in {"bf16", "fp16", "fp8"}:
        _take_precision(parsed, precision, f"{name}: mixed_precision")
    if kind == "FSDP":
        _agree_knob(parsed, "sharding", "fsdp", f"{name}: distributed_type")
        if keys.switch("fsdp_config.fsdp_activation_checkpointing"):
            parsed.knobs["activation_checkpointing"] = "full"
    elif kind == "DEEPSPEED":
        _add_stage(parsed, keys.whole("deepspeed_config.zero_stage"), name)
        for key, knob in COUNTS.items():
            _agree_count(parsed, knob, keys, f"deepspeed_config.{key}")
        _say_loading(keys, parsed, name)
    elif kind == "MULTI_GPU":
        parsed.knobs.setdefault("sharding", "ddp")
    for section in ("deepspeed_config", "fsdp_config"):
        _add_offload(keys, parsed, section)
    leave_rest(keys, parsed, "accelerate")


def _say_loading(keys: Keys, parsed: Parsed, name: str) -> None:
    """That LLaMA-Factory puts the whole model on each device where ZeRO-3 does not load it.

    Source: accelerate 1.15 utils/dataclasses.py, DeepSpeedPlugin.set_deepspeed_weakref, without
    which transformers does not know of ZeRO-3 when it loads; LLaMA-Factory 0.7 and 0.9.4
    model/patcher.py, which then asks for `device_map`, the process's own device.
    """
    key = "deepspeed_config.zero3_init_flag"
    late = (
        keys.switch(key) is False
        and keys.whole("deepspeed_config.zero_stage") == ZERO_STAGE["zero3"]
    )
    if late and parsed.trainer == "llamafactory":
        parsed.loads_whole = True
        why = "the whole model is on each device while it is loaded; true loads it in shards"
        parsed.note(f"{name}: {key}", "false", why)


def add_deepspeed(parsed: Parsed, values: Mapping[str, Any], name: str) -> None:
    """Complete what was read with a DeepSpeed config. Raises InputError where they disagree.

    Accelerate's MULTI_GPU only says how processes start: what the trainer is told of DeepSpeed
    divides the model. Source: transformers 5.23 training_args.py __post_init__, `deepspeed`.
    """
    if parsed.knobs.get("sharding") == "ddp":
        del parsed.knobs["sharding"]
    keys = Keys(values, name)
    _agree_count(parsed, "micro_batch_size", keys, "train_micro_batch_size_per_gpu")
    _agree_count(parsed, "gradient_accumulation_steps", keys, "gradient_accumulation_steps")
    for precision in ("bf16", "fp16"):
        if keys.get(f"{precision}.enabled") is True:
            _agree_knob(parsed, "precision", precision, f"{name}: {precision}.enabled")
    _add_stage(parsed, keys.whole("zero_optimization.stage"), name)
    _add_offload(keys, parsed, "zero_optimization")
    _add_states(keys, parsed)
    parsed.steps_by_config = "optimizer" in values
    auto = keys.get("train_batch_size") == "auto"
    total = None if auto else keys.whole("train_batch_size", low=1)
    leave_rest(keys, parsed, "deepspeed")
    if total is None:
        return
    split = parsed.batch_on(1)
    if total % split or (parsed.devices and total != parsed.batch_on(parsed.devices)):
        on = f" x {parsed.devices} devices" if parsed.devices else ""
        meaning = parsed.meaning
        msg = (
            f"{name}: train_batch_size is {total}, but micro {meaning['micro_batch_size']} x "
            f"accumulation {meaning['gradient_accumulation_steps']}{on} does not make it"
        )
        raise InputError(msg, 'write "auto" in the DeepSpeed config, as transformers fills it in')
    parsed.devices = parsed.devices or total // split


def _add_states(keys: Keys, parsed: Parsed) -> None:
    """What the file says of states and buckets; DeepSpeed's defaults where it says nothing."""
    bucket = "zero_optimization.reduce_bucket_size"
    auto = keys.get(bucket) == "auto"
    parsed.part(
        "deepspeed",
        bf16_master_weights_and_grads=keys.switch("bf16.bf16_master_weights_and_grads"),
        bf16_optimizer_states=keys.switch("bf16.bf16_optimizer_states"),
        reduce_bucket_size="auto" if auto else keys.whole(bucket, low=1),
        overlap_comm=keys.switch("zero_optimization.overlap_comm"),
    )


_OFFLOAD = (
    "offload_optimizer.device", "offload_param.device", "offload_optimizer_device",
    "offload_param_device", "fsdp_offload_params",
)  # fmt: skip


def _add_offload(keys: Keys, parsed: Parsed, section: str) -> None:
    """The optimizer or FSDP's shards in the host's memory; the rest is said, and not counted."""
    for name in _OFFLOAD:
        stated = keys.get(f"{section}.{name}")
        word = str(stated).casefold()
        if word not in {"cpu", "nvme", "true"}:
            continue
        if name == "fsdp_offload_params":
            parsed.knobs["offload"] = "all"
        elif "optimizer" in name and word == "cpu":
            parsed.knobs["offload"] = "optimizer"
        else:
            why = (
                "not counted: such a run needs less device memory and is slower; FSDP's CPU "
                "offload is counted: --set offload=all"
            )
            parsed.note(f"{keys.name}: {section}.{name}", shown(stated), why)


def _add_stage(parsed: Parsed, stage: int | None, name: str) -> None:
    if stage is None:
        return
    if stage not in STAGES:
        msg = f"{name}: the ZeRO stage is {stage}; it must be 0 to 3"
        raise InputError(msg)
    if stage == 1:
        parsed.part("deepspeed", stage=stage)
        why = "shown as zero2, and priced with gradients whole on each device until the step"
        parsed.note(f"{name}: zero stage", stage, why)
    _agree_knob(parsed, "sharding", STAGES[stage], f"{name}: ZeRO stage")


def _agree_count(parsed: Parsed, knob: str, keys: Keys, key: str) -> None:
    """A number must be the trainer's own, or its default: transformers refuses to start else."""
    if keys.get(key) in (None, "auto"):
        return
    value = keys.whole(key, low=1)
    default = parsed.defaults.get(knob)
    if knob not in parsed.knobs and value is not None and default is not None and value != default:
        msg = (
            f"two files contradict each other: {knob} is {value} in {keys.name}: {key}, but the "
            f"{parsed.trainer} file does not state it, which means {default}"
        )
        raise InputError(msg, f'state it in the trainer\'s file, or write "auto" in {keys.name}')
    if value is not None:
        _agree_knob(parsed, knob, value, f"{keys.name}: {key}")


def _take_precision(parsed: Parsed, stated: str, where: str) -> None:
    """Accelerate's precision, where the trainer's file does not say bf16 or fp16 itself.

    Source: transformers 5.23 training_args.py __post_init__: bf16 and fp16 come before accelerate's
    ACCELERATE_MIXED_PRECISION.
    """
    own = parsed.knobs.get("precision")
    if parsed.mixed and own in {"bf16", "fp16"} and own != stated:
        parsed.note(where, stated, f"the trainer's file says {own}, which is what counts")
        return
    _agree_knob(parsed, "precision", stated, where)


def _agree_knob(parsed: Parsed, knob: str, value: int | str, where: str) -> None:
    stated = parsed.knobs.get(knob)
    _agree(parsed, knob, stated, value, where)
    parsed.knobs[knob] = value


def _agree(parsed: Parsed, what: str, stated: object, value: object, where: str) -> None:
    if stated is not None and value is not None and stated != value:
        msg = (
            f"two files contradict each other: {what} is {shown(stated)} in the {parsed.trainer} "
            f"file, but {shown(value)} in {where}"
        )
        raise InputError(msg, "make them agree, or state it in one of them only")


def add_beside(parsed: Parsed, values: Mapping[str, Any], name: str) -> None:
    """Complete what was read with either kind. Raises InputError for a file of another kind."""
    found = set(values)
    if is_deepspeed(values):
        add_deepspeed(parsed, values, name)
    elif found & _ACCELERATE:
        add_accelerate(parsed, values, name)
    else:
        msg = f"{name} is neither a config of accelerate nor one of DeepSpeed"
        raise InputError(msg, "accelerate's states distributed_type, DeepSpeed's zero_optimization")

"""transformers.TrainingArguments of a request, as the exported training script states them."""

from __future__ import annotations

import inspect
from typing import Any

from .sharded import Unsupported

HALF = ("bf16", "fp16")
UNSET = "unset"
COLLECTIVE_S = 240  # a rank may write a checkpoint of gigabytes while the others wait


def training_arguments(
    request: dict[str, Any], *, output_dir: str, max_steps: int, on_cpu: bool
) -> dict[str, Any]:
    """Every argument by name, for the installed version."""
    arguments: dict[str, Any] = {
        "output_dir": output_dir,
        "max_steps": max_steps,
        "per_device_train_batch_size": request["micro_batch_size"],
        "gradient_accumulation_steps": request["gradient_accumulation_steps"],
        "average_tokens_across_devices": True,
        "learning_rate": 5e-5,
        "optim": request["optimizer"],
        "dataloader_num_workers": request["num_dataloader_workers"],
        "dataloader_pin_memory": request["pin_memory"] and not on_cpu,
        "per_device_eval_batch_size": (request.get("evaluation") or {}).get("batch_size", 8),
        "prediction_loss_only": True,
        "save_strategy": "no",
        "eval_strategy": "no",
        "logging_strategy": "steps",
        "logging_steps": 10,
        "report_to": "none",
        "disable_tqdm": True,
        "seed": request["seed"],
        "use_cpu": on_cpu,
        **_precision(request, on_cpu=on_cpu),
        **_memory_for_time(request),
        **_sharding(request, on_cpu=on_cpu),
    }
    if request["num_dataloader_workers"] > 0:
        arguments["dataloader_prefetch_factor"] = request["prefetch_factor"]
        arguments["dataloader_persistent_workers"] = True
    if request["compile"] != "off":
        arguments |= {"torch_compile": True, "torch_compile_mode": request["compile"]}
    if request.get("kernels") == "liger":
        arguments["use_liger_kernel"] = True
    arguments |= _own(request)
    return {name: value for name, value in arguments.items() if value != UNSET}


def _own(request: dict[str, Any]) -> dict[str, Any]:
    """The user's own arguments. Raises Unsupported for those that this version has not."""
    from transformers import TrainingArguments

    own: dict[str, Any] = request.get("arguments") or {}
    absent = sorted(set(own) - set(inspect.signature(TrainingArguments).parameters))
    if absent:
        msg = f"TrainingArguments has no argument {', '.join(absent)}"
        raise Unsupported(msg)
    return own


def _precision(request: dict[str, Any], *, on_cpu: bool) -> dict[str, Any]:
    precision = request["precision"]
    mixed = precision if precision in HALF and not _pure_16bit(request) else "no"
    found: dict[str, Any] = {"bf16": mixed == "bf16", "fp16": mixed == "fp16"}
    if not on_cpu and precision not in HALF:
        found["tf32"] = precision == "tf32"
    return found


def _pure_16bit(request: dict[str, Any]) -> bool:
    """FSDP2 turns trained 16-bit parameters into fp32 under autocast, so it runs without."""
    if request["sharding"] != "fsdp" or request["precision"] != "bf16":
        return False
    method = request["method"]
    if method["kind"] == "lora":
        return method["base"] == "16bit" and request["adapter_dtype"] == "bf16"
    return bool(method["base"] == "16bit")


def _memory_for_time(request: dict[str, Any]) -> dict[str, Any]:
    from transformers import TrainingArguments

    known = inspect.signature(TrainingArguments).parameters
    new = "activation_checkpointing" in known
    name = "activation_checkpointing" if new else "gradient_checkpointing"
    wanted = request["activation_checkpointing"] == "full" and request["sharding"] != "fsdp"
    found: dict[str, Any] = {name: wanted}
    if wanted:
        # ZeRO-3 with adapters works only with the reentrant kind (trl issue 2514)
        adapters = request["method"]["kind"] == "lora"
        found[f"{name}_kwargs"] = {"use_reentrant": adapters and request["sharding"] == "zero3"}
    return found


def _sharding(request: dict[str, Any], *, on_cpu: bool) -> dict[str, Any]:
    found: dict[str, Any] = {}
    if request["sharding"] != "none":
        found["ddp_backend"] = "gloo" if on_cpu else "nccl"
        found["ddp_timeout"] = COLLECTIVE_S
    if request["sharding"] == "ddp":
        found["ddp_find_unused_parameters"] = False
    if request["sharding"] == "fsdp":
        found |= {"fsdp": True, "fsdp_config": request["fsdp_config"]}
    return found

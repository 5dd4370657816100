"""The dtypes that a plan's weights and adapters are held in, and its mixed precision."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from autotune.trainers.contract import Plan

_HALF = {"bf16": "bfloat16", "fp16": "float16", "fp8": "bfloat16"}


def weights_dtype(plan: Plan) -> str:
    """Name of the torch dtype that weights are loaded in (and that quantised ones compute in)."""
    if plan.job.method.base == "32bit":
        return "float32"
    stored = plan.job.software.base_dtype
    if plan.job.method.base == "16bit" and stored:
        return _HALF[stored]
    return _HALF.get(plan.config.precision, "float32")


def adapter_dtype(plan: Plan) -> str:
    """Name of the torch dtype of LoRA adapters.

    Under fp16 compute adapters stay in fp32: gradients in 16 bits cannot be unscaled, and
    bfloat16 ones are refused by the gradient scaler.
    """
    if plan.config.adapter_dtype == "bf16" and plan.config.precision != "fp16":
        return "bfloat16"
    return "float32"


def saved_dtype(plan: Plan) -> str:
    """Name of the torch dtype of what trains whole: that of adapters, unless it stays as loaded."""
    as_loaded = plan.job.software.saves_as_loaded and plan.config.precision != "fp16"
    return weights_dtype(plan) if as_loaded else adapter_dtype(plan)


def is_pure_16bit(plan: Plan) -> bool:
    """Whether FSDP must run without autocast, because trained parameters are 16-bit.

    With mixed precision on, accelerate's FSDP2 turns trained 16-bit parameters into fp32, which
    would double weights, gradients and states; frozen weights are left alone.
    Source: accelerate 1.15, utils/fsdp_utils.py, fsdp2_prepare_model.
    """
    if plan.config.sharding != "fsdp" or plan.config.precision != "bf16":
        return False
    method = plan.job.method
    if method.is_lora:
        return not plan.quantized and adapter_dtype(plan) == "bfloat16" == weights_dtype(plan)
    return method.base == "16bit"


def mixed_precision(plan: Plan) -> str:
    """Accelerate's mixed_precision: no, fp16, bf16 or fp8."""
    if plan.config.precision not in _HALF or is_pure_16bit(plan):
        return "no"
    return plan.config.precision


def precision_arguments(plan: Plan) -> dict[str, object]:
    """bf16, fp16 and tf32 as TrainingArguments takes them; tf32 is absent where it has no meaning.

    For fp32, `tf32: false` keeps torch.compile from switching tf32 on.
    """
    mixed = mixed_precision(plan)
    arguments: dict[str, object] = {"bf16": mixed == "bf16", "fp16": mixed == "fp16"}
    if not plan.on_cpu and plan.config.precision in {"fp32", "tf32"}:
        arguments["tf32"] = plan.config.precision == "tf32"
    return arguments

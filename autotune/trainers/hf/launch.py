"""accelerate.yaml: how the training script is started on one device or several."""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING

from autotune.cost.deepspeed import BUCKET_ELEMENTS
from autotune.cost.time.attention import leaves_cudnn
from autotune.domain.config import UNSET, ZERO_STAGE, fsdp_settings
from autotune.domain.software import WITHOUT_CUDNN
from autotune.trainers.hf.precision import mixed_precision
from autotune.trainers.launch.config import KINDS

if TYPE_CHECKING:
    from autotune.trainers.contract import Plan

# With overlap_comm stage 2 has two buffers: DeepSpeed's default, which has one, split in two.
BUCKETS = {1: 2, 2: 2, 3: 1}


def accelerate_yaml(plan: Plan) -> str:
    """The launcher's configuration. Keys are those accelerate 1.15 reads; it refuses others."""
    settings: dict[str, object] = {
        "compute_environment": "LOCAL_MACHINE",
        "distributed_type": KINDS[plan.config.sharding],
        "num_machines": plan.offer.nodes,
        "num_processes": plan.offer.count,
        "machine_rank": 0,
        "gpu_ids": "all",  # run.sh says which are visible
        "mixed_precision": mixed_precision(plan),
        "use_cpu": plan.on_cpu,
        "main_training_function": "main",
    }
    if plan.offer.nodes > 1:
        settings["rdzv_backend"] = "static"  # run.sh says which machine this is, and the first
    if plan.config.compile_scope == "regional" and plan.config.compile != "off":
        settings["dynamo_config"] = {
            "dynamo_backend": "INDUCTOR", "dynamo_mode": plan.config.compile,
            "dynamo_use_regional_compilation": True,
        }  # fmt: skip
    if plan.config.precision == "fp8":
        settings["fp8_config"] = {"fp8_backend": "AO"}
    if plan.config.sharding == "fsdp":
        fsdp = fsdp_settings(plan.config, quantised=plan.quantized)
        shards = {f"fsdp_{name}": value for name, value in fsdp.items()}
        shards["fsdp_offload_params"] = plan.config.offload == "all"
        settings["fsdp_config"] = shards
    if plan.config.sharding in ZERO_STAGE:
        settings["deepspeed_config"] = _deepspeed(plan)
    return "".join(_yaml_lines(settings))


def _stage(plan: Plan) -> int:
    stage = ZERO_STAGE[plan.config.sharding]
    return 1 if stage == ZERO_STAGE["zero2"] and plan.job.zero.whole_gradients else stage


def _deepspeed(plan: Plan) -> dict[str, object]:
    stage = _stage(plan)
    return {
        "zero_stage": stage,
        "gradient_accumulation_steps": plan.config.gradient_accumulation_steps,
        "gradient_clipping": 1.0,  # TrainingArguments.max_grad_norm's default: both must agree
        "offload_optimizer_device": "cpu" if plan.config.offload == "optimizer" else "none",
        "offload_param_device": "none",
        "zero3_init_flag": stage == ZERO_STAGE["zero3"],
        "zero3_save_16bit_model": stage == ZERO_STAGE["zero3"],
    }


def deepspeed_json(plan: Plan) -> str:
    """DeepSpeed's own config, which transformers completes where it says auto."""
    stage = _stage(plan)
    automatic = (
        "train_batch_size", "train_micro_batch_size_per_gpu", "gradient_accumulation_steps",
        "gradient_clipping",
    )  # fmt: skip
    zero: dict[str, object] = {
        "stage": stage,
        "overlap_comm": True,
        "contiguous_gradients": True,
        "reduce_bucket_size": BUCKET_ELEMENTS // BUCKETS[stage],
    }
    if stage == ZERO_STAGE["zero3"]:
        zero["stage3_gather_16bit_weights_on_model_save"] = True
    if plan.config.offload == "optimizer":
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": True}
    settings: dict[str, object] = dict.fromkeys(automatic, "auto")
    settings |= {"bf16": {"enabled": "auto"}, "fp16": {"enabled": "auto"}}
    return json.dumps({**settings, "zero_optimization": zero}, indent=2) + "\n"


def _yaml_lines(settings: dict[str, object], indent: str = "") -> list[str]:
    """Block YAML whose scalars are JSON, so that "no" stays a word and is not read as false."""
    lines = []
    for key, value in settings.items():
        if isinstance(value, dict):
            lines += [f"{indent}{key}:\n", *_yaml_lines(value, indent + "  ")]
        else:
            lines.append(f"{indent}{key}: {json.dumps(value)}\n")
    return lines


def own_environment(plan: Plan) -> list[str]:
    """Lines of shell that set environment variables: the user's own knobs, and what is priced."""
    leaves = leaves_cudnn(plan.job, plan.offer.device, plan.config)
    why = "else cuDNN's attention builds a plan for every new length of a batch"
    priced = [f'export {WITHOUT_CUDNN}="${{{WITHOUT_CUDNN}:-1}}"  # {why}'] if leaves else []
    return priced + [
        f"unset {name}" if value == UNSET else f"export {name}={shlex.quote(str(value))}"
        for name, value in plan.config.environment.items()
    ]

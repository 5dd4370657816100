"""What the Trainer is told: its arguments, how it divides the model, and the check that it did.

The arguments are those that the exported training script states. FSDP goes through them; ZeRO
through the environment that `accelerate launch` sets, which is what the exported accelerate.yaml
asks for. On processors accelerate ignores a request for FSDP and runs DDP, so for rehearsals there
its state is told otherwise.
"""

from __future__ import annotations

import importlib.util
import inspect
import os
from typing import Any

from .contract import beyond_probes

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
    arguments |= _user_arguments(request)
    return {name: value for name, value in arguments.items() if value != UNSET}


def _user_arguments(request: dict[str, Any]) -> dict[str, Any]:
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


ZERO_STAGE = {"zero2": 2, "zero3": 3}
EXPECTED = {"none": "NO", "fsdp": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}


class Unsupported(Exception):  # noqa: N818 - the name is the condition
    """Something that this machine or these versions cannot do, whatever the configuration."""


def prepare(request: dict[str, Any], *, on_cpu: bool) -> None:
    """Before TrainingArguments are made. Raises Unsupported."""
    kernels, offload = str(request.get("kernels", "none")), str(request.get("offload", "none"))
    beyond = beyond_probes(kernels, offload, request["precision"])
    if beyond:
        raise Unsupported(beyond)
    if kernels == "liger" and importlib.util.find_spec("liger_kernel") is None:
        msg = "kernels liger needs liger-kernel, which is not importable here"
        raise Unsupported(msg)
    sharding = request["sharding"]
    if sharding in ZERO_STAGE:
        if importlib.util.find_spec("deepspeed") is None:
            msg = f"sharding {sharding} needs deepspeed, which is not importable here"
            raise Unsupported(msg)
        os.environ |= zero_environment(request)
    if sharding == "fsdp" and on_cpu:
        _allow_fsdp_on_processors()


def zero_environment(request: dict[str, Any]) -> dict[str, str]:
    """What `accelerate launch` exports for ZeRO. Source: accelerate 1.15 utils/launch.py."""
    stage = ZERO_STAGE[request["sharding"]]
    partial = stage == ZERO_STAGE["zero3"]
    early = partial and request["method"]["base"] not in {"nf4", "int8"}
    return {
        "ACCELERATE_USE_DEEPSPEED": "true",
        "ACCELERATE_DEEPSPEED_ZERO_STAGE": str(stage),
        "ACCELERATE_GRADIENT_ACCUMULATION_STEPS": str(request["gradient_accumulation_steps"]),
        "ACCELERATE_GRADIENT_CLIPPING": "1.0",  # TrainingArguments.max_grad_norm's default
        "ACCELERATE_DEEPSPEED_OFFLOAD_OPTIMIZER_DEVICE": "none",
        "ACCELERATE_DEEPSPEED_OFFLOAD_PARAM_DEVICE": "none",
        "ACCELERATE_DEEPSPEED_ZERO3_INIT": str(early).lower(),
        "ACCELERATE_DEEPSPEED_ZERO3_SAVE_16BIT_MODEL": str(partial).lower(),
    }


def check(trainer: Any, request: dict[str, Any]) -> None:  # noqa: ANN401 - a Trainer
    """Raises Unsupported when the model is divided in another way than was asked."""
    found = trainer.accelerator.state.distributed_type.value
    wanted = EXPECTED.get(request["sharding"])
    several = int(request.get("count", 1)) > 1
    right = found == wanted if wanted else several and found.startswith("MULTI_")
    if not right:
        msg = f"sharding {request['sharding']} was asked for, and accelerate runs {found}"
        raise Unsupported(msg)


def _allow_fsdp_on_processors() -> None:
    """Let accelerate's state take an FSDP plugin where it has only CPU processes."""
    from accelerate.state import AcceleratorState, PartialState
    from accelerate.utils import DistributedType

    if getattr(AcceleratorState, "_rehearsed", False):
        return
    original = AcceleratorState.__init__

    def init(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:  # noqa: ANN401
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None and self.distributed_type == DistributedType.MULTI_CPU:
            self.distributed_type = DistributedType.FSDP
            if self._mixed_precision != "no":
                fsdp_plugin.set_mixed_precision(self._mixed_precision)
            self.fsdp_plugin = fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP  # noqa: SLF001

    AcceleratorState.__init__ = init
    AcceleratorState._rehearsed = True  # noqa: SLF001 - our own mark

"""How the Trainer is told to divide a model, and the check that it did.

FSDP goes through TrainingArguments; ZeRO through the environment that `accelerate launch` sets,
which is what the exported accelerate.yaml asks for. On processors accelerate ignores a request for
FSDP and runs DDP, so for rehearsals there its state is told otherwise.
"""

from __future__ import annotations

import importlib.util
import os
from typing import Any

ZERO_STAGE = {"zero2": 2, "zero3": 3}
EXPECTED = {"none": "NO", "fsdp": "FSDP", "zero2": "DEEPSPEED", "zero3": "DEEPSPEED"}


class Unsupported(Exception):  # noqa: N818 - the name is the condition
    """Something that this machine or these versions cannot do, whatever the configuration."""


def prepare(request: dict[str, Any], *, on_cpu: bool) -> None:
    """Before TrainingArguments are made. Raises Unsupported."""
    _check_kernels(str(request.get("kernels", "none")))
    if request["precision"] == "fp8":
        msg = "precision fp8 is the launcher's, and a probe starts without one"
        raise Unsupported(msg)
    if request.get("offload", "none") != "none":
        msg = f"offload {request['offload']}: a probe keeps everything on the device"
        raise Unsupported(msg)
    sharding = request["sharding"]
    if sharding in ZERO_STAGE:
        if importlib.util.find_spec("deepspeed") is None:
            msg = f"sharding {sharding} needs deepspeed, which is not importable here"
            raise Unsupported(msg)
        os.environ |= zero_environment(request)
    if sharding == "fsdp" and on_cpu:
        _allow_fsdp_on_processors()


def _check_kernels(kernels: str) -> None:
    if kernels == "chunked_loss":
        msg = "kernels chunked_loss is TRL's loss, and a probe runs transformers' Trainer"
        raise Unsupported(msg)
    if kernels == "liger" and importlib.util.find_spec("liger_kernel") is None:
        msg = "kernels liger needs liger-kernel, which is not importable here"
        raise Unsupported(msg)


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

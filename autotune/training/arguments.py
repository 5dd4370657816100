"""What a training's own objects say of it: machine, split of the batch, knobs, model.

Read from the attributes that TrainingArguments and TrainerState have had since transformers 4.46;
what is absent, or has a value that no knob has, is left out.
"""

from __future__ import annotations

import os
import sys
from typing import Any

from autotune.evidence.log.trainer_state import SIZES
from autotune.trainers.hf.keys import COMPILE_MODES, OPTIMIZERS
from autotune.trainers.hf.read import attention_of

_HALF = {"bfloat16": "bf16", "float16": "fp16"}


def start_of(args: Any, state: Any, model: Any) -> dict[str, Any]:
    """The values of the `start` line of a record."""
    kind, indices = device_of(args, model)
    values: dict[str, Any] = {
        "device": _device_name(kind, indices),
        "device_count": int(getattr(args, "world_size", 1)) * max(len(indices), 1),
        "max_steps": int(state.max_steps),
        "micro_batch_size": _micro_batch(args, state),
        "gradient_accumulation_steps": int(args.gradient_accumulation_steps),
        "config": _knobs(args, model, kind),
        "epochs": int(getattr(state, "num_train_epochs", 0) or 0) or None,
        "model": _shape(model),
        "method": _method(model, _sharding(args)),
        "software": _versions(),
    }
    every = getattr(state, "save_steps", None) or getattr(args, "save_steps", 0)
    if _word(args, "save_strategy") == "steps" and every and every >= 1:
        values["checkpoint_every_steps"] = int(every)
    return {key: value for key, value in values.items() if value not in (None, {})}


def device_of(args: Any, model: Any) -> tuple[str, tuple[int, ...]]:
    """The kind of device, and the indices of the CUDA devices that this process uses."""
    device = getattr(args, "device", None)
    kind = str(getattr(device, "type", "cpu"))
    if kind != "cuda":
        return kind, ()
    placed = getattr(model, "hf_device_map", None) or {}
    spread = sorted({place for place in placed.values() if isinstance(place, int)})
    if len(spread) > 1:
        return kind, tuple(spread)
    several = int(getattr(args, "n_gpu", 1))
    if several > 1:
        return kind, tuple(range(several))
    return kind, (int(getattr(device, "index", 0) or 0),)


def _device_name(kind: str, indices: tuple[int, ...]) -> str:
    torch = sys.modules.get("torch")
    if not indices or torch is None:
        return kind
    return str(torch.cuda.get_device_name(indices[0]))


def _micro_batch(args: Any, state: Any) -> int:
    """Rows a device sees at once; a Trainer that looks for its batch size says so in its state."""
    stated = int(args.per_device_train_batch_size)
    found = getattr(state, "train_batch_size", None)
    if getattr(args, "auto_find_batch_size", False) and found:
        return max(int(found) // max(int(getattr(args, "n_gpu", 1)), 1), 1)
    return stated


def _word(args: Any, name: str) -> str:
    """An argument's value as a word; enumerations by their value."""
    value = getattr(args, name, None)
    return str(getattr(value, "value", value))


def _knobs(args: Any, model: Any, kind: str) -> dict[str, Any]:
    config = getattr(model, "config", None)
    workers = getattr(args, "dataloader_num_workers", None)
    found = {
        "num_dataloader_workers": workers,
        "prefetch_factor": getattr(args, "dataloader_prefetch_factor", None) if workers else None,
        "pin_memory": getattr(args, "dataloader_pin_memory", None) if kind == "cuda" else None,
        "compile": _compile(args),
        "precision": _precision(args, model),
        "activation_checkpointing": _checkpointing(args, model),
        "attention": attention_of(str(getattr(config, "_attn_implementation", ""))),
        "optimizer": dict(OPTIMIZERS).get(_word(args, "optim")),
        "sharding": _sharding(args),
        "length_grouping": _grouping(args),
        "kernels": "liger" if getattr(args, "use_liger_kernel", False) else None,
    }
    packing = getattr(args, "packing", None)
    if isinstance(packing, bool):
        found["packing"] = "on" if packing else "off"
    return {name: value for name, value in found.items() if value is not None}


def _compile(args: Any) -> str | None:
    wanted = getattr(args, "torch_compile", None)
    if wanted is None:
        return None
    mode = getattr(args, "torch_compile_mode", None) or "default"
    return (mode if mode in COMPILE_MODES else "default") if wanted else "off"


def _precision(args: Any, model: Any) -> str | None:
    """The compute dtype: autocast's, else that of the weights, where they are not quantised."""
    if getattr(args, "bf16", False) or getattr(args, "fp16", False):
        return "bf16" if args.bf16 else "fp16"
    dtype = str(getattr(model, "dtype", "")).removeprefix("torch.")
    if dtype in _HALF:
        return _HALF[dtype]
    if dtype != "float32" or getattr(model, "is_quantized", False):
        return None
    return "tf32" if getattr(args, "tf32", None) else "fp32"


def _checkpointing(args: Any, model: Any) -> str:
    """On by an argument of either name, on the model itself, or by FSDP's own setting."""
    names = ("gradient_checkpointing", "activation_checkpointing")
    settings = getattr(args, "fsdp_config", None)
    wanted = (
        any(getattr(args, name, False) for name in names)
        or getattr(model, "is_gradient_checkpointing", False)
        or (isinstance(settings, dict) and settings.get("activation_checkpointing"))
    )
    return "full" if wanted else "none"


def _sharding(args: Any) -> str:
    if int(getattr(args, "world_size", 1)) <= 1:
        return "none"
    plugin = getattr(args, "deepspeed_plugin", None) or getattr(args, "hf_deepspeed_config", None)
    if plugin is not None:
        stage = getattr(plugin, "zero_stage", None)
        stage = plugin.config.get("zero_optimization", {}).get("stage") if stage is None else stage
        return {2: "zero2", 3: "zero3"}.get(stage, "ddp")
    sharded = getattr(args, "fsdp", None) or os.environ.get("ACCELERATE_USE_FSDP") == "true"
    return "fsdp" if sharded else "ddp"


def _grouping(args: Any) -> str:
    grouped = getattr(args, "group_by_length", False)
    strategy = _word(args, "train_sampling_strategy")
    return "on" if grouped or strategy == "group_by_length" else "off"


def _shape(model: Any) -> dict[str, int]:
    """Sizes by which a model is told from another; a composite's, of its text part."""
    config = getattr(model, "config", None)
    text = getattr(config, "text_config", None) or config
    found = {ours: getattr(text, theirs, None) for ours, theirs in SIZES.items()}
    return {name: value for name, value in found.items() if isinstance(value, int)}


def _method(model: Any, sharding: str) -> dict[str, Any]:
    """How the model is trained, as PEFT and the weights themselves say it."""
    adapters = getattr(model, "peft_config", None)
    if isinstance(adapters, dict) and adapters:
        first = next(iter(adapters.values()))
        if _word(first, "peft_type") != "LORA":
            return {}
        kind, rank, variant = "lora", getattr(first, "r", None), _variant(first)
    elif _is_trained_whole(model):
        kind, rank, variant = "full", None, None
    else:
        return {}
    base = _base(model, kind, whole=sharding in {"none", "ddp"})
    found = {"kind": kind, "rank": rank, "base": base, "variant": variant}
    return {name: value for name, value in found.items() if value is not None}


def _variant(adapter: Any) -> str:
    if getattr(adapter, "use_dora", False) is True:
        return "dora"
    return "rslora" if getattr(adapter, "use_rslora", False) is True else "none"


def _is_trained_whole(model: Any) -> bool:
    parameters = getattr(model, "parameters", None)
    return parameters is not None and all(p.requires_grad for p in parameters())


def _base(model: Any, kind: str, *, whole: bool) -> str | None:
    """How the base is stored; None where it cannot be told, as under a sharding framework."""
    if getattr(model, "is_loaded_in_8bit", False):
        return "int8"
    if getattr(model, "is_loaded_in_4bit", False):
        return "nf4"
    if not whole or getattr(model, "is_quantized", False):
        return None
    dtypes = {str(p.dtype) for p in model.parameters() if kind == "full" or not p.requires_grad}
    if dtypes == {"torch.float32"}:
        return "32bit"
    return "16bit" if dtypes and dtypes <= {"torch.bfloat16", "torch.float16"} else None


def _versions() -> dict[str, str]:
    names = ("torch", "transformers", "trl", "peft", "accelerate")
    found = {name: getattr(sys.modules.get(name), "__version__", None) for name in names}
    return {name: str(value) for name, value in found.items() if value}

"""Commands that say TrainingArguments otherwise: in sections, or in llama-recipes' own words.

They are read, and stay as they are. What no flag says is the program's own default.
Source: llama-cookbook 0.0.5 src/llama_cookbook/configs/{training,fsdp,peft,quantization}.py,
finetuning.py and utils/train_utils.py; llama-recipes 0.0.1 has the same flags.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from autotune.domain.config import NO, YES

if TYPE_CHECKING:
    from collections.abc import Mapping

_MARKS: Final = frozenset({
    "enable_fsdp", "low_cpu_fsdp", "dist_checkpoint_root_folder", "dist_checkpoint_folder",
    "num_workers_dataloader", "batching_strategy", "max_train_step",
})  # fmt: skip
_ADAPTERS: Final = frozenset({"use_peft", "model_name"})  # beside one of the next
_MORE: Final = frozenset({"peft_method", "batch_size_training"})
_NOT_ITS: Final = frozenset({"max_length", "max_seq_length", "max_seq_len", "block_size"})
# Its flag, the argument that it is, and its default.
_SAME: Final = (
    ("batch_size_training", "per_device_train_batch_size", 4),
    ("gradient_accumulation_steps", "gradient_accumulation_steps", 1),
    ("num_epochs", "num_train_epochs", 3),
    ("context_length", "max_length", 4096),
    ("num_workers_dataloader", "dataloader_num_workers", 1),
    ("val_batch_size", "per_device_eval_batch_size", 1),
)
_OF_LORA: Final = (
    ("r", "lora_r", 8), ("lora_alpha", "lora_alpha", 32), ("lora_dropout", "lora_dropout", 0.05),
    ("target_modules", "lora_target_modules", ["q_proj", "v_proj"]),
)  # fmt: skip
_READ: Final = {
    "use_fp16", "mixed_precision", "pure_bf16", "quantization", "batching_strategy", "enable_fsdp",
    "low_cpu_fsdp", "max_train_step", "run_validation", "save_model", "use_peft", "peft_method",
    "use_fast_kernels", "lora_config", "peft_config", "one_gpu", "fsdp_activation_checkpointing",
    "quantization_config", "sharding_strategy",
}  # fmt: skip


def is_recipe(values: Mapping[str, Any]) -> bool:
    """Whether flags are llama-recipes'."""
    said = set(values)
    adapts = said >= _ADAPTERS and bool(said & _MORE)
    return (adapts or bool(_MARKS & said)) and not _NOT_ITS & said


def said_by_default(values: Mapping[str, Any]) -> str:
    """What no flag says, with its default, as it is told."""
    return ", ".join(f"{flag} {default}" for flag, _, default in _SAME if flag not in values)


def as_arguments(values: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments under which transformers' Trainer would do what its loop does."""
    fsdp = values.get("fsdp_config")
    fsdp = fsdp if isinstance(fsdp, dict) else {}
    sharded = _on(values.get("enable_fsdp"), default=False)
    recomputes = fsdp.get(
        "fsdp_activation_checkpointing", values.get("fsdp_activation_checkpointing")
    )
    made = {key: values.get(flag, default) for flag, key, default in _SAME}
    steps = values.get("max_train_step")
    saves = _on(values.get("save_model"), default=True)
    evaluates = _on(values.get("run_validation"), default=True)
    half = _on(values.get("use_fp16"), default=False)
    packs = values.get("batching_strategy", "packing") == "packing"
    made |= {
        "packing": packs, "group_by_length": not packs,  # rows of one length make a batch
        "gradient_checkpointing": sharded and _on(recomputes, default=True),
        "save_strategy": "epoch" if saves else "no", "save_total_limit": 1,
        "eval_strategy": "epoch" if evaluates else "no", "optim": "adamw_torch",
        "dtype": "float16" if half else "bfloat16", "float16" if half else "bfloat16": True,
        **({"max_steps": steps} if steps not in (None, 0, "0") else {}),
        **({"fsdp": "full_shard", "fsdp_config": _shards(fsdp, values)} if sharded else {}),
        **_adapters(values), **_bits(values),
    }  # fmt: skip
    flags = {flag for flag, _, _ in (*_SAME, *_OF_LORA)} | _READ | {"fsdp_config"}
    return {**{key: value for key, value in values.items() if key not in flags}, **made}


def _on(value: object, *, default: bool) -> bool:
    word = str(value).casefold()
    return word in YES or (default and word not in NO)


def _shards(fsdp: dict[str, Any], values: Mapping[str, Any]) -> dict[str, Any]:
    """Its section without what is read elsewhere."""
    left = {key: value for key, value in fsdp.items() if key not in _READ}
    way = fsdp.get("sharding_strategy", values.get("sharding_strategy"))
    return {**left, **({"sharding_strategy": str(way).rpartition(".")[2]} if way else {})}


def _adapters(values: Mapping[str, Any]) -> dict[str, Any]:
    if not _on(values.get("use_peft"), default=False):
        return {"use_peft": False}
    method = str(values.get("peft_method", "lora"))
    section = values.get("lora_config", values.get("peft_config"))
    section = {**values, **(section if isinstance(section, dict) else {})}
    sizes = {key: section.get(flag, default) for flag, key, default in _OF_LORA}
    return {"use_peft": True, **sizes, **({"train_mode": method} if method != "lora" else {})}


def _bits(values: Mapping[str, Any]) -> dict[str, Any]:
    """`--quantization` alone is 8 bits, as it was before it took a word."""
    section = values.get("quantization_config")
    bits = section.get("quant_type") if isinstance(section, dict) else None
    stated = values.get("quantization", bits)
    if "4" in str(stated):
        return {"load_in_4bit": True, "bnb_4bit_use_double_quant": False}
    eight = "8" in str(stated) or _on(stated, default=False)
    return {"load_in_8bit": True} if eight else {}


# Sections of a command whose program takes such objects: `--training_args.num_train_epochs 3`.
_SECTIONS: Final = (
    "training_args", "training_arguments", "train_args", "trainer_args", "sft_config", "sft_args",
)  # fmt: skip
_MODEL: Final = ("model_args", "model_arguments", "model_config")  # TRL's ModelConfig
_PEFT: Final = ("peft_config", "lora_config", "peft_args", "lora_args")
_IN_PEFT: Final = {"r": "lora_r", "target_modules": "lora_target_modules"}
_SIZES: Final = frozenset({
    "per_device_train_batch_size", "num_train_epochs", "max_steps", "gradient_accumulation_steps",
    "output_dir",
})  # fmt: skip


def in_sections(values: Mapping[str, Any]) -> bool:
    """Whether a command's flags hold TrainingArguments as a section of their own."""
    sections = {key: value for key, value in values.items() if isinstance(value, dict)}
    sized = any(_SIZES & set(section) for key, section in sections.items() if key in _SECTIONS)
    return sized and set(sections) <= {*_SECTIONS, *_MODEL, *_PEFT}


def unfolded(values: Mapping[str, Any]) -> dict[str, Any]:
    """The flags without their sections; those of an adapter in the words of one."""
    read = (*_SECTIONS, *_MODEL, *_PEFT)
    made = {key: value for key, value in values.items() if key not in read}
    for name in read:
        section = values.get(name)
        renamed = _IN_PEFT if name in _PEFT else {}
        if isinstance(section, dict):
            made |= {renamed.get(str(key), str(key)): value for key, value in section.items()}
        elif section is not None:
            made[name] = section
        if isinstance(section, dict) and name in _PEFT:
            made.setdefault("use_peft", True)
    return made

"""Commands that say TrainingArguments otherwise: in sections, or in a program's own words.

They are read, and stay as they are. What no flag says is the program's own default.
Source: llama-cookbook 0.0.5 src/llama_cookbook/configs/{training,fsdp,peft,quantization}.py,
finetuning.py and utils/train_utils.py; llama-recipes 0.0.1 has the same flags.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, Final

from autotune.domain.config import NO, YES
from autotune.trainers.hf.adapter import OWN_FLAGS
from autotune.trainers.hf.keys import WORDS
from autotune.trainers.schema import schema_of

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.trainers.parsed import Keys, Parsed

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


# Sections of a program's own: what they say in the words of a trainer is read, the rest is said.
_OWN: Final = re.compile(r"(\w+_)?(args|arguments)")
_ASIDE: Final = re.compile(r"(\w+_)?(eval\w*|gen\w*|infer\w*|test\w*|vllm|reward|log\w*|ref)_\w+")


def in_sections(values: Mapping[str, Any]) -> bool:
    """Whether a command's flags hold TrainingArguments as a section of their own."""
    sections = {key: value for key, value in values.items() if isinstance(value, dict)}
    sized = any(_SIZES & set(section) for key, section in sections.items() if key in _SECTIONS)
    read = {*_SECTIONS, *_MODEL, *_PEFT}
    return sized and all(key in read or _OWN.fullmatch(str(key)) for key in sections)


def unfolded(values: Mapping[str, Any]) -> dict[str, Any]:
    """The flags without their sections; those of an adapter in the words of one.

    What a program's own section says otherwise than in a trainer's words stays in it.
    """
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
    for name, section in values.items():
        if name in read or not isinstance(section, dict) or _ASIDE.fullmatch(str(name)):
            continue
        taken = {key for key in section if _is_known(str(key)) and key not in made}
        made |= {key: section[key] for key in taken}
        made[name] = {key: value for key, value in section.items() if key not in taken}
    return made


def _is_known(key: str) -> bool:
    """Whether a trainer's arguments have such a word, or many programs of people's own do."""
    return key in _WORDS or schema_of("trl").find(key) is not None


_WORDS: Final = {
    "model_name", "max_seq_length", *(word for own in OWN_FLAGS.values() for word in own),
}  # fmt: skip


# What programs with flags of their own call them.
OWN_BATCH = {
    "micro_batch_size": (
        "batch_size", "batch_size_per_device", "micro_batch", "per_device_train_batch",
        "per_device_batch_size", "batch_size_per_gpu", "bsz_per_device", "bs_per_device",
        "train_bsz_per_gpu", "batch_size_training",
    ),
    "gradient_accumulation_steps": (
        "grad_accum", "grad_accum_steps", "gradient_accumulation", "accumulation_steps", "grad_acc",
        "grad_accumulation_steps", "gradient_accumulation_step",
    ),
}  # fmt: skip


def own_count(keys: Keys, parsed: Parsed, knob: str) -> int | None:
    """`--batch_size`, `--grad_accum`: a program's own; it stays as it is."""
    if knob == "micro_batch_size" and keys.at(_OF_DEVICE) is not None:
        return _split_count(keys, parsed)
    name = keys.spelled(*OWN_BATCH[knob])
    stated = keys.whole(*OWN_BATCH[knob], low=1)
    if name is not None and stated is not None:
        each = ", counted as each device's" if knob == "micro_batch_size" else ""
        parsed.keep(knob, name, stated, f"no argument of the Trainer's: the script's own{each}")
    return stated


_OF_DEVICE = "micro_batch_size"


def _split_count(keys: Keys, parsed: Parsed) -> int | None:
    """`--micro_batch_size 4 --batch_size 128`: what a device takes, of the whole batch."""
    micro, whole = keys.whole(_OF_DEVICE, low=1), keys.whole("batch_size", low=1)
    counted = keys.spelled(*(word.key for word in WORDS["gradient_accumulation_steps"]))
    counted = counted or keys.spelled(*OWN_BATCH["gradient_accumulation_steps"])
    parsed.keep("micro_batch_size", _OF_DEVICE, micro, "the script's own, counted as each device's")
    if whole is not None and counted is None:
        parsed.global_batch = whole
        why = "counted as the rows of a step on all devices, as micro_batch_size is each device's"
        parsed.keep("gradient_accumulation_steps", "batch_size", whole, why)
    return micro

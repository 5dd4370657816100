"""LLaMA-Factory's newer format, v1: plugins as mappings, and the total batch stated itself.

It is read, and its micro-batch and checkpointing are written back.
Source: LLaMA-Factory's main branch of 2026, src/llamafactory/v1/config/model_args.py, data_args.py
and training_args.py, plugins/model_plugins/peft.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.domain.typed.values import shown
from autotune.trainers.hf.adapter import all_linear, base_of_adapter, read_saved
from autotune.trainers.hf.keys import FULL, read_words
from autotune.trainers.hf.read import HF_DEFAULTS, keep_optimizer
from autotune.trainers.parsed import Keys, Parsed
from autotune.trainers.unread import decisive
from autotune.trainers.words import Word, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.trainers.contract import Changes
    from autotune.trainers.words import Words

_MARKS = {"train_dataset", "dist_config", "kernel_config", "peft_config", "sample_backend",
          "model_class", "quant_config"}  # fmt: skip
_FEW = 2
_CUTOFF, _EPOCHS, _RANK, _ALPHA = 2048, 3.0, 8, 16  # where the file states none
WORDS: Words = {
    "micro_batch_size": (Word("micro_batch_size"),),
    "activation_checkpointing": (Word("enable_activation_checkpointing", FULL),),
    "save_total_limit": (Word("save_total_limit"),),
}


def is_v1(values: Mapping[str, Any]) -> bool:
    """Whether a mapping is of this format: it has several of the keys that the older one lacks."""
    return "model" in values and len(_MARKS & set(values)) >= _FEW


def read_v1(values: Mapping[str, Any], name: str) -> Parsed:
    """The job that the file states. Raises InputError for a value of the wrong kind."""
    keys = Keys(values, name)
    defaults = {**HF_DEFAULTS, "micro_batch_size": 1, "activation_checkpointing": "full"}
    parsed = Parsed("llamafactory", defaults={**defaults, "precision": "bf16"})
    model = keys.word("model")
    if model is not None:
        parsed.values["model"] = model
    read_words(keys, parsed, *WORDS, own=WORDS)
    _read_batch(keys, parsed)
    steps, epochs = keys.whole("max_steps"), keys.number("num_train_epochs")
    parsed.part("train", steps=steps or None, epochs=None if steps else epochs or _EPOCHS)
    parsed.part("data", max_length=keys.whole("cutoff_len", low=1) or _CUTOFF)
    _read_method(keys, parsed)
    _read_plugins(keys, parsed)
    rest = keys.unused()
    parsed.uncounted += decisive(keys, rest)
    parsed.asked |= keys.asked
    if rest:
        parsed.note(f"{name}: not read", ", ".join(rest)[:300], "kept as they are in the file")
    return parsed


def spell_v1(knob: str, value: KnobValue) -> Changes | str:
    """The keys that say it; there are few."""
    said = say(knob, value, WORDS, ()) if knob in WORDS else {}
    return said or "the v1 format of LLaMA-Factory has no key for it that is written here"


def _read_batch(keys: Keys, parsed: Parsed) -> None:
    """The total, where it is stated, decides the accumulation."""
    micro = int(parsed.knobs.setdefault("micro_batch_size", 1))
    total = keys.whole("global_batch_size", low=1)
    parsed.global_batch = total
    parsed.knobs["gradient_accumulation_steps"] = max((total or micro) // micro, 1)


def _read_method(keys: Keys, parsed: Parsed) -> None:
    kind = keys.word("peft_config.name")
    bits = keys.whole("quant_config.quantization_bit")
    keys.get("quant_config.name")
    base = {4: "nf4", 8: "int8"}.get(bits or 0)
    scales = keys.switch("quant_config.double_quantization")  # true where nothing is stated
    if kind is None:
        parsed.part("method", kind="full", base=base)
        return
    if kind != "lora":
        msg = f"{keys.name}: peft_config.name is {shown(kind)}; lora and full can be priced"
        raise InputError(msg, "leave peft_config out for full fine-tuning")
    targets = keys.words("peft_config.target_modules") or ["all"]
    parsed.part(
        "method", kind="lora", base=base_of_adapter(base, parsed),
        rank=keys.whole("peft_config.r", low=1) or _RANK,
        alpha=keys.number("peft_config.lora_alpha") or _ALPHA,
        dropout=keys.number("peft_config.lora_dropout") or 0.0, targets=all_linear(targets),
        double_quant=scales if base == "nf4" else None,
        modules_to_save=read_saved(keys, "peft_config.modules_to_save"),
    )  # fmt: skip


def _read_plugins(keys: Keys, parsed: Parsed) -> None:
    """Sharding, the optimizer and kernels by the names of their plugins."""
    sharding = keys.word("dist_config.name")
    if sharding is not None and sharding.startswith("fsdp"):
        parsed.knobs["sharding"] = "fsdp"
    elif sharding == "deepspeed":
        file = str(keys.get("dist_config.config_file") or "")
        parsed.defaults["sharding"] = "zero2" if "z2" in file or "zero2" in file else "zero3"
        why = f"counted as {parsed.defaults['sharding']} by the name of its file"
        parsed.note("dist_config", file, why)
    optimizer = keys.word("optim_config.name")
    if optimizer is not None and not optimizer.startswith("adamw"):
        keep_optimizer(parsed, "optim_config.name", optimizer)
    kernels = str(keys.get("kernel_config.name") or "")
    if "liger" in kernels:
        parsed.knobs["kernels"] = "liger"
    for key in ("train_dataset", "model_class", "kernel_config", "sample_backend", "bf16"):
        keys.get(key)

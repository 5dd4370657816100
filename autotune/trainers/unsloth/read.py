"""A script with Unsloth's calls, FastLanguageModel and an SFTConfig: the job that it states.

Source: unsloth 2026.10.9 (models/loader.py, models/llama.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.catalog.models.models import is_known
from autotune.trainers.hf.adapter import all_linear, fill_adapter, read_base, read_variant
from autotune.trainers.hf.read import (
    EPOCHS,
    TRL_DEFAULTS,
    read_batch,
    read_length_of_run,
    read_model,
    read_precision,
    read_shared,
)
from autotune.trainers.parsed import Keys, Parsed
from autotune.trainers.schema import schema_of
from autotune.trainers.unknown_keys import leave_rest

if TYPE_CHECKING:
    from collections.abc import Mapping


def read_file(values: Mapping[str, Any], name: str) -> Parsed:
    """The job that the calls state; a base in 4 bits unless they say otherwise."""
    keys = Keys(values, name)
    defaults = {**TRL_DEFAULTS, "precision": "bf16", "activation_checkpointing": "none"}
    parsed = Parsed("unsloth", defaults=defaults)
    del parsed.defaults["precision"]
    read_model(keys, parsed)
    _plain_name(parsed)
    read_batch(keys, parsed)
    read_length_of_run(keys, parsed, EPOCHS)
    _read_method(keys, parsed)
    length = keys.whole("max_seq_length", "max_length", low=1)
    if length is None:
        length = 2048
        parsed.note("data.max_length", length, "not in the file; from_pretrained's default")
    parsed.part("data", max_length=length)
    read_precision(keys, parsed)
    recompute = keys.get("use_gradient_checkpointing")
    if recompute is None:
        recompute = schema_of("unsloth").default("use_gradient_checkpointing")
    if recompute is not False:
        parsed.knobs["activation_checkpointing"] = "full"
        why = "Unsloth recomputes with its own code; counted as plain checkpointing"
        parsed.keep("activation_checkpointing", "use_gradient_checkpointing", recompute, why)
    read_shared(keys, parsed)
    packing = keys.switch("packing")
    parsed.knobs["packing"] = "on" if packing else "off"
    parsed.kept |= {"attention", "compile", "activation_checkpointing"}
    leave_rest(keys, parsed)
    return parsed


def _plain_name(parsed: Parsed) -> None:
    """Unsloth's copy of a model, perhaps in 4 bits, is named after the one it was made from."""
    name = str(parsed.values.get("model", ""))
    plain = name.removesuffix("-bnb-4bit").removesuffix("-unsloth")
    short = plain.removeprefix("unsloth/")
    if short != plain and not is_known(plain) and is_known(short):
        plain = short
    if plain != name:
        parsed.values["model"] = plain
        parsed.note("model", plain, f"the model that {name} is a copy of")


def _read_method(keys: Keys, parsed: Parsed) -> None:
    if keys.switch("full_finetuning"):
        parsed.part("method", kind="full")
        return
    keys.get("use_peft")  # of the call itself: the script says it by get_peft_model
    four, eight = keys.switch("load_in_4bit"), keys.switch("load_in_8bit")
    if four is None and not eight and not keys.switch("load_in_16bit"):
        parsed.note("load_in_4bit", "true", "not in the file; Unsloth's default")
    stated = read_base(keys)
    default = "nf4" if four is None and not eight and not keys.switch("load_in_16bit") else "16bit"
    targets = keys.words("lora_target_modules")
    sizes = {
        "rank": keys.whole("lora_r", low=1), "alpha": keys.number("lora_alpha"),
        "dropout": keys.number("lora_dropout"),
    }  # fmt: skip
    fill_adapter(parsed, sizes)
    base = stated if stated in {"nf4", "int8"} else default
    variant = read_variant(keys, parsed)
    parsed.part(
        "method", kind="lora", base=base, **sizes, targets=all_linear(targets), variant=variant
    )

"""litgpt's YAML: the job that it states, and its words for the knobs.

It states the total batch and has no accumulation of its own.
Source: litgpt 0.5.13 (litgpt/args.py, litgpt/finetune).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.trainers.hf.adapter import fill_adapter
from autotune.trainers.hf.read import HF_DEFAULTS, read_words
from autotune.trainers.parsed import Keys, Parsed
from autotune.trainers.schema import schema_of
from autotune.trainers.unknown_keys import leave_rest
from autotune.trainers.words import Word, say

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.trainers.contract import Changes, Target
    from autotune.trainers.words import Words

PRECISION = {  # of its word -> the knob's value
    "bf16-true": "bf16", "bf16-mixed": "bf16", "16-true": "fp16", "16-mixed": "fp16",
    "32-true": "fp32",
}  # fmt: skip
SWITCHES = {  # of adapters -> the module
    "lora_query": "q_proj", "lora_key": "k_proj", "lora_value": "v_proj",
    "lora_projection": "o_proj",
}  # fmt: skip
MLP = ("gate_proj", "up_proj", "down_proj")  # one switch, lora_mlp


WORDS: Words = {
    "micro_batch_size": (Word("train.micro_batch_size"),),
    "checkpoint_every_steps": (Word("train.save_interval"),),
    "num_dataloader_workers": (Word("data.init_args.num_workers"), Word("data.num_workers")),
}


def read_file(values: Mapping[str, Any], name: str) -> Parsed:
    """The job that the file states. Raises InputError where the total cannot be split."""
    keys, schema = Keys(values, name), schema_of("litgpt")
    defaults = {**HF_DEFAULTS, "num_dataloader_workers": 4}
    parsed = Parsed("litgpt", defaults=defaults)
    model = keys.word("checkpoint_dir")
    if model is not None:
        parsed.values["model"] = model.removeprefix("checkpoints/")
    devices = keys.get("devices")
    parsed.devices = keys.whole("devices", low=1) if devices != "auto" else None
    _read_batch(keys, parsed)
    _read_method(keys, parsed)
    parsed.part("data", max_length=keys.whole("train.max_seq_length", low=1))
    steps, epochs = keys.whole("train.max_steps", low=1), keys.number("train.epochs")
    if steps is None and epochs is None:
        epochs = float(schema.default("train.epochs"))
        parsed.note("train.epochs", f"{epochs:g}", f"not in the file; that of {schema.newest}")
    parsed.part("train", steps=steps, epochs=None if steps else epochs or None)
    parsed.defaults["checkpoint_every_steps"] = schema.default("train.save_interval")
    read_words(keys, parsed, "checkpoint_every_steps", "num_dataloader_workers", own=WORDS)
    precision = keys.word("precision")
    if precision in PRECISION:
        parsed.knobs["precision"] = PRECISION[precision]
        if precision in {"bf16-mixed", "16-mixed", "32-true"}:
            parsed.part("method", base=parsed.values["method"].get("base") or "32bit")
    elif precision is not None:
        parsed.note("precision", precision, "no such precision here; the device's own is counted")
    leave_rest(keys, parsed)
    return parsed


def spell(knob: str, value: KnobValue, target: Target) -> Changes | str:
    """The keys that say it; the accumulation follows from the total batch."""
    if knob == "gradient_accumulation_steps":
        return {}
    if knob in WORDS and (knob != "num_dataloader_workers" or target.has("data.init_args")):
        return say(knob, value, WORDS, ())
    return "litgpt's YAML has no key for it"


def _read_batch(keys: Keys, parsed: Parsed) -> None:
    """Source: litgpt/args.py TrainArgs.gradient_accumulation_iters (floor division)."""
    schema = schema_of("litgpt")
    counts = []
    for key in ("train.micro_batch_size", "train.global_batch_size"):
        stated = keys.whole(key, low=1)
        if stated is None:
            parsed.note(key, schema.default(key), f"not in the file; that of {schema.newest}")
        counts.append(stated or int(schema.default(key)))
    micro, total = counts
    devices = parsed.devices or 1
    if total % (micro * devices):
        msg = (
            f"{keys.name}: train.global_batch_size {total} is no multiple of micro_batch_size "
            f"{micro} x {devices} devices: litgpt would train on a smaller batch than it says"
        )
        raise InputError(msg, "state a micro_batch_size that divides it")
    parsed.global_batch = total
    parsed.knobs["micro_batch_size"] = micro
    parsed.knobs["gradient_accumulation_steps"] = total // (micro * devices)


def _read_method(keys: Keys, parsed: Parsed) -> None:
    """LoRA where any of its keys is stated: a config for `finetune_full` has none of them."""
    quantize = keys.word("quantize") or ""
    base = "nf4" if "nf4" in quantize else "int8" if "int8" in quantize else None
    schema = schema_of("litgpt")
    switches = {**SWITCHES, "lora_mlp": "", "lora_head": ""}
    stated = {key: keys.switch(key) for key in switches}
    sizes = {
        "rank": keys.whole("lora_r", low=1), "alpha": keys.number("lora_alpha"),
        "dropout": keys.number("lora_dropout"),
    }  # fmt: skip
    if base is None and not any(value is not None for value in (*sizes.values(), *stated.values())):
        parsed.part("method", kind="full")
        parsed.note("method.kind", "full", "the file has no lora_ keys: for litgpt finetune_full")
        return
    fill_adapter(parsed, sizes)
    on = {key: schema.default(key) if value is None else value for key, value in stated.items()}
    targets = [name for key, name in SWITCHES.items() if on[key]]
    targets += list(MLP) if on["lora_mlp"] else []
    if on["lora_head"]:
        parsed.note("lora_head", "true", "an adapter on the head is not counted")
    parsed.part("method", kind="lora", base=base, **sizes, targets=targets or None)

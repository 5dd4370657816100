"""litgpt's YAML, and scripts with Unsloth's calls: read, and knobs spelled.

Source: litgpt 0.5.13 (litgpt/args.py, litgpt/finetune),
unsloth 2026.10.9 (models/loader.py, models/llama.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.catalog.models.models import is_known
from autotune.domain.errors import InputError
from autotune.trainers.adapter_variant import read_variant
from autotune.trainers.hf.read import (
    EPOCHS,
    HF_DEFAULTS,
    TRL_DEFAULTS,
    all_linear,
    fill_adapter,
    read_base,
    read_batch,
    read_length_of_run,
    read_model,
    read_precision,
    read_shared,
)
from autotune.trainers.hf.spell import spell_argument
from autotune.trainers.parsed import Imported, Keys
from autotune.trainers.schema import schema_of
from autotune.trainers.unknown_keys import leave_rest

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.trainers.dialect import Changes, Target

_LITGPT_PRECISION = {
    "bf16-true": "bf16", "bf16-mixed": "bf16", "16-true": "fp16", "16-mixed": "fp16",
    "32-true": "fp32",
}  # fmt: skip
_LITGPT_TARGETS = {
    "lora_query": "q_proj", "lora_key": "k_proj", "lora_value": "v_proj",
    "lora_projection": "o_proj",
}  # fmt: skip
_MLP = ("gate_proj", "up_proj", "down_proj")


class LitGpt:
    """litgpt's YAML. It states the total batch and has no accumulation of its own."""

    name = "litgpt"
    title = "litgpt's YAML"

    def read(self, values: Mapping[str, Any], name: str) -> Imported:
        """The job that the file states. Raises InputError where the total cannot be split."""
        keys, schema = Keys(values, name), schema_of(self.name)
        defaults = {**HF_DEFAULTS, "num_dataloader_workers": 4}
        made = Imported(self.name, defaults=defaults)
        model = keys.word("checkpoint_dir")
        if model is not None:
            made.values["model"] = model.removeprefix("checkpoints/")
        devices = keys.get("devices")
        made.devices = keys.whole("devices", low=1) if devices != "auto" else None
        _litgpt_batch(keys, made)
        _litgpt_method(keys, made)
        made.part("data", max_length=keys.whole("train.max_seq_length", low=1))
        steps, epochs = keys.whole("train.max_steps", low=1), keys.number("train.epochs")
        if steps is None and epochs is None:
            epochs = float(schema.default("train.epochs"))
            made.note("train.epochs", f"{epochs:g}", f"not in the file; that of {schema.newest}")
        made.part("train", steps=steps, epochs=None if steps else epochs or None)
        made.defaults["checkpoint_every_steps"] = schema.default("train.save_interval")
        every = keys.whole("train.save_interval", low=1)
        if every:
            made.knobs["checkpoint_every_steps"] = every
        workers = keys.whole("data.init_args.num_workers", "data.num_workers")
        if workers is not None:
            made.knobs["num_dataloader_workers"] = workers
        precision = keys.word("precision")
        if precision in _LITGPT_PRECISION:
            made.knobs["precision"] = _LITGPT_PRECISION[precision]
            if precision in {"bf16-mixed", "16-mixed", "32-true"}:
                made.part("method", base=made.values["method"].get("base") or "32bit")
        elif precision is not None:
            made.note("precision", precision, "no such precision here; the device's own is counted")
        leave_rest(keys, made)
        return made

    def spell(self, knob: str, value: KnobValue, target: Target) -> Changes | str:
        """The keys that say it; the accumulation follows from the total batch."""
        if knob == "micro_batch_size":
            return {"train.micro_batch_size": value}
        if knob == "gradient_accumulation_steps":
            return {}
        if knob == "checkpoint_every_steps":
            return {"train.save_interval": value}
        if knob == "num_dataloader_workers" and target.has("data.init_args"):
            return {"data.init_args.num_workers": value}
        return "litgpt's YAML has no key for it"


def _litgpt_batch(keys: Keys, made: Imported) -> None:
    """Source: litgpt/args.py TrainArgs.gradient_accumulation_iters (floor division)."""
    schema = schema_of("litgpt")
    counts = []
    for key in ("train.micro_batch_size", "train.global_batch_size"):
        stated = keys.whole(key, low=1)
        if stated is None:
            made.note(key, schema.default(key), f"not in the file; that of {schema.newest}")
        counts.append(stated or int(schema.default(key)))
    micro, total = counts
    devices = made.devices or 1
    if total % (micro * devices):
        msg = (
            f"{keys.name}: train.global_batch_size {total} is no multiple of micro_batch_size "
            f"{micro} x {devices} devices: litgpt would train on a smaller batch than it says"
        )
        raise InputError(msg, "state a micro_batch_size that divides it")
    made.global_batch = total
    made.knobs["micro_batch_size"] = micro
    made.knobs["gradient_accumulation_steps"] = total // (micro * devices)


def _litgpt_method(keys: Keys, made: Imported) -> None:
    """LoRA where any of its keys is stated: a config for `finetune_full` has none of them."""
    quantize = keys.word("quantize") or ""
    base = "nf4" if "nf4" in quantize else "int8" if "int8" in quantize else None
    schema = schema_of("litgpt")
    switches = {**_LITGPT_TARGETS, "lora_mlp": "", "lora_head": ""}
    stated = {key: keys.switch(key) for key in switches}
    sizes = {
        "rank": keys.whole("lora_r", low=1), "alpha": keys.number("lora_alpha"),
        "dropout": keys.number("lora_dropout"),
    }  # fmt: skip
    if base is None and not any(value is not None for value in (*sizes.values(), *stated.values())):
        made.part("method", kind="full")
        made.note("method.kind", "full", "the file has no lora_ keys: for litgpt finetune_full")
        return
    fill_adapter(made, sizes)
    on = {key: schema.default(key) if value is None else value for key, value in stated.items()}
    targets = [name for key, name in _LITGPT_TARGETS.items() if on[key]]
    targets += list(_MLP) if on["lora_mlp"] else []
    if on["lora_head"]:
        made.note("lora_head", "true", "an adapter on the head is not counted")
    made.part("method", kind="lora", base=base, **sizes, targets=targets or None)


class Unsloth:
    """A script with Unsloth's calls: FastLanguageModel and an SFTConfig."""

    name = "unsloth"
    title = "Unsloth's calls"

    def read(self, values: Mapping[str, Any], name: str) -> Imported:
        """The job that the calls state; a base in 4 bits unless they say otherwise."""
        keys = Keys(values, name)
        defaults = {**TRL_DEFAULTS, "precision": "bf16", "activation_checkpointing": "none"}
        made = Imported(self.name, defaults=defaults)
        del made.defaults["precision"]
        read_model(keys, made)
        _plain_name(made)
        read_batch(keys, made)
        read_length_of_run(keys, made, EPOCHS)
        _unsloth_method(keys, made)
        length = keys.whole("max_seq_length", "max_length", low=1)
        if length is None:
            length = 2048
            made.note("data.max_length", length, "not in the file; from_pretrained's default")
        made.part("data", max_length=length)
        read_precision(keys, made)
        recompute = keys.get("use_gradient_checkpointing")
        if recompute is None:
            recompute = schema_of(self.name).default("use_gradient_checkpointing")
        if recompute is not False:
            made.knobs["activation_checkpointing"] = "full"
            why = "Unsloth recomputes with its own code; counted as plain checkpointing"
            made.keep("activation_checkpointing", "use_gradient_checkpointing", recompute, why)
        read_shared(keys, made)
        packing = keys.switch("packing")
        made.knobs["packing"] = "on" if packing else "off"
        made.kept |= {"attention", "compile", "activation_checkpointing"}
        leave_rest(keys, made)
        return made

    def spell(self, knob: str, value: KnobValue, target: Target) -> Changes | str:
        """The arguments that say it; kernels are Unsloth's own."""
        return spell_argument(knob, value, target)


def _plain_name(made: Imported) -> None:
    """Unsloth's copy of a model, perhaps in 4 bits, is named after the one it was made from."""
    name = str(made.values.get("model", ""))
    plain = name.removesuffix("-bnb-4bit").removesuffix("-unsloth")
    short = plain.removeprefix("unsloth/")
    if short != plain and not is_known(plain) and is_known(short):
        plain = short
    if plain != name:
        made.values["model"] = plain
        made.note("model", plain, f"the model that {name} is a copy of")


def _unsloth_method(keys: Keys, made: Imported) -> None:
    if keys.switch("full_finetuning"):
        made.part("method", kind="full")
        return
    keys.get("use_peft")  # of the call itself: the script says it by get_peft_model
    four, eight = keys.switch("load_in_4bit"), keys.switch("load_in_8bit")
    if four is None and not eight and not keys.switch("load_in_16bit"):
        made.note("load_in_4bit", "true", "not in the file; Unsloth's default")
    stated = read_base(keys)
    default = "nf4" if four is None and not eight and not keys.switch("load_in_16bit") else "16bit"
    targets = keys.words("lora_target_modules")
    sizes = {
        "rank": keys.whole("lora_r", low=1), "alpha": keys.number("lora_alpha"),
        "dropout": keys.number("lora_dropout"),
    }  # fmt: skip
    fill_adapter(made, sizes)
    base = stated if stated in {"nf4", "int8"} else default
    variant = read_variant(keys, made)
    made.part(
        "method", kind="lora", base=base, **sizes, targets=all_linear(targets), variant=variant
    )

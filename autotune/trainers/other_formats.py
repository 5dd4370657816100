"""torchtune's and litgpt's YAML, and scripts with Unsloth's calls: read, and knobs spelled.

Source: recipes/configs of torchtune 0.6.1, litgpt 0.5.13 (litgpt/args.py, litgpt/finetune),
unsloth 2026.10.9 (models/loader.py, models/llama.py).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.trainers.imported import Imported, Keys
from autotune.trainers.read_arguments import (
    EPOCHS,
    HF_DEFAULTS,
    TRL_DEFAULTS,
    all_linear,
    leave_rest,
    read_base,
    read_batch,
    read_length_of_run,
    read_model,
    read_precision,
    read_shared,
)
from autotune.trainers.spell_arguments import spell_argument

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.domain.config import KnobValue
    from autotune.trainers.dialect import Changes, Target

_TUNE_PRECISION = {"bf16": "bf16", "fp32": "fp32"}
_TUNE_MODULES = {"output_proj": "o_proj"}
_LITGPT_PRECISION = {
    "bf16-true": "bf16", "bf16-mixed": "bf16", "16-true": "fp16", "16-mixed": "fp16",
    "32-true": "fp32",
}  # fmt: skip
_LITGPT_TARGETS = {
    "lora_query": "q_proj", "lora_key": "k_proj", "lora_value": "v_proj",
    "lora_projection": "o_proj",
}  # fmt: skip
_MLP = ("gate_proj", "up_proj", "down_proj")


class Torchtune:
    """torchtune's YAML. Its development stopped in July 2025."""

    name = "torchtune"
    title = "torchtune's YAML"

    def read(self, values: Mapping[str, Any], name: str) -> Imported:
        """The job that the file states; the model's component says what is trained and how."""
        keys = Keys(values, name)
        defaults = {**HF_DEFAULTS, "micro_batch_size": 1}
        made = Imported(self.name, defaults=defaults)
        for knob, key in (
            ("micro_batch_size", "batch_size"),
            ("gradient_accumulation_steps", "gradient_accumulation_steps"),
        ):
            made.knobs[knob] = keys.whole(key, low=1) or 1
        steps = keys.whole("max_steps_per_epoch", low=1)
        if steps:
            made.note("max_steps_per_epoch", steps, "not counted: epochs run over all rows")
        made.part("train", epochs=keys.number("epochs") or 1.0)
        _tune_method(keys, made)
        made.part("data", max_length=keys.whole("tokenizer.max_seq_len", low=1))
        made.knobs["packing"] = "on" if keys.switch("dataset.packed") else "off"
        dtype = keys.word("dtype")
        if dtype in _TUNE_PRECISION:
            made.knobs["precision"] = _TUNE_PRECISION[dtype]
        made.knobs["compile"] = "default" if keys.switch("compile") else "off"
        checkpointed = keys.switch("enable_activation_checkpointing")
        made.knobs["activation_checkpointing"] = "full" if checkpointed else "none"
        for key in ("checkpointer", "tokenizer", "dataset", "model"):
            keys.get(key)
        made.saves_per_epoch = 1.0
        made.kept |= {"checkpoint_every_steps", "save_total_limit"}
        leave_rest(keys, made)
        return made

    def spell(self, knob: str, value: KnobValue, _: Target) -> Changes | str:
        """The keys that say it; there are few."""
        simple: dict[str, Changes] = {
            "micro_batch_size": {"batch_size": value},
            "gradient_accumulation_steps": {"gradient_accumulation_steps": value},
            "packing": {"dataset.packed": value == "on"},
            "activation_checkpointing": {"enable_activation_checkpointing": value == "full"},
            "compile": {"compile": value != "off"},
        }
        if knob in simple:
            return simple[knob]
        if knob == "precision" and value in _TUNE_PRECISION.values():
            return {"dtype": value}
        return "torchtune's YAML has no key for it"


def _tune_method(keys: Keys, made: Imported) -> None:
    component = keys.word("model._component_") or ""
    model = keys.word("checkpointer.checkpoint_dir")
    if model is not None:
        why = "the folder of the checkpointer; its config.json says what the model is"
        made.note("model", model, why)
        made.values["model"] = model
    builder = component.rpartition(".")[2]
    if not builder.startswith(("lora_", "qlora_")):
        made.part("method", kind="full")
        return
    targets = list(keys.words("model.lora_attn_modules") or [])
    if keys.switch("model.apply_lora_to_mlp"):
        targets += list(_MLP)
    if keys.switch("model.apply_lora_to_output"):
        made.note("model.apply_lora_to_output", "true", "an adapter on the head is not counted")
    made.part(
        "method", kind="lora", base="nf4" if builder.startswith("qlora_") else "16bit",
        rank=keys.whole("model.lora_rank", low=1), alpha=keys.number("model.lora_alpha"),
        dropout=keys.number("model.lora_dropout"),
        targets=[_TUNE_MODULES.get(name, name) for name in targets] or None,
    )  # fmt: skip


class LitGpt:
    """litgpt's YAML. It states the total batch and has no accumulation of its own."""

    name = "litgpt"
    title = "litgpt's YAML"

    def read(self, values: Mapping[str, Any], name: str) -> Imported:
        """The job that the file states. Raises InputError where the total cannot be split."""
        keys = Keys(values, name)
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
        made.part("train", steps=steps, epochs=None if steps else epochs or 1.0)
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
        for key in ("data", "train"):
            keys.get(key)
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
    micro = keys.whole("train.micro_batch_size", low=1) or 1
    total = keys.whole("train.global_batch_size", low=1) or 16
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
    quantize = keys.word("quantize") or ""
    base = "nf4" if "nf4" in quantize else "int8" if "int8" in quantize else None
    rank = keys.whole("lora_r", low=1)
    if rank is None and base is None:
        made.part("method", kind="full")
        return
    targets = [name for key, name in _LITGPT_TARGETS.items() if keys.switch(key)]
    if keys.switch("lora_mlp"):
        targets += list(_MLP)
    if keys.switch("lora_head"):
        made.note("lora_head", "true", "an adapter on the head is not counted")
    made.part(
        "method", kind="lora", base=base, rank=rank, alpha=keys.number("lora_alpha"),
        dropout=keys.number("lora_dropout"), targets=targets or None,
    )  # fmt: skip


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
        if recompute not in (None, False):
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
    """A repository with weights in 4 bits is named after the one that it was made from."""
    name = str(made.values.get("model", ""))
    plain = name.removesuffix("-bnb-4bit").removesuffix("-unsloth")
    if plain != name:
        made.values["model"] = plain
        made.note("model", plain, f"the model that {name} stores in 4 bits")


def _unsloth_method(keys: Keys, made: Imported) -> None:
    if keys.switch("full_finetuning"):
        made.part("method", kind="full")
        return
    four, eight = keys.switch("load_in_4bit"), keys.switch("load_in_8bit")
    if four is None and not eight and not keys.switch("load_in_16bit"):
        made.note("load_in_4bit", "true", "not in the file; Unsloth's default")
    stated = read_base(keys)
    default = "nf4" if four is None and not eight and not keys.switch("load_in_16bit") else "16bit"
    targets = keys.words("lora_target_modules")
    made.part(
        "method", kind="lora", base=stated if stated in {"nf4", "int8"} else default,
        rank=keys.whole("lora_r", low=1) or 16, alpha=keys.number("lora_alpha"),
        dropout=keys.number("lora_dropout"), targets=all_linear(targets),
    )  # fmt: skip

"""Whose file is it? Decided by the keys it holds, never by its name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.trainers.axolotl.read import Axolotl
from autotune.trainers.hf.spell import HfArguments, TrlArguments
from autotune.trainers.launch.config import ACCELERATE_KEYS, DEEPSPEED_KEYS
from autotune.trainers.llamafactory.read import LlamaFactory
from autotune.trainers.other_formats import LitGpt, Unsloth
from autotune.trainers.torchtune.read import Torchtune

if TYPE_CHECKING:
    from collections.abc import Mapping

    from autotune.trainers.dialect import Dialect

DIALECTS: dict[str, Dialect] = {
    dialect.name: dialect
    for dialect in (
        HfArguments(), TrlArguments(), Axolotl(), LlamaFactory(), Torchtune(), LitGpt(), Unsloth(),
    )
}  # fmt: skip

# Keys that no other of these formats has. Arguments of the Trainer alone decide nothing: three
# formats take them over.
_OWN: dict[str, set[str]] = {
    "axolotl": {
        "base_model", "micro_batch_size", "sequence_len", "adapter", "sample_packing", "datasets",
        "num_epochs", "val_set_size", "lora_target_linear", "pad_to_sequence_len",
        "dataset_prepared_path", "saves_per_epoch", "evals_per_epoch", "chat_template_jinja",
    },
    "llamafactory": {
        "finetuning_type", "cutoff_len", "stage", "template", "lora_rank", "lora_target",
        "quantization_bit", "dataset_dir", "flash_attn", "overwrite_cache", "pure_bf16",
        "disable_gradient_checkpointing", "neat_packing",
    },
}  # fmt: skip
_TRAINER = {
    "per_device_train_batch_size", "per_gpu_train_batch_size", "num_train_epochs", "output_dir",
    "model_name_or_path", "save_steps", "dataloader_num_workers", "optim", "bf16", "fp16",
    "gradient_checkpointing", "activation_checkpointing", "logging_steps", "warmup_ratio",
    "gradient_accumulation_steps", "learning_rate", "eval_strategy", "evaluation_strategy",
}  # fmt: skip
_TRL = {
    "max_length", "max_seq_length", "packing", "dataset_text_field", "padding_free", "use_peft",
    "model_init_kwargs", "assistant_only_loss", "dataset_num_proc", "packing_strategy",
}  # fmt: skip
_JOB = {"hardware", "limits", "lock", "allow", "evidence", "software", "method", "variants"}
_FEW = 2


def detect(values: Mapping[str, Any], name: str) -> Dialect | None:
    """The trainer whose file it is; None for a job file, or for what looks like neither.

    Raises InputError for a mixture, and for a config that states no training job.
    """
    found = set(values)
    mixed = _by_structure(values)
    if mixed is None:
        scores = {trainer: len(found & own) for trainer, own in _OWN.items()}
        most = max(scores, key=lambda trainer: scores[trainer])
        others = [trainer for trainer, score in scores.items() if score and trainer != most]
        if scores[most] and others:
            raise _mixture(found, most, others[0], name)
        if scores[most] >= _FEW or (scores[most] and found & _TRAINER):
            mixed = most
        elif len(found & _TRAINER) >= _FEW or "per_device_train_batch_size" in found:
            mixed = "trl" if found & _TRL else "hf"
    if mixed is None:
        _refuse_launcher(found, name)
        return None
    both = sorted(found & _JOB)
    if both:
        if mixed in {"hf", "trl"} and len(both) > 1:
            return None  # a job file with arguments that do not belong there
        title = DIALECTS[mixed].title
        msg = f"{name} mixes {title} with keys of a job file: {', '.join(both)}"
        raise InputError(
            msg, "keep the trainer's own keys, and give the rest as flags: --gpu, --set"
        )
    return DIALECTS[mixed]


def _by_structure(values: Mapping[str, Any]) -> str | None:
    model, train = values.get("model"), values.get("train")
    if isinstance(model, dict) and "_component_" in model:
        return "torchtune"
    if set(values) & _JOB:
        return None
    if "checkpoint_dir" in values or (
        isinstance(train, dict) and {"micro_batch_size", "max_seq_length"} & set(train)
    ):
        return "litgpt"
    return None


def _mixture(found: set[str], one: str, other: str, name: str) -> InputError:
    first, second = (", ".join(sorted(found & _OWN[trainer])[:4]) for trainer in (one, other))
    msg = (
        f"{name} mixes two formats: {first} belong to {DIALECTS[one].title}, {second} to "
        f"{DIALECTS[other].title}"
    )
    return InputError(msg, "keep the keys of one trainer")


def _refuse_launcher(found: set[str], name: str) -> None:
    for kind, keys in (("accelerate", ACCELERATE_KEYS), ("DeepSpeed", DEEPSPEED_KEYS)):
        if len(found & keys) >= (1 if kind == "DeepSpeed" else _FEW):
            msg = f"{name} is a config of {kind}: it says how a job is started, not what is trained"
            raise InputError(msg, "name the trainer's file, and give this one with --beside FILE")

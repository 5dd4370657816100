"""Every trainer by its name, and whose file a mapping is: by the keys it holds, not by its name."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.trainers.axolotl.trainer import Axolotl
from autotune.trainers.contract import JOB_KEYS
from autotune.trainers.hf.hf import HuggingFace
from autotune.trainers.hf.read import MAX_LENGTH
from autotune.trainers.hf.trl import Trl
from autotune.trainers.launch.config import ACCELERATE_KEYS, DEEPSPEED_KEYS
from autotune.trainers.litgpt import LitGpt
from autotune.trainers.llamafactory.trainer import LlamaFactory
from autotune.trainers.schema import schema_of
from autotune.trainers.swift import Swift
from autotune.trainers.torchtune import Torchtune
from autotune.trainers.unsloth import Unsloth

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from autotune.trainers.contract import Trainer

TRAINERS: dict[str, Trainer] = {
    trainer.name: trainer
    for trainer in (
        HuggingFace(), Trl(), Axolotl(), LlamaFactory(), Torchtune(), LitGpt(), Unsloth(),
        Swift(),
    )
}  # fmt: skip
FORMATS = {name: trainer for name, trainer in TRAINERS.items() if trainer.file}

# Arguments of the Trainer alone decide nothing: three formats take them over.
_TRAINER = {
    "per_device_train_batch_size", "per_gpu_train_batch_size", "num_train_epochs", "output_dir",
    "model_name_or_path", "save_steps", "dataloader_num_workers", "optim", "bf16", "fp16",
    "gradient_checkpointing", "activation_checkpointing", "logging_steps", "warmup_ratio",
    "gradient_accumulation_steps", "learning_rate", "eval_strategy", "evaluation_strategy",
}  # fmt: skip
_TRL = {
    "max_length", "max_seq_length", "packing", "dataset_text_field", "padding_free", "use_peft",
    "model_init_kwargs", "assistant_only_loss", "dataset_num_proc", "packing_strategy",
    "completion_only_loss", "precompute_ref_log_probs",
}  # fmt: skip
# Words that many programs of people's own have as well.
_SHARED = {"base_model", "dataset_dir", "overwrite_cache"}
_STARTS = {"deepspeed_config", "fsdp_config", "num_processes", "mixed_precision"}
_FEW, _BATCH = 2, "per_device_train_batch_size"
# Trainers whose settings stand in a file, and the programs that take them as flags as well: the
# same words before another program are that program's own.
_FACTORYS = {"stage", "finetuning_type"}
_OTHERS = re.compile(r"\b(openrlhf|megatron|nemo|verl)\b")
_STARTED_BY = {
    "axolotl": re.compile(r"axolotl"),
    "llamafactory": re.compile(
        r"llama\W?factory|(^|/)train_(bash|sft|pt)\b|src/train(_\w+)?\.py|launcher"
    ),
    "litgpt": re.compile(r"lit[-_]?gpt|(finetune|pretrain)/\w+\.py"),
    "torchtune": re.compile(r"\btune$|torchtune"),
    "swift": re.compile(r"swift|\b(llm_)?(sft|rlhf|dpo|pt)\b"),
}
# What a section of a program's own file holds; no trainer here has such sections.
_SETTINGS = frozenset({
    "r", "rank", "lora_r", "lora_rank", "alpha", "lora_alpha", "target_modules", "batch_size",
    "learning_rate", "lr", "epochs", "num_epochs", "num_train_epochs",
    "per_device_train_batch_size", "gradient_accumulation_steps",
})  # fmt: skip


def detect(values: Mapping[str, Any], name: str, program: Sequence[str] = ()) -> Trainer | None:
    """The trainer whose file it is; None for a job file, or for what looks like neither.

    Args:
        values: the file's mapping, or a command's flags.
        name: what an error calls it.
        program: words of the command in front of its flags.

    Raises InputError for a mixture, and for a config that states no training job.
    """
    found = set(values)
    if _is_deepspeed(values):
        _refuse_launcher(found | {"zero_optimization"}, name)
    own = {each.program: each.name for each in TRAINERS.values() if each.program}
    started = (own.get(word.rpartition("/")[2]) for word in program)
    told = "llamafactory" if found & _FACTORYS else ""  # by whatever program of people's own
    able = [
        each for each in TRAINERS.values()
        if each.name == told or _may_start(each.name, program)
    ]  # fmt: skip
    # The Trainer's is known by a word of a program's, others by how their file is built.
    built = sorted(able, key=lambda each: each.name == "hf")
    whole = (each.name for each in built if each.is_file(values))
    whose = next((trainer for trainer in (*started, *whole) if trainer), None)
    whose = whose or _by_keys(found, able, name)
    if whose is None or (not program and _has_own_sections(values, whose)):
        if not program:
            _refuse_launcher(found, name)
        return None
    both = [] if program else sorted(found & JOB_KEYS)  # of a command they are its program's flags
    if both:
        if whose in {"hf", "trl"} and len(both) > 1:
            return None  # a job file with arguments that do not belong there
        title = TRAINERS[whose].title
        msg = f"{name} mixes {title} with keys of a job file: {', '.join(both)}"
        raise InputError(
            msg, "keep the trainer's own keys, and give the rest as flags: --gpu, --set"
        )
    return TRAINERS[whose]


def _by_keys(found: set[str], able: Sequence[Trainer], name: str) -> str | None:
    """The trainer that most of the keys belong to; None where too few of them say so."""
    scores = {each.name: len(found & each.own_keys - _SHARED) for each in able}
    if not scores:
        return None
    most = max(scores, key=lambda trainer: scores[trainer])
    others = [trainer for trainer, score in scores.items() if score and trainer != most]
    if scores[most] and others:
        _refuse_mixture(found, most, others, name)
    own = len(found & TRAINERS[most].own_keys) if scores[most] else 0
    batched = _BATCH in found and _BATCH not in schema_of(most).keys  # its own has another name
    # One key of its own says little of a program that cuts rows by a key it does not have.
    foreign = (found & set(MAX_LENGTH)) - set(schema_of(most).keys)
    if (
        most == "axolotl" and batched and "base_model" not in found
    ):  # two words of it, in another's file
        return "trl" if found & _TRL else "hf"
    if own >= _FEW or (own and found & _TRAINER and not batched and not foreign):
        return most
    if len(found & _TRAINER) >= _FEW or _BATCH in found:
        return "trl" if found & _TRL else "hf"
    return None


def _may_start(trainer: str, program: Sequence[str]) -> bool:
    """Whether flags behind these words may be the trainer's; of a file without a command, yes."""
    if any(_OTHERS.search(word) for word in program):
        return False
    own = _STARTED_BY.get(trainer)
    return own is None or not program or any(own.search(word) for word in program)


def has_settings(values: Mapping[str, Any]) -> bool:
    """Whether sections of a file hold what a training is set up with."""
    return any(
        isinstance(section, dict) and _SETTINGS & set(section) for section in values.values()
    )


def _has_own_sections(values: Mapping[str, Any], trainer: str) -> bool:
    """Whether settings stand in sections that the trainer does not have: a program's own file.

    What stands beside the section as well was not put there.
    """
    schema = schema_of(trainer)
    newer = trainer == "llamafactory" and TRAINERS[trainer].is_file(values)  # its v1 has sections
    return (
        trainer not in {"hf", "trl"}
        and not newer
        and any(
            isinstance(section, dict)
            and _SETTINGS & set(section) - set(values)
            and schema.find(key) is None
            for key, section in values.items()
        )
    )


def _is_deepspeed(values: Mapping[str, Any]) -> bool:
    """Whether precision and optimizer are mappings, as in a config of DeepSpeed alone."""
    enabled = any(
        isinstance(each := values.get(key), dict) and "enabled" in each
        for key in ("bf16", "fp16", "bfloat16", "amp")
    )
    return enabled and not {"model_name_or_path", "base_model", "datasets"} & set(values)


def _refuse_mixture(found: set[str], one: str, others: list[str], name: str) -> None:
    """Raise InputError for keys of another trainer that this one does not have as well."""
    has = schema_of(one).keys
    first = ", ".join(sorted(found & TRAINERS[one].own_keys)[:4])
    for other in others:
        strange = sorted(key for key in found & TRAINERS[other].own_keys if key not in has)
        if strange:
            msg = (
                f"{name} mixes two formats: {first} belong to {TRAINERS[one].title}, "
                f"{', '.join(strange[:4])} to {TRAINERS[other].title}"
            )
            hint = (
                "keep the keys of one trainer; a program's own flags are read as TrainingArguments "
                "has them: --model_name_or_path, --per_device_train_batch_size, --num_train_epochs"
            )
            raise InputError(msg, hint)


def _refuse_launcher(found: set[str], name: str) -> None:
    for kind, keys in (("accelerate", ACCELERATE_KEYS), ("DeepSpeed", DEEPSPEED_KEYS)):
        plain = kind == "accelerate" and "distributed_type" in found and bool(found & _STARTS)
        if plain or len(found & keys) >= (1 if kind == "DeepSpeed" else _FEW):
            msg = f"{name} is a config of {kind}: it says how a job is started, not what is trained"
            raise InputError(msg, "name the trainer's file, and give this one with --beside FILE")

"""transformers.TrainingArguments for a plan, in the spelling of the version that will run.

Covered: everything a knob or the job decides. Left to the trainer: seed, learning-rate schedule,
weight decay, clipping. `learning_rate` is written at the trainer's own default, so that it can be
seen and changed.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.domain.config import UNSET, fsdp_settings
from autotune.trainers.hf.keys import WORDS
from autotune.trainers.hf.precision import precision_arguments
from autotune.trainers.versions import (
    ACTIVATION_CHECKPOINTING,
    FSDP_BOOL,
    JIT_CHECKPOINT,
)
from autotune.trainers.words import newest, say

if TYPE_CHECKING:
    from autotune.trainers.contract import Plan

LOG_EVERY_STEPS = 10


def training_arguments(plan: Plan, learning_rate: float) -> dict[str, object]:
    """Every argument by its exact name; `learning_rate` is the trainer's default."""
    found = {
        "output_dir": plan.out_dir,
        **_batch(plan),
        **_length_of_run(plan),
        "learning_rate": learning_rate,
        **_said(plan, "optimizer"),
        **precision_arguments(plan),
        **_memory_for_time(plan),
        **_compile(plan),
        **_loading(plan),
        **_saving(plan),
        **_evaluation(plan),
        **_devices(plan),
        "logging_strategy": "steps",
        "logging_steps": LOG_EVERY_STEPS,
        "report_to": "none",
        **plan.config.arguments,
    }
    return {name: value for name, value in found.items() if value != UNSET}


def counts_by_epochs(plan: Plan) -> bool:
    """Whether epochs alone give the job's steps, as the Trainer counts them.

    The Trainer takes ceil(epochs x ceil(rows / global batch)) steps; a job stated in steps has
    another count. Source: transformers 5.23 Trainer.set_initial_training_values.
    """
    if plan.config.packing == "on":
        return True
    steps_per_epoch = math.ceil(plan.job.rows / plan.job.global_batch_size)
    return plan.job.steps == math.ceil(plan.job.epochs * steps_per_epoch)


def _said(plan: Plan, *knobs: str) -> dict[str, object]:
    """Knobs as the plan has them, by the word of its version."""
    found: dict[str, object] = {}
    for knob in knobs:
        found |= say(knob, getattr(plan.config, knob), WORDS, plan.transformers)
    return found


def _batch(plan: Plan) -> dict[str, object]:
    return {
        **_said(plan, "micro_batch_size", "gradient_accumulation_steps"),
        "average_tokens_across_devices": True,
    }


def _length_of_run(plan: Plan) -> dict[str, object]:
    arguments: dict[str, object] = {"num_train_epochs": plan.job.epochs}
    if plan.trains and not counts_by_epochs(plan):
        arguments["max_steps"] = plan.job.steps
    return arguments


def _memory_for_time(plan: Plan) -> dict[str, object]:
    """Activation checkpointing; under FSDP its own setting does it, without an extra all-gather."""
    config, is_lora = plan.config, plan.job.method.is_lora
    new = plan.transformers >= ACTIVATION_CHECKPOINTING
    name = newest(WORDS["activation_checkpointing"], plan.transformers).key
    wanted = config.activation_checkpointing == "full" and config.sharding != "fsdp"
    arguments: dict[str, object] = {name: wanted}
    if wanted:
        # ZeRO-3 with adapters works only with the reentrant kind (trl issue 2514)
        how: dict[str, object] = {"use_reentrant": is_lora and config.sharding == "zero3"}
        if config.offload == "activations" and new:
            how["offload"] = True
        arguments[f"{name}_kwargs"] = how
    if "liger" in {plan.config.kernels, plan.job.software.kernels}:
        arguments |= say("kernels", "liger", WORDS, plan.transformers)
    return arguments


def _compile(plan: Plan) -> dict[str, object]:
    """Mode and backend switch compilation on by themselves, so they are absent when it is off."""
    if plan.config.compile == "off":
        return {"torch_compile": False}
    return {"torch_compile": True, "torch_compile_mode": plan.config.compile}


def _loading(plan: Plan) -> dict[str, object]:
    config = plan.config
    arguments: dict[str, object] = {
        **_said(plan, "num_dataloader_workers"),
        "dataloader_pin_memory": config.pin_memory and not plan.on_cpu,
    }
    if config.num_dataloader_workers > 0:
        arguments |= _said(plan, "prefetch_factor")
        arguments["dataloader_persistent_workers"] = True
    if config.length_grouping == "on":
        arguments |= _said(plan, "length_grouping")
    return arguments


def _saving(plan: Plan) -> dict[str, object]:
    arguments: dict[str, object] = {
        "save_strategy": "steps",
        **_said(plan, "checkpoint_every_steps", "save_total_limit"),
    }
    if plan.job.software.saves_model_only:
        arguments["save_only_model"] = True
    if plan.offer.spot and plan.transformers >= JIT_CHECKPOINT:
        arguments["enable_jit_checkpoint"] = True
    return arguments


def _evaluation(plan: Plan) -> dict[str, object]:
    evaluation = plan.job.evaluation
    if evaluation is None:
        return {"eval_strategy": "no"}
    arguments: dict[str, object] = {
        "eval_strategy": "steps" if plan.trains and evaluation.every_steps > 0 else "no",
        "per_device_eval_batch_size": evaluation.rows_at_once(plan.config.micro_batch_size),
        "prediction_loss_only": True,  # otherwise every logit of the set is kept
    }
    if arguments["eval_strategy"] == "steps":
        arguments["eval_steps"] = evaluation.every_steps
    if plan.trains and evaluation.at_start:
        arguments["eval_on_start"] = True
    return arguments


def _devices(plan: Plan) -> dict[str, object]:
    arguments: dict[str, object] = {}
    if plan.on_cpu:
        arguments["use_cpu"] = True
    if plan.config.sharding == "ddp":
        arguments["ddp_find_unused_parameters"] = False
    if plan.config.sharding == "fsdp" and plan.transformers >= FSDP_BOOL:
        arguments["fsdp"] = True
        away = {"cpu_offload": True} if plan.config.offload == "all" else {}
        fsdp = fsdp_settings(plan.config, quantised=plan.quantized)
        arguments["fsdp_config"] = {**fsdp, **away}
    return arguments

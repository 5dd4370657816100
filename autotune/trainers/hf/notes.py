"""What the formats of the Hugging Face family cannot express, said in words."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from autotune.cost.memory.experts import quantised_elements
from autotune.domain.answer.recommendation import Decisive
from autotune.domain.config import ZERO_STAGE
from autotune.domain.units import format_bytes
from autotune.trainers.hf.adapter import CASTS_SAVED
from autotune.trainers.hf.arguments import counts_by_epochs
from autotune.trainers.hf.precision import is_pure_16bit
from autotune.trainers.versions import (
    FSDP_BOOL,
    JIT_CHECKPOINT,
    newer_note,
    show,
)

if TYPE_CHECKING:
    from autotune.trainers.contract import Plan


def shared_notes(plan: Plan, learning_rate: float) -> list[str]:
    """Notes that hold for Trainer and for SFTTrainer."""
    notes = [
        (
            f"learning_rate {learning_rate:g} is only the trainer's default: learning rate, warm-up"
            " and schedule are yours to choose"
        ),
        *newer_note("transformers", plan.transformers),
    ]
    notes += [*_experts_notes(plan), *_run_notes(plan)]
    notes += _precision_notes(plan)
    notes += _sharding_notes(plan)
    notes += _evaluation_notes(plan)
    return notes


def trainer_notes(plan: Plan, trainer: str, *, evaluates: bool, pads: bool) -> list[str]:
    """What another trainer's own file leaves to the user, and what of the job it does not say."""
    job = plan.job
    notes = ["learning rate, schedule and the format of the data are yours to add"]
    notes += newer_note("transformers", plan.transformers)
    if not job.dataset_path:
        notes.append("the job names no data file: name yours in the file")
    if plan.tokenizer is not None:
        notes.append(f"rows were counted with {plan.tokenizer}: {trainer} takes the model's own")
    if job.padding == "max_length" and not pads:
        notes.append(f"{trainer} pads to the longest row of a batch, not to {job.max_length}")
    if job.held_out:
        notes.append(f"{job.held_out} rows of the data are held out: the file trains on all of it")
    if job.evaluation is not None and not evaluates:
        when = f"every {job.evaluation.every_steps} steps" if job.evaluation.every_steps else "once"
        notes.append(f"evaluation ({when}, {job.evaluation.rows} rows) is not in the file: add it")
    if plan.offer.count > 1 and plan.config.sharding in ZERO_STAGE:
        notes.append("DeepSpeed must be installed; it keeps fp32 masters of 16-bit trained weights")
    if job.software.kernels == "unsloth" and trainer != "unsloth":
        notes.append("Unsloth's kernels are not in this format: expect a slower run, more memory")
    experts = [] if trainer == "axolotl" else _experts_notes(plan)
    return [*experts, *notes, *_saved_notes(plan, trainer)]


def _experts_notes(plan: Plan) -> list[str]:
    """That the format quantises no experts, where the plan rests on it."""
    if not quantised_elements(plan.job):
        return []
    size = format_bytes(2.0 * quantised_elements(plan.job))
    return [Decisive(f"Here the experts stay in 16 bit ({size}): --export axolotl quantises them")]


def _saved_notes(plan: Plan, trainer: str) -> list[str]:
    """In which dtype another trainer trains whole modules, where the plan has them in another."""
    method, as_loaded = plan.job.method, plan.job.software.saves_as_loaded
    casts = trainer in CASTS_SAVED
    narrow = plan.config.adapter_dtype == "bf16" or method.base == "32bit"
    if not method.modules_to_save or narrow or casts == (not as_loaded):
        return []
    whole = ", ".join(method.modules_to_save)
    if casts:
        return [f"{trainer} trains {whole} in fp32: expect more memory than is counted"]
    return [f"{trainer} trains {whole} in the dtype they are loaded in: expect less memory"]


def _run_notes(plan: Plan) -> list[str]:
    job, notes = plan.job, []
    if job.held_out:
        notes.append(f"{job.held_out} rows were held out: DATA is to be the other {job.rows}")
    if not job.dataset_path:
        notes.append("the job names no data file: set DATA when you start run.sh")
    if plan.from_scratch:
        notes.append(
            "the model's folder holds no weights: until it does, training begins from random ones"
        )
    if plan.trains and not counts_by_epochs(plan):
        steps = math.ceil(job.epochs * math.ceil(job.rows / job.global_batch_size))
        notes.append(
            f"max_steps {job.steps} ends the run: epochs alone would give {steps} steps",
        )
    if plan.offer.spot and plan.transformers < JIT_CHECKPOINT:
        notes.append(
            f"transformers {show(plan.transformers)} cannot save when the machine is taken away;"
            f" {show(JIT_CHECKPOINT)} can",
        )
    if job.software.kernels == "unsloth":
        notes.append("Unsloth's kernels are not in this format: expect a slower run, more memory")
    if plan.config.compile != "off" and plan.config.length_grouping == "on":
        notes.append("torch.compile meets a new length in every batch and may compile again")
    return notes


def _precision_notes(plan: Plan) -> list[str]:
    config, notes = plan.config, []
    if plan.on_cpu and config.precision == "tf32":
        notes.append("tf32 does not exist on a CPU: exported as fp32")
    if plan.on_cpu and config.precision == "fp16":
        notes.append(
            Decisive("accelerate refuses fp16 mixed precision on a CPU: choose bf16 or fp32")
        )
    if config.precision == "fp16" and plan.job.method.is_lora and config.adapter_dtype == "bf16":
        notes.append("adapters are kept in fp32: fp16's gradient scaler refuses bf16 gradients")
    if config.precision == "fp8":
        notes.append(
            "precision fp8: accelerate.yaml turns it on, with torchao, so start with run.sh; bf16"
            " is false because it would turn it off"
        )
    if is_pure_16bit(plan):
        notes.append(
            "bf16 is false on purpose: the weights are loaded in bfloat16, and with mixed precision"
            " on, accelerate's FSDP2 would turn trained weights into fp32",
        )
    return notes


def _sharding_notes(plan: Plan) -> list[str]:
    sharding, notes = plan.config.sharding, []
    if sharding == "fsdp" and plan.transformers < FSDP_BOOL:
        notes.append(
            f"transformers {show(plan.transformers)} has no FSDP2 arguments of its own:"
            " accelerate.yaml carries them, so start with run.sh",
        )
    if sharding == "fsdp" and plan.job.method.base == "int8":
        notes.append(Decisive("FSDP with an int8 base is known to fail (peft issue 2833)"))
    if sharding in ZERO_STAGE:
        notes.append("DeepSpeed must be installed; it keeps fp32 masters of 16-bit trained weights")
    if sharding == "zero3" and plan.quantized:
        notes.append(
            "ZeRO-3 over a 4-bit base needs bitsandbytes 0.43.3, accelerate 1.0.1, peft 0.13.1 and "
            "transformers 4.45 or later"
        )
    return notes


def _evaluation_notes(plan: Plan) -> list[str]:
    evaluation = plan.job.evaluation
    if evaluation is None:
        return []
    rows = f"its first {evaluation.rows} rows are used"
    without = "without it nothing is evaluated" if plan.trains else "nothing else is done"
    notes = [f"set EVAL_DATA when you start run.sh: {rows}; {without}"]
    if evaluation.generate_tokens > 0:
        notes.append(
            f"generating {evaluation.generate_tokens} tokens a row is not part of this trainer's"
            " evaluation: the script reports the loss only",
        )
    return notes

"""litgpt's YAML written from nothing. It counts the total batch and shards by itself.

Source: litgpt 0.5.13, args.py, finetune/lora.py, finetune/full.py, data/json_data.py. Not covered:
adapters on less than the whole MLP, a quantised base on several GPUs, evaluation-only runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.trainers.contract import Export
from autotune.trainers.hf.notes import trainer_notes
from autotune.trainers.launch.run_script import trainer_sh
from autotune.trainers.litgpt.read import MLP, SWITCHES
from autotune.trainers.yaml_file import as_yaml, length_of_run, plain, with_knobs

if TYPE_CHECKING:
    from autotune.domain.job import Job
    from autotune.trainers.contract import Plan, Trainer

_TRUE = {"bf16": "bf16-true", "fp16": "16-true", "fp32": "32-true", "tf32": "32-true"}
_MIXED = {"bf16": "bf16-mixed", "fp16": "16-mixed", "fp32": "32-true", "tf32": "32-true"}
_QUANTIZE = {"nf4": "bnb.nf4-dq", "int8": "bnb.int8-training"}


def write_file(plan: Plan, trainer: Trainer) -> Export:
    """The YAML and run.sh, and what the YAML cannot say."""
    if plan.quantized and plan.offer.count > 1:
        msg = f"litgpt has no {plan.job.method.base} base on several GPUs"
        raise InputError(msg, "export another format, or take one device")
    if plan.config.precision == "fp8":
        msg = "litgpt's recipes cannot say precision fp8"
        raise InputError(msg, "export hf or trl, or take bf16")
    done = {"precision": plan.config.precision, "attention": "sdpa"}
    if plan.offer.count > 1:  # its strategy shards whatever it is told
        done["sharding"] = "fsdp"
    beside = {"sharding"} if plan.config.sharding == "none" else set[str]()
    values, notes = with_knobs(_contract(plan), plan, trainer, done, beside)
    files = {
        trainer.file: as_yaml(values),
        "run.sh": trainer_sh(plan, trainer.commands(plan, trainer.file), [trainer.file]),
    }
    return Export(files, (*notes, *_notes(plan)))


def refuse_method(job: Job) -> None:
    """Raise InputError for adapters that the format has no words for."""
    if job.method.variant != "none":
        msg = f"litgpt has no {job.method.variant}"
        raise InputError(msg, "export hf or trl: the method is the job's")
    wanted = set(job.method.targets)
    mlp = wanted & set(MLP)
    unknown = sorted(wanted - set(MLP) - set(SWITCHES.values()))
    if unknown or (mlp and mlp != set(MLP)):
        named = ", ".join(unknown or sorted(mlp))
        msg = f"litgpt cannot put adapters on {named} alone: it has one switch for the whole MLP"
        raise InputError(msg, "export another format: the targets are part of the job")


def _contract(plan: Plan) -> dict[str, Any]:
    job, method = plan.job, plan.job.method
    precise = _MIXED if method.base == "32bit" else _TRUE
    values: dict[str, Any] = {
        "checkpoint_dir": plan.model, "out_dir": plan.out_dir,
        "precision": precise[plan.config.precision], "devices": plan.offer.count,
    }  # fmt: skip
    if plan.quantized:
        values["quantize"] = _QUANTIZE[method.base]
    if method.is_lora:
        values |= {
            "lora_r": method.rank, "lora_alpha": plain(method.alpha),
            "lora_dropout": method.dropout,
            **{switch: name in method.targets for switch, name in SWITCHES.items()},
            "lora_mlp": set(method.targets) >= set(MLP), "lora_head": False,
        }  # fmt: skip
    run = {key: plain(value) for key, value in length_of_run(plan, "epochs").items()}
    return {
        **values,
        "data": {
            "class_path": "litgpt.data.JSON",
            "init_args": {
                "json_path": job.dataset_path or "path/to/rows.json",
                "val_split_fraction": 0.0,
                "num_workers": plan.config.num_dataloader_workers,
            },
        },
        "train": {
            "global_batch_size": job.global_batch_size,
            "micro_batch_size": plan.config.micro_batch_size,
            "max_seq_length": job.max_length, **run,
        },
    }  # fmt: skip


def _notes(plan: Plan) -> list[str]:
    job, notes = plan.job, trainer_notes(plan, "litgpt", evaluates=False, pads=False)
    if plan.config.precision in {"fp32", "tf32"}:
        notes.append("litgpt's 32-true multiplies in tf32 where the device has it")
    if job.epochs != int(job.epochs) and "epochs" in length_of_run(plan, "epochs"):
        notes.append(f"litgpt counts whole epochs: {job.epochs:g} has to be rounded")
    if plan.may_be_interrupted:
        notes.append("litgpt's LoRA recipe cannot go on from a checkpoint")
    notes.append("litgpt reads rows with instruction and output; see its tutorials for other data")
    return notes

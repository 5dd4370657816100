"""litgpt's YAML written from nothing. It counts the total batch and shards by itself.

Source: litgpt 0.5.13, args.py, finetune/lora.py, finetune/full.py, data/json_data.py. Not covered:
adapters on less than the whole MLP, a quantised base on several GPUs, evaluation-only runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.trainers.format import Export
from autotune.trainers.hf.notes import trainer_notes
from autotune.trainers.launch.run_script import trainer_sh
from autotune.trainers.own_yaml import as_yaml, length_of_run, plain, with_knobs
from autotune.trainers.versions import check_known

if TYPE_CHECKING:
    from autotune.domain.job import Job
    from autotune.trainers.format import Plan
    from autotune.trainers.versions import Version

_SWITCHES = {
    "q_proj": "lora_query", "k_proj": "lora_key", "v_proj": "lora_value",
    "o_proj": "lora_projection",
}  # fmt: skip
_MLP = {"gate_proj", "up_proj", "down_proj"}
_TRUE = {"bf16": "bf16-true", "fp16": "16-true", "fp32": "32-true", "tf32": "32-true"}
_MIXED = {"bf16": "bf16-mixed", "fp16": "16-mixed", "fp32": "32-true", "tf32": "32-true"}
_QUANTIZE = {"nf4": "bnb.nf4-dq", "int8": "bnb.int8-training"}


class LitGptFile:
    """litgpt.yaml and the command that starts it; a version after @ is litgpt's."""

    name = "litgpt"

    def plan_versions(self, job: Job, version: Version | None) -> tuple[Version, Version | None]:
        """The profile's, which litgpt does not use: it has model code of its own."""
        if version:
            check_known(self.name, version)
        _refuse(job)
        return job.software.transformers, job.software.trl

    def write(self, plan: Plan) -> Export:
        """The YAML and run.sh, and what the YAML cannot say."""
        if plan.quantized and plan.offer.count > 1:
            msg = f"litgpt has no {plan.job.method.base} base on several GPUs"
            raise InputError(msg, "export another format, or take one device")
        if plan.config.precision == "fp8":
            msg = "litgpt's recipes cannot say precision fp8"
            raise InputError(msg, "export hf, trl, axolotl or llamafactory, or take bf16")
        done = {"precision": plan.config.precision, "attention": "sdpa"}
        if plan.offer.count > 1:  # its strategy shards whatever it is told
            done["sharding"] = "fsdp"
        values, notes = with_knobs(_contract(plan), plan, self.name, done)
        lora = plan.job.method.is_lora
        command = f"litgpt finetune_{'lora' if lora else 'full'} --config litgpt.yaml"
        files = {
            "litgpt.yaml": as_yaml(values),
            "run.sh": trainer_sh(plan, [command], ["litgpt.yaml"]),
        }
        return Export(files, (*notes, *_notes(plan)))


def _refuse(job: Job) -> None:
    """Raise InputError for a contract that the format has no words for."""
    if job.steps == 0:
        msg = "litgpt has no run that only evaluates"
        raise InputError(msg, "export hf or trl")
    if job.method.variant != "none":
        msg = f"litgpt has no {job.method.variant}"
        raise InputError(msg, "export hf, trl, axolotl or llamafactory: the method is the job's")
    wanted = set(job.method.targets)
    mlp = wanted & _MLP
    unknown = sorted(wanted - _MLP - set(_SWITCHES))
    if unknown or (mlp and mlp != _MLP):
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
            **{switch: name in method.targets for name, switch in _SWITCHES.items()},
            "lora_mlp": set(method.targets) >= _MLP, "lora_head": False,
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
    if plan.offer.spot or job.limits.max_session_s is not None:
        notes.append("litgpt's LoRA recipe cannot go on from a checkpoint")
    notes.append("litgpt reads rows with instruction and output; see its tutorials for other data")
    return notes

"""A script with Unsloth's calls, every argument written out so that it can be read and changed.

Source: unsloth 2026.10.9, models/loader.py and models/llama.py. It runs on one device; its kernels
replace the attention, the recomputing and the compiling that are knobs elsewhere.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from autotune.domain.errors import InputError
from autotune.trainers.contract import Export
from autotune.trainers.hf.adapter import variant_keys
from autotune.trainers.hf.arguments import training_arguments
from autotune.trainers.hf.notes import trainer_notes
from autotune.trainers.hf.precision import weights_dtype
from autotune.trainers.hf.trl import LEARNING_RATE
from autotune.trainers.launch.run_script import trainer_sh
from autotune.trainers.versions import show
from autotune.trainers.yaml_file import plain

if TYPE_CHECKING:
    from autotune.trainers.contract import Plan, Trainer
    from autotune.trainers.versions import Version

RUNS: tuple[Version, Version] = ((5, 17, 0), (1, 15, 0))  # newest transformers, trl allowed
_OWN = (  # arguments of what Unsloth does by itself
    "torch_compile", "torch_compile_mode", "gradient_checkpointing", "activation_checkpointing",
    "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs", "use_liger_kernel",
)  # fmt: skip
_SCRIPT = '''"""Fine-tune with Unsloth. Start it with run.sh."""

from unsloth import FastLanguageModel  # before trl and transformers, which it changes
from datasets import load_dataset
from trl import SFTConfig, SFTTrainer

model, tokenizer = FastLanguageModel.from_pretrained({load})
{adapters}trainer = SFTTrainer(
    model=model,
    processing_class=tokenizer,
    train_dataset=load_dataset("json", data_files={data}, split="train"),
    args=SFTConfig({arguments}),
)
trainer.train({resume})
trainer.save_model({output})
'''


def write_file(plan: Plan, trainer: Trainer) -> Export:
    """The script and run.sh, and what Unsloth does otherwise."""
    if plan.offer.count > 1 or plan.on_cpu:
        msg = f"Unsloth's calls run on one GPU, and the pick is {plan.offer.label}"
        raise InputError(msg, "export trl, or tune with one GPU")
    if plan.config.precision == "fp8":
        msg = "Unsloth's calls cannot say precision fp8"
        raise InputError(msg, "export hf or trl, or take bf16")
    arguments = {
        key: value
        for key, value in training_arguments(plan, LEARNING_RATE).items()
        if key not in _OWN
    }
    arguments |= {
        "max_length": plan.job.max_length, "packing": plan.config.packing == "on",
        "dataset_text_field": "text",
    }  # fmt: skip
    if plan.job.padding == "max_length" and plan.config.packing == "off":
        arguments["pad_to_multiple_of"] = plan.job.max_length
    script = _SCRIPT.format(
        load=_call(_load(plan), ""), adapters=_adapters(plan),
        data=json.dumps(plan.job.dataset_path or "path/to/rows.jsonl"),
        arguments=_call(arguments, "    "), output=json.dumps(f"{plan.out_dir}/final"),
        resume=_resume(plan) if plan.may_be_interrupted else "",
    )  # fmt: skip
    files = {
        trainer.file: script,
        "run.sh": trainer_sh(plan, trainer.commands(plan, trainer.file), [trainer.file]),
    }
    return Export(files, tuple(_notes(plan)))


def _resume(plan: Plan) -> str:
    """True is refused where there is no checkpoint yet."""
    found = f'any(__import__("pathlib").Path({json.dumps(plan.out_dir)}).glob("checkpoint-*"))'
    return f"resume_from_checkpoint={found}"


def _load(plan: Plan) -> dict[str, Any]:
    method = plan.job.method
    return {
        "model_name": plan.model, "max_seq_length": plan.job.max_length,
        "dtype": weights_dtype(plan), "load_in_4bit": method.base == "nf4",
        "load_in_8bit": method.base == "int8", "full_finetuning": method.kind == "full",
    }  # fmt: skip


def _adapters(plan: Plan) -> str:
    method = plan.job.method
    recompute = plan.config.activation_checkpointing == "full"
    if not method.is_lora:
        return ""
    arguments = {
        "r": method.rank, "lora_alpha": plain(method.alpha), "lora_dropout": method.dropout,
        "target_modules": list(method.targets), "use_gradient_checkpointing": recompute,
        **variant_keys(method),
    }  # fmt: skip
    return f"model = FastLanguageModel.get_peft_model(\n    model,{_call(arguments, '')})\n"


def _call(arguments: dict[str, Any], indent: str) -> str:
    """Keyword arguments, one a line."""
    rows = "".join(f"{indent}    {key}={_source(value)},\n" for key, value in arguments.items())
    return f"\n{rows}{indent}"


def _source(value: object) -> str:
    return json.dumps(value) if isinstance(value, str | list) else repr(value)


def _notes(plan: Plan) -> list[str]:
    config, notes = plan.config, trainer_notes(plan, "unsloth", evaluates=True, pads=True)
    notes.append(f"the spelling is that of transformers {show(RUNS[0])}")
    notes += [
        f"Unsloth's calls cannot say {knob} {value}: it has its own way"
        for knob, value, default in (
            ("attention", config.attention, "sdpa"), ("compile", config.compile, "off"),
            ("adapter_dtype", config.adapter_dtype, "fp32"), ("kernels", config.kernels, "none"),
            ("offload", config.offload, "none"),
        )
        if value != default
    ]  # fmt: skip
    if plan.job.software.kernels != "unsloth":
        notes.append("the plan was made without Unsloth's kernels: expect less time and memory")
    if plan.job.evaluation is not None:
        notes.append("the script evaluates nothing until you add eval_dataset")
    return notes

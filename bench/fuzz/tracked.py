"""Runs as their loggers leave them, small: W&B, MLflow, torchtune and an executed notebook."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

ARGUMENTS: dict[str, Any] = {
    "per_device_train_batch_size": 1, "gradient_accumulation_steps": 8, "num_train_epochs": 1,
    "max_steps": -1, "bf16": True, "gradient_checkpointing": True, "optim": "adamw_torch",
    "save_strategy": "no", "eval_strategy": "no", "dataloader_num_workers": 0, "deepspeed": None,
    "fsdp": ["full_shard", "auto_wrap"], "learning_rate": 1e-5, "group_by_length": False,
    "model_type": "llama", "_name_or_path": "meta-llama/Llama-3.1-8B", "hidden_size": 4096,
    "torch_dtype": "bfloat16", "transformers_version": "4.44.2",
    "_attn_implementation": "flash_attention_2",
}  # fmt: skip
STEPS, ROWS, STEP_S, LENGTH = 1000, 16, 6.0, 2048
RESULTS = {
    "train_runtime": STEP_S * STEPS, "train_samples_per_second": ROWS / STEP_S,
    "train_steps_per_second": 1 / STEP_S, "global_step": STEPS,
    "total_flos": 6 * 3.75e9 * ROWS * STEPS * LENGTH,
}  # fmt: skip


def write_wandb(folder: Path) -> None:
    """A finished run's folder."""
    files = folder / "run-20250123_033254-abcdefgh" / "files"
    files.mkdir(parents=True)
    summary = {f"train/{name}": value for name, value in RESULTS.items()}
    cards = [{"name": "NVIDIA H100 NVL", "memory_total": 100_485_038_080}] * 2
    machine = {"gpu": "NVIDIA H100 NVL", "gpu_count": 2, "gpu_nvidia": cards, "cpu_count": 64,
               "startedAt": "2025-01-23T03:32:54"}  # fmt: skip
    config = {name: {"desc": None, "value": value} for name, value in ARGUMENTS.items()}
    (files / "config.yaml").write_text(json.dumps({"wandb_version": 1, **config}))
    (files / "wandb-summary.json").write_text(json.dumps({**summary, "_runtime": 6040}))
    (files / "wandb-metadata.json").write_text(json.dumps(machine))
    (files / "requirements.txt").write_text("torch==2.4.0+cu118\ntransformers==4.44.2\n")
    (files / "output.log").write_text(_bar())


def _bar() -> str:
    points = ((step, int(STEP_S * step)) for step in range(0, STEPS, 100))
    return "\r".join(
        f" 5%|##  | {step}/{STEPS} [{s // 3600}:{s // 60 % 60:02d}:{s % 60:02d}<1:00, 6.0s/it]"
        for step, s in points
    )


def write_mlflow(folder: Path) -> None:
    """A run of MLflow's file store."""
    run = folder / "0" / "abc"
    for part in ("params", "metrics", "tags"):
        (run / part).mkdir(parents=True)
    (run / "meta.yaml").write_text("start_time: 1737603174000\nrun_id: abc\nstatus: 3\n")
    for name, value in ARGUMENTS.items():
        (run / "params" / name).write_text(str(value))
    for name, value in RESULTS.items():
        (run / "metrics" / name).write_text(f"1737603174000 {value} {STEPS}\n")


def write_torchtune(folder: Path) -> None:
    """A log of torchtune's disk logger, and the YAML of its recipe."""
    folder.mkdir(parents=True)
    recipe = {
        "model": {"_component_": "torchtune.models.llama3_1.lora_llama3_1_8b", "lora_rank": 8,
                  "lora_attn_modules": ["q_proj", "v_proj"]},
        "tokenizer": {"_component_": "torchtune.models.llama3.llama3_tokenizer",
                      "max_seq_len": LENGTH},
        "checkpointer": {"_component_": "torchtune.training.FullModelHFCheckpointer",
                         "checkpoint_dir": "/data/Llama-3.1-8B-Instruct"},
        "dataset": {"_component_": "torchtune.datasets.alpaca_cleaned_dataset", "packed": True},
        "batch_size": 2, "gradient_accumulation_steps": 8, "epochs": 1, "dtype": "bf16",
        "max_steps_per_epoch": None, "enable_activation_checkpointing": True, "compile": False,
        "optimizer": {"_component_": "torch.optim.AdamW", "lr": 3e-4, "fused": True},
    }  # fmt: skip
    (folder / "torchtune_config.yaml").write_text(json.dumps(recipe, indent=1))
    lines = (
        f"Step {step} | loss:1.5 lr:0.0003 tokens_per_second_per_gpu:3210.5 "
        "peak_memory_active:18.5 peak_memory_alloc:18.2 peak_memory_reserved:20.1"
        for step in range(1, 60)
    )
    (folder / "log_1737603174.txt").write_text("\n".join(lines) + "\n")


def write_notebook(folder: Path) -> None:
    """An executed notebook in nbformat 4, with what `train()` shows as its value."""
    folder.mkdir(parents=True)
    source = (
        "args = TrainingArguments('out', per_device_train_batch_size=4, bf16=True,\n"
        "    gradient_accumulation_steps=2, num_train_epochs=3, gradient_checkpointing=False)\n"
        "model = AutoModelForCausalLM.from_pretrained('meta-llama/Llama-3.1-8B')\n"
        "model = get_peft_model(model, LoraConfig(r=16, target_modules='all-linear'))\n"
    )
    value = f"TrainOutput(global_step={STEPS}, training_loss=5.5, metrics={RESULTS!r})"
    machine = {"output_type": "stream", "text": ["| 0  NVIDIA A100-SXM4-80GB |"]}
    cells = [
        _cell(["!nvidia-smi"], [machine]),
        _cell([source], []),
        _cell(["trainer.train()"],
              [{"output_type": "execute_result", "data": {"text/plain": [value]}, "metadata": {},
                "execution_count": 2}]),
    ]  # fmt: skip
    made = {"nbformat": 4, "nbformat_minor": 5, "metadata": {}, "cells": cells}
    (folder / "run.ipynb").write_text(json.dumps(made))


def _cell(source: list[str], outputs: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": 1,
        "metadata": {},
        "source": source,
        "outputs": outputs,
    }

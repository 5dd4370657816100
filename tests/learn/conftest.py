"""Trainings that left something: one that really ran here, and folders as loggers write them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

SHAPE = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 256, "max_position_embeddings": 64,
}  # fmt: skip
SCRIPT = Path(__file__).parent / "train_tiny.py"
LOGGERS = ("wandb", "tensorboard", "mlflow")


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home of the test's own."""
    own = tmp_path / "home"
    monkeypatch.setenv("AUTOTUNE_HOME", str(own))
    return own


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with what a Trainer left that really trained: its output, and what it printed.

    Every logger that is installed followed it. It runs once, whichever workers read it.
    """
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    from shippedfits import once_a_run

    folder = tmp_path_factory.mktemp("trained")
    kept: Path = once_a_run(tmp_path_factory.getbasetemp(), "trained", lambda: _train(folder))
    return kept


def _train(folder: Path) -> Path:
    own = {
        "WANDB_MODE": "offline", "WANDB_SILENT": "true", "OMP_NUM_THREADS": "1",
        "MLFLOW_TRACKING_URI": (folder / "mlruns").as_uri(), "MLFLOW_ALLOW_FILE_STORE": "true",
        "TENSORBOARD_LOGGING_DIR": str(folder / "tensorboard"),
    }  # fmt: skip
    loggers = [name for name in LOGGERS if find_spec(name)]
    done = subprocess.run(
        [sys.executable, str(SCRIPT), json.dumps(SHAPE), ",".join(loggers) or "none"], cwd=folder,
        check=False, capture_output=True, text=True, env={**os.environ, **own},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (folder / "output.log").write_text(done.stderr + done.stdout)
    return folder


@pytest.fixture
def wandb_run() -> Any:
    """Writes a W&B run folder: arguments, machine and figures as that logger spells them."""
    return write_wandb


ARGUMENTS: dict[str, Any] = {
    "output_dir": "/home/somebody/secret-project/out", "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 8, "num_train_epochs": 1, "max_steps": -1, "bf16": True,
    "fp16": False, "gradient_checkpointing": True, "optim": "adamw_torch", "save_strategy": "no",
    "eval_strategy": "no", "dataloader_num_workers": 0, "torch_compile": False, "deepspeed": None,
    "fsdp": ["full_shard", "auto_wrap"], "learning_rate": 1e-5, "logging_steps": 10,
    "hub_token": "hf_SecretSecretSecret", "run_name": "secret-name", "group_by_length": False,
    "use_liger_kernel": False, "seed": 1, "weight_decay": 0.0, "lr_scheduler_type": "linear",
}  # fmt: skip
LLAMA = {
    "model_type": "llama", "_name_or_path": "meta-llama/Llama-3.1-8B", "hidden_size": 4096,
    "torch_dtype": "bfloat16", "transformers_version": "4.44.2", "max_length": 20,
    "_attn_implementation": "flash_attention_2",
}  # fmt: skip


def write_wandb(
    folder: Path,
    step_s: float,
    *,
    devices: int = 2,
    steps: int = 1000,
    length: int = 2048,
    gpu: str = "NVIDIA H100 NVL",
    odd_rows: int = 0,
    **arguments: Any,
) -> Path:
    """A finished run of full fine-tuning on blocks of one length, whose step took `step_s`."""
    files = folder / "files"
    files.mkdir(parents=True)
    told = {**LLAMA, **ARGUMENTS, **arguments}
    told_micro = told["per_device_train_batch_size"] or 1
    rows = told_micro * told["gradient_accumulation_steps"] * devices + odd_rows
    runtime = step_s * steps
    sharded = (8_030_261_248 - 128_256 * 4096) / (devices if told["fsdp"] else 1)
    summary = {
        "train/train_runtime": runtime, "train/train_samples_per_second": rows * steps / runtime,
        "train/train_steps_per_second": steps / runtime, "train/global_step": steps,
        "train/total_flos": 6 * sharded * rows * steps * length, "_runtime": runtime + 40,
    }  # fmt: skip
    machine = {
        "host": "secret-host", "username": "somebody", "gpu": gpu, "gpu_count": 8,
        "gpu_nvidia": [{"name": gpu, "memory_total": 100_485_038_080}] * 8, "cpu_count": 64,
        "startedAt": "2025-01-23T03:32:54", "program": "/home/somebody/secret-project/train.py",
        "email": "somebody@example.org", "args": ["--token", "hf_SecretSecretSecret"],
    }  # fmt: skip
    lines = [f"{key}:\n  desc: null\n  value: {json.dumps(value)}\n" for key, value in told.items()]
    (files / "config.yaml").write_text("wandb_version: 1\n\n" + "\n".join(lines))
    (files / "wandb-summary.json").write_text(json.dumps(summary))
    (files / "wandb-metadata.json").write_text(json.dumps(machine))
    (files / "requirements.txt").write_text(
        "torch==2.4.0+cu118\ntransformers==4.44.2\nnumpy==1.26\n"
    )
    (files / "output.log").write_text("nothing of interest\n")
    return folder

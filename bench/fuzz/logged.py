"""Whole logs and tracked runs to begin with, made once a process."""

from __future__ import annotations

import atexit
import json
import shutil
import tempfile
from functools import cache
from pathlib import Path

from bench.fuzz.reading import (
    LOGGED,
)

ARGUMENTS = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4, "bf16": True,
             "num_train_epochs": 1, "output_dir": "out"}  # fmt: skip
STATE = {
    "global_step": 60, "max_steps": 60, "num_train_epochs": 3, "train_batch_size": 4, "epoch": 3.0,
    "total_flos": 1.2e13, "logging_steps": 10, "save_steps": 20, "is_world_process_zero": True,
    "log_history": [
        *({"step": step, "loss": 2.0, "grad_norm": 1.0, "learning_rate": 1e-4, "epoch": step / 20}
          for step in range(10, 61, 10)),
        {"step": 60, "epoch": 3.0, "train_runtime": 61.5, "train_samples_per_second": 7.8,
         "train_steps_per_second": 0.97, "total_flos": 1.2e13, "train_loss": 2.0},
        {"step": 60, "epoch": 3.0, "eval_loss": 2.0, "eval_runtime": 1.5},
    ],
}  # fmt: skip
RECORD = (
    {"event": "start", "device": "NVIDIA A100-SXM4-80GB", "device_count": 1, "max_steps": 2375,
     "epochs": 1, "micro_batch_size": 16, "gradient_accumulation_steps": 8,
     "checkpoint_every_steps": 10, "config": {"precision": "bf16", "num_dataloader_workers": 4},
     "model": {"num_layers": 32, "hidden_size": 4096, "intermediate_size": 11008,
               "vocab_size": 32000},
     "method": {"kind": "lora", "rank": 64, "base": "int8"}},
    *({"event": "step", "step": step, "duration_s": 3.2, "data_wait_s": 0.01}
      for step in range(1, 21)),
    {"event": "epoch", "step": 10, "epoch": 0.021},
    {"event": "host", "step": 10, "ran_s": 160.1, "waited_s": 0.4},
    {"event": "checkpoint", "step": 10, "duration_s": 7.4},
    {"event": "evaluation", "step": 10, "duration_s": 31.0},
    {"event": "memory", "step": 20, "allocated_bytes": 3.1e10, "reserved_bytes": 3.4e10},
    {"event": "end", "step": 20, "duration_s": 120.5},
)  # fmt: skip
STEPS = "step,step_time_s,elapsed_s,data_wait_s,checkpoint_s,memory_bytes\n" + "".join(
    f"{step},2.5,{step * 2.5},0.01,,3e10\n" for step in range(1, 21)
)


@cache
def seeds_made() -> Path:
    """Logs, tracked runs and a run folder that are made here, once a process."""
    top = Path(tempfile.mkdtemp(prefix="autotune-fuzz-seeds-"))
    atexit.register(shutil.rmtree, top, ignore_errors=True)
    logs = top / "logs"
    logs.mkdir()
    (logs / "trainer_state.json").write_text(json.dumps(STATE))
    (logs / "observations.jsonl").write_text("".join(json.dumps(each) + "\n" for each in RECORD))
    (logs / "steps.csv").write_text(STEPS)
    _write_tracked(top / "tracked")
    return top


def _write_tracked(top: Path) -> None:
    from bench.fuzz.tracked import write_mlflow, write_notebook, write_torchtune, write_wandb

    write_wandb(top / "wandb")
    write_mlflow(top / "mlflow")
    write_torchtune(top / "torchtune")
    write_notebook(top / "notebook")
    shutil.copytree(LOGGED, top / "output")
    (top / "record").mkdir()
    shutil.copy(top.parent / "logs" / "observations.jsonl", top / "record")

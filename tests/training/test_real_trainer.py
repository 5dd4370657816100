"""A real Trainer, a tiny random model, two lines in its script, and `autotune verify` after it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.job.evidence import default_config
from autotune.app.job.load import load_job
from autotune.app.tune.tune import Options, tune
from autotune.evidence.log.step_times import read_record
from autotune.pricing import Pricing

if TYPE_CHECKING:
    from pathlib import Path

STEPS, FETCH_S = 40, 0.03
MODEL = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 64,
    "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 4, "vocab_size": 256, "max_position_embeddings": 64,
}  # fmt: skip
SCRIPT = """
import sys, time
import torch
from autotune import TrainerCallback
from transformers import LlamaConfig, LlamaForCausalLM, Trainer, TrainingArguments
import transformers

class Rows(torch.utils.data.Dataset):
    def __len__(self):
        return 160
    def __getitem__(self, index):
        time.sleep({fetch} / 4)
        ids = torch.arange(16) % 256
        return {{"input_ids": ids, "labels": ids}}

torch.manual_seed(0)
model = LlamaForCausalLM(LlamaConfig.from_pretrained({config!r}))
args = TrainingArguments(
    {out!r}, per_device_train_batch_size=2, gradient_accumulation_steps=2, num_train_epochs=1,
    save_steps=20, eval_strategy="steps", eval_steps=20, logging_steps=5, report_to="none",
    use_cpu=True,
)
rows = Rows()
trainer = Trainer(model=model, args=args, train_dataset=rows,
                  eval_dataset=torch.utils.data.Subset(rows, range(8)))
marks = []

class Before(transformers.TrainerCallback):
    def on_train_begin(self, *_, **__):
        marks.append(time.perf_counter())

class After(Before):
    def on_train_end(self, *_, **__):
        print(*(time.perf_counter() - mark for mark in marks))

trainer.add_callback(Before())
trainer.add_callback(TrainerCallback())
trainer.add_callback(After())
assert isinstance(trainer.callback_handler.callbacks[-2], transformers.TrainerCallback)
trainer.train(resume_from_checkpoint=sys.argv[1:] and sys.argv[1] or None)
"""
JOB = """
name: tiny
model: {config}
method: {{kind: full}}
data: {{rows: 160, max_length: 16, lengths: {{p50: 16, p95: 16, max: 16}}}}
train: {{epochs: 1, global_batch_size: 4}}
evaluation: {{every_steps: 20, rows: 8}}
hardware: [{{gpu: rtx-4090, price: 0.59 USD/h}}]
"""


@pytest.mark.slow
def test_two_lines_record_a_real_training_and_verify_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    pytest.importorskip("transformers")
    config, out, run = tmp_path / "model", tmp_path / "out", tmp_path / "runs" / "one"
    config.mkdir()
    (config / "config.json").write_text(json.dumps(MODEL))
    (tmp_path / "job.yaml").write_text(JOB.format(config=config))
    tune(load_job(tmp_path / "job.yaml"), Options(fidelity="formula", trials=5, run_dir=run))
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(fetch=FETCH_S, config=str(config), out=str(out)))
    done = _python(tmp_path, str(script))
    said = done.stderr
    assert "autotune: recording into runs/one/observations.jsonl" in said
    assert "the run is on the CPU, and rtx-4090 was planned" in said
    assert "recording ended" not in said

    log = read_record(run / "observations.jsonl")
    assert (log.steps_done, log.max_steps, log.gpu) == (STEPS, STEPS, "cpu")
    assert (log.micro_batch_size, log.gradient_accumulation_steps) == (2, 2)
    assert log.model == {
        "num_layers": 2, "hidden_size": 64, "intermediate_size": 128, "vocab_size": 256,
    }  # fmt: skip
    assert log.method == {"kind": "full", "base": "32bit"}
    assert (log.epochs, log.epoch) == (1, pytest.approx(1.0))
    assert log.data_wait_s is not None
    assert FETCH_S <= log.data_wait_s < log.covered_s / STEPS
    assert [step for step, _ in log.evaluations] == [20, 40]
    assert all(seconds >= 8 * FETCH_S / 4 for _, seconds in log.evaluations)
    assert len(log.saves_s) == 2
    told = log.covered_s + sum(log.saves_s) + sum(seconds for _, seconds in log.evaluations)
    longer, elapsed = map(float, done.stdout.splitlines()[-1].split())  # its start in and out
    assert 0.5 * elapsed < told < longer  # a busy machine stands still in between
    assert log.whole_s is not None
    assert log.whole_s > elapsed

    verified = _python(tmp_path, "-m", "autotune", "verify", str(run), "--gpu", "rtx-4090")
    for text in ("predicted  actual  ratio", "waiting for data", "checkpoints", "tiny, finished"):
        assert " ".join(text.split()) in " ".join(verified.stdout.split())

    busy = json.loads((run / "verified.json").read_text())["log"]["spoiled"]
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    job = load_job(tmp_path / "job.yaml")
    offer = job.offers[0]
    config = default_config(job, offer).with_knobs(
        micro_batch_size=2, gradient_accumulation_steps=2
    )
    told = Pricing.learned(job).one(offer, config).time_s.evaluation
    measured = sum(seconds for _, seconds in log.evaluations)
    modelled = Pricing(job).one(offer, config).time_s.evaluation
    assert told == pytest.approx(modelled if busy else measured, rel=0.01)


def _python(folder: Path, *command: str) -> Any:
    environment = {
        **os.environ, "AUTOTUNE_HOME": str(folder / "home"), "AUTOTUNE_OFFLINE": "1",
        "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1",
    }  # fmt: skip
    environment.pop("AUTOTUNE_RUNS", None)
    done = subprocess.run(
        [sys.executable, *command], cwd=folder, env=environment, capture_output=True, text=True,
        timeout=900, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done

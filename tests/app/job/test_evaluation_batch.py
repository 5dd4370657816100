"""Evaluation batches that a trainer's file does not size: as it stands they are its default."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune.app.estimate import estimate, stated_config
from autotune.app.job.load import jobs_of_command, load_jobs
from autotune.app.runs.user_file import patched
from autotune.app.tune.tune import Options, tune
from autotune.cost.columns import Component, tabulate
from autotune.cost.memory.component import READS
from autotune.cost.memory.peak import instants
from autotune.cost.memory.step import Step
from autotune.domain.config import Config
from autotune.domain.typed.overrides import Overrides
from autotune.pricing import Pricing
from autotune.trainers.hf.evaluation import EVALUATION_BATCH
from autotune.trainers.schema import schema_of

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.cost.columns import Columns, Outputs
    from autotune.domain.job import Job

MODEL = "meta-llama/Llama-3.1-8B"
SCRIPT = f"""model = AutoModelForCausalLM.from_pretrained("{MODEL}", dtype=torch.bfloat16)
args = TrainingArguments("out", per_device_train_batch_size=1, gradient_accumulation_steps=16,
    bf16=True, gradient_checkpointing=True, eval_strategy="steps", eval_steps=50)
SFTTrainer(model, args, peft_config=LoraConfig(r=16), train_dataset=a, eval_dataset=b)
"""
CARD = "a100-40gb"  # holds a row of 4,096 tokens and its graph, and not eight rows' logits
FULL_ROWS = {"data.max_length": "4096", "data.padding": "max_length"}


def job_of(folder: Path, text: str = SCRIPT, name: str = "train.py", **set_values: str) -> Job:
    overrides = Overrides((CARD,), stated={"data.rows": 2000}, set_values=FULL_ROWS | set_values)
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return load_jobs(path, overrides)[0].job


def test_a_file_that_sizes_no_evaluation_is_priced_at_the_trainers_own_batch(
    tmp_path: Path,
) -> None:
    found = estimate(job_of(tmp_path))
    missing = found.shortfall
    assert missing is not None
    assert (missing.phase, missing.longest_batch.rows) == ("evaluation", 8)
    smaller = [x for x in found.relaxations if x.apply == "--set evaluation.batch_size=1"]
    assert smaller
    assert smaller[0].required_bytes < smaller[0].available_bytes


def test_the_same_file_fits_where_it_sizes_them_or_has_none(tmp_path: Path) -> None:
    sized = SCRIPT.replace("eval_steps=50", f"eval_steps=50, {EVALUATION_BATCH}=1")
    none = SCRIPT.replace('"steps"', '"no"')
    stated = estimate(job_of(tmp_path, **{"evaluation.batch_size": "1"}))
    rows = [estimate(job_of(tmp_path, text)) for text in (sized, none)]
    assert all(each.shortfall is None for each in (stated, *rows))
    assert len({each.row.memory_bytes.total for each in (stated, *rows)}) == 1


def test_what_is_picked_writes_its_evaluation_batch(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    best, today = (found := tune(job, Options(dry_run=True, fidelity="formula"))).best, found.today
    assert best is not None
    assert today is not None
    assert best.feasible
    assert not today.feasible
    text = patched("same", job, best.offer, best.config).text
    assert f"{EVALUATION_BATCH}={best.config.micro_batch_size}" in text


def test_a_key_that_says_what_would_run_anyway_is_not_written(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    config = Config(
        **{**job.today.as_dict(), "micro_batch_size": 8, "gradient_accumulation_steps": 2}
    )
    assert EVALUATION_BATCH not in patched("same", job, job.offers[0], config).text


def test_rows_that_nobody_counted_take_memory_and_no_time(tmp_path: Path) -> None:
    unknown = estimate(job_of(tmp_path)).row
    counted = estimate(job_of(tmp_path, **{"evaluation.rows": "500"})).row
    assert unknown.time_s.evaluation == 0.0 < counted.time_s.evaluation
    assert unknown.memory_bytes.total == counted.memory_bytes.total


@pytest.mark.parametrize(
    ("command", "rows"),
    [
        ("trl sft --use_peft --lora_r 8 --eval_strategy steps", 8),
        ("swift sft --train_type lora --split_dataset_ratio 0.1", 1),
        ("axolotl train", 2),  # as many as it trains on
    ],
)
def test_each_trainer_has_its_own_default(tmp_path: Path, command: str, rows: int) -> None:
    overrides = Overrides(("h100",), stated={"data.rows": 1000})
    if command.startswith("axolotl"):
        text = (
            f"base_model: {MODEL}\nsequence_len: 512\nmicro_batch_size: 2\nnum_epochs: 1\n"
            "adapter: lora\nlora_r: 8\nlora_target_linear: true\nval_set_size: 0.1\n"
            "evals_per_epoch: 2\ndatasets: [{path: own.jsonl, type: alpaca}]\n"
        )
        job = job_of(tmp_path, text, "axolotl.yml")
    else:
        model = "--model" if command.startswith("swift") else "--model_name_or_path"
        line = f"{command} {model} {MODEL} --max_length 512 --per_device_train_batch_size 2"
        job = jobs_of_command(line, overrides)[0].job
    assert job.as_it_stands.evaluation.rows_at_once(2) == rows


METRICS = SCRIPT.replace("eval_dataset=b", "eval_dataset=b, compute_metrics=score").replace(
    "eval_steps=50", f"eval_steps=50, {EVALUATION_BATCH}=1"
)


@pytest.mark.parametrize(
    ("text", "rows"),
    [
        (METRICS, 40),  # to the end
        (METRICS.replace("bf16=True", "bf16=True, eval_accumulation_steps=5"), 5),
        (METRICS.replace("compute_metrics", "preprocess_logits_for_metrics=f, compute_metrics"), 0),
        (METRICS.replace("bf16=True", "bf16=True, prediction_loss_only=True"), 0),
        (METRICS.replace("=score", "=None"), 0),
        (SCRIPT, 0),
    ],
)
def test_logits_that_metrics_need_wait_on_the_device(tmp_path: Path, text: str, rows: int) -> None:
    job = job_of(tmp_path, text, **{"evaluation.rows": "40", "evaluation.batch_size": "1"})
    bill = Pricing(job).of([(job.offers[0], stated_config(job))])
    found = tabulate(Component("peak", READS, instants_of), job, bill.candidates).outputs
    assert found["kept"][0] == rows
    if rows:  # in fp32 under autocast: what there was and the last batch, and both in one
        each = 4.0 * 4096 * job.model.vocab_size
        assert found["metrics"][0] == pytest.approx(2.0 * rows * each)
        assert bill.memory_bytes[0] > found["metrics"][0]


def instants_of(job: Job, columns: Columns) -> Outputs:
    step = Step.of(job, columns)
    found = instants(step)
    none = np.zeros(columns.rows)
    return {
        "kept": step.kept_rows,
        "metrics": found["metrics"].logits if "metrics" in found else none,
    }


@pytest.mark.slow
def test_the_installed_trainer_joins_all_logits_of_an_evaluation(tmp_path: Path) -> None:
    """Live bytes of a real evaluation of three batches, by the profiler."""
    transformers = pytest.importorskip("transformers")
    profiler = pytest.importorskip("torch.profiler")
    vocabulary, length, rows = 8192, 64, 24
    config = transformers.LlamaConfig(
        vocab_size=vocabulary, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1,
    )  # fmt: skip
    data = [{"input_ids": [1] * length, "labels": [1] * length}] * rows
    arguments = transformers.TrainingArguments(str(tmp_path), use_cpu=True, report_to=[])
    model = transformers.LlamaForCausalLM(config)
    trainer = transformers.Trainer(
        model, arguments, eval_dataset=data, compute_metrics=lambda _: {}
    )
    with profiler.profile(activities=[profiler.ProfilerActivity.CPU], profile_memory=True) as prof:
        trainer.evaluate()
    live = highest = 0
    events = [e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]
    for event in sorted(events, key=lambda e: e.start_ns()):
        live += event.nbytes()
        highest = max(highest, live)
    assert highest == pytest.approx(2 * rows * length * vocabulary * 4, rel=0.03)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.gradient_checkpointing:FutureWarning")
@pytest.mark.parametrize("trainer", ["hf", "trl"])
def test_the_installed_trainer_evaluates_as_many_rows_as_is_said(
    tmp_path: Path, trainer: str
) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    trl = pytest.importorskip("trl")
    seen: list[int] = []

    class Sized(transformers.LlamaForCausalLM):  # type: ignore[misc, name-defined]
        def forward(self, input_ids: Any = None, labels: Any = None, **more: Any) -> Any:
            if not torch.is_grad_enabled():
                seen.append(len(input_ids))
            return super().forward(input_ids=input_ids, labels=labels, **more)

    config = transformers.LlamaConfig(
        vocab_size=64, hidden_size=8, intermediate_size=8, num_hidden_layers=1,
        num_attention_heads=1, num_key_value_heads=1,
    )  # fmt: skip
    rows = [{"input_ids": [1, 2, 3, 4], "labels": [1, 2, 3, 4]}] * 24
    kind = transformers.TrainingArguments if trainer == "hf" else trl.SFTConfig
    arguments = kind(
        str(tmp_path), per_device_train_batch_size=1, max_steps=1, eval_strategy="steps",
        eval_steps=1, use_cpu=True, report_to=[], save_strategy="no",
    )  # fmt: skip
    transformers.Trainer(Sized(config), arguments, train_dataset=rows, eval_dataset=rows).train()
    assert set(seen) == {schema_of(trainer).default(EVALUATION_BATCH)}

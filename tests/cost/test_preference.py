"""Preferences and reward models: what TRL runs for a row, and what a row then takes."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import builders as build
import pytest

from autotune.catalog.models.models import find_model
from autotune.cost.memory.states import sizes, weight_bytes
from autotune.domain.objective import PAIRED, WORK
from autotune.pricing import Pricing

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated

FULL = {"kind": "full", "rank": 0, "alpha": 0.0, "targets": (), "dropout": 0.0}


def row(job: Job, objective: Any, micro: int = 4, *, full: bool = False) -> Estimated:
    changed = replace(job, objective=objective)
    if full:
        changed = replace(changed, method=replace(job.method, **FULL))
    config = build.config(micro_batch_size=micro)
    return Pricing(changed).one(build.offer("h100"), config)


@pytest.fixture(scope="module")
def job() -> Job:
    return build.job(global_batch_size=16, max_length=512)


def test_a_pair_is_two_sequences_without_a_reference(job: Job) -> None:
    """ORPO of m pairs is supervised training of 2 m rows, in time and in bytes."""
    pairs = row(job, "orpo", 4)
    twice = row(replace(job, global_batch_size=32, rows=2 * job.rows), "sft", 8)
    assert pairs.step_time_s == pytest.approx(twice.step_time_s, rel=1e-6)
    assert pairs.memory_bytes.total == pytest.approx(twice.memory_bytes.total, rel=1e-6)


def test_dpo_adds_forwards_of_both_answers_by_the_reference() -> None:
    """A forward and a backward of a large model are two to four forwards."""
    large = find_model("meta-llama/Llama-3.1-8B")
    job = build.priced_job(large, build.lora(large), 512, global_batch_size=16)
    without, with_reference = row(job, "orpo"), row(job, "dpo")
    added = with_reference.step_time_s / without.step_time_s - 1.0
    assert 1 / 4 < added < 1 / 2


def test_the_reference_of_adapters_needs_no_second_copy_and_that_of_all_weights_does(
    job: Job,
) -> None:
    copy = weight_bytes(replace(job, method=replace(job.method, **FULL)), sizes(job.model))
    for full, more in ((False, 0.0), (True, copy)):
        one, two = row(job, "orpo", full=full), row(job, "dpo", full=full)
        assert two.memory_bytes.weights - one.memory_bytes.weights == pytest.approx(more)


def test_the_reference_scores_while_the_policys_graph_waits(job: Job) -> None:
    assert row(job, "dpo").memory_bytes.total > row(job, "orpo").memory_bytes.total


@pytest.mark.parametrize("objective", sorted(PAIRED))
def test_what_nobody_measured_has_a_wide_range(job: Job, objective: Any) -> None:
    def width(found: Estimated) -> float:
        return found.duration_s.p90 / found.duration_s.p10

    assert width(row(job, objective)) > width(row(job, "sft"))


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::Warning")  # of trl, peft and transformers among themselves
@pytest.mark.parametrize("objective", ["dpo", "kto", "reward"])
def test_trl_runs_so_many_forwards_of_a_row(objective: str, tmp_path: Path) -> None:
    """A real step of TRL's own trainer: rows through forwards with gradients and without."""
    pytest.importorskip("trl")
    trained, scored = forwards_of(objective, tmp_path)
    work = WORK[objective]  # type: ignore[index]
    assert (trained, scored) == (2 * work.sequences, 2 * work.scored)  # a batch of two rows


def forwards_of(objective: str, folder: Path) -> tuple[int, int]:
    """Rows with and without gradients in one optimizer step of two rows, with adapters."""
    import torch
    import transformers
    import trl
    from datasets import Dataset
    from peft import LoraConfig
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import Whitespace

    words = {name: place for place, name in enumerate(["<pad>", "</s>", "red", "green", "blue"])}
    made = Tokenizer(WordLevel(words, "red"))
    made.pre_tokenizer = Whitespace()
    ends = {"pad_token": "<pad>", "eos_token": "</s>"}
    tokenizer = transformers.PreTrainedTokenizerFast(tokenizer_object=made, **ends)
    shape = transformers.LlamaConfig(
        vocab_size=len(words), hidden_size=16, intermediate_size=32, num_hidden_layers=1,
        num_attention_heads=2, num_key_value_heads=2, pad_token_id=0, eos_token_id=1, num_labels=1,
    )  # fmt: skip
    kind = "SequenceClassification" if objective == "reward" else "CausalLM"
    model = getattr(transformers, f"LlamaFor{kind}")(shape)
    found: list[tuple[int, bool]] = []

    def seen(_module: Any, args: Any, kwargs: Any) -> None:
        ids = kwargs.get("input_ids", args[0] if args else None)
        found.append((len(ids), torch.is_grad_enabled()))

    model.model.register_forward_pre_hook(seen, with_kwargs=True)
    name = {"dpo": "DPO", "kto": "KTO", "reward": "Reward"}[objective]
    answers: dict[str, list[Any]] = {"prompt": ["red"] * 4, "chosen": ["green blue"] * 4,
                                     "rejected": ["blue"] * 4}  # fmt: skip
    if objective == "kto":
        answers = {"prompt": ["red"] * 4, "completion": ["green"] * 4, "label": [True, False] * 2}
    config = getattr(trl, f"{name}Config")(
        output_dir=str(folder), max_steps=1, per_device_train_batch_size=2, use_cpu=True,
        report_to="none", bf16=False, disable_tqdm=True, save_strategy="no",
        activation_checkpointing=False,
    )  # fmt: skip
    task = "SEQ_CLS" if objective == "reward" else "CAUSAL_LM"
    adapters = LoraConfig(r=2, target_modules=["q_proj"], task_type=task)
    trainer = getattr(trl, f"{name}Trainer")(
        model=model, args=config, train_dataset=Dataset.from_dict(answers),
        processing_class=tokenizer, peft_config=adapters,
    )  # fmt: skip
    found.clear()
    trainer.train()
    return sum(n for n, grad in found if grad), sum(n for n, grad in found if not grad)

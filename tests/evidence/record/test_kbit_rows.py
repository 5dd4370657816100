"""What a row's trainer does beside its knobs: a quantised base, the loss, the optimizer's place."""

from __future__ import annotations

import numpy as np
import pytest

from autotune.catalog.models.models import find_model
from autotune.cost.columns import Component, tabulate
from autotune.cost.memory import component as memory
from autotune.cost.memory import logits
from autotune.domain.candidates import Candidates
from autotune.evidence.cases import MeasuredCase
from autotune.evidence.record.row import Row
from autotune.evidence.record.table import case_of

PLAIN = {
    "id": "a-1", "source_repo": "somebody/runs", "source_commit_or_date": "abc 2025-01-20",
    "model_id": "mistralai/Mistral-7B-v0.1", "task": "qlora", "lora_r": "16",
    "target_modules": "q_proj k_proj v_proj o_proj", "gpu": "A100-80GB", "n_gpus": "1",
    "parallelism": "none", "precision": "bf16", "quant": "nf4", "optimizer": "adamw_torch",
    "seq_len": "4096", "micro_batch": "4", "grad_accum": "2", "global_batch": "8",
    "packing": "yes", "grad_ckpt": "full", "attn": "fa2", "compile": "no",
    "step_time_s": "9.8", "peak_mem_gb": "26.7", "peak_mem_kind": "allocated",
}  # fmt: skip


def used(**changes: str) -> MeasuredCase:
    found = case_of(Row({**PLAIN, **changes}), find_model)
    assert isinstance(found, MeasuredCase), found
    return found


@pytest.mark.parametrize(("changes", "kept", "adapters"), [
    ({}, "none", "fp32"),
    ({"notes": "calls prepare_model_for_kbit_training"}, "all", "fp32"),
    ({"notes": "prepare_model_for_int8_training", "quant": "int8"}, "all", "fp32"),
    ({"notes": "TRL SFTTrainer; trl 0.12.1"}, "norms", "bf16"),
    ({"notes": "TRL SFTTrainer; trl 0.12.1", "precision": "fp16"}, "all", "fp32"),
    ({"notes": "TRL SFTTrainer; trl 0.12.1", "quant": "gptq-int4"}, "none", "fp32"),
    ({"notes": "TRL SFTTrainer; trl 1.16.0"}, "none", "fp32"),
    ({"notes": "TRL SFTTrainer", "source_commit_or_date": "abc 2026-08-20"}, "none", "fp32"),
    ({"notes": "axolotl train"}, "none", "fp32"),
    ({"notes": "axolotl train", "attn": "sdpa"}, "all", "fp32"),
    ({"task": "lora", "quant": "none", "notes": "trl 0.12.1 SFTTrainer"}, "none", "fp32"),
])  # fmt: skip
def test_a_quantised_base_is_prepared_as_the_row_s_trainer_does(
    changes: dict[str, str], kept: str, adapters: str
) -> None:
    case = used(**changes)
    assert case.job.software.kbit_upcast == kept
    assert case.config.adapter_dtype == adapters


FULL = {"task": "full", "quant": "none", "lora_r": "", "target_modules": ""}


def priced(**changes: str) -> dict[str, float]:
    case = used(**FULL, **changes)
    component = Component("memory", memory.READS, memory.price_memory)
    table = tabulate(component, case.job, Candidates.of([(case.offer, case.config)]))
    return {name: float(table.gather(name)[0]) for name in ("gradients", "optimizer", "logits")}


def test_an_optimizer_that_steps_in_the_backward_leaves_one_matrix_s_gradient() -> None:
    plain, inside = priced(), priced(optimizer="8bit AdamW + optimizer_in_bwd")
    weights = 7.24e9
    assert plain["gradients"] > 2.0 * 0.9 * weights
    assert inside["gradients"] <= 2.0 * 32_000 * 4096 * 1.01
    assert inside["optimizer"] < 0.6 * plain["optimizer"]


def test_torchtitan_widens_its_logits_and_keeps_no_copy_of_them() -> None:
    case = used(**FULL, source_repo="pytorch/torchtitan")
    assert case.job.software.loss == "upcast"
    assert used(**FULL).job.software.loss == "upcast_copy"


def test_a_chunked_loss_is_read_from_the_kernels_and_torchtune_lists_its_chunks() -> None:
    chunked = used(**FULL, other_kernels="chunked cross entropy")
    assert chunked.job.software.loss == "chunked"
    tune = {"other_kernels": "chunked cross entropy", "notes": "torchtune recipe"}
    assert used(**FULL, **tune).job.software.own_model
    tokens, vocabulary = 4 * 4096.0, 32_000
    job = used(**FULL, **tune).job
    two = np.asarray([2.0])
    found = logits.backward_bytes(job, np.asarray([tokens]), two, two, np.asarray([True]))
    assert float(found[0]) == 7.0 * tokens * vocabulary

"""The shipped jobs resolve, and their arithmetic is that of the documents they come from."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.app.job.load import load_job
from autotune.cost.parameters import lora_parameters

if TYPE_CHECKING:
    from autotune.domain.job import Job

JOBS = Path(__file__).parents[2] / "jobs"
NAMES = [
    "a100_llama7b_int8", "h100_38h", "rtx4090_qwen2_05b", "rtx5090_llama2_7b", "t4_to_a100_gemma2",
    "tiny_cpu",
]  # fmt: skip


def job(name: str, **changes: str) -> Job:
    return load_job(JOBS / f"{name}.yaml", set_values=changes)


def test_every_shipped_job_is_listed_here() -> None:
    assert sorted(path.stem for path in JOBS.glob("*.yaml")) == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_job_resolves_under_its_own_file_name(name: str) -> None:
    found = job(name)
    assert found.name == name.replace("_", "-")
    assert found.assumed
    assert all(offer.usd_per_hour >= 0 for offer in found.offers)


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_the_document_does_not_state_says_assumed(name: str) -> None:
    text = (JOBS / f"{name}.yaml").read_text(encoding="utf-8")
    assert "assumed" in text or name == "tiny_cpu"


def test_a100_run_has_2375_steps() -> None:
    found = job("a100_llama7b_int8")
    assert (found.rows, found.global_batch_size, found.steps) == (304_000, 128, 2_375)
    assert (found.method.base, found.method.rank, found.method.alpha) == ("int8", 64, 64.0)
    assert (found.today.micro_batch_size, found.today.gradient_accumulation_steps) == (16, 8)
    assert (found.today.checkpoint_every_steps, found.today.save_total_limit) == (50, 10)
    (other,) = found.evidence
    assert (other.facts["gpu"], other.facts["rows"], other.value) == ("a10", 100_000, 7200.0)


@pytest.mark.parametrize(
    ("rows", "steps", "tokens"),
    [("10000", 3_750, 15_360_000), ("50000", 18_750, 76_800_000), ("100000", 37_500, 153_600_000)],
)
def test_rtx5090_sizes_have_their_steps_and_tokens(rows: str, steps: int, tokens: int) -> None:
    found = job("rtx5090_llama2_7b", **{"data.rows": rows})
    assert (found.steps, found.tokens) == (steps, tokens)


def test_rtx4090_run_has_1024_tokens_a_step_and_its_documents_hours() -> None:
    found = job("rtx4090_qwen2_05b")
    assert (found.steps, found.tokens) == (10_000, 10_240_000)
    assert lora_parameters(found.model, found.method.rank, found.method.targets) == 2_199_552
    assert [(item.quantity, item.value) for item in found.evidence] == [("duration_s", 18_000.0)]


def test_h100_run_has_225000_steps_and_38_hours_measured() -> None:
    found = job("h100_38h")
    assert (found.steps, found.epochs, found.global_batch_size) == (225_000, 3.0, 8)
    assert [offer.usd_per_hour for offer in found.offers] == [2.5]
    assert [item.value for item in found.evidence if item.today] == [38 * 3600.0]
    assert (found.today.micro_batch_size, found.today.num_dataloader_workers) == (4, 4)


def test_gemma_job_has_a_free_t4_and_a_subscription() -> None:
    found = job("t4_to_a100_gemma2")
    assert [(offer.device.name, offer.usd_per_hour) for offer in found.offers] == [
        ("t4", 0.0),
        ("a100-sxm4-40gb", pytest.approx(0.10)),
    ]
    assert found.global_batch_size == 16
    assert (found.today.precision, found.today.attention) == ("fp16", "eager")
    assert job("t4_to_a100_gemma2", **{"method.kind": "qlora"}).method.base == "nf4"


def test_tiny_job_counts_its_own_data_set() -> None:
    found = job("tiny_cpu")
    assert (found.rows, found.global_batch_size, found.steps) == (200, 8, 50)
    assert found.lengths.known
    assert found.lengths.truncated_rows == 8
    assert any("8 of 200 rows cut" in item.value for item in found.assumed)
    assert found.lengths.quantiles[0] < 0.5 * found.lengths.quantiles[-1]
    assert found.offers[0].device.is_cpu

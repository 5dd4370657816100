"""Bills of small jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from autotune.cost.model import CostModel
from autotune.domain.job import Lengths, Method
from autotune.domain.model import Linear
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.cost.bill import Bill
    from autotune.domain.job import Job


def price(job: Job, space: str = "default") -> Bill:
    return CostModel(job).price(enumerate_candidates(job, load_space(space)).candidates)


def eight_billion(build: Any) -> Any:
    """Llama-3.1-8B's shape (its config.json)."""
    hidden, kv, inner = 4096, 1024, 14336
    return build.model(
        name="8b", num_layers=32, hidden_size=hidden, num_attention_heads=32, num_kv_heads=8,
        head_dim=128, intermediate_size=inner, vocab_size=128256,
        linears=(
            Linear("q_proj", hidden, hidden), Linear("k_proj", hidden, kv),
            Linear("v_proj", hidden, kv), Linear("o_proj", hidden, hidden),
            Linear("gate_proj", hidden, inner, part="mlp"),
            Linear("up_proj", hidden, inner, part="mlp"),
            Linear("down_proj", inner, hidden, part="mlp"),
        ),
    )  # fmt: skip


@pytest.fixture(scope="session")
def priced() -> Callable[..., Bill]:
    return price


@pytest.fixture(scope="session")
def small_job(build: Any) -> Job:
    """A small model on four offers: everything fits."""
    offers = (
        build.offer("a100", 1, 1.6),
        build.offer("h100", 1, 2.5),
        build.offer("h100", 2, 5.0),
        build.offer("t4", 1, 0.3),
    )
    found: Job = build.job(*offers)
    return found


@pytest.fixture(scope="session")
def tight_job(build: Any) -> Job:
    """An 8B LoRA run like job D: memory binds on the larger micro-batches."""
    found: Job = build.job(
        build.offer("h100", 1, 2.5),
        model=eight_billion(build),
        method=Method(
            "lora", "16bit", 64, 128.0, 0.05,
            ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"),
        ),
        rows=600_000, epochs=3.0, steps=28_125, max_length=1024, global_batch_size=64,
        lengths=Lengths((20.0, 220.0, 400.0, 700.0, 1024.0), 380.0, 1024, known=True),
        pretokenized=False, storage="network",
    )  # fmt: skip
    return found


@pytest.fixture(scope="session")
def small_bill(small_job: Job) -> Bill:
    return price(small_job)


@pytest.fixture(scope="session")
def tight_bill(tight_job: Job) -> Bill:
    return price(tight_job)

"""Of candidates that cost the same, what a run of today's already does stays."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune.cost.model import CostModel
from autotune.search import selection
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space

if TYPE_CHECKING:
    from autotune.cost.bill import Bill
    from autotune.domain.config import Config


def evenly(bill: Bill) -> Any:
    """The same candidates at one bill and half of the memory."""
    same = np.ones(len(bill))
    return SimpleNamespace(
        job=bill.job, candidates=bill.candidates, usable_bytes=bill.usable_bytes, cost_usd=same,
        duration_s=same, caution=same, memory_bytes=bill.usable_bytes * 0.5,
    )  # fmt: skip


@pytest.fixture(name="even")
def even_bill(build: Any) -> Any:
    job = build.job(build.offer("a100", 1, 1.6))
    return evenly(CostModel(job).price(enumerate_candidates(job, load_space()).candidates))


def picked(even: Any) -> Config:
    every = np.ones(len(even.cost_usd), np.bool_)
    found: Config = even.candidates.config(selection._simplest(even, every, "cost", 0))
    return found


def test_a_package_that_todays_run_has_costs_nothing_to_keep(even: Any) -> None:
    assert "flash_attention_2" in even.candidates.levels["attention"]
    found = picked(even)
    assert found.attention == "sdpa"
    even.job = replace(even.job, today=replace(found, attention="flash_attention_2"))
    assert picked(even).attention == "flash_attention_2"


@pytest.mark.parametrize(
    ("knob", "own"),
    [("micro_batch_size", 4), ("num_dataloader_workers", 4), ("activation_checkpointing", "full")],
)
def test_todays_run_stays_as_it_is(even: Any, knob: str, own: Any) -> None:
    plain = picked(even)
    assert getattr(plain, knob) != own
    rows = even.job.global_batch_size
    split = {"gradient_accumulation_steps": rows // own} if knob == "micro_batch_size" else {}
    today = replace(plain, **{knob: own}, **split)
    even.job = replace(even.job, today=today)
    assert picked(even) == today


def test_the_more_of_todays_settings_stay_the_better(even: Any) -> None:
    """Where today's run itself is none of them, as few settings as can be are changed."""
    plain = picked(even)
    today = replace(
        plain, micro_batch_size=4, gradient_accumulation_steps=even.job.global_batch_size // 4,
        num_dataloader_workers=3,
    )  # fmt: skip
    assert 3 not in even.candidates.levels["num_dataloader_workers"]
    even.job = replace(even.job, today=today)
    assert picked(even) == replace(today, num_dataloader_workers=0)

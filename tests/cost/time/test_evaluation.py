from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.catalog.devices import find_device
from autotune.cost.run_time import evaluations
from autotune.cost.time import compute, evaluation
from autotune.domain.job import Evaluation

GEMMA, LLAMA = "google/gemma-2-2b", "meta-llama/Llama-2-7b-hf"


def seconds(lab: Any, job: Any, device: Any = "a100", count: int = 1) -> float:
    found = lab.price(evaluation.COMPONENT, job, lab.offer(device, count), lab.config())
    return float(found["once_s"])


def job_with(lab: Any, plan: Evaluation | None, model: str = LLAMA, **fields: Any) -> Any:
    return lab.job(model, lab.lora(8, ("q_proj", "v_proj")), 512, evaluation=plan, **fields)


def test_no_evaluation_costs_nothing(lab: Any) -> None:
    assert seconds(lab, job_with(lab, None)) == 0


def test_a_run_without_training_evaluates_once_whatever_the_interval(lab: Any) -> None:
    job = job_with(lab, Evaluation(800, 100), steps=0)
    assert evaluations(job, np.zeros(3)).tolist() == [1, 1, 1]
    assert evaluations(replace(job, steps=250), np.full(1, 250.0)).tolist() == [2]


def test_twice_the_rows_take_twice_as_long(lab: Any) -> None:
    few, many = (seconds(lab, job_with(lab, Evaluation(n, 100))) for n in (800, 1600))
    assert many - few == pytest.approx(few - evaluation.ONCE_S, rel=1e-6)


def test_devices_share_the_rows(lab: Any) -> None:
    job = job_with(lab, Evaluation(1600, 100))
    assert seconds(lab, job, count=4) < 0.3 * seconds(lab, job)


def test_a_forward_is_cheaper_than_a_training_step(lab: Any) -> None:
    job = job_with(lab, Evaluation(8, 100, batch_size=8))
    step = lab.price(compute.COMPONENT, job, lab.offer("a100"), lab.config(8))["micro_step_s"]
    assert 0.15 * step < seconds(lab, job) - evaluation.ONCE_S < 0.6 * step


def test_generating_is_slower_than_reading_every_weight_for_each_token(lab: Any) -> None:
    job = job_with(lab, Evaluation(8, 0, generate_tokens=384, batch_size=8))
    device = find_device("a100")
    weights = 2 * 6_738_415_616
    assert seconds(lab, job, device) > 384 * weights / device.memory_bandwidth_bytes_per_s


def test_generating_for_200_rows_takes_minutes_on_a_t4(lab: Any) -> None:
    job = job_with(lab, Evaluation(200, 100, generate_tokens=384, batch_size=8), GEMMA)
    assert 5 < seconds(lab, job, "t4") / 60 < 30


def test_larger_generation_batches_take_less_time(lab: Any) -> None:
    plan = Evaluation(256, 100, generate_tokens=64, batch_size=4)
    small, large = (seconds(lab, job_with(lab, replace(plan, batch_size=size))) for size in (4, 32))
    assert large < small / 3

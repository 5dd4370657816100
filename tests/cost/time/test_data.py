from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autotune.cost.time import data
from autotune.cost.time.data import wait_s

LLAMA = "meta-llama/Llama-3.1-8B"
SECONDS = st.floats(0, 10)


def one_wait(busy: float, batch: float, workers: float) -> float:
    return float(
        wait_s(busy_s=np.array([busy]), batch_s=np.array([batch]), workers=np.array([workers]))[0]
    )


def price(lab: Any, job: Any, workers: int = 0, **host: Any) -> Any:
    offer = lab.offer("h100", **host)
    return lab.price(data.COMPONENT, job, offer, lab.config(4, num_dataloader_workers=workers))


@given(SECONDS, SECONDS)
def test_without_workers_the_whole_batch_is_waited_for(busy: float, batch: float) -> None:
    assert one_wait(busy, batch, 0) == batch


@given(SECONDS, SECONDS, st.integers(1, 15))
def test_workers_hide_what_the_device_takes_anyway(busy: float, batch: float, n: int) -> None:
    waited = one_wait(busy, batch, n)
    assert waited == pytest.approx(max(batch / n - busy, 0.0), abs=1e-12)
    assert one_wait(busy, batch, n + 1) <= waited <= one_wait(busy, batch, 0)


def test_workers_beyond_the_cores_do_not_help(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(), 1024)
    pace = [price(lab, job, n, cores=4)["batch_s"] / n for n in (1, 2, 4, 8, 16)]
    assert pace[0] > pace[1] > pace[2]
    assert pace[2] == pytest.approx(pace[3]) == pytest.approx(pace[4])


def test_devices_share_the_cores(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(), 1024)
    config = lab.config(4, num_dataloader_workers=8)
    alone, shared = (
        lab.price(data.COMPONENT, job, lab.offer("h100", n, cores=8), config)["batch_s"]
        for n in (1, 4)
    )
    assert shared == pytest.approx(4 * alone)


def test_rows_of_text_never_make_a_run_storage_bound(lab: Any) -> None:
    # 1.8 million rows of 250 tokens over 38 hours on network storage are 0.1 MB/s.
    job = lab.job(
        LLAMA, lab.lora(64), 250, rows=600_000, epochs=3.0, steps=225_000, storage="network",
        pretokenized=True,
    )  # fmt: skip
    out = price(lab, job, 4, storage_read_bytes_per_s=150e6)
    busy = 0.3
    assert one_wait(busy, out["batch_s"], 4) == 0
    assert one_wait(busy, out["batch_s"], 0) < 0.02 * busy


def test_a_slow_network_shows_only_where_it_is_read(lab: Any) -> None:
    ready = lab.job(LLAMA, lab.lora(), 1024, storage="network", pretokenized=True)
    cached = replace(ready, pretokenized=False)
    waits = [
        price(lab, job, storage_read_bytes_per_s=rate)["batch_s"]
        for job in (ready, cached)
        for rate in (1e6, 1e9)
    ]
    assert waits[0] > 2 * waits[1]
    assert waits[2] == waits[3]


def test_tokenising_is_paid_once_and_shared_by_the_cores(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(), 250, rows=1_800_000)
    few, many = (price(lab, job, cores=n)["prepare_s"] for n in (1, 16))
    assert 1.2 < few / 3600 < 2.0  # about one and a half core-hours
    assert many < few / 10
    assert price(lab, replace(job, pretokenized=True))["prepare_s"] == 0
    assert price(lab, replace(job, steps=0))["prepare_s"] == 0


def test_each_worker_takes_time_to_start_and_memory(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(), 1024)
    outs = [price(lab, job, n) for n in (0, 4, 8)]
    assert outs[0]["ram_bytes"] == 0
    assert outs[2]["ram_bytes"] == pytest.approx(2 * outs[1]["ram_bytes"])
    assert outs[0]["first_batch_s"] < outs[1]["first_batch_s"] < outs[2]["first_batch_s"] < 2

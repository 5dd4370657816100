"""Several offers of the device at hand in one probed search: limits, and the front's knees."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from simulatedmachine import (
    TINY,
    Machine,
    bill_of,
    dies_before_the_second,
    search,
    search_in_pieces,
    sequence,
    step_of,
)

from autotune.app.job.load import load_job
from autotune.app.probing.plan import offers_here
from autotune.app.probing.tune import _front
from autotune.probe import device as devices
from autotune.search.measured.study import FRONT

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.app.probing.study import Probed
    from autotune.cost.bill import Bill
    from autotune.domain.job import Job

pytestmark = pytest.mark.usefixtures("home")

OVERHEAD = 1.25  # of two devices: they take 1.25 / 2 of the time and cost 1.25 times as much


def two_offers(**changes: Any) -> Job:
    return load_job(
        TINY, gpus=("a100-80gb", "a100-80gb:2"), price="2 USD/gpu-h",
        set_values={"compile": "off", "precision": "fp32", "train.epochs": "400"}, **changes,
    )  # fmt: skip


@pytest.fixture(scope="module")
def job() -> Job:
    return two_offers()


def step(config: dict[str, Any]) -> float:
    """[s] of the rows of one device; small batches lose more on two."""
    return step_of(config) * (1.0 if config["sharding"] == "none" else OVERHEAD)


def true_step(bill: Bill, index: int) -> float:
    config = bill.candidates.config(index).as_dict()
    return step(config) / bill.candidates.offer(index).count


def devices_of(found: Probed, index: int | None) -> int:
    assert index is not None
    return found.bill.candidates.offer(index).count


def test_the_cheapest_is_the_pick_and_the_soonest_was_probed_too(
    bill: Bill, tmp_path: Path
) -> None:
    found = search(bill, Machine(step=step), tmp_path)
    assert devices_of(found, found.explored.pick) == 1
    front = _front(list(found.rows))
    assert front[0].offer.count == 2
    assert front[-1].offer.count == 1
    assert all(row.basis == "measured" for row in front)
    least = min(true_step(bill, i) for i in range(len(bill)))
    assert front[0].step_time_s <= 1.05 * least
    trials = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    made = sum(trial["sampler"] == FRONT for trial in trials)
    assert 1 <= made <= 4
    assert any(note.startswith(f"{made} probes after the search") for note in found.notes)


def test_when_time_is_minimised_the_soonest_is_the_pick(bill: Bill, tmp_path: Path) -> None:
    found = search(bill, Machine(step=step), tmp_path, objective="time")
    assert devices_of(found, found.explored.pick) == 2
    assert {row.row.offer.count for row in found.rows} == {1, 2}


def test_a_deadline_that_one_device_misses_is_kept_by_two(tmp_path: Path) -> None:
    free = bill_of(two_offers())
    seconds = free.job.steps * min(
        true_step(free, i) for i in range(len(free)) if free.candidates.offer(i).count == 1
    )
    job = two_offers(deadline=f"{0.9 * seconds + 60:.0f}s")
    found = search(bill_of(job), Machine(step=lambda c: 5 * step(c)), tmp_path)
    assert devices_of(found, found.explored.pick) == 2


def test_at_one_price_there_is_no_front_to_probe(tmp_path: Path) -> None:
    job = load_job(TINY, set_values={"compile": "off"})
    search(bill_of(job), Machine(), tmp_path)
    trials = [json.loads(line) for line in (tmp_path / "trials.jsonl").read_text().splitlines()]
    assert not any(trial["sampler"] == FRONT for trial in trials)


def test_killed_between_any_two_probes_the_front_goes_on_with_the_same_ones(
    bill: Bill, tmp_path: Path
) -> None:
    search(bill, Machine(step=step), tmp_path / "straight")
    kills = search_in_pieces(
        bill, tmp_path / "pieces", lambda _: Machine(step, dies_before_the_second)
    )
    assert sequence(tmp_path / "pieces") == sequence(tmp_path / "straight")
    assert kills == len(sequence(tmp_path / "straight")) - 1


def test_offers_that_differ_in_price_alone_are_probed_once(tmp_path: Path) -> None:
    job = load_job(
        TINY, gpus=("a100-80gb@1USD/h", "a100-80gb@3USD/h"), set_values={"compile": "off"}
    )
    bill = bill_of(job)
    assert len(np.unique(np.round(3600 * bill.cost_usd / bill.duration_s))) == 2
    found = search(bill, Machine(), tmp_path)
    searched = [record for record in found.records if record.role == "search"]
    assert len({record.key for record in searched}) == len(searched)
    assert found.rows[0].row.offer.usd_per_hour == 1.0


def test_only_offers_of_the_device_at_hand_are_probed(monkeypatch: pytest.MonkeyPatch) -> None:
    job = load_job(TINY, gpus=("a100-80gb", "a100-80gb:2", "a100-80gb:4", "t4"), price="1 USD/h")
    one = devices.LocalDevice(0, "A100", 8e10, 0.0, "x", job.offers[0].device)
    monkeypatch.setattr(devices, "local_devices", lambda: [one, one, devices.cpu()])
    assert [offer.count for offer in offers_here(job, job.offers[0])] == [1, 2]

"""What the GPU suite would measure, and the public sweeps that search can be replayed on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.domain.outcome import Measured
from autotune.evidence.record.table import read_cases
from autotune.probe.record import read_records
from autotune.probe.runner import Place
from bench.gpu_suite import __main__ as suite
from bench.gpu_suite.inside import stays_apart
from bench.gpu_suite.items import every
from bench.replay.recorded import sweeps

if TYPE_CHECKING:
    import pytest

FAKE = Path(__file__).with_name("fake_worker.py")
ROOT = Path(__file__).parents[2]


def test_every_item_of_the_suite_is_a_request_of_its_own() -> None:
    found = every()
    assert len({item.name for item in found}) == len(found)
    requests = [item.request("h100-sxm") for item in found if item.group != "repeat"]
    assert len({request["key"] for request in requests}) >= len(requests) - 2  # smoke, limited
    assert found[0].group == "smoke"
    for item, request in zip(found, (item.request("h100-sxm") for item in found), strict=True):
        micro, length = item.rows
        assert request["micro_batch_size"] == micro
        assert request["longest"] == length
        assert request["gradient_accumulation_steps"] == item.accumulation


def test_the_suite_goes_on_where_it_stopped_and_measures_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(local: Any, folder: Path) -> Place:
        return Place(local, folder, 30.0, (str(FAKE), "fine"))

    monkeypatch.setattr(suite, "Place", place)
    wanted = [item for item in every() if not item.needs][:4]
    first = suite.run_suite(tmp_path, wanted[:2], seconds=60.0, dry=True)
    assert first == {"made": 2, "left": []}
    second = suite.run_suite(tmp_path, wanted, seconds=60.0, dry=True)
    assert second == {"made": 2, "left": []}
    assert [record.role for record in read_records(tmp_path / "probes.jsonl")] == [
        item.name for item in wanted
    ]
    assert suite.run_suite(tmp_path, wanted, seconds=1.0, dry=True, tag="again")["made"] == 0


def test_what_changes_a_process_for_good_is_not_measured_inside_one_with_others() -> None:
    apart = {item.name for item in every() if stays_apart(item.request("h100-sxm"))}
    assert {name.partition("/")[0] for name in apart} >= {"liger", "compiled", "tf32"}
    assert "room/limited" in apart
    assert "held/8x1024/expandable" in apart
    assert not any(name.startswith(("lora", "qlora", "family", "kinds")) for name in apart)


def test_the_public_record_holds_sweeps_that_can_be_replayed() -> None:
    path = ROOT / "autotune" / "evidence" / "data" / "measured.csv"
    found = sweeps(read_cases(path).cases)
    assert len(found) >= 3
    largest = found[0]
    best = largest.best()
    assert best is not None
    for outcome in largest:
        again = largest.measure(outcome.offer, outcome.config)
        assert again == outcome
        if isinstance(outcome, Measured):
            assert largest.regret(outcome) >= 0

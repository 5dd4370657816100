"""What the GPU suite would measure, and the public sweeps that search can be replayed on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from autotune.domain.outcome import Measured
from autotune.evidence.record.table import read_cases
from autotune.probe.record import read_records
from autotune.probe.runner import Place
from bench import gpu_suite
from bench.gpu_suite import items, jobs, run_suite
from bench.replay.recorded import sweeps

if TYPE_CHECKING:
    import pytest

FAKE = Path(__file__).with_name("fake_worker.py")
ROOT = Path(__file__).parents[2]


def test_the_suite_has_two_grids_of_at_least_forty_and_no_item_twice() -> None:
    found = list(items(jobs("h200", dry=False), dry=False))
    assert len({item.name for item in found}) == len(found)
    configs = Counter(
        group
        for group, _ in {(item.group, item.config.key) for item in found}
        if group in {"lora", "full"}
    )
    assert min(configs.values()) >= 40
    assert len(configs) == 2


def test_what_compiles_comes_last_and_is_little() -> None:
    groups = [item.group for item in items(jobs("h200", dry=False), dry=False)]
    assert groups[0] == "smoke"
    assert groups.index("compiled") == len(groups) - groups.count("compiled")
    assert groups.count("compiled") <= 6


def test_the_suite_goes_on_where_it_stopped_and_measures_nothing_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def place(local: Any, folder: Path) -> Place:
        return Place(local, folder, 30.0, (str(FAKE), "fine"))

    monkeypatch.setattr(gpu_suite, "Place", place)
    every = [i.name for i in items(jobs("cpu", dry=True), dry=True) if i.group != "compiled"]
    first = run_suite(tmp_path, seconds=0.5, dry=True)
    assert 0 < first["made"] < len(every)
    second = run_suite(tmp_path, seconds=60.0, dry=True)
    assert second["left"] == 0
    assert [record.role for record in read_records(tmp_path / "probes.jsonl")] == every


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

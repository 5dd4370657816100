"""What the GPU suite would measure, and the public sweeps that search can be replayed on."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from autotune.domain.outcome import Measured
from autotune.evidence.public_csv import read_cases
from autotune.probe.replay import sweeps
from bench.gpu_suite import items, jobs

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

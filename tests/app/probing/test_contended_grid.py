"""Probing the recorded grid while others use the machine: never far off without saying so."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import pytest

from autotune.probe.worker import disturbance
from bench.replay.contended import CLOSE, LOADS, answer

pytestmark = pytest.mark.usefixtures("home")

SEEDS = 2  # of each; `python -m bench.replay.contended` tries twenty
LONG = 5000  # steps: the job's own bill is mostly loading, which hides what steps take


@lru_cache
def answered(load: str, steps: int) -> dict[str, Any]:
    """What the searches under a load came to: the same each time, so made once for all tests."""
    return answer([load], SEEDS, steps)[load]


@pytest.mark.parametrize("steps", [0, LONG])
@pytest.mark.parametrize("load", [name for name in LOADS if name != "quiet"])
def test_a_pick_more_than_a_tenth_over_the_best_is_never_given_without_saying_so(
    load: str, steps: int
) -> None:
    found = answered(load, steps)
    wrong = [run for run in found["runs"] if run["wrong"]]
    assert not wrong, f"{len(wrong)} of {SEEDS}: {wrong[0]}"


@pytest.mark.parametrize("steps", [0, LONG])
def test_a_quiet_machine_is_told_apart_and_needs_no_more_probes_than_it_did(steps: int) -> None:
    found = answered("quiet", steps)
    assert found["said"] == 0
    assert found["worst"] <= CLOSE
    assert found["probes"] <= 12 + 2
    assert not any(run["disturbed"] for run in found["runs"])


def test_bursts_that_can_be_seen_are_measured_around() -> None:
    """They are there a third of the time, and still most searches have an answer."""
    found = answered("bursts", 0)
    assert found["said"] <= SEEDS / 2
    assert found["regret"] <= CLOSE / 2


def test_on_a_machine_that_is_never_calm_it_says_so_and_gives_its_best_guess() -> None:
    machines = answered("always", LONG)["runs"][:2]
    for run in machines:
        assert run["cannot_tell"]
        assert run["why"]
        assert run["disturbed"] >= 0.8 * run["probes"], "now and then they leave nearly all of it"
        if run["disturbed"] == run["probes"]:
            assert run["probes"] <= 12, "more of the same would tell no more"


def test_what_is_called_a_tie_is_one() -> None:
    for load in ("bursts", "bursts_unread"):
        for run in answered(load, LONG)["runs"]:
            assert abs(run["ties"]) <= CLOSE or run["cannot_tell"]


def test_without_its_judgement_of_disturbances_the_noise_is_taken_as_fact(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Runs that were all slow alike do not differ: only that judgement sees what slowed them."""
    judged = answered("always", 0)["runs"]
    assert all(run["cannot_tell"] for run in judged)
    assert any("disturbed each run of the pick" in run["why"] for run in judged)
    monkeypatch.setattr(disturbance, "disturbances", lambda _: [])
    taken = answer(["always"], SEEDS, 0)["always"]["runs"]
    assert not any(run["disturbed"] for run in taken)
    assert not any("disturbed" in run["why"] for run in taken)

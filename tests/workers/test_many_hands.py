"""Workers, driver and storage are killed at random: no trial is lost, none is made twice."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from bench.many_hands.killed import STORAGES, absent, chaos

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="processes are watched through /proc")
@pytest.mark.parametrize("storage", STORAGES)
def test_no_trial_is_lost_or_run_twice_while_workers_driver_and_storage_are_killed(
    storage: str, open_folder: Path
) -> None:
    why = absent(storage)
    if why:
        pytest.skip(why)
    found = chaos(storage, open_folder, workers=2, trials=16, kills=3, sampler="random")
    assert (found.lost, found.twice, found.stuck) == (0, 0, False)
    assert found.kills > 1  # a search that nobody lets be watched may be over before the third
    assert found.drivers >= 1
    assert found.trials >= 16

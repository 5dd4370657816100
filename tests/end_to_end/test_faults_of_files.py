"""A sample of `bench.faults`: a fault at a file operation loses nothing; the next run goes on."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.slow,
    pytest.mark.services,
    pytest.mark.skipif(
        not hasattr(os, "fork") or not Path("/proc/self/fd").is_dir(), reason="forks, reads /proc"
    ),
]


@pytest.mark.parametrize("command", ["tune", "verify", "learn", "plan", "prices refresh", "worker"])
def test_a_fault_at_a_file_operation_loses_nothing(command: str) -> None:
    from bench.faults.table import measured

    (row,) = measured([command], most=1)
    assert row["operations"] > 5
    assert row["points"] >= 5
    assert row["examples"] == []

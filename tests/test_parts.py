"""What a run of all tests says of its time."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from parts import SERVICES, Parts, processor_s


def report(file: str, when: str, clock_s: float, used_s: float, worker: str, *marks: str) -> object:
    return SimpleNamespace(
        nodeid=f"{file}::test_it", when=when, duration=clock_s, processor_s=used_s,
        worker_id=worker, keywords=dict.fromkeys(marks, 1),
    )  # fmt: skip


def test_each_part_is_summed_over_the_workers_that_shared_it() -> None:
    parts = Parts()
    for when, clock_s in (("setup", 60.0), ("call", 180.0), ("teardown", 0.0)):
        parts.pytest_runtest_logreport(report("a.py", when, clock_s, 5.0, "gw0"))
        parts.pytest_runtest_logreport(report("b.py", when, 60.0, 1.0, "gw1", SERVICES))
    told = "\n".join(parts.lines(parts.begun))
    assert "all but services and faults: 1 tests, 2.0 min on 2 at once, 15 s of processors" in told
    assert "\nservices and faults: 1 tests, 1.5 min on 2 at once, 3 s of processors" in told
    assert told.index("a.py") < told.index("b.py")


def test_the_processors_seconds_of_a_child_that_was_waited_for_count() -> None:
    before = processor_s()
    code = "import time\nwhile time.process_time() < 0.2: pass"
    subprocess.run([sys.executable, "-c", code], check=True)
    assert processor_s() - before >= 0.2


@pytest.mark.skipif(
    "PYTEST_XDIST_WORKER" not in os.environ or not Path("/proc/self/environ").is_file(),
    reason="of workers, where a process can be asked what it began with",
)
def test_a_worker_begins_with_one_thread() -> None:
    """Numpy counts its threads as it is imported, which is before any test file is."""
    begun_with = Path("/proc/self/environ").read_bytes().split(b"\0")
    assert b"OMP_NUM_THREADS=1" in begun_with

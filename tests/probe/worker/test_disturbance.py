"""Whether a window of steps can be believed, from readings that were written down and real ones."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.probe.worker.disturbance import (
    Counters,
    Host,
    between,
    disturbances,
    slowdown,
    spread_of,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

QUIET = {
    "cores": 2.0, "own": 1.9, "others": 0.05, "stolen": 0.0, "waited": 0.01, "throttles": 0.0,
    "spread": 0.12, "drift": 0.03, "stalled": 0.0, "fast": 0.9, "steady": True, "device": "cpu",
}  # fmt: skip


def test_a_quiet_window_is_believed() -> None:
    assert disturbances(QUIET) == []
    assert disturbances({}) == [], "a record from before readings were kept"


@pytest.mark.parametrize(
    ("reading", "said"),
    [
        ({"others": 1.4}, "other programs used 1.4 of 2 cores"),
        ({"stolen": 0.5}, "other virtual machines were given 0.5 of 2 cores"),
        ({"waited": 0.4, "others": 0.1}, "it waited for a core 40% of the time"),
        ({"spread": 0.6}, "steps differ by 60%"),
        ({"drift": 0.3}, "steps became 30% slower within the window"),
        ({"drift": -0.3}, "steps became 30% faster within the window"),
        ({"stalled": 0.3}, "30% of the steps stalled"),
        ({"steady": False}, "the steps never became steady"),
        ({"throttles": 3.0}, "the processor slowed down for its heat"),
        ({"throttled_by": ["thermal (hardware)"]}, "the device slowed down (thermal (hardware))"),
        ({"busy_before": 0.8}, "others kept the device busy 80% of the time"),
    ],
)
def test_every_sign_of_others_is_a_reason_in_words(reading: dict[str, Any], said: str) -> None:
    assert disturbances({**QUIET, **reading}) == [said]


def test_a_core_used_by_others_is_nothing_to_a_gpu_that_did_not_wait_for_it() -> None:
    assert disturbances({**QUIET, "device": "cuda", "others": 1.4}) == []
    waited = {**QUIET, "device": "cuda", "others": 1.4, "waited": 0.4}
    assert disturbances(waited) == ["it waited for a core 40% of the time"]


def test_own_threads_that_wait_for_each_other_are_no_disturbance() -> None:
    assert disturbances({**QUIET, "waited": 0.4, "others": 0.0}) == []


def test_a_card_at_its_power_cap_runs_as_it_always_will() -> None:
    assert disturbances({**QUIET, "throttled_by": ["power cap"]}) == []


def test_how_much_longer_a_disturbed_step_took_grows_with_what_others_took() -> None:
    assert slowdown(QUIET) < 1.3
    assert slowdown({**QUIET, "own": 0.4, "others": 1.6}) == pytest.approx(5.0)
    assert slowdown({**QUIET, "waited": 0.75}) == pytest.approx(4.0)
    assert slowdown({**QUIET, "fast": 0.2}) == pytest.approx(5.0)


def test_spread_and_drift_of_steps_are_robust_to_one_stall() -> None:
    found = spread_of([1.0, 1.01, 0.99, 9.0, 1.0, 1.01, 0.99, 1.0])
    assert found["spread"] < 0.05
    assert abs(found["drift"]) < 0.05
    assert found["stalled"] == pytest.approx(1 / 8)
    slower = spread_of([1.0 + 0.02 * i for i in range(26)])
    assert slower["drift"] == pytest.approx(0.5 / 1.25, rel=0.01)


def test_the_share_of_others_is_what_all_used_less_what_the_probe_did() -> None:
    before = Counters(10.0, 5.0, busy_s=100.0, stolen_s=1.0, waits_s={7: 2.0, 8: 0.0, 9: 0.0})
    after = Counters(14.0, 9.0, busy_s=107.0, stolen_s=1.4, waits_s={7: 2.4, 8: 2.0}, throttles=2)
    found = between(before, after, cores=2)
    assert found["own"] == pytest.approx(1.0)
    assert found["others"] == pytest.approx(0.75)
    assert found["stolen"] == pytest.approx(0.1)
    assert found["waited"] == pytest.approx(0.5), "of the thread that waited longest"
    assert found["throttles"] == 2


def test_counters_are_read_from_the_kernels_files(tmp_path: Path) -> None:
    proc = tmp_path / "proc"
    (proc / "self" / "task" / "41").mkdir(parents=True)
    (proc / "self" / "task" / "41" / "schedstat").write_text("5000 3000000000 9\n")
    number = min(os.sched_getaffinity(0))
    (proc / "stat").write_text(
        f"cpu  9 9 9 9 9 9 9 9 0 0\ncpu{number} 100 20 30 900 40 5 5 60 0 0\ncpu99999 9 9 9 9\n"
    )
    found = Host(proc, tmp_path, alone=True).read()
    tick = float(os.sysconf("SC_CLK_TCK"))
    assert found.busy_s == pytest.approx(160 / tick)
    assert found.stolen_s == pytest.approx(60 / tick)
    assert found.waits_s == {41: 3.0}


def test_where_nobody_counts_only_the_steps_speak(tmp_path: Path) -> None:
    host = Host(tmp_path, tmp_path)
    first = host.read()
    found = between(first, host.read(), host.cores)
    assert not {"others", "stolen", "waited"} & found.keys()
    assert disturbances({**found, "spread": 0.1}) == []
    assert disturbances({**found, "spread": 0.9})


@pytest.fixture
def crowd() -> Iterator[None]:
    """Two busy processes for each core."""
    count = 2 * len(os.sched_getaffinity(0))
    code = "print(flush=True)\nwhile True: pass"
    busy = [
        subprocess.Popen(
            [sys.executable, "-S", "-c", code], stdout=subprocess.PIPE, start_new_session=True
        )
        for _ in range(count)
    ]
    for process in busy:  # it runs
        process.stdout.readline()
    yield
    for process in busy:
        process.kill()
        process.communicate()


@pytest.mark.skipif(not Path("/proc/self/schedstat").exists(), reason="the kernel counts no waits")
@pytest.mark.usefixtures("crowd")
def test_among_busy_processes_a_window_is_found_disturbed() -> None:
    host = Host()
    for _ in range(50):  # the kernel shares the cores out as it likes: not in every window alike
        before = host.read()
        until = time.thread_time() + 0.25
        while time.thread_time() < until:
            sum(range(10_000))
        seen = between(before, host.read(), host.cores)
        if seen["waited"] > 0.2:
            break
    assert seen["waited"] > 0.2
    assert disturbances({**seen, "device": "cpu"})
    assert slowdown(seen) > 1.2

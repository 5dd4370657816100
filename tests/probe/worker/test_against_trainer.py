"""What a probe says a step takes is what a plain Trainer takes, at full depth and from two.

Times are the processor's own seconds, and both sides of a ratio take turns. Here a ratio is far
from 1 only where other work is done: how near it is on a quiet machine, within the repeat error
and 5 % from two depths, is measured by `python -m bench.probe`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from builders import needs

from bench.probe.cost import BRIEF, Bench, depth_over_full, small_job, worker_over_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

needs("torch", "transformers", "peft")
pytestmark = pytest.mark.slow
NEAR = 0.3  # of the processor's seconds, whatever else runs: a step more or a pass less is beyond
ATTEMPTS = 3


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch, Bench(tmp_path_factory.mktemp("bench")) as made:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield made


def test_the_workers_step_is_the_plain_trainers(bench: Bench) -> None:
    seen = []
    for _ in range(ATTEMPTS):
        found = worker_over_plain(bench, small_job(), 2, BRIEF)["cpu"]
        seen.append(found)
        if abs(found["ratio"] - 1) <= NEAR:
            return
    pytest.fail(f"worker over plain Trainer: {seen}")


def test_two_depths_are_the_full_depth_and_within_one_percent_in_memory(bench: Bench) -> None:
    """From 2 and 6 of 24 layers: shallower models are a shorter way of the same line."""
    job = small_job(layers=24, kind="full")
    seen = []
    for _ in range(ATTEMPTS):
        found = depth_over_full(bench, job, 1, BRIEF)
        assert found["allocated"] == pytest.approx(1.0, abs=0.01)
        seen.append(found["cpu"])
        if abs(seen[-1] - 1) <= NEAR:
            return
    pytest.fail(f"extrapolated over full depth: {seen}")

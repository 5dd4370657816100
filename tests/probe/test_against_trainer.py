"""What a probe says a step takes is what a plain Trainer takes, at full depth and from two.

Times are the processor's own seconds: other programs on the machine disturb them less than the
wall's, and both sides of a ratio take turns. A round that was disturbed all the same is made again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from bench.probe import BRIEF, Bench, depth_over_full, small_job, worker_over_plain

if TYPE_CHECKING:
    from collections.abc import Iterator

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("peft")
pytestmark = pytest.mark.slow
ATTEMPTS = 8  # other programs on the machine make a pair of runs differ


@pytest.fixture(scope="module")
def bench(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    with pytest.MonkeyPatch.context() as patch, Bench(tmp_path_factory.mktemp("bench")) as made:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield made


def test_the_workers_step_is_the_plain_trainers_within_its_repeat_error(bench: Bench) -> None:
    seen = []
    for _ in range(ATTEMPTS):
        found = worker_over_plain(bench, small_job(), 3, BRIEF)["cpu"]
        seen.append(found)
        if abs(found["ratio"] - 1) <= 0.02 + 2 * min(found["error"], 0.04):
            return
    pytest.fail(f"worker over plain Trainer: {seen}")


@pytest.mark.parametrize("layers", [8, 24])
def test_two_depths_are_the_full_depth_within_five_percent_in_time_and_one_in_memory(
    bench: Bench, layers: int
) -> None:
    job = small_job(layers=layers, kind="full")
    seen = []
    for _ in range(ATTEMPTS):
        found = depth_over_full(bench, job, 3, BRIEF, kept=True)
        assert found["allocated"] == pytest.approx(1.0, abs=0.01)
        seen.append(found["cpu"])
        if abs(seen[-1] - 1) <= 0.05:
            return
    pytest.fail(f"extrapolated over full depth: {seen}")

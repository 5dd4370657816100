"""The search on everything that could have been measured: recorded, and really run."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from builders import BRIEF

from autotune.cost.time import launch
from autotune.probe.record import read_records
from autotune.probe.request import Effort, request_for
from autotune.search.selection import TIE
from bench.replay.grid import FOLDER, RECORD, configurations, tiny_job
from bench.replay.probed import answer, replayed
from bench.replay.recorded import RecordedRunner, replay_key

ROOT = Path(__file__).parents[3]
SMALL = {
    "compile": "off", "precision": "fp32", "attention": "sdpa", "num_dataloader_workers": "0",
}  # fmt: skip
QUICK = Effort(**BRIEF, most=10, measured=6, least=4, seconds=1.0, patience_s=2.0, loader=False,
               evaluation=False, checkpoint_max_bytes=0.0)  # fmt: skip


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")


def test_the_recorded_grid_is_the_whole_space_of_the_tiny_job() -> None:
    recorded = {record.config["micro_batch_size"] for record in read_records(FOLDER / RECORD)}
    keys = {
        tuple(sorted((n, str(v)) for n, v in record.config.items() if n in SMALL))
        for record in read_records(FOLDER / RECORD)
    }
    assert len(configurations(tiny_job())) >= 40
    assert recorded == {1, 2, 4, 8}
    assert len(keys) >= 10


def test_on_the_recorded_grid_the_pick_is_within_five_percent_of_the_best() -> None:
    found = answer(seeds=3)
    assert found["configurations"] >= 40
    for run in found["seeds"]:
        assert run["regret"] <= 0.05
        assert run["probes"] <= found["configurations"] / 4
    assert found["mean_regret"] <= 0.02
    assert found["without_probes"]["regret"] <= 0.06


def test_a_cost_model_that_takes_the_processor_for_a_gpu_is_put_right_by_probes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It then believes in bf16, and so does the first probe."""
    monkeypatch.setattr(launch, "on_processor", lambda columns: np.zeros(columns.rows, np.bool_))
    monkeypatch.setattr(launch, "PROCESSOR_ISSUE", 1.0)
    grid = replayed(seeds=3, orders=5)
    assert grid.without_probes > 0.03
    for curve in grid.calibrated:
        assert curve[-1] < grid.without_probes


def test_regret_falls_with_every_few_probes_and_beats_chance() -> None:
    grid = replayed(seeds=2, orders=50)
    chance = sum(curve[4] for curve in grid.random) / len(grid.random)
    for curve in grid.calibrated:
        assert curve[min(4, len(curve) - 1)] < chance
        assert curve[-1] <= curve[0] + TIE, "a tie may go to the plainer"


def test_a_recorded_runner_answers_with_each_repeat_and_says_what_was_never_run() -> None:
    job = tiny_job()
    records = read_records(FOLDER / RECORD)
    config = configurations(job)[0]
    own = [r for r in records if replay_key_of(r.config) == replay_key(config)]
    runner = RecordedRunner(records, seed=1)
    request = request_for(job, job.offers[0], config)
    answers = [runner.run(request, config.as_dict()) for _ in own]
    assert sorted(a.when for a in answers) == sorted(r.when for r in own)
    assert all(a.key == request["key"] for a in answers)
    never = config.with_knobs(packing="on")
    assert runner.run(request, never.as_dict()).status == "unsupported"


def replay_key_of(config: dict[str, object]) -> str:
    from autotune.domain.config import Config

    return replay_key(Config(**config))  # type: ignore[arg-type]

"""The commands as functions: what they return is what the command line prints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import autotune
from autotune.app.job.load import load_job
from autotune.domain.errors import InputError

pytestmark = pytest.mark.usefixtures("home")

GEMMA = Path(__file__).parents[2] / "jobs" / "t4_to_a100_gemma2.yaml"
CAMPAIGN = """\
hardware: [{gpu: l4, price: 1 USD/h}]
runs: [{name: a, hours: 2}, {name: b, hours: 3, after: [a]}]
"""


def test_every_public_name_is_there() -> None:
    for name in autotune.__all__:
        assert getattr(autotune, name).__doc__, name


def test_compare_takes_a_file_or_a_job_and_gives_the_rows_cheapest_first() -> None:
    found = autotune.compare(GEMMA, gpus="l4,a100-40gb")
    costs = [row.row.cost_usd.p50 for row in found.rows]
    assert costs == sorted(costs)
    assert found.cheapest is found.rows[0]
    assert found.fastest.row.offer.device.name == "a100-sxm4-40gb"
    assert isinstance(found, autotune.Comparisons)
    again = autotune.compare(load_job(GEMMA, gpus=("l4", "a100-40gb")))
    assert [row.row for row in again.rows] == [row.row for row in found.rows]


def test_plan_takes_a_campaign_file(tmp_path: Path) -> None:
    path = tmp_path / "campaign.yaml"
    path.write_text(CAMPAIGN)
    found = autotune.plan(path, parallel=2)
    assert isinstance(found, autotune.Plan)
    assert found.schedule.makespan_s == pytest.approx(5 * 3600)
    assert found.offers[found.machine].cost_usd.p50 == pytest.approx(5.0)


def test_recompute_and_verify_take_a_run_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    answer = autotune.tune(GEMMA, gpus=["t4"], run_dir=run, fidelity="formula", trials=3)
    again = autotune.recompute(run, gpus=["a100-40gb"], deadline="1h", fidelity="formula")
    assert isinstance(again, autotune.Recomputation)
    assert again.changed
    assert again.parts[0].after.job.limits.deadline_s == 3600.0
    steps, best = answer.job.steps, answer.best
    assert best is not None
    log = tmp_path / "trainer_state.json"
    log.write_text(json.dumps({"global_step": steps // 2, "max_steps": steps, "log_history": []}))
    told = autotune.verify(run, log, elapsed="3h", next_runs=2)
    assert isinstance(told, autotune.Verification)
    assert (told.steps_done, told.next_runs.count, told.finished) == (steps // 2, 2, False)
    with pytest.raises(InputError, match="no runs in"):
        autotune.verify(log, elapsed="3h")


def test_what_is_neither_a_path_nor_a_job_is_refused_with_what_is() -> None:
    for verb in (autotune.tune, autotune.estimate, autotune.compare):
        with pytest.raises(InputError, match="path of a job file, or a Job, and this is a dict"):
            verb({"model": "Qwen/Qwen2.5-7B"})


def test_a_field_that_does_not_exist_is_named() -> None:
    with pytest.raises(TypeError, match="fidelty"):
        autotune.compare(GEMMA, fidelty="formula")


def test_a_word_that_chooses_nothing_is_an_error_with_close_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match='unknown fidelity "formla"; did you mean formula'):
        autotune.compare(GEMMA, fidelity="formla")
    with pytest.raises(InputError, match='unknown objective "price"'):
        autotune.tune(GEMMA, gpus="t4", objective="price")
    with pytest.raises(InputError, match='unknown objective "cheap"'):
        autotune.recompute(GEMMA, objective="cheap")
    path = tmp_path / "campaign.yaml"
    path.write_text(CAMPAIGN)
    with pytest.raises(InputError, match='unknown hours "sated"; did you mean stated'):
        autotune.plan(path, hours="sated")

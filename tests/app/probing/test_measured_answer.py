"""What a measured answer says of itself: steps, bound, budget, and what stands beside the pick."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from simulatedmachine import TINY, Machine, options_of, step_of

from autotune.app.job.load import load_job
from autotune.app.tune.tune import Options, tune
from autotune.domain.units import format_seconds
from autotune.report.payload import recommendation_payload
from autotune.report.screens.screen import MOST_LINES
from autotune.report.screens.tune import recommendation_screen

if TYPE_CHECKING:
    from autotune.domain.answer.recommendation import Recommendation
    from autotune.report.schema import RecommendationPayload

SLOWER = 20.0  # than the machine of the formula: training, not the start, is what takes long
TODAY = """
evidence:
  - measured: {duration: 5 min}
    config: {micro_batch_size: 4, num_dataloader_workers: 0, checkpoint_every_steps: 10,
             compile: off, precision: fp32}
    today: true
"""


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Recommendation]:
    """Tuned by probes of a machine far slower than the model believes: cheap, paid, with today."""
    folder = tmp_path_factory.mktemp("answers")
    shutil.copytree(TINY.parent / "data", folder / "data")
    (folder / "job.yaml").write_text(TINY.read_text() + TODAY)
    jobs = {
        "free": load_job(TINY),
        "paid": load_job(TINY, price="3 USD/h"),
        "today": load_job(folder / "job.yaml"),
    }
    found = {}
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_HOME", str(folder / "home"))
        for name, job in jobs.items():
            machine = Machine(step=lambda config: SLOWER * step_of(config))
            probing = options_of(machine, budget_s=60.0, probes=12)
            options = Options(score="probe", run_dir=folder / name, probing=probing)
            found[name] = tune(job, options)
    return found


def payload(answers: dict[str, Recommendation], name: str) -> RecommendationPayload:
    return recommendation_payload(answers[name])


@pytest.mark.parametrize("name", ["free", "paid", "today"])
def test_what_bounds_a_measured_run_is_the_largest_part_of_its_measured_bill(
    answers: dict[str, Recommendation], name: str
) -> None:
    best = answers[name].best
    assert best.time_s.train > 0.8 * best.time_s.total
    assert best.bound_by == best.step_bound != "startup"


@pytest.mark.parametrize("name", ["free", "paid", "today"])
def test_the_time_that_all_steps_are_said_to_take_is_that_of_the_bill(
    answers: dict[str, Recommendation], name: str
) -> None:
    best = answers[name].best
    steps = format_seconds(best.time_s.train + best.time_s.data_wait)
    why = answers[name].reasons["checkpoint_every_steps"]
    assert why == f"one save, at the end: all steps take {steps}"


@pytest.mark.parametrize("name", ["free", "paid"])
def test_the_probe_budget_is_said_as_it_was_asked_for(
    answers: dict[str, Recommendation], name: str
) -> None:
    search = answers[name].search
    if "the probe budget" in search.stopped_because:
        assert "the probe budget of 60.0 s" in search.stopped_because
    assert name == "paid" or "kept to run the pick once more" in search.stopped_because
    assert search.probe_seconds <= 60.0


def test_a_resumed_run_says_the_budget_that_it_was_begun_with(
    answers: dict[str, Recommendation], monkeypatch: pytest.MonkeyPatch
) -> None:
    run = Path(answers["free"].run_dir)
    monkeypatch.setenv("AUTOTUNE_HOME", str(run.parent / "home"))
    probing = options_of(Machine(step=lambda config: SLOWER * step_of(config)))
    again = Options(score="probe", run_dir=run, resume=True, probing=probing)
    assert probing.budget_s is None
    assert tune(load_job(TINY), again).search.probe_budget_s == 60.0


def test_what_a_pass_less_saves_is_its_share_of_the_measured_steps(
    answers: dict[str, Recommendation],
) -> None:
    best = answers["free"].best
    one = next(s for s in answers["free"].sensitivities if s.key == "train.epochs")
    each_epoch = (best.time_s.train + best.time_s.data_wait + best.time_s.evaluation) / 2
    assert one.saved_s == pytest.approx(each_epoch, rel=0.05)
    assert one.saved_s == pytest.approx(best.duration_s.p50 - one.duration_s)


def test_a_measured_answer_does_not_call_its_time_modelled(
    answers: dict[str, Recommendation],
) -> None:
    found = answers["free"]
    assert not any("its time is modelled" in text for text in found.warnings)
    assert not found.beyond
    assert "hardware.host.download" not in found.narrowest


def test_today_stands_beside_a_measured_pick_under_what_the_probes_taught(
    answers: dict[str, Recommendation],
) -> None:
    """By the plain model today would take a tenth of what the machine needs."""
    found = answers["today"]
    assert found.today.step_time_s > found.best.step_time_s
    fall = found.journey.waterfall
    assert fall.start_s == pytest.approx(found.today.duration_s.p50)
    assert fall.end_s == pytest.approx(found.best.duration_s.p50)
    assert found.journey.gaps == ()


def test_a_config_of_today_that_was_probed_is_said_as_it_was_measured(tmp_path: Path) -> None:
    job = load_job(TINY, set_values={
        "compile": "off", "micro_batch_size": "4", "precision": "fp32", "attention": "sdpa",
        "num_dataloader_workers": "0", "activation_checkpointing": "none",
    })  # fmt: skip
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
        first = tune(job, Options(run_dir=tmp_path / "model")).best
        job = replace(job, today=first.config.with_knobs(checkpoint_every_steps=10))
        options = options_of(Machine(step=lambda _: 3.0), probes=1)
        found = tune(job, Options(score="probe", run_dir=tmp_path / "run", probing=options))
    assert found.today.basis == "measured"
    assert found.today.step_time_s == found.best.step_time_s == pytest.approx(3.0)
    assert found.today.config.checkpoint_every_steps == 10
    assert found.today.time_s.total == pytest.approx(found.today.duration_s.p50)


@pytest.mark.parametrize("name", ["free", "paid", "today"])
def test_a_measured_answer_is_told_on_one_screen_and_says_so(
    answers: dict[str, Recommendation], name: str
) -> None:
    shown = recommendation_screen(payload(answers, name))
    assert len(shown.splitlines()) <= MOST_LINES
    broken = [line for line in shown.splitlines() if "/pytest-" not in line]  # a path stays whole
    assert max(map(len, broken)) <= 80
    assert "Based on training steps measured on the device" in shown
    assert "--score probe" not in shown

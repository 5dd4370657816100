"""Prediction, pace and dollars in the W&B or MLflow run that a training has open."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.training import process
from autotune.training.session import Trackers, predicted, so_far

if TYPE_CHECKING:
    from collections.abc import Iterator

Told = list[tuple[dict[str, float], Any]]
ROW: Any = SimpleNamespace(
    step_time_s=0.5, duration_s=SimpleNamespace(p10=800.0, p50=1000.0, p90=1300.0),
    cost_usd=SimpleNamespace(p50=0.7), usd_per_hour=2.5,
)  # fmt: skip


@pytest.fixture
def told(monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    """What a W&B run, the only tracker of this process, was given."""
    found: Told = []
    run = SimpleNamespace(log=lambda metrics: found.append((metrics, None)))
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=run))
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    return found


def test_prediction_and_actual_and_dollars_reach_the_open_run(told: Told) -> None:
    assert Trackers().tell(predicted(ROW) | so_far(ROW, 0.6, 720.0), 20) == ("wandb",)
    ((metrics, _),) = told
    assert metrics["train/global_step"] == 20
    assert metrics["autotune/predicted_step_s"] == 0.5
    assert metrics["autotune/step_s"] == 0.6
    assert metrics["autotune/cost_so_far_usd"] == pytest.approx(0.5)  # 720 s of 2.50 USD/h


def test_without_a_plan_or_a_price_only_what_was_measured_is_told() -> None:
    assert predicted(None) == {}
    assert so_far(None, 0.6, 720.0) == {"step_s": 0.6, "passed_s": 720.0}
    assert so_far(ROW, 0.6, None) == {"step_s": 0.6}  # a notebook's process trains more than this


def test_a_tracker_without_an_open_run_is_told_nothing_and_none_is_imported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=None))
    monkeypatch.setitem(sys.modules, "mlflow", SimpleNamespace(active_run=lambda: None))
    assert Trackers().tell({"step_s": 1.0}, 1) == ()
    monkeypatch.delitem(sys.modules, "wandb")
    monkeypatch.delitem(sys.modules, "mlflow")
    assert Trackers().tell({"step_s": 1.0}, 1) == ()
    assert not {"wandb", "mlflow"} & set(sys.modules)


def test_a_tracker_that_fails_is_left_alone_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, float]] = []

    def log(metrics: dict[str, float]) -> None:
        asked.append(metrics)
        msg = "no network"
        raise ConnectionError(msg)

    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run=SimpleNamespace(log=log)))
    monkeypatch.delitem(sys.modules, "mlflow", raising=False)
    trackers = Trackers()
    assert trackers.tell({"step_s": 1.0}, 1) == trackers.tell({"step_s": 1.0}, 2) == ()
    assert len(asked) == 1


def test_mlflow_gets_the_metrics_at_their_step(monkeypatch: pytest.MonkeyPatch) -> None:
    found: Told = []
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setitem(
        sys.modules, "mlflow",
        SimpleNamespace(
            active_run=object, log_metrics=lambda metrics, step: found.append((metrics, step))
        ),
    )  # fmt: skip
    assert Trackers().tell({"step_s": 1.0}, 7) == ("mlflow",)
    assert found == [({"autotune/step_s": 1.0}, 7)]


def test_a_training_tells_at_its_log_the_mean_step_since_the_last(
    told: Told, fake: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    from autotune.training.callback import Recorder

    device = fake.Device()
    monkeypatch.setitem(sys.modules, "torch", fake.torch_of(device, "NVIDIA A100-SXM4-80GB"))
    monkeypatch.setattr(process, "age_s", lambda: 60.0)
    training = fake.Training(Recorder(None), device, fake.arguments(tmp_path), 40)
    training.begin()
    for _ in range(3):
        training.step(1.0)
    training.step(1.0, log_s=0.1)
    training.step(3.0, log_s=0.1)
    found = [metrics["autotune/step_s"] for metrics, _ in told]
    assert len(found) == 2
    assert found[0] == pytest.approx(1.0, abs=0.05)
    assert found[1] > 2.5
    assert {metrics["autotune/passed_s"] for metrics, _ in told} == {60.0}

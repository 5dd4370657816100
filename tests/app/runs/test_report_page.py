"""The page in a run's folder, and the answer in a notebook."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

import autotune
from autotune.app.runs.folder import load_recommendation_payload
from autotune.domain.answer.recommendation import Recommendation
from autotune.domain.units import format_bytes, format_usd
from autotune.report.page.page import recommendation_html
from autotune.report.recorded import recorded_payload

JOB = Path(__file__).parents[3] / "jobs" / "h100_38h.yaml"


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("runs") / "run"
    autotune.tune(JOB, run_dir=path, fidelity="formula", trials=5)
    return path


def test_tune_writes_the_page_that_the_recorded_answer_makes(run_dir: Path) -> None:
    payload = recorded_payload(load_recommendation_payload(run_dir), str(run_dir))
    assert (run_dir / "report.html").read_text() == recommendation_html(payload)


def test_the_files_that_are_named_are_there_and_one_starts_the_training(run_dir: Path) -> None:
    files = load_recommendation_payload(run_dir)["files"]
    assert "run.sh" in files
    assert all((run_dir / name).is_file() for name in files)
    assert f"bash {run_dir}/run.sh" in (run_dir / "report.html").read_text()


def test_a_notebook_shows_the_answer_of_tune_and_it_is_a_recommendation() -> None:
    answer = autotune.tune(JOB, fidelity="formula", trials=5)
    assert isinstance(answer, Recommendation)
    shown = answer._repr_html_()  # type: ignore[attr-defined]
    assert answer.job.name in shown
    assert "<script" not in shown
    assert pickle.loads(pickle.dumps(answer)) == answer  # noqa: S301 - our own bytes


def test_a_notebook_shows_what_estimate_answers_and_it_is_a_row() -> None:
    row = autotune.estimate(JOB)
    assert isinstance(row, autotune.Estimated)
    shown = row._repr_html_()  # type: ignore[attr-defined]
    assert format_usd(row.cost_usd.p50) in shown
    assert format_bytes(row.memory_bytes.total) in shown
    assert "<script" not in shown
    assert len(shown) < 30_000
    assert pickle.loads(pickle.dumps(row)) == row  # noqa: S301 - our own bytes


def test_a_dry_run_writes_no_page(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    autotune.tune(JOB, fidelity="formula", trials=5)
    assert list(tmp_path.rglob("*.html")) == []

"""Whatever the job, an answer agrees with itself: figures with figures, sentences with figures."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from answerreports import problems, problems_of_estimate
from generatedjobs import documents, write
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from autotune.app.compare.compare import compare
from autotune.app.estimate import estimate
from autotune.app.job.load import load_job
from autotune.app.tune.tune import Options, tune
from autotune.domain.answer.contract import plain
from autotune.domain.errors import InputError
from autotune.domain.job import NamedJob
from autotune.report.compare.payload import comparison_payload
from autotune.report.payload import estimate_payload
from bench.consistency.checks import contradictions

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

pytestmark = pytest.mark.usefixtures("home")

DRAWN = settings(
    max_examples=15, deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow,
                           HealthCheck.filter_too_much],
)  # fmt: skip


def loaded(document: dict[str, Any], folder: Path) -> Job:
    """The drawn job; one that a rule refuses is drawn again."""
    try:
        return load_job(write(document, folder / "job.yaml"))
    except InputError:
        assume(condition=False)
        raise


@DRAWN
@given(document=documents(), objective=st.sampled_from(["cost", "time"]))
def test_an_answer_agrees_with_itself_in_every_form(
    document: dict[str, Any], objective: Any, tmp_path: Path
) -> None:
    job = loaded(document, tmp_path)
    found = tune(job, Options(dry_run=True, fidelity="formula", objective=objective))
    assert problems(found) == []


@settings(DRAWN, max_examples=4)
@given(document=documents(), sampler=st.sampled_from(["tpe", "random"]))
def test_an_answer_of_a_stock_sampler_is_the_best_of_what_it_shows(
    document: dict[str, Any], sampler: str, tmp_path: Path
) -> None:
    job = loaded(document, tmp_path)
    options = Options(dry_run=True, fidelity="formula", sampler=sampler, trials=6)
    assert problems(tune(job, options)) == []


@settings(DRAWN, max_examples=15)
@given(document=documents(), micro=st.sampled_from([1, 4]))
def test_an_estimate_agrees_with_itself(
    document: dict[str, Any], micro: int, tmp_path: Path
) -> None:
    assume(document["train"]["global_batch_size"] % micro == 0)
    document["hardware"] = document["hardware"][:1]
    try:
        job = load_job(write(document, tmp_path / "job.yaml"),
                       set_values={"micro_batch_size": str(micro)})  # fmt: skip
        found = estimate(job, fidelity="formula")
    except InputError:
        assume(condition=False)
        raise
    payload = estimate_payload(found.row, job, found.warnings)
    assert problems_of_estimate(payload) == []


@settings(DRAWN, max_examples=10)
@given(document=documents())
def test_a_comparison_names_the_cheapest_and_the_fastest_of_its_rows(
    document: dict[str, Any], tmp_path: Path
) -> None:
    job = loaded(document, tmp_path)
    payload = comparison_payload(compare([NamedJob("", job)]))
    assert contradictions(plain(payload)) == []

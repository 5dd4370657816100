"""Each check sees what it is there for: an answer with one figure or sentence changed is denied."""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.job.load import load_job
from autotune.app.tune.tune import Options, tune
from autotune.domain.outcome import Spread
from autotune.domain.units import format_usd
from autotune.report.payload import dumps, recommendation_payload
from bench.consistency.checks import contradictions, main
from bench.consistency.said import plain, said

if TYPE_CHECKING:
    from collections.abc import Callable

JOBS = Path(__file__).parents[2] / "jobs"


@pytest.fixture(scope="module")
def answer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AUTOTUNE_HOME", str(tmp_path_factory.mktemp("home")))
        job = load_job(JOBS / "h100_38h.yaml")
        job = replace(job, limits=replace(job.limits, deadline_s=None, budget_usd=None))
        found = tune(job, Options(dry_run=True, fidelity="formula"))
        return json.loads(dumps(recommendation_payload(found)))


def _set(path: str, value: Any) -> Callable[[Any], None]:
    """Puts a value, or a function of the old one, at a dotted path."""

    def change(payload: Any) -> None:
        *above, last = path.split(".")
        for name in above:
            payload = payload[int(name) if name.isdigit() else name]
        payload[last] = value(payload[last]) if callable(value) else value

    return change


def _late(payload: Any) -> None:
    payload["job"]["limits"]["deadline_s"] = payload["best"]["duration_s"]["p50"] / 2


def _cheaper(payload: Any) -> None:
    row = payload["alternatives"][0]
    hours = payload["best"]["duration_s"]["p50"] / 2 / 3600.0
    shrink = hours * 3600.0 / row["duration_s"]["p50"]
    for figure in ("duration_s", "cost_usd", "time_s"):
        row[figure] = {name: value * shrink for name, value in row[figure].items()}
    row["cost_usd"] = {q: v / 3600.0 * row["usd_per_hour"] for q, v in row["duration_s"].items()}


@pytest.mark.parametrize(
    ("change", "seen"),
    [
        (_set("best.time_s.load", lambda v: v + 60.0), "parts of the time sum to"),
        (_set("best.duration_s.p10", 1e12), "is not in order"),
        (_set("best.step_time_s", lambda v: v / 2), "and training takes"),
        (_set("best.bound_by", "startup"), "bound by startup, and"),
        (_set("best.cost_usd.p50", lambda v: v * 1.01), "time times price is"),
        (_set("best.memory_bytes.weights", lambda v: v * 2), "parts of the memory do not sum"),
        (_set("best.verdict", "at_risk"), "verdict at_risk with"),
        (_set("best.fits_probability", 0.85), "verdict fits with"),
        (_set("best.fits_probability", 1.0), "more than the tested claims bear"),
        (_set("best.risk", lambda risk: "" if risk else "a risk"), "risk '"),
        (_set("best.basis", "measured"), "basis measured, measured None"),
        (_set("best.checkpoints", lambda n: n + 5), "saves"),
        (_set("best.tokens_per_s", lambda v: v * 2), "tokens/s over all steps"),
        (_set("best.config.micro_batch_size", 3), "rows a step"),
        (_set("alternatives.0.verdict", "certain_oom"), "is offered and certain_oom"),
        (_late, "limits ['deadline'] are stated"),
        (_cheaper, "is better than the pick"),
        (_set("tie", True), "tie True, with []"),
        (_set("pareto", lambda rows: [rows[0], rows[0]]), "the front is no front"),
        (_set("rejected.count", lambda n: n + 1), "reasons of rejection"),
        (_set("search.probes", 3), "3 probes are told"),
        (_set("search.priced", lambda n: n * 100), "candidates were priced"),
        (_set("waterfall.0.duration_s", lambda v: v + 900.0), "the changes lead to"),
        (_set("sensitivities.0.saved_s", lambda v: v + 900.0), "the difference is another"),
        (_set("rejected.nearest.0.short_of", "limit"), "is said to be short of limit"),
        (_set("job.steps", lambda n: n * 2), "steps"),
    ],
)
def test_one_changed_figure_is_denied(
    answer: Any, change: Callable[[Any], None], seen: str
) -> None:
    payload = copy.deepcopy(answer)
    payload["tie"], payload["ties"], payload["differences"] = False, [], []
    assert contradictions(payload) == []
    change(payload)
    found = contradictions(payload)
    assert any(seen in text for text in found), found


@pytest.mark.parametrize(
    ("sentence", "seen"),
    [
        ("Fits (probability 0.42).", "0.42 is told"),
        ("Why: bound by start-up (loading).", "'start-up' is told"),
        ("one save, at the end: all steps take 2.0 s", "all steps are said to take 2.0 s"),
        ("training steps are 3 % of the time.", "said to be 3 %"),
        ("the probe budget of 4.0 min would be exceeded", "a probe budget of 4.0 min is told"),
        ("Priced 1 of 2 candidates", "were priced"),
        ("1.0 ms sooner and $1.00 cheaper", "than today is told"),
        ("Too close to call: the next best", "a tie is told"),
        ("{dearer} +1%", "is said to be +1 %"),
        ("-1.0 h (-1%)", "a change of -1 % against today"),
        ("today 3.0 h (-1%)", "a change of -1 % against today"),
        ("Deadline of 9.9 h missed.", "'Deadline of 9.9 h missed' is told"),
    ],
)
def test_one_wrong_sentence_is_denied(answer: Any, sentence: str, seen: str) -> None:
    payload = copy.deepcopy(answer)
    payload["tie"] = False
    figures = f"{_middle(payload)} "
    assert said(payload, figures) == []
    dearer = format_usd(payload["alternatives"][-1]["cost_usd"]["p50"])
    found = said(payload, figures + sentence.replace("{dearer}", dearer))
    assert any(seen in text for text in found), found


def _middle(payload: Any) -> str:
    from autotune.report.phrases import seconds_span, usd_span

    best = payload["best"]
    return f"{seconds_span(Spread(**best['duration_s']))} {usd_span(Spread(**best['cost_usd']))}"


def test_a_limit_that_is_missed_and_not_told_is_denied(answer: Any) -> None:
    payload = copy.deepcopy(answer)
    payload["limits"] = [{"limit": "deadline", "value": 7200.0, "probability": 0.1}]
    payload["misses"] = [{"limit": "deadline", "by": 3600.0}]
    told = said(payload, "It is late.")
    assert any("'deadline of 2.0 h missed' is not told" in text for text in told)


def test_an_answer_without_its_own_figures_in_the_report_is_denied(answer: Any) -> None:
    assert any("does not stand there" in text for text in said(answer, "It takes long."))


def test_a_page_is_read_as_its_words() -> None:
    page = "<!DOCTYPE html>\n<html><style>p {}</style><p>Fits&nbsp;<b>now</b></p></html>"
    assert plain(page) == "Fits now"


def test_the_command_prints_every_contradiction_and_leaves_with_one(
    answer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    path, report = tmp_path / "answer.json", tmp_path / "report.txt"
    path.write_text(json.dumps(answer))
    report.write_text(_middle(answer))
    monkeypatch.setattr("sys.argv", ["consistency", str(path), str(report)])
    assert main() == 0
    assert "no contradiction" in capsys.readouterr().out
    report.write_text("Fits (probability 0.42).")
    assert main() == 1
    assert "report.txt: the probability is" in capsys.readouterr().out

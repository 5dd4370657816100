"""Rows of unknown length: both ends of the range, in every command, and no saving on either."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import commandline
import pytest

from autotune.app.job.load import load_job
from autotune.app.tune.tune import Options, tune
from autotune.app.whatif.unknown_lengths import on_short_rows
from autotune.cost.model import CostModel
from autotune.domain.observation import Calibration
from autotune.domain.outcome import Spread
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space
from bench.consistency.lengths import SAVING

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated

    Typed = Callable[..., tuple[int, str]]

AXOLOTL = Path(__file__).parents[3] / "jobs" / "trainers" / "axolotl.yml"
LINE = ("--model", "Qwen2.5-7B", "--rows", "20k", "--max-length", "2048", "--gpu", "l40s")
JOB = """\
model: Qwen/Qwen2.5-7B
method: {kind: lora, rank: 16}
data: {rows: 20000, max_length: 2048}
train: {epochs: 1, global_batch_size: 16}
hardware: [l40s]
"""
SEEN = """\
evidence:
  - measured: {duration: 6 h}
    config: {micro_batch_size: 1, gradient_accumulation_steps: 16, precision: bf16}
    today: true
"""


@pytest.fixture
def typed(tmp_path: Path) -> Typed:
    """A command line in a folder of its own: its exit code and what it printed."""

    def run_it(*words: str) -> tuple[int, str]:
        done = commandline.typed(*words, "--quiet", home=tmp_path, cwd=tmp_path)
        return done.returncode, done.stdout

    return run_it


def job_of(tmp_path: Path, text: str) -> Job:
    path = tmp_path / "job.yaml"
    path.write_text(text)
    return load_job(path)


def rows_of(job: Job, calibration: Calibration) -> list[Estimated]:
    bill = CostModel(job, calibration).price(enumerate_candidates(job, load_space()).candidates)
    return [bill.estimate(i) for i in range(0, len(bill), max(1, len(bill) // 12))]


def test_short_rows_take_less_wherever_batches_follow_the_rows(tmp_path: Path) -> None:
    job = job_of(tmp_path, JOB)
    rows = rows_of(job, Calibration())
    for row, short in zip(rows, on_short_rows(job, Calibration(), rows), strict=True):
        assert short.duration_s.p50 < 0.7 * row.duration_s.p50
        assert short.cost_usd.p50 / short.duration_s.p50 == pytest.approx(
            row.cost_usd.p50 / row.duration_s.p50
        )
        assert short.duration_s.p10 < short.duration_s.p50 < short.duration_s.p90
        assert (short.like, short.p50_tokens, short.settled) == ("tatsu-lab/alpaca", 128.0, False)


def test_known_lengths_have_no_other_end(tmp_path: Path) -> None:
    known = JOB.replace("2048}", "2048, lengths: {p50: 200, p95: 900, max: 2048}}")
    job = job_of(tmp_path, known)
    rows = rows_of(job, Calibration())
    assert set(on_short_rows(job, Calibration(), rows)) == {None}
    assert on_short_rows(job_of(tmp_path, JOB), Calibration(), []) == []


def test_a_measured_run_sets_the_scale_at_both_ends(tmp_path: Path) -> None:
    from autotune.pricing import Pricing

    job = job_of(tmp_path, JOB + SEEN)
    calibration = Pricing.learned(job).calibration
    today = tune(job, Options(dry_run=True, fidelity="formula")).today
    (short,) = on_short_rows(job, calibration, [today])
    assert short.settled
    assert today.duration_s.p50 == pytest.approx(6 * 3600.0, rel=0.05)
    assert short.duration_s.p50 == pytest.approx(6 * 3600.0, rel=0.05)


def test_a_measured_row_keeps_its_scale(tmp_path: Path) -> None:
    job = job_of(tmp_path, JOB)
    row = rows_of(job, Calibration())[0]
    (modelled,) = on_short_rows(job, Calibration(), [row])
    twice = replace(
        row, basis="measured",
        duration_s=Spread(2 * row.duration_s.p10, 2 * row.duration_s.p50, 2 * row.duration_s.p90),
    )  # fmt: skip
    (measured,) = on_short_rows(job, Calibration(), [twice])
    assert measured.duration_s.p50 == pytest.approx(2 * modelled.duration_s.p50)


@pytest.mark.parametrize("form", ["text", "md"])
@pytest.mark.parametrize("command", ["tune", "compare", "estimate"])
def test_no_command_promises_money_on_rows_of_unknown_length(
    typed: Typed, command: str, form: str
) -> None:
    own = () if command == "compare" else ("--fidelity", "formula")
    own += ("--set", "micro_batch_size=1") if command == "estimate" else ()
    _, shown = typed(command, *LINE, *own, "--format", form)
    flat = " ".join(re.sub(r"\\([^\w\s])", r"\1", shown).split())
    assert "--data FILE" in flat
    assert SAVING.search(flat) is None
    assert "Row lengths are unknown" in flat
    found = json.loads(typed(command, *LINE, *own, "--format", "json")[1])
    assert found["lengths_known"] is False
    row = found.get("best") or found.get("row") or found["leads"]
    short = found.get("short_rows") or row.get("short_rows")
    assert short["duration_s"]["p50"] < row["duration_s"]["p50"]


def test_the_whole_answer_and_the_page_of_a_job_that_runs_today_tell_no_saving(
    typed: Typed, tmp_path: Path
) -> None:
    (tmp_path / "job.yaml").write_text(JOB + SEEN)
    kept = str(tmp_path / "kept")
    words = ("tune", "job.yaml", "--fidelity", "formula", "--run", kept)
    _, shown = typed(*words, "--verbose")
    page = (tmp_path / "kept" / "report.html").read_text()
    flat = " ".join(shown.split())
    assert SAVING.search(flat) is None
    assert "Both figures are scaled to your measured run" in flat
    assert "From today to the pick" not in page
    assert "The way from today" not in page
    code, again = typed("recompute", kept, "--gpu", "a100-80gb", "--verbose")
    assert code == 0
    assert SAVING.search(" ".join(again.split())) is None


def test_axolotls_example_is_billed_by_what_is_published_of_its_rows(typed: Typed) -> None:
    words = ("tune", str(AXOLOTL), "--gpu", "a100-80gb", "--fidelity", "formula", "--dry-run")
    _, text = typed(*words, "--format", "json")
    found: Any = json.loads(text)
    assert found["lengths_known"]
    assert found["short_rows"] is None
    full = json.loads(typed(*words, "--format", "json", "--set", "data.padding=max_length")[1])
    assert found["best"]["duration_s"]["p50"] < 0.4 * full["best"]["duration_s"]["p50"]


def test_a_limit_missed_by_more_than_the_headline_shows_says_at_what_chances(typed: Typed) -> None:
    _, shown = typed("tune", *LINE, "--fidelity", "formula", "--deadline", "10min")
    flat = " ".join(shown.split())
    assert "Limits are checked as if every row were full." in flat
    assert "To keep it with 8 chances in 10, it would have to be" in flat

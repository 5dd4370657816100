"""What the user is told about a trace: other software, disagreement, failures, remote code."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from autotune.app.estimate import estimate
from autotune.app.job.evidence import default_config
from autotune.app.job.load import load_job
from autotune.app.tune.tracing import FORMULA_TOLERANCE, Tracing
from autotune.catalog.software import find_software
from autotune.cost.memory.device import blas_bytes
from autotune.cost.model import CostModel
from autotune.domain.candidates import Candidates
from autotune.trace.answers import Allocator, Moment, Simulated, Traced, TraceFailed

if TYPE_CHECKING:
    from autotune.cost.bill import Bill
    from autotune.domain.job import Job

JOB = Path(__file__).parents[3] / "jobs" / "h100_38h.yaml"
INSTALLED = {"torch": "2.13.0", "transformers": "5.23.0", "peft": "0.21.2"}


class Fixed:
    """A tracer whose answer is known; it counts how often it was asked."""

    def __init__(self, answer: Traced | TraceFailed) -> None:
        self.answer, self.asked, self.runs = answer, 0, 0

    def trace(self, _: object) -> Traced | TraceFailed:
        self.asked += 1
        return self.answer

    def run(self, _: object, **__: int) -> Traced | TraceFailed:
        self.runs += 1
        return self.answer


def bill_of(job: Job, rows: tuple[int, ...] = (1,)) -> Bill:
    assert job.today is not None
    today, offer = job.today, job.offers[0]
    splits = [{"micro_batch_size": n, "gradient_accumulation_steps": 8 // n} for n in rows]
    configs = [(offer, today.with_knobs(**split)) for split in splits]
    return CostModel(job).price(Candidates.of(configs))


def answer(bill: Bill, factor: float, versions: dict[str, str] = INSTALLED) -> Traced:
    """A trace that found `factor` times the formula's allocated bytes."""
    row = bill.estimate(0)
    parts = row.memory_bytes.as_dict()
    inside = {k: v * factor for k, v in parts.items() if k not in {"context", "fragmentation"}}
    inside["workspace"] = max(inside["workspace"] - blas_bytes(row.offer.device), 0.0)
    peak = sum(inside.values())
    return Traced(peak, inside, {"backward": peak}, "backward", "mm", (2, 4), 0.1, versions)


def notes(job: Job, factor: float, versions: dict[str, str] = INSTALLED) -> list[str]:
    bill = bill_of(job)
    tracing = Tracing(bill)
    tracing.trace(Fixed(answer(bill, factor, versions)), [0])  # type: ignore[arg-type]
    return tracing.notes


def test_a_trace_that_agrees_says_nothing() -> None:
    assert notes(load_job(JOB), 1.0) == []
    assert notes(load_job(JOB), 1.0 + 0.5 * FORMULA_TOLERANCE) == []


@pytest.mark.parametrize("factor", [0.9, 1.1])
def test_trace_and_formula_that_disagree_are_reported_and_the_trace_wins(factor: float) -> None:
    job = load_job(JOB)
    (note,) = notes(job, factor)
    assert "10% apart" in note
    assert "The trace is used" in note
    bill = bill_of(job)
    tracing = Tracing(bill)
    tracing.trace(Fixed(answer(bill, factor)), [0])  # type: ignore[arg-type]
    row = tracing.row(0)
    assert row.traced.allocated_bytes == pytest.approx(row.traced.formula_bytes * factor, rel=1e-3)
    assert sum(row.memory_bytes.as_dict().values()) == row.memory_bytes.total


def test_other_software_is_named_and_widens_the_spread() -> None:
    job = load_job(JOB)
    old = replace(job, software=find_software("2025-02"))
    (note,) = [text for text in notes(old, 1.0) if "uncertainty" in text]
    assert "transformers 5.23.0" in note
    assert "transformers 4.48.3" in note
    assert "1.5" in note
    bill = bill_of(job)
    near = bill.at("memory", "capacity", 0) / bill.estimate(0).memory_bytes.total * 0.99
    tight = answer(bill, near)
    probabilities = []
    for versions in (INSTALLED, {**INSTALLED, "peft": "0.1.0"}):
        tracing = Tracing(bill)
        tracing.trace(Fixed(replace(tight, versions=versions)), [0])  # type: ignore[arg-type]
        probabilities.append(tracing.row(0).fits_probability)
    assert abs(probabilities[1] - 0.5) < abs(probabilities[0] - 0.5)


def test_a_traced_step_that_is_larger_than_the_device_certainly_runs_out() -> None:
    bill = bill_of(load_job(JOB))
    tracing = Tracing(bill)
    tracing.trace(Fixed(answer(bill, 10.0)), [0])  # type: ignore[arg-type]
    assert tracing.row(0).verdict == "certain_oom"
    assert not tracing.row(0).feasible


@pytest.mark.parametrize("kind", ["crash", "timeout", "garbage", "unsupported", "missing"])
def test_a_trace_that_fails_is_a_warning_and_the_formula_answers(kind: str) -> None:
    bill = bill_of(load_job(JOB), (1, 2))
    tracer = Fixed(TraceFailed(kind, "the reason"))
    tracing = Tracing(bill)
    tracing.trace(tracer, [0, 1])  # type: ignore[arg-type]
    assert tracing.row(0) == bill.estimate(0)
    assert len(tracing.notes) == 1
    assert kind in tracing.notes[0]
    assert "the reason" in tracing.notes[0]
    assert tracer.asked == (1 if kind in {"timeout", "missing"} else 2)


def test_a_worker_that_breaks_leaves_the_formulas_estimate(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    from autotune.trace import client

    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path))
    monkeypatch.setattr(client, "traced_versions", lambda: {"torch": "2"})
    start = client.Tracer.__init__
    monkeypatch.setattr(
        client.Tracer, "__init__", lambda self: start(self, command=("/nonexistent/worker",))
    )
    found = estimate(load_job(JOB), fidelity="trace")
    assert found.row.traced is None
    assert found.row.memory_bytes == estimate(load_job(JOB), fidelity="formula").row.memory_bytes
    assert any("no trace of" in text and "crash" in text for text in found.warnings)


def test_code_of_the_model_keeps_the_formula_and_names_the_option() -> None:
    job = load_job(JOB)
    remote = replace(job, model=replace(job.model, remote_code=True))
    bill = bill_of(remote)
    tracer = Fixed(answer(bill, 1.0))
    refused = Tracing(bill)
    refused.trace(tracer, [0])  # type: ignore[arg-type]
    assert tracer.asked == 0
    assert "--trust-remote-code" in refused.notes[0]
    trusting = Tracing(bill, trust_remote_code=True)
    trusting.trace(tracer, [0])  # type: ignore[arg-type]
    assert tracer.asked == 1


def simulated(reserved: float, failed: Moment | None = None) -> Simulated:
    return Simulated(int(reserved), int(reserved), Moment(2, "backward", "mm", 512), 0, failed)


def test_a_simulated_allocator_decides_the_slack_and_the_verdict() -> None:
    bill = bill_of(load_job(JOB))
    row = bill.estimate(0)
    found = answer(bill, 1.0)
    capacity = row.offer.device.memory_torch_bytes - row.memory_bytes.context
    failed = Moment(2, "forward", "mm", 1 << 30)
    for needed, fits in ((found.peak_bytes * 1.1, True), (capacity * 1.05, False)):
        run = simulated(needed)
        limited = run if fits else simulated(capacity, failed)
        allocator = Allocator(int(capacity), run, limited, run, int(needed), int(needed), 9)
        tracer = Fixed(replace(found, allocator=allocator))
        tracing = Tracing(bill)
        tracing.trace(tracer, [0], full=True)  # type: ignore[arg-type]
        traced = tracing.row(0)
        assert tracer.runs == 1
        inside = traced.memory_bytes.total - traced.memory_bytes.context
        assert inside == pytest.approx(needed, rel=1e-6)
        assert (traced.verdict == "fits") is fits
        assert (traced.traced.allocator.out_of_memory is None) is fits


def test_a_cpu_has_no_caching_allocator() -> None:
    job = load_job(JOB, gpus=("cpu",))
    offer = job.offers[0]
    bill = CostModel(job).price(Candidates.of([(offer, default_config(job, offer))]))
    tracer = Fixed(answer(bill, 1.0))
    tracing = Tracing(bill)
    tracing.trace(tracer, [0], full=True)  # type: ignore[arg-type]
    assert (tracer.runs, tracer.asked) == (0, 1)
    assert any("CPU" in note for note in tracing.notes)

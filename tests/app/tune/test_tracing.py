"""Traced candidates: what a trace changes in a row, and when one is made."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from autotune.app.job.load import load_job
from autotune.app.tune.tracing import choose_traced, with_trace
from autotune.cost.memory.device import blas_bytes
from autotune.cost.model import CostModel
from autotune.search import selection
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space
from autotune.trace.client import Traced

if TYPE_CHECKING:
    from autotune.cost.bill import Bill

JOBS = Path(__file__).parents[3] / "jobs"


@pytest.fixture(scope="module")
def bill() -> Bill:
    job = load_job(JOBS / "h100_38h.yaml")
    return CostModel(job).price(enumerate_candidates(job, load_space(None)).candidates)


def trace_of(bill: Bill, index: int, factor: float) -> Traced:
    """A trace that found `factor` times the formula's bytes."""
    parts = bill.estimate(index).memory_bytes.as_dict()
    inside = {k: v * factor for k, v in parts.items() if k not in {"context", "fragmentation"}}
    inside["workspace"] -= blas_bytes(bill.candidates.offer(index).device)  # no trace sees them
    return Traced(
        sum(inside.values()), inside, {}, "backward", "op", (2, 4), 0.1,
        {"transformers": "5.23.0", "peft": "0.21.2"},
    )  # fmt: skip


def test_a_trace_that_agrees_keeps_the_memory(bill: Bill) -> None:
    pick = int(np.flatnonzero(bill.feasible & (bill.candidates.codes["compile"] == 0))[0])
    row = bill.estimate(pick)
    traced = with_trace(bill, pick, row, trace_of(bill, pick, 1.0))
    assert traced.memory_bytes.total == pytest.approx(row.memory_bytes.total, rel=0.02)
    assert traced.basis == "traced"
    assert traced.feasible


def test_a_trace_that_finds_more_makes_fitting_less_likely(bill: Bill) -> None:
    pick = int(np.flatnonzero(bill.feasible)[0])
    row = bill.estimate(pick)
    found = [with_trace(bill, pick, row, trace_of(bill, pick, f)) for f in (1.0, 1.5, 3.0)]
    probabilities = [each.fits_probability for each in found]
    assert probabilities == sorted(probabilities, reverse=True)
    assert all(
        sum(each.memory_bytes.as_dict().values()) == each.memory_bytes.total for each in found
    )


def test_formula_fidelity_and_a_certain_pick_start_no_trace(
    bill: Bill, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        pytest.fail("a trace was started")

    monkeypatch.setattr("autotune.trace.client.Tracer.__init__", refuse)
    chosen = selection.best_index(bill, "cost", bill.job.limits)
    for fidelity in ("formula", "auto"):
        if fidelity == "auto" and bill.fits_probability[chosen.index] < 0.95:
            continue
        again, tracing = choose_traced(bill, chosen, "cost", fidelity, None, lambda _: None)
        assert again == chosen
        assert not tracing.rows


@pytest.mark.slow
def test_tracing_all_finalists_says_so_in_the_rows(
    bill: Bill, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path))
    chosen = selection.best_index(bill, "cost", bill.job.limits)
    again, tracing = choose_traced(bill, chosen, "cost", "trace", None, lambda _: None)
    assert again.index is not None
    row = tracing.row(again.index)
    assert row.basis == "traced"
    formula = bill.estimate(again.index).memory_bytes
    assert row.memory_bytes.total == pytest.approx(formula.total, rel=0.05)

from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.validate import (
    EXPERTS,
    KERNELS,
    SEVERAL,
    TRACED,
    TracedMemory,
    run_validation,
)
from autotune.cost.model import CostModel
from autotune.domain.errors import InputError
from autotune.evidence.accuracy import Prediction, predict
from autotune.evidence.cases import memory_cases
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases
from autotune.trace.client import TraceFailed

if TYPE_CHECKING:
    from autotune.evidence.cases import MeasuredCase


@cache
def cases() -> tuple[MeasuredCase, ...]:
    return tuple(memory_cases(read_cases(SHIPPED_ROWS).cases))


@cache
def formula() -> dict[str, Prediction]:
    return predict(cases(), lambda job, candidates: CostModel(job).price(candidates))


def peak(value: float) -> Any:
    return lambda _: SimpleNamespace(peak_bytes=value)


def test_every_case_is_traced_or_counted_by_the_reason_why_not() -> None:
    traced = TracedMemory(cases(), peak(20e9))
    found = traced.replace(formula())
    assert sum(traced.counts.values()) == len(cases())
    assert traced.counts[TRACED] > 60
    assert {SEVERAL, KERNELS, EXPERTS} <= set(traced.counts)
    changed = {name for name, own in found.items() if own is not formula()[name]}
    assert len(changed) == traced.counts[TRACED]


def test_a_traced_peak_moves_everything_beside_it_and_the_verdict() -> None:
    one = next(c for c in cases() if c.id == "fms-0033")
    small = TracedMemory([one], peak(20e9)).replace(formula())[one.id]
    large = TracedMemory([one], peak(84e9)).replace(formula())[one.id]
    before = formula()[one.id]
    assert small.memory["allocated"] == pytest.approx(20e9, rel=2e-3)
    assert small.memory["total"] / small.memory["allocated"] == pytest.approx(
        before.memory["total"] / before.memory["allocated"], rel=0.02
    )
    assert small.accepted
    assert large.over
    assert not large.accepted


def test_a_trace_that_fails_keeps_the_formula_and_a_missing_one_is_asked_for_once() -> None:
    asked = []

    def missing(case: MeasuredCase) -> TraceFailed:
        asked.append(case.id)
        return TraceFailed("missing", "torch is not installed")

    traced = TracedMemory(cases(), missing)
    assert traced.replace(formula()) == formula()
    assert len(asked) == 1
    assert any("torch is not installed" in reason for reason in traced.counts)


def test_an_unknown_fidelity_is_an_input_error() -> None:
    with pytest.raises(InputError, match="fidelity"):
        run_validation(fidelity="tracee")

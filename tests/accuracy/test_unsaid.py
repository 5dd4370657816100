"""Facts of the record's runs are hidden, and the interval holds what was measured all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.evidence.cases import timed_cases
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases
from bench.unsaid.hidden import EVERYTHING, FACTS, hidden
from bench.unsaid.judged import judged, judged_memory, judged_verdicts

if TYPE_CHECKING:
    from bench.unsaid.judged import Cost

pytestmark = pytest.mark.usefixtures("fitted_once")
ASKED = ("row lengths", "attention kernel", "activation checkpointing", "micro-batch", EVERYTHING)
WANTED = 0.76


@pytest.fixture(scope="module")
def costs(fitted_once: None) -> dict[str, Cost]:  # noqa: ARG001 - only that it is so
    return judged(read_cases(SHIPPED_ROWS).cases, ASKED)


@pytest.mark.parametrize("fact", ASKED)
def test_left_out_sources_are_inside_where_a_fact_is_hidden(
    costs: dict[str, Cost], fact: str
) -> None:
    found = costs[fact]
    assert found.sources >= 8
    assert found.inside >= WANTED
    assert found.below + found.inside + found.above == pytest.approx(1.0)
    assert found.width > found.width_before  # what is not said is paid for


def test_rows_of_unknown_length_are_an_upper_bound(costs: dict[str, Cost]) -> None:
    found = costs["row lengths"]
    assert found.p10 >= 1.0
    assert found.above == 0.0


def test_a_fact_is_hidden_as_the_product_has_it() -> None:
    cases = timed_cases(c for c in read_cases(SHIPPED_ROWS).cases if c.teaches_time)
    for fact in FACTS:
        some = [(case, less) for case in cases[::9] if (less := hidden(case, fact)) is not None]
        for case, less in some:
            assert less.observations == case.observations
            assert less.job.global_batch_size == case.job.global_batch_size
            assert (less.job, less.config) != (case.job, case.config), fact


OF_MEMORY = ("activation checkpointing", "sharding", "dtype of the weights")


def test_peaks_of_left_out_sources_are_inside_where_a_fact_is_hidden() -> None:
    for fact, found in judged_memory(read_cases(SHIPPED_ROWS).cases, OF_MEMORY).items():
        assert found.inside >= WANTED, fact
        assert found.inside > found.hidden_inside  # as with the settings as listed


def test_who_is_said_to_fit_with_a_fact_hidden_fits() -> None:
    for found in judged_verdicts(read_cases(SHIPPED_ROWS).cases, OF_MEMORY):
        assert found.sure > 100
        assert found.ran_out <= found.listed_ran_out
        assert found.ran_out <= 0.01 * found.sure
        assert found.hopeless_fitted <= found.listed_hopeless_fitted

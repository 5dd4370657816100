"""Facts of the record's runs are hidden, and the interval holds what was measured all the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from autotune.evidence.cases import timed_cases
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases
from bench.unsaid import EVERYTHING, FACTS, hidden, judged

if TYPE_CHECKING:
    from bench.unsaid import Cost

ASKED = ("row lengths", "attention kernel", "activation checkpointing", "micro-batch", EVERYTHING)
WANTED = 0.76


@pytest.fixture(scope="module")
def costs() -> dict[str, Cost]:
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

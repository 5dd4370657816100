"""Whether runs fitted as often as was said: bins, intervals, and what a claim may rest on."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest
from shippedfits import until_calibrated

from autotune.cost.constants import Claims, memory_constants
from autotune.evidence.cases import both_outcomes
from autotune.evidence.fit.memory_left_out import REPLAYS_WORTH, FitClaim, FitClaims
from autotune.evidence.validation.verdicts import EDGES, bin_of, share_interval
from autotune.report.lists.validation import VALIDATE_REPORT, validation_payload

if TYPE_CHECKING:
    from autotune.evidence.validation.validate import Validation


class _Case:
    def __init__(self, source: str, *, oom: bool) -> None:
        self.group, self.oom = (source, "model", "gpu", "lora"), oom


def test_every_probability_has_one_bin_and_an_edge_belongs_above() -> None:
    for i, edge in enumerate(EDGES[:-1]):
        assert bin_of(edge) == i
    assert bin_of(1.0) == len(EDGES) - 2
    assert bin_of(0.9499) == EDGES.index(0.9)


@pytest.mark.parametrize(
    ("hits", "n", "low", "high"),
    [(0, 10, 0.0, 0.1411), (5, 10, 0.3123, 0.6877), (10, 10, 0.8589, 1.0), (1, 1, 0.3785, 1.0)],
)
def test_the_interval_of_a_share_is_wilson_s(hits: int, n: int, low: float, high: float) -> None:
    assert share_interval(hits, n) == pytest.approx((low, high), abs=1e-4)


def test_a_source_without_failures_counts_by_group_and_a_group_is_judged_without_itself() -> None:
    a, b = ("s", "m", "x"), ("s", "m", "y")
    own = [FitClaim(a, a, "roomy", failed=False, run_by_run=True)] * 3
    own += [FitClaim(b, b, "roomy", failed=True, run_by_run=True)]
    own += [
        FitClaim(("t", "m", "x"), ("t", "m", "x"), "crowded", failed=False, run_by_run=False)
    ] * 5
    claims = FitClaims(tuple(own))
    assert claims.without(None) == {
        "roomy": Claims(4, 1),
        "crowded": Claims(1 + REPLAYS_WORTH.n, 0),
    }
    assert claims.without(a)["roomy"] == Claims(1, 1)
    assert claims.without(b)["roomy"] == Claims(3, 0)
    assert claims.without(("t", "m", "x"))["crowded"] == REPLAYS_WORTH
    assert Claims(0, 0).bears == 0.5
    assert Claims(204, 0).bears == pytest.approx(205 / 206)


def test_only_a_source_with_both_outcomes_can_show_a_failure() -> None:
    cases: Any = [_Case("a", oom=True), _Case("a", oom=False), _Case("b", oom=False)]
    assert both_outcomes(cases) == {"a"}


def test_the_table_counts_every_run_with_a_known_outcome_once(validation: Validation) -> None:
    own = validation
    assert sum(each.n for each in own.reliability) == own.oom.oom_rows + own.oom.fit_rows
    fitted = sum(each.n * (each.observed or 0.0) for each in own.reliability)
    assert fitted == pytest.approx(own.oom.fit_rows)
    for each in own.reliability:
        assert 0 <= each.finished_only <= each.n
        if each.n:
            assert each.predicted is not None
            assert each.low <= each.predicted <= each.high
            assert each.p10 is not None
            assert each.p90 is not None
            assert each.observed is not None
            assert each.p10 - 1e-9 <= each.observed <= each.p90 + 1e-9


def test_no_bin_of_claims_says_more_than_its_runs_bear(validation: Validation) -> None:
    """Laplace's rule on the runs of the bin, or on every claim of the kind that was tested."""
    tested = max(each.bears for each in validation.claims.values())
    for each in validation.reliability:
        if each.low >= 0.9 and each.n:
            assert each.predicted is not None
            assert each.observed is not None
            own = (each.n * each.observed + 1) / (each.n + 2)
            assert each.predicted <= max(own, tested)


@until_calibrated
def test_the_shipped_bounds_are_what_the_left_out_claims_bear(validation: Validation) -> None:
    shipped, own = memory_constants().claims, validation
    assert shipped == own.claims
    assert set(shipped) == {"roomy", "crowded"}
    assert shipped["roomy"].failures == shipped["crowded"].failures == own.oom.false_fits
    assert shipped["crowded"].bears < shipped["roomy"].bears < 1.0
    most = max(each.bears for each in shipped.values())
    assert all((each.predicted or 0.0) <= most for each in own.reliability)


def test_text_and_json_have_the_table_with_its_counts(validation: Validation) -> None:
    payload = validation_payload(validation)
    bins = payload["reliability"]
    assert [each["low"] for each in bins] == list(EDGES[:-1])
    assert {"low", "high", "n", "predicted", "observed", "p10", "p90", "finished_only"} == set(
        bins[0]
    )
    text = " ".join(VALIDATE_REPORT.text(payload, width=110).split())
    for each in bins:
        if each["n"]:
            assert f"{each['low']:g} to {each['high']:g}" in text
    for own in payload["claims"].values():
        assert f"{own['bears']:.3f}" in text
    assert "cannot show a failure" in text


def test_without_runs_there_is_no_table(validation: Validation) -> None:
    empty = replace(validation, reliability=tuple(
        replace(each, n=0, predicted=None, observed=None, p10=None, p90=None)
        for each in validation.reliability
    ))  # fmt: skip
    assert "Chance of fitting" not in VALIDATE_REPORT.text(validation_payload(empty), width=110)

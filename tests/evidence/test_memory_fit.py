from __future__ import annotations

import tomllib
from dataclasses import fields, replace
from functools import cache
from statistics import NormalDist
from typing import TYPE_CHECKING

import builders as build
import numpy as np
import pytest
from shippedfits import until_calibrated

from autotune.cost.constants import KINDS, PATH, Slack, memory_constants
from autotune.evidence.cases import covering_spread, memory_cases, student_90, weighted_quantile
from autotune.evidence.fit import refit
from autotune.evidence.fit.memory import MemoryRows, fit_memory, log_cdf, memory_rows
from autotune.evidence.fit.memory_left_out import MemoryRefit, refit_memory
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases

if TYPE_CHECKING:
    from autotune.evidence.cases import MeasuredCase


@cache
def cases() -> tuple[MeasuredCase, ...]:
    return read_cases(SHIPPED_ROWS).cases


@cache
def rows() -> MemoryRows:
    return memory_rows(memory_cases(case for case in cases() if case.teaches_memory))


@pytest.fixture
def refitted(fitted_once: None) -> MemoryRefit:  # noqa: ARG001 - only that it is so
    found: MemoryRefit = refit.refit_memory(cases())
    return found


def test_the_log_of_the_normal_distribution_holds_in_its_tail() -> None:
    z = np.asarray([-30.0, -8.0, -4.1, -3.9, -2.0, 0.0, 3.0])
    exact = [-454.3212, *(np.log(NormalDist().cdf(v)) for v in z[1:])]
    assert log_cdf(z) == pytest.approx(exact, rel=2e-3, abs=1e-6)


def test_a_spread_holds_the_wanted_share_of_the_errors() -> None:
    error = np.abs(np.random.default_rng(0).normal(0.0, 0.05, 4000))
    assert covering_spread(error, np.ones(4000)) == pytest.approx(0.05, rel=0.05)
    assert covering_spread(error, np.ones(4000), known_sd=0.04) == pytest.approx(0.03, rel=0.1)
    assert covering_spread(error, np.ones(4000), scale=0.5) == pytest.approx(0.10, rel=0.05)


@pytest.mark.parametrize(("freedom", "quantile"), [(4.0, 1.533), (9.0, 1.383), (30.0, 1.310)])
def test_few_sources_make_an_interval_as_much_wider_as_student_s_quantile(
    freedom: float, quantile: float
) -> None:
    assert student_90(freedom) == pytest.approx(quantile, rel=0.003)


def test_the_weighted_median_follows_the_weights() -> None:
    assert weighted_quantile(np.asarray([1.0, 2.0, 9.0]), np.asarray([1.0, 1.0, 8.0]), 0.5) > 5.0


def _all_ran_or_failed(limit: float) -> MemoryRows:
    """The Trainer's runs of one device, failed exactly where a slack of `limit` says so."""
    own = rows()
    read = np.asarray(
        [
            c.offer.count == 1 and "fms" in c.group[0] and not c.job.software.own_model
            for c in own.cases
        ]
    )
    own = own.take(read)
    allocated = 0.6 * own.capacity + 0.4 * own.capacity * np.linspace(0.0, 1.0, len(own))
    moving = 0.5 * allocated
    failed = allocated + own.context + limit * moving > own.capacity
    outcomes = tuple(
        build.observed(c, peaks={}, step_s=1.0, oom=bool(f), group=("s", "m", "g", "t"))
        for c, f in zip(own.cases, failed, strict=True)
    )
    return replace(own, cases=outcomes, allocated=allocated, moving=moving)


@pytest.mark.parametrize("limit", [0.10, 0.30])
def test_slack_is_where_runs_begin_to_fail(limit: float) -> None:
    found = fit_memory(_all_ran_or_failed(limit)).constants.slack
    assert found.one_device == pytest.approx(limit, rel=0.2, abs=0.03)  # the prior says 0.14


def test_only_trainers_with_model_code_of_their_own_have_offsets(refitted: MemoryRefit) -> None:
    found = refitted.fit.constants
    assert {level.split()[0] for level in found.offsets} <= {"litgpt", "llm-foundry", "torchtitan"}
    family, stack = found.offsets["litgpt llama"], found.offsets["litgpt"]
    assert 0.0 < family.log_factor < 0.6
    assert family.log_sd < stack.log_sd
    assert found.offsets["llm-foundry mpt"].log_sd > family.log_sd  # no reading, only outcomes


def test_sources_without_failures_teach_no_slack(refitted: MemoryRefit) -> None:
    own = rows()
    kept = [c.group[0] not in {"modelscope/ms-swift", "huggingface/peft"} for c in own.cases]
    assert fit_memory(own.take(np.asarray(kept))).constants.slack == Slack(
        **{f.name: getattr(refitted.fit.constants.slack, f.name) for f in fields(Slack)}
    )


def test_a_left_out_source_teaches_its_own_prediction_nothing(refitted: MemoryRefit) -> None:
    doubled = [
        build.observed(c, peaks={c.peak.kind: 2.0 * c.peak.value})
        if c.job.model.family == "phi" and c.peak and c.peak.kind
        else c
        for c in cases()
    ]
    of_phi = [c.id for c in memory_cases(cases()) if c.job.model.family == "phi"]
    assert of_phi
    again, first = refit_memory(doubled), refitted
    offset = again.fit.constants.offsets["litgpt phi"].log_factor
    assert offset > first.fit.constants.offsets["litgpt phi"].log_factor + 0.1
    for name in of_phi:
        for output in ("allocated", "reserved", "driver", "total"):
            assert again.left_out[name][output] == first.left_out[name][output]


@until_calibrated
def test_the_shipped_memory_constants_are_the_fitted_ones(refitted: MemoryRefit) -> None:
    found, read = refitted.fit.constants, memory_constants()
    assert read.slack.several == pytest.approx(found.slack.several, rel=5e-3)
    for kind in KINDS:
        assert read.spreads[kind] == pytest.approx(found.spreads[kind], rel=5e-3)
    table = tomllib.loads(PATH.read_text(encoding="utf-8"))["memory"]
    assert set(table["offset"]) == set(found.offsets)
    assert table["rows"] == refitted.sources

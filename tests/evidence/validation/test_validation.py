from __future__ import annotations

from functools import cache
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import builders as build
import numpy as np
import pytest

from autotune.cost.columns import Table
from autotune.cost.spread.memory import SIDES
from autotune.evidence.cases import MeasuredCase, Skipped, weighted_quantile
from autotune.evidence.record.table import SHIPPED_ROWS, read_cases
from autotune.evidence.validation.validate import validate

if TYPE_CHECKING:
    from autotune.domain.candidates import Candidates
    from autotune.domain.job import Job

GB = 1e9


@cache
def shipped() -> MeasuredCase:
    cases = read_cases(SHIPPED_ROWS).cases
    return next(c for c in cases if c.step and c.peak and c.config.micro_batch_size == 4)


def case(name: str, **changes: Any) -> MeasuredCase:
    fresh = {"id": name, "replicate_key": name, "peaks": {"allocated": 20 * GB}, **changes}
    return build.observed(shipped(), **fresh)


def price(job: Job, candidates: Candidates) -> Any:
    """A bill that always says 10 s, 20 / 30 / 40 GB and that 80 GB are usable."""
    n = len(candidates)
    rows = np.arange(n)

    def constant(**outputs: float) -> Table:
        return Table({name: np.full(n, value) for name, value in outputs.items()}, rows)

    memory = constant(
        allocated=20 * GB,
        reserved=30 * GB,
        driver=40 * GB,
        total=40 * GB,
        log_sd=0.1,
        reserved_log_sd=0.1,
        certain_oom=0.0,
        kind=0.0,
        reserved_kind=0.0,
        slack_log_sd=0.0,
        fits_as_listed=1.0,
        **dict.fromkeys(SIDES, 0.1),
    )
    return SimpleNamespace(
        job=job,
        candidates=candidates,
        tables={
            "memory": memory,
            "compute": constant(log_sd=0.2, slow_variance=0.0),
            "collectives": constant(per_micro_s=0.0, per_step_s=0.0, log_sd=0.5),
        },
        step_s=np.full(n, 10.0),
        usable_bytes=np.full(n, 80 * GB),
        memory_bytes=np.full(n, 40 * GB),
        fits_probability=np.full(n, 0.99),
    )


def group(name: str) -> tuple[str, str, str, str]:
    return ("source", name, "gpu", "lora")


def test_each_kind_of_memory_is_compared_with_its_own_prediction() -> None:
    cases = [
        case("a", peaks={"allocated": 20 * GB}),
        case("b", peaks={"reserved": 30 * GB}),
        case("c", peaks={"nvidia-smi": 40 * GB}),
        case("d", peaks={"allocated": 20 * GB, "nvidia-smi": 20 * GB}),
    ]
    found = validate(cases, [], price)
    assert found.memory.n == 4
    assert found.memory.mape == pytest.approx(0.0)
    assert found.memory_allocated.n == 2
    assert found.memory_by_kind["nvidia-smi"].n == 2
    assert found.memory_by_kind["nvidia-smi"].mape == pytest.approx(0.5)


def test_every_group_weighs_the_same_whatever_its_rows() -> None:
    many = [case(f"m{i}", group=group("many"), step_s=10.0) for i in range(9)]
    few = [case("f", group=group("few"), step_s=5.0)]
    found = validate([*many, *few], [], price)
    assert found.time.n == 10
    assert found.time.mape == pytest.approx(0.5)
    assert {g.model_id: g.time.n for g in found.groups} == {"many": 9, "few": 1}


def test_replicates_count_once_by_the_newest() -> None:
    old = case("old", replicate_key="same", step_s=2.0, older=True)
    new = case("new", replicate_key="same", step_s=10.0)
    for order in ([old, new], [new, old]):
        found = validate(order, [], price)
        assert found.used == 2
        assert found.time.n == 1
        assert found.time.median_ape == pytest.approx(0.0)


def test_bias_says_whether_the_model_says_too_much() -> None:
    found = validate([case("a", step_s=8.0)], [], price)
    assert found.time.bias == pytest.approx(0.25)
    assert found.time.median_ape == pytest.approx(0.25)


def test_coverage_is_the_share_inside_the_predicted_interval() -> None:
    inside = case("in", group=group("x"), step_s=10.0 * np.exp(0.25))
    outside = case("out", group=group("y"), step_s=10.0 * np.exp(0.27))
    found = validate([inside, outside], [], price)
    assert found.coverage["p10_p90"] == pytest.approx(0.5)


def test_false_fits_and_false_alarms_are_counted_and_listed() -> None:
    def verdicts(job: Job, candidates: Candidates) -> Any:
        bill = price(job, candidates)
        micro = np.asarray(candidates.levels["micro_batch_size"])[
            candidates.codes["micro_batch_size"]
        ]
        bill.tables["memory"].outputs["total"] = np.where(micro > 4, 90 * GB, 40 * GB)
        bill.fits_probability = np.where(micro == 2, 0.85, 0.99)
        return bill

    base = case("base")
    big = base.config.with_knobs(micro_batch_size=8, gradient_accumulation_steps=1)
    risky = base.config.with_knobs(micro_batch_size=2, gradient_accumulation_steps=4)
    cases = [
        case("missed", oom=True),
        case("caught", config=big, oom=True),
        case("fine"),
        case("alarm", config=big),
        case("risky", config=risky),
    ]
    found = validate(cases, [Skipped("s", "why")], verdicts).oom
    assert (found.oom_rows, found.false_fits, found.fit_rows) == (2, 1, 3)
    assert (found.false_ooms, found.at_risk_fits) == (1, 1)
    assert found.listed == ("missed", "alarm")
    assert [(item.id, item.verdict) for item in found.wrong] == [
        ("missed", "false_fit"),
        ("alarm", "false_oom"),
        ("risky", "at_risk"),
    ]
    assert all(item.believed for item in found.wrong)
    assert found.false_fit_share == pytest.approx(1 / 2)
    assert found.at_risk_share == pytest.approx(1 / 3)


def test_skips_are_counted_by_reason_and_rows_add_up() -> None:
    skipped = [Skipped("a", "x"), Skipped("b", "x"), Skipped("c", "y")]
    found = validate([case("d")], skipped, price)
    assert found.skipped == {"x": 2, "y": 1}
    assert found.rows == found.used + sum(found.skipped.values())


def test_nothing_to_compare_gives_empty_figures_not_a_crash() -> None:
    found = validate([], [Skipped("a", "x")], price)
    assert found.time.n == found.memory.n == 0
    assert found.time.median_ape is None
    assert found.coverage["p10_p90"] is None
    assert found.as_dict()["oom"]["oom_rows"] == 0


def test_the_weighted_median_of_equal_weights_is_the_median() -> None:
    values = np.asarray([3.0, 1.0, 2.0])
    assert weighted_quantile(values, np.full(3, 1 / 3), 0.5) == pytest.approx(2.0)

"""Tables of one answer are priced once, and are what pricing them anew gives."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune.app.job.load import load_job
from autotune.cost import model as cost_model
from autotune.cost.columns import tabulate
from autotune.cost.model import CostModel
from autotune.cost.outputs import FEW_READ, JOBS, reusing_tables
from autotune.cost.time import compute
from autotune.domain.candidates import Candidates
from autotune.domain.config import PLAIN
from autotune.domain.job import Evaluation
from autotune.domain.observation import Calibration
from autotune.space.enumerate import valid_candidates
from autotune.space.file import load_space

if TYPE_CHECKING:
    from autotune.cost.bill import Bill
    from autotune.cost.columns import Component
    from autotune.domain.job import Job

JOB_FILES = Path(__file__).parents[2] / "jobs"
FASTER = Calibration({"compute": 0.5, "memory": 1.1}, {"compute": 0.1, "memory": 0.05})
MODEL = "Qwen/Qwen2.5-7B"
TIMES = len(cost_model.COMPONENTS) - 1  # memory is priced when it is asked for


@pytest.fixture
def priced_rows(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The names of components, each time that one is really priced."""
    seen: list[str] = []

    def counted(own: Component) -> Component:
        def price(job: Job, columns: Any) -> Any:
            seen.append(own.name)
            return own.price(job, columns)

        return replace(own, price=price)

    every = tuple(map(counted, cost_model.COMPONENTS))
    monkeypatch.setattr(cost_model, "COMPONENTS", every)
    return seen


def same(one: Bill, other: Bill) -> bool:
    return all(
        np.array_equal(one.tables[part].gather(name), other.tables[part].gather(name))
        for part in (component.name for component in cost_model.COMPONENTS)
        for name in one.tables[part].outputs
    ) and np.array_equal(one.duration_s, other.duration_s)


def test_the_same_question_is_priced_once_whatever_is_locked(
    lab: Any, priced_rows: list[str]
) -> None:
    job, one = lab.job(MODEL, lab.lora()), Candidates.of([(lab.offer("h100-sxm"), lab.config())])
    again = replace(job, lock={"precision": "bf16"}, allow=("packing",))
    with reusing_tables():
        first, second = CostModel(job).price(one), CostModel(again, FASTER).price(one)
        assert first.feasible.all() == second.feasible.all()
    assert sorted(priced_rows) == sorted(component.name for component in cost_model.COMPONENTS)
    assert same(first, CostModel(job).price(one))
    assert same(second, CostModel(again, FASTER).price(one))


@pytest.mark.parametrize("kernels", [("none",), ("none", "liger"), ("liger", "chunked_loss")])
def test_how_far_a_step_may_be_off_is_priced_once_and_only_where_it_is_read(
    lab: Any, kernels: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[int] = []
    real = compute.log_sd

    def counted(job: Job, columns: Any, *rest: Any) -> Any:
        asked.append(columns.rows)
        return real(job, columns, *rest)

    monkeypatch.setattr(compute, "log_sd", counted)
    job, offer = lab.job(MODEL, lab.lora()), lab.offer("h100-sxm")
    some = Candidates.of([(offer, lab.config(kernels=each)) for each in kernels])
    with reusing_tables():
        bill = CostModel(job).price(some)
        rough = bill.estimate(0, spread=False)
        assert rough.duration_s.p10 == rough.duration_s.p50 == rough.duration_s.p90
        assert "slow_variance" in bill.tables["compute"].outputs
        assert not asked
        sure = CostModel(job).price(some).estimate(0)
        assert bill.estimate(0) == sure
        assert sum(asked) == len(kernels)
    assert sure.duration_s.p10 < sure.duration_s.p50 == rough.duration_s.p50 < sure.duration_s.p90
    outputs = bill.tables["compute"].outputs
    assert {*compute.SPREADS, "unmeasured_gain"} <= {*dict(outputs)} == {*outputs.keys()}
    with pytest.raises(KeyError):
        outputs["no such output"]


def test_memory_is_priced_when_it_is_asked_for(lab: Any, priced_rows: list[str]) -> None:
    job, one = lab.job(MODEL, lab.lora()), Candidates.of([(lab.offer("h100-sxm"), lab.config())])
    bill = CostModel(job).price(one)
    assert bill.duration_s[0] > 0
    assert len(priced_rows) == TIMES
    assert "memory" not in priced_rows
    assert bill.take(np.asarray([0]), job).fits_probability[0] > 0
    assert bill.memory_bytes[0] > 0
    assert priced_rows.count("memory") == 1


def test_memory_that_is_put_in_place_decides_what_fits(lab: Any) -> None:
    job, one = lab.job(MODEL, lab.lora()), Candidates.of([(lab.offer("h100-sxm"), lab.config())])
    bill = CostModel(job).price(one)
    assert bill.feasible.all()
    small = bill.with_memory(usable_bytes=np.full(1, 1e9))
    assert not small.feasible.any()
    assert not small.take(np.asarray([0]), job).feasible.any()


def test_another_length_or_disk_prices_what_reads_it(lab: Any, priced_rows: list[str]) -> None:
    job, offer = lab.job(MODEL, lab.lora()), lab.offer("h100-sxm")
    disk = replace(offer, host=replace(offer.host, checkpoint_write_bytes_per_s=1e6))
    with reusing_tables():
        CostModel(job).price(Candidates.of([(offer, lab.config())]))
        del priced_rows[:]
        slow = CostModel(job).price(Candidates.of([(disk, lab.config())]))
        assert "checkpoint" in priced_rows
        assert "compute" not in priced_rows
        del priced_rows[:]
        longer = replace(job, lengths=lab.equal_rows(300))
        other = CostModel(longer).price(Candidates.of([(offer, lab.config())]))
        assert len(priced_rows) == TIMES
    assert same(slow, CostModel(job).price(Candidates.of([(disk, lab.config())])))
    assert same(other, CostModel(longer).price(Candidates.of([(offer, lab.config())])))


def test_nothing_outlives_an_answer(lab: Any, priced_rows: list[str]) -> None:
    job, one = lab.job(MODEL, lab.lora()), Candidates.of([(lab.offer("h100-sxm"), lab.config())])
    for _ in range(2):
        with reusing_tables():
            CostModel(job).price(one)
    CostModel(job).price(one)
    assert len(priced_rows) == 3 * TIMES


def test_many_jobs_in_one_answer_keep_the_latest(lab: Any, priced_rows: list[str]) -> None:
    job, one = lab.job(MODEL, lab.lora()), Candidates.of([(lab.offer("h100-sxm"), lab.config())])
    with reusing_tables():
        for number in range(JOBS + 5):
            CostModel(replace(job, rows=1000 + number)).price(one)
        del priced_rows[:]
        CostModel(replace(job, rows=1000 + JOBS)).price(one)
        assert not priced_rows
        CostModel(replace(job, rows=1000)).price(one)
        assert len(priced_rows) == TIMES


def test_what_is_kept_cannot_be_written_to(lab: Any) -> None:
    job, one = lab.job(MODEL, lab.lora()), Candidates.of([(lab.offer("h100-sxm"), lab.config())])
    with reusing_tables():
        table = CostModel(job).price(one).tables["price"].outputs
        with pytest.raises(ValueError, match="read-only"):
            table["usd_per_hour"][0] = 0.0


@pytest.mark.parametrize("name", sorted(path.stem for path in JOB_FILES.glob("*.yaml")))
def test_a_component_reads_of_a_job_what_it_says(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = load_job(JOB_FILES / f"{name}.yaml")
    job = replace(own, evaluation=own.evaluation or Evaluation(100, 10, 16), allow=tuple(PLAIN))
    candidates = valid_candidates(job, load_space("extended"))
    some = candidates.take(np.linspace(0, len(candidates) - 1, 300).astype(np.intp))
    seen: set[str] = set()

    def noting(job: Job, name: str) -> Any:
        if sys._getframe(1).f_code is not replace.__code__:  # which copies all there is
            seen.add(name)
        return object.__getattribute__(job, name)

    monkeypatch.setattr(type(job), "__getattribute__", noting)
    for component in cost_model.COMPONENTS:
        seen.clear()
        dict(tabulate(component, job, some).outputs)
        assert seen & set(FEW_READ) <= set(component.of_job), component.name

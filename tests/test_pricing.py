"""One noun prices a job: its candidates, single configurations, and the same of a changed job."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from autotune.app.job.load import load_job
from autotune.pricing import Pricing, bills_of
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space

if TYPE_CHECKING:
    from autotune.domain.job import Job

JOB = Path(__file__).parents[1] / "jobs" / "h100_38h.yaml"


@pytest.fixture
def job(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Job:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    return load_job(JOB)


def test_evidence_scales_the_price_of_a_job_and_of_its_variants(job: Job) -> None:
    learned, plain = Pricing.learned(job), Pricing(job)
    assert job.today is not None
    today = (job.offers[0], job.today)
    factor = learned.calibration.factors["compute"]
    assert factor != 1.0
    assert learned.one(*today).basis == "calibrated"
    assert plain.one(*today).basis == "modelled"
    half = replace(job, steps=job.steps // 2)
    shorter: Any = learned.variant(half)
    assert shorter.calibration is learned.calibration
    assert shorter.one(*today).time_s.train == pytest.approx(
        factor * Pricing(half).one(*today).time_s.train, rel=1e-3
    )


def test_one_configuration_costs_what_it_costs_among_all(job: Job) -> None:
    pricing = Pricing.learned(job)
    bill = pricing.bill(enumerate_candidates(job, load_space()).candidates)
    for index in (0, len(bill) // 2, len(bill) - 1):
        offer, config = bill.candidates.offer(index), bill.candidates.config(index)
        assert pricing.one(offer, config).duration_s == bill.estimate(index).duration_s


def test_questions_priced_together_cost_what_they_cost_alone(job: Job) -> None:
    calibration = Pricing.learned(job).calibration
    space, wide = load_space(), load_space("extended")
    impossible = replace(job, lock={"micro_batch_size": 3})
    questions = [
        (job, space),
        (replace(job, allow=("kernels",)), wide),
        (replace(job, max_length=512), space),
        (impossible, space),
    ]
    together = bills_of(questions, calibration)
    assert together[3] is None
    for question, bill in zip(questions[:3], together, strict=False):
        (alone,) = bills_of([question], calibration)
        assert len(bill) == len(alone)
        assert bill.cost_usd == pytest.approx(alone.cost_usd, rel=1e-12)


def test_where_only_what_fits_is_asked_for_the_rest_is_left_out_and_nothing_else(job: Job) -> None:
    tight = replace(job, limits=replace(job.limits, vram_headroom=0.99))
    space = load_space()
    questions = [(job, space), (tight, space), (replace(job, max_length=512), space)]
    every, fitting = bills_of(questions, None), bills_of(questions, None, fitting=True)
    assert fitting[1] is None
    for whole, own in zip(every, fitting, strict=True):
        assert (own is None) == (not (whole.memory_violation <= 0).any())
        if own is not None:
            held = whole.memory_violation <= 0
            assert own.duration_s.tolist() == whole.duration_s[held].tolist()
            assert own.feasible.tolist() == whole.feasible[held].tolist()


def test_an_offer_that_surely_misses_a_limit_is_left_out_and_no_other_is(job: Job) -> None:
    offer = job.offers[0]
    dear = replace(offer, usd_per_hour=100.0 * offer.usd_per_hour)
    twice = replace(job, offers=(offer, dear))
    (whole,) = bills_of([(twice, load_space())], None, fitting=True)
    limits = replace(job.limits, deadline_s=float(whole.duration_s.min()) * 1.01, budget_usd=None)
    for stated in (limits, replace(limits, budget_usd=float(whole.cost_usd.min()) * 1.01)):
        asked = (replace(twice, limits=stated), load_space())
        (every,), (kept,) = (
            bills_of([asked], None, fitting=True, late=late) for late in (True, False)
        )
        of_both = every.candidates.codes["offer"]
        left = np.flatnonzero(of_both == 0) if stated.budget_usd else np.arange(len(every))
        assert kept.duration_s.tolist() == every.duration_s[left].tolist()
        assert kept.cost_usd.tolist() == every.cost_usd[left].tolist()
    never = replace(twice, limits=replace(limits, deadline_s=60.0))
    assert bills_of([(never, load_space())], None, fitting=True, late=False) == [None]

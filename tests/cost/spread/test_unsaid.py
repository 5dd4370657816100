"""What nobody said of a run widens its range on the side where the other values lie."""

from __future__ import annotations

import math
from dataclasses import replace
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest

from autotune.catalog.software import load_software
from autotune.cost.memory.component import open_facts
from autotune.cost.model import CostModel
from autotune.cost.spread.unsaid import CHOICES, MEMORY_ALONE, PADDED_AFTER_ALL
from autotune.cost.spread.variance import STATED, narrowings
from autotune.domain.candidates import Candidates
from autotune.domain.config import KNOBS
from autotune.domain.job import Assumption, Job, Lengths
from autotune.domain.observation import Calibration
from autotune.domain.outcome import FEASIBLE_PROBABILITY, Z90, Spread

LLAMA, EXPERTS = "meta-llama/Llama-2-7b-hf", "Qwen/Qwen3-30B-A3B"
UNEVEN = Lengths((20.0, 120.0, 220.0, 500.0, 1024.0), 280.0, 1024, known=True)


def priced(lab: Any, job: Job, offer: Any = None, **knobs: Any) -> Any:
    pair = (offer or lab.offer("a100"), lab.config(8, **knobs))
    return CostModel(job).price(Candidates.of([pair]))


def ends(lab: Any, job: Job, offer: Any = None, **knobs: Any) -> tuple[float, float]:
    """By how many standard deviations, in logs, either end lies from the middle."""
    row: Spread = priced(lab, job, offer, **knobs).estimate(0).duration_s
    return math.log(row.p50 / row.p10) / Z90, math.log(row.p90 / row.p50) / Z90


def added(lab: Any, job: Job, *facts: str, **knobs: Any) -> tuple[float, float]:
    """Variance that saying nothing of the facts adds, on the side of faster and of slower."""
    said, not_said = (
        ends(lab, own, **knobs) for own in (job, replace(job, unsaid=(*job.unsaid, *facts)))
    )
    return not_said[0] ** 2 - said[0] ** 2, not_said[1] ** 2 - said[1] ** 2


def test_rows_of_unknown_length_can_only_be_shorter(lab: Any) -> None:
    full = lab.job(LLAMA, lab.lora(), 1024)
    note = Assumption("data.lengths", "1024", "why")
    blind = replace(full, lengths=replace(full.lengths, known=False), assumed=(note,))
    fast, slow = ends(lab, blind)
    assert slow == pytest.approx(ends(lab, full)[1], rel=1e-9)
    assert fast > ends(lab, full)[0] + 0.3
    short = replace(full, lengths=lab.equal_rows(255))  # 95 of 100 rows of Alpaca are shorter
    least = priced(lab, short).estimate(0).duration_s.p50
    assert priced(lab, blind).estimate(0).duration_s.p10 < 1.1 * least
    longer = lab.job(LLAMA, lab.lora(), 4096)
    more = replace(longer, lengths=replace(longer.lengths, known=False), assumed=(note,))
    assert ends(lab, more)[0] > fast  # there is more room below


def test_padding_that_nobody_stated_can_only_add_to_a_batch(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(), 1024, lengths=UNEVEN)
    open_ = replace(job, assumed=(Assumption("data.padding", "longest", "why"),))
    assert ends(lab, open_)[0] == pytest.approx(ends(lab, job)[0])
    assert ends(lab, open_)[1] > ends(lab, job)[1]
    assert ends(lab, replace(open_, padding="max_length")) == pytest.approx(
        ends(lab, replace(job, padding="max_length"))
    )
    assert 0.0 < PADDED_AFTER_ALL < 0.5


def test_checkpointing_is_open_towards_what_it_is_not(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(), 1024)
    fast, slow = added(lab, job, "activation_checkpointing")
    assert fast == pytest.approx(0.0, abs=1e-9)
    again = math.log(4.0 / 3.0)  # of three passes one runs twice, and for adapters more of it
    assert again**2 / 2 < slow < math.log(1.7) ** 2 / 2
    fast, slow = added(lab, job, "activation_checkpointing", activation_checkpointing="full")
    assert slow == pytest.approx(0.0, abs=1e-9)
    assert fast > again**2 / 4


def test_the_kernel_of_attention_counts_on_long_rows(lab: Any) -> None:
    short, long = (
        added(lab, lab.job(LLAMA, lab.lora(), tokens), "attention") for tokens in (256, 8192)
    )
    assert long[1] > 4.0 * short[1]
    assert long[1] > long[0]  # sdpa's is flash where rows are full: eager is the one that differs


def test_a_micro_batch_is_open_among_those_that_make_the_batch(lab: Any) -> None:
    one = lab.job(LLAMA, lab.lora(), 128)
    fast, slow = added(lab, one, "micro_batch_size")
    assert slow > 2.0 * max(fast, 0.0)  # of 8 rows of 128 tokens: fewer wait for the host
    alone = replace(one, global_batch_size=1, steps=one.rows)
    pair = (lab.offer("a100"), lab.config(1))
    own, other = (
        CostModel(job).price(Candidates.of([pair])).estimate(0).duration_s
        for job in (alone, replace(alone, unsaid=("micro_batch_size",)))
    )
    assert own == other  # nothing else divides it


def test_adapters_on_fewer_modules_take_less(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(), 512)
    fast, slow = added(lab, job, "method.targets")
    assert fast > 1e-4
    assert slow == pytest.approx(0.0, abs=1e-9)
    assert added(lab, lab.job(LLAMA, lab.full(), 512), "method.targets") == pytest.approx((0, 0))


def test_versions_are_open_where_a_release_decides(lab: Any) -> None:
    """Until transformers 5 the experts of a layer were products of their own."""
    default = load_software()["default"]
    adapters = lab.lora(16, ("q_proj", "o_proj"))
    llama, experts = (
        replace(lab.job(name, adapters, 512), software=default) for name in (LLAMA, EXPERTS)
    )
    assert max(added(lab, llama, "software")) < 0.01
    assert added(lab, experts, "software")[1] > 0.05


@pytest.mark.parametrize("fact", [name for name in CHOICES if name not in MEMORY_ALONE])
def test_a_fact_that_is_said_narrows_the_range_to_the_figure_told(lab: Any, fact: str) -> None:
    default = load_software()["default"]
    adapters = lab.lora(16, ("q_proj", "o_proj"))
    job = replace(lab.job(EXPERTS, adapters, 1024), software=default)
    others = tuple(name for name in CHOICES if name != fact)
    before = priced(lab, replace(job, unsaid=tuple(CHOICES)))
    after = priced(lab, replace(job, unsaid=others)).estimate(0).duration_s
    (told,) = (each for each in narrowings(before, 0) if each.fact == fact)
    assert (told.p10, told.p90) == pytest.approx((after.p10, after.p90))
    assert told.what == STATED[fact]
    assert all(each.fact != fact for each in narrowings(priced(lab, replace(job, unsaid=())), 0))


def test_a_probe_leaves_open_what_nobody_said_and_the_sides_stay_apart(lab: Any) -> None:
    job = replace(lab.job(LLAMA, lab.lora(), 1024), unsaid=("activation_checkpointing",))
    bill = priced(lab, job)
    (probe,) = (each for each in narrowings(bill, 0) if each.fact == "probe")
    middle = float(bill.duration_s[0])
    assert probe.p90 / middle > middle / probe.p10
    assert np.isfinite([probe.p10, probe.p90]).all()


def test_every_open_fact_is_a_knob_or_a_key_of_the_job_file() -> None:
    for name in CHOICES:
        assert name in KNOBS or name in {"method.targets", "software", "method.base"}
        assert name in STATED


CHECKPOINTING = "activation_checkpointing"


def chance(lab: Any, job: Job, offer: Any = None, **knobs: Any) -> float:
    return float(priced(lab, job, offer, **knobs).fits_probability[0])


def test_the_chance_of_fitting_is_the_mean_over_what_nobody_said(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(), 2048)
    each = [chance(lab, job, activation_checkpointing=value) for value in ("none", "full")]
    assert each[0] < 0.1  # eight rows of 2,048 on 80 GB
    assert each[1] > 0.9
    for value in ("none", "full"):
        open_ = replace(job, unsaid=(CHECKPOINTING,))
        found = chance(lab, open_, activation_checkpointing=value)
        assert found == pytest.approx(sum(each) / 2.0)
    micro = replace(job, unsaid=("micro_batch_size",))
    both = replace(job, unsaid=("micro_batch_size", CHECKPOINTING))
    over = [chance(lab, micro, activation_checkpointing=value) for value in ("none", "full")]
    assert chance(lab, both) == pytest.approx(sum(over) / 2.0)


def test_who_says_a_fact_gets_the_chance_that_was_told_for_it(lab: Any) -> None:
    job = replace(
        lab.job(LLAMA, lab.full(), 512),
        unsaid=("micro_batch_size", "sharding", CHECKPOINTING),
    )
    offer, knobs = lab.offer("a100", count=4), {"sharding": "ddp"}
    open_ = open_facts(priced(lab, job, offer, **knobs), 0)
    values = open_.values["sharding"]
    for value in ("fsdp", "zero2", "zero3"):
        told = float(open_.chance([i for i, own in enumerate(values) if own == value])[0])
        said = replace(job, unsaid=("micro_batch_size", CHECKPOINTING))
        assert chance(lab, said, offer, sharding=value) == pytest.approx(told)
    assert open_.weights.sum() == pytest.approx(1.0)
    alone = priced(lab, job, lab.offer("a100"))
    assert "zero3" not in open_facts(alone, 0).values["sharding"]  # one device shares nothing


def test_where_all_that_may_be_is_as_sure_so_is_what_nobody_said(lab: Any) -> None:
    """A claim that PyTorch's cache fills the memory bears just what a fit has to be."""
    ragged = replace(
        lab.job("Qwen/Qwen3-8B", lab.lora(base="nf4"), 2048), padding="longest",
        lengths=Lengths((64.0, 256.0, 512.0, 1024.0, 2048.0), 500.0, 2048, known=True),
        unsaid=("software", "method.targets"),
    )  # fmt: skip
    pair = (lab.offer("rtx-4090"), lab.config(1, **{CHECKPOINTING: "full"}))
    bill = CostModel(ragged).price(Candidates.of([pair]))
    assert bill.fits_probability[0] == FEASIBLE_PROBABILITY
    assert bill.estimate(0).feasible
    assert open_facts(bill, 0) is None  # it turns on nothing that is open


def test_weights_are_open_to_fp32_where_the_library_or_fsdp_makes_them_so(lab: Any) -> None:
    old = replace(load_software()["default"], transformers=(4, 48, 3))
    job = replace(lab.job(LLAMA, lab.lora(), 256), unsaid=("method.base",))
    new, wide = (replace(job, software=own) for own in (load_software()["default"], old))
    offer = lab.offer("rtx-4090")
    stated = replace(wide, unsaid=(), method=replace(job.method, base="32bit"))
    knobs = {CHECKPOINTING: "full"}
    assert chance(lab, new, offer, **knobs) == chance(lab, replace(new, unsaid=()), offer, **knobs)
    both = [chance(lab, own, offer, **knobs) for own in (replace(wide, unsaid=()), stated)]
    assert both[1] < 0.1
    assert chance(lab, wide, offer, **knobs) == pytest.approx(sum(both) / 2.0, abs=1e-6)
    mine = replace(wide, software=replace(old, trainer="", own_model=True, stack="litgpt"))
    assert open_facts(priced(lab, mine, offer, **knobs), 0) is None  # a loader of its own
    full = replace(lab.job(LLAMA, lab.full(), 256), unsaid=("method.base",), software=new.software)
    several = lab.offer("a100", count=4)
    shared, ddp = (
        priced(lab, full, several, sharding=own, precision="bf16").tables["memory"].outputs
        for own in ("fsdp", "ddp")
    )
    assert shared["more_sd"][0] > 1.5 * shared["log_sd"][0]
    assert ddp["more_sd"][0] == pytest.approx(ddp["log_sd"][0], rel=1e-5)
    before = replace(full, software=replace(new.software, accelerate=(0, 29, 3)))
    held = priced(lab, before, several, sharding="fsdp", precision="bf16").tables["memory"].outputs
    assert held["more_sd"][0] == pytest.approx(held["log_sd"][0], rel=1e-5)


def test_the_interval_of_a_peak_reaches_to_what_it_may_be_as_well(lab: Any) -> None:
    job = lab.job(LLAMA, lab.lora(), 1024)
    peaks = [
        priced(lab, job, activation_checkpointing=value).tables["memory"].outputs["allocated"][0]
        for value in ("none", "full")
    ]
    open_ = replace(job, unsaid=(CHECKPOINTING,))
    found = priced(lab, open_).tables["memory"].outputs
    low = math.log(peaks[0]) - Z90 * found["less_sd"][0]
    high = math.log(peaks[0]) + Z90 * found["more_sd"][0]
    assert low < math.log(peaks[1]) < math.log(peaks[0]) < high
    # a tenth of the mixture lies below: a fifth of the runs with checkpointing
    fifth = NormalDist().inv_cdf(0.2) * found["log_sd"][0]
    assert low == pytest.approx(math.log(peaks[1]) + fifth, abs=0.02)


def test_a_peak_that_was_measured_settles_what_nobody_said(lab: Any) -> None:
    job = replace(lab.job(LLAMA, lab.lora(), 1024), unsaid=(CHECKPOINTING,))
    pair = (lab.offer("a100"), lab.config(8))
    measured = Calibration({"memory": 0.4}, {"memory": 0.02})
    bill = CostModel(job, measured).price(Candidates.of([pair]))
    assert bill.fits_probability[0] > 0.95
    assert open_facts(bill, 0) is None

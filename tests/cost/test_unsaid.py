"""What nobody said of a run widens its range on the side where the other values lie."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from autotune.catalog.software import load_software
from autotune.cost.model import CostModel
from autotune.cost.spread.unsaid import CHOICES, PADDED_AFTER_ALL
from autotune.cost.spread.variance import STATED, narrowings
from autotune.domain.candidates import Candidates
from autotune.domain.config import KNOBS
from autotune.domain.job import Assumption, Job, Lengths
from autotune.domain.outcome import Z90, Spread

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


@pytest.mark.parametrize("fact", CHOICES)
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
        assert name in KNOBS or name in {"method.targets", "software"}
        assert name in STATED

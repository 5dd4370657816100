"""Every change is worth what it is worth given the others, and together they are the difference."""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from autotune.app.job.load import load_job
from autotune.app.tune.tune import Options, tune
from autotune.app.whatif.hypotheses import hypotheses_of
from autotune.app.whatif.waterfall import (
    EXACT,
    RunEdit,
    State,
    config_edits,
    pricer,
    shapley,
    touched,
    waterfall_between,
)
from autotune.cost.model import CostModel
from autotune.domain.config import Config
from autotune.domain.edit import Edit
from autotune.domain.observation import Calibration
from autotune.evidence.reference import reference_of
from autotune.report.payload import recommendation_payload
from autotune.report.sections.answer import TUNE_REPORT
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space

if TYPE_CHECKING:
    from collections.abc import Sequence

    from autotune.domain.answer.recommendation import Recommendation
    from autotune.domain.candidates import Candidates
    from autotune.domain.job import Job

ROOT = Path(__file__).parents[3]
H100 = ROOT / "jobs" / "h100_38h.yaml"
MACHINES = ("h100-sxm", "a100-40gb:4@4.80USD/h", "t4")
PLAIN = pricer(Calibration())


@pytest.fixture(scope="module")
def job() -> Job:
    return load_job(H100, gpus=MACHINES)


@pytest.fixture(scope="module")
def candidates(job: Job) -> Candidates:
    return enumerate_candidates(job, load_space("default")).candidates


@pytest.fixture(scope="module")
def answer() -> Recommendation:
    return tune(load_job(H100), Options(dry_run=True, fidelity="formula", trials=1))


def state(job: Job, candidates: Candidates, index: int, every: int = 1000) -> State:
    offer = candidates.offer(index)
    micro = candidates.value("micro_batch_size", index)
    config = candidates.config(
        index, checkpoint_every_steps=every, save_total_limit=2,
        gradient_accumulation_steps=job.global_batch_size // (micro * offer.count),
    )  # fmt: skip
    return State(job, offer, config)


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_the_steps_add_up_to_the_cent_and_the_second(
    job: Job, candidates: Candidates, data: st.DataObject
) -> None:
    indices = st.integers(0, len(candidates) - 1)
    every = st.integers(1, job.steps)
    start = state(job, candidates, data.draw(indices), data.draw(every))
    end = state(job, candidates, data.draw(indices), data.draw(every))
    fall = waterfall_between(start, config_edits(start, end), PLAIN)
    seconds, dollars = PLAIN([start, end])
    assert fall.start_s == pytest.approx(seconds[0])
    assert fall.end_s == pytest.approx(seconds[1])
    assert math.fsum(s.duration_s for s in fall.steps) == pytest.approx(
        seconds[1] - seconds[0], abs=1e-3
    )
    assert math.fsum(s.cost_usd for s in fall.steps) == pytest.approx(
        dollars[1] - dollars[0], abs=1e-6
    )
    assert len(fall.steps) <= EXACT
    if start.offer != end.offer:
        assert any("machine" in step.change for step in fall.steps)


def test_a_change_is_worth_the_mean_over_all_orders(job: Job) -> None:
    start = State(job, job.offers[0], job.today or Config(4, 2, 1000, "bf16"))
    changes: list[dict[str, int | str]] = [
        {"compile": "default"}, {"micro_batch_size": 2, "gradient_accumulation_steps": 4},
        {"checkpoint_every_steps": 4000}, {"activation_checkpointing": "full"},
    ]  # fmt: skip
    end = start
    for change in changes:
        end = replace(end, config=end.config.with_knobs(**change))
    fall = waterfall_between(start, config_edits(start, end), PLAIN)
    added = dict.fromkeys(range(len(changes)), 0.0)
    orders = list(itertools.permutations(range(len(changes))))
    for order in orders:
        here = start
        for i in order:
            there = replace(here, config=here.config.with_knobs(**changes[i]))
            before, after = PLAIN([here, there])[0]
            added[i] += (after - before) / len(orders)
            here = there
    worth = {step.change: step.duration_s for step in fall.steps}
    names = ("compile", "split", "checkpoint_every_steps", "activation_checkpointing")
    assert [worth[name] for name in names] == pytest.approx(list(added.values()))


def test_shapley_by_hand() -> None:
    # v({}) 10, v({a}) 6, v({b}) 8, v({a,b}) 5: a is worth (-4 - 3) / 2, b (-2 - 1) / 2.
    assert shapley(np.asarray([10.0, 6.0, 8.0, 5.0])).tolist() == pytest.approx([-3.5, -1.5])
    assert shapley(np.asarray([10.0, 10.0, 7.0, 7.0])).tolist() == pytest.approx([0.0, -3.0])
    assert shapley(np.asarray([3.0])).tolist() == []


def test_what_no_component_reads_is_worth_nothing(job: Job) -> None:
    start = State(job, job.offers[0], job.today or Config(4, 2, 1000, "bf16"))
    end = replace(start, config=start.config.with_knobs(save_total_limit=1, compile="default"))
    worth = {
        step.change: step
        for step in waterfall_between(start, config_edits(start, end), PLAIN).steps
    }
    assert worth["save_total_limit"].duration_s == 0
    assert worth["save_total_limit"].touches == ()
    assert worth["compile"].touches == touched(["compile"]) != ()


def test_changes_that_only_go_together_are_one_step() -> None:
    job = load_job(H100, gpus=("t4", "a100-40gb:4@4.80USD/h"))
    one = State(job, job.offers[0], Config(4, 2, 1000, "fp16"))
    four = State(job, job.offers[1], Config(2, 1, 1000, "bf16", sharding="zero3", compile="off"))
    steps = waterfall_between(one, config_edits(one, four), PLAIN).steps
    named = {frozenset(step.change.split(" and ")) for step in steps}
    assert named == {frozenset({"machine", "precision", "sharding"}), frozenset({"split"})}


def test_devices_and_the_global_batch_are_changes_of_their_own_and_the_split_follows() -> None:
    job = load_job(H100, gpus=("h100-sxm", "h100-sxm:2@5USD/h"))
    config = Config(8, 1, 1000, "bf16")
    start = State(job, job.offers[0], config)
    twice = replace(job, global_batch_size=16, steps=job.steps // 2)
    split = {"micro_batch_size": 8, "gradient_accumulation_steps": 1, "sharding": "ddp"}
    end = State(twice, job.offers[1], config.with_knobs(**split))
    batch = Edit(lambda state: replace(state, job=twice), "batch", before="8", value="16")
    fall = waterfall_between(start, [batch, *config_edits(start, end)], PLAIN)
    worth = {step.change: step.duration_s for step in fall.steps}
    assert set(worth) == {"batch", "machine and sharding"}
    # By hand: each change alone, with the split that it leaves, and last, given the other.
    wider = State(twice, job.offers[0], config.with_knobs(gradient_accumulation_steps=2))
    two = config.with_knobs(micro_batch_size=4, sharding="ddp")
    s = PLAIN([start, wider, State(job, job.offers[1], two), end])[0]
    assert worth["batch"] == pytest.approx(((s[1] - s[0]) + (s[3] - s[2])) / 2)
    assert worth["machine and sharding"] == pytest.approx(((s[2] - s[0]) + (s[3] - s[1])) / 2)


def test_of_many_changes_the_smallest_are_one_step(job: Job) -> None:
    start = State(job, job.offers[0], job.today or Config(4, 2, 1000, "bf16"))
    end = replace(
        start,
        config=Config(
            2, 4, 4000, "bf16", num_dataloader_workers=2, prefetch_factor=4, pin_memory=False,
            save_total_limit=1, compile="default", activation_checkpointing="full",
            attention="eager", optimizer="adamw_torch", adapter_dtype="bf16",
        ),
    )  # fmt: skip
    edits = config_edits(start, end)
    assert len(edits) > EXACT
    fall = waterfall_between(start, edits, PLAIN)
    assert len(fall.steps) <= EXACT
    assert math.fsum(s.duration_s for s in fall.steps) == pytest.approx(fall.end_s - fall.start_s)
    named = [name for step in fall.steps for name in step.change.split(" and ")]
    assert sorted(named) == sorted(edit.label for edit in edits)


def test_a_mixture_that_does_not_fit_in_memory_still_has_a_time(job: Job) -> None:
    start = State(job, job.offers[0], Config(8, 1, 1000, "bf16"))
    assert not CostModel(job).price(start.candidates).feasible[0]
    end = replace(start, config=start.config.with_knobs(activation_checkpointing="full"))
    (step,) = waterfall_between(start, config_edits(start, end), PLAIN).steps
    assert step.duration_s > 0


def test_twice_the_price_is_twice_the_dollars_and_the_same_hours(answer: Recommendation) -> None:
    dear = tune(
        load_job(H100, price="5.00 USD/h"), Options(dry_run=True, fidelity="formula", trials=1)
    )
    one, two = (found.journey.waterfall if found.journey else None for found in (answer, dear))
    assert [s.change for s in one.steps] == [s.change for s in two.steps]
    for cheap, twice in zip(one.steps, two.steps, strict=True):
        assert twice.duration_s == pytest.approx(cheap.duration_s)
        assert twice.cost_usd == pytest.approx(2 * cheap.cost_usd)


def test_changes_of_the_job_are_players_like_any_other(job: Job) -> None:
    start = State(job, job.offers[0], job.today or Config(4, 2, 1000, "bf16"))

    def padded(here: State) -> State:
        return replace(here, job=replace(here.job, padding="max_length"))

    end = replace(start, config=start.config.with_knobs(activation_checkpointing="full"))
    edits: Sequence[RunEdit] = (
        *config_edits(start, end),
        Edit(padded, "data.padding", before="longest", value="max_length"),
    )  # fmt: skip
    fall = waterfall_between(start, edits, PLAIN)
    assert fall.end_s == pytest.approx(PLAIN([padded(end)])[0][0])
    assert all(step.duration_s > 0 for step in fall.steps)


def test_printed_numbers_add_up(answer: Recommendation) -> None:
    text = TUNE_REPORT.text(recommendation_payload(answer))
    block = text.split("From today to the pick")[1].split("the worth of each change")[0]
    times = [float(x) for x in re.findall(r"([+-]?\d+\.\d+) h ", block)]
    money = [float(x.replace("$", "")) for x in re.findall(r"[+-]?\$\d+\.\d+", block)]
    assert len(times) == len(money) > 3
    assert sum(times[:-1]) == pytest.approx(times[-1])
    assert sum(money[:-1]) == pytest.approx(money[-1])


def test_no_journey_without_a_today() -> None:
    job = replace(load_job(H100), today=None)
    found = tune(job, Options(dry_run=True, fidelity="formula", trials=1))
    assert found.journey is None
    assert "waterfall" not in recommendation_payload(found)


def test_network_storage_is_credited_with_next_to_nothing(answer: Recommendation) -> None:
    options = {option.change: option for option in answer.journey.options}
    staging = options["data.storage"]
    assert abs(staging.duration_s) < 60  # of 24 hours; the copy is counted
    assert "worth about nothing" in staging.why
    assert "MB/s" in staging.why
    assert options["data.pretokenized"].duration_s > -300
    assert options["checkpoint disk"].duration_s < -1800


def test_padding_is_credited_where_rows_are_padded() -> None:
    job = load_job(H100, set_values={"data.padding": "max_length"})
    found = tune(job, Options(dry_run=True, fidelity="formula", trials=1))
    padding = next(o for o in found.journey.options if o.change == "data.padding")
    assert padding.duration_s < -0.2 * found.best.duration_s.p50


def test_another_global_batch_is_the_users_decision(answer: Recommendation) -> None:
    batch = next(o for o in answer.journey.options if o.change == "train.global_batch_size")
    assert batch.yours
    assert batch.to == "16"  # the other config that the file speaks of: 2 x 8
    assert "your decision" in batch.why
    assert "112,500 steps" in batch.why


def test_padding_competes_and_data_loading_cannot_be_the_cause(answer: Recommendation) -> None:
    (gap,) = answer.journey.gaps
    readings = {each.name: each for each in gap.readings}
    assert {"as stated", "padding", "other config"} <= set(gap.open)
    assert readings["dataloader"].verdict == "immaterial"
    padding = readings["padding"]
    assert padding.predicted_s > gap.measured_s
    assert padding.peak_share > 0.4  # padded tokens are computed like any other
    assert padding.fixed_s is not None
    assert padding.fixed_s < 0.75 * gap.measured_s
    assert "112,500 steps" in readings["other config"].text
    assert readings["precision"].verdict == "impossible"


def test_free_looks_come_first_and_decide(answer: Recommendation) -> None:
    (gap,) = answer.journey.gaps
    looks = [check for check in gap.checks if check.name != "probe"]
    assert all(check.cost_usd == 0 for check in looks)
    assert looks[-1].decides
    shape = next(check for check in gap.checks if check.name == "batch shape")
    assert "1024" in shape.shows["padding"]
    assert "1024" not in shape.shows["as stated"]
    probe = next(check for check in gap.checks if check.name == "probe")
    assert 0 < probe.cost_usd < 1
    assert ("as stated", "padding") in probe.tells_apart


def test_every_open_reading_gives_the_measured_time_and_its_own_pick() -> None:
    job = load_job(H100)
    reference = reference_of(job, job.evidence[0])
    assert reference is not None
    for reading in hypotheses_of(reference, lambda own, pairs: CostModel(own).price(pairs)):
        if not reading.open:
            continue
        bill = CostModel(reading.reference.job, reading.calibration).price(
            State(
                reading.reference.job, reading.reference.offer, reading.reference.config
            ).candidates
        )
        assert float(bill.duration_s[0]) == pytest.approx(reading.measured_s, rel=0.02)


def test_a_slow_disk_is_a_reading_that_a_probe_tells_from_slow_kernels(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    slow = H100.read_text().replace("duration: 38 h", "duration: 52 h")
    path.write_text(
        slow.replace("      checkpoint_write: 25 MB/s", "      checkpoint_write: 24 MB/s")
    )
    found = tune(load_job(path), Options(dry_run=True, fidelity="formula", trials=1))
    (gap,) = found.journey.gaps
    assert "checkpoint_disk" in gap.open
    probe = next(check for check in gap.checks if check.name == "probe")
    pairs = {frozenset(pair) for pair in probe.tells_apart}
    assert frozenset(("as stated", "checkpoint_disk")) in pairs
    disk = next(each for each in gap.readings if each.name == "checkpoint_disk")
    assert disk.predicted_s == pytest.approx(gap.measured_s, rel=0.01)
    saves = next(check for check in gap.checks if check.name == "saves")
    assert saves.cost_usd == 0
    assert saves.decides
    assert saves.shows["checkpoint_disk"] != saves.shows["as stated"] == saves.shows["padding"]


def test_a_fourfold_residual_is_no_efficiency(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(H100.read_text().replace("duration: 38 h", "duration: 150 h"))
    found = tune(load_job(path), Options(dry_run=True, fidelity="formula", trials=1))
    assert found.today.duration_s.p50 < 60 * 3600  # not scaled to what was measured
    (gap,) = found.journey.gaps
    verdicts = {each.name: each.verdict for each in gap.readings}
    assert verdicts["as stated"] == "insufficient"
    assert "as stated" not in gap.open
    text = " ".join(TUNE_REPORT.text(recommendation_payload(found)).split())
    assert "the difference is not explained" in text
    assert "more than kernels can differ" in text


def test_an_evaluation_alone_has_no_hypotheses_of_training(tmp_path: Path) -> None:
    path = tmp_path / "job.yaml"
    path.write_text(
        "model: Qwen/Qwen2-0.5B\nmethod: {kind: lora, rank: 4, alpha: 8}\n"
        "data: {rows: 1000, max_length: 128}\ntrain: none\nevaluation: {rows: 1000}\n"
        "hardware: [{gpu: h100-sxm, price: 2 USD/h}]\nevidence:\n"
        "  - {config: {micro_batch_size: 8}, today: true, measured: {duration: 10 min}}\n"
    )
    found = tune(load_job(path), Options(dry_run=True, fidelity="formula", trials=1))
    assert found.journey.gaps == ()
    assert found.journey.options == ()

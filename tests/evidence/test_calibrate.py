from __future__ import annotations

import math
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING, Any

import builders as build
import numpy as np
import pytest

from autotune.catalog.devices import find_device
from autotune.catalog.models.models import find_model
from autotune.cost.model import CostModel
from autotune.domain.candidates import Candidates
from autotune.domain.config import Config
from autotune.domain.job import Evaluation, Job, Lengths, Limits, Method
from autotune.domain.observation import Observation
from autotune.domain.outcome import Z90
from autotune.domain.software import Software
from autotune.evidence.calibrate import EVALUATION_LOG_SD, calibration_from_evidence
from autotune.evidence.reference import cut, reference_of
from autotune.report.screens.screen import shortened

if TYPE_CHECKING:
    from autotune.domain.answer.verification import Explained
    from autotune.domain.observation import Calibration

SOFTWARE = Software("t", "2026-01", (2, 9), (5, 0), None, (0, 18), (1, 12), (2, 8), (0, 48))
TODAY = Config(
    micro_batch_size=4, gradient_accumulation_steps=2, checkpoint_every_steps=1000,
    precision="bf16", num_dataloader_workers=4,
)  # fmt: skip


@cache
def job() -> Job:
    device = find_device("h100-sxm")
    return build.job(
        build.sold(device, 1, 2.5, assumed=()), model=find_model("Llama-3.1-8B"),
        method=Method("lora", "16bit", 16, 32.0, 0.0, ("q_proj", "v_proj")), rows=100_000,
        max_length=1024, lengths=Lengths((20.0, 220.0, 1024.0), 300.0, 1024, known=True),
        steps=12_500, limits=Limits(0.05, 1800.0), software=SOFTWARE, today=TODAY,
    )  # fmt: skip


def predicted() -> Any:
    own = job()
    return CostModel(own).price(Candidates.of([(own.offers[0], TODAY)]))


def learn(
    *observations: Observation, **changes: Any
) -> tuple[Calibration, tuple[str, ...], tuple[Explained, ...]]:
    own = replace(job(), evidence=observations, **changes)
    return calibration_from_evidence(own, [reference_of(own, each) for each in observations])


def seen(quantity: Any, value: float, kind: Any = None, **facts: object) -> Observation:
    return Observation("e", quantity, value, "test", kind, TODAY.as_dict(), dict(facts), today=True)


def test_no_evidence_teaches_nothing() -> None:
    calibration, warnings, explanations = learn()
    assert calibration.is_empty
    assert warnings == explanations == ()


@pytest.mark.parametrize("factor", [0.6, 1.0, 1.7])
def test_a_step_time_within_a_factor_of_two_scales_training(factor: float) -> None:
    calibration, warnings, _ = learn(seen("step_time_s", factor * float(predicted().step_s[0])))
    assert calibration.factors["compute"] == pytest.approx(factor, rel=1e-3)  # but for its data
    assert warnings == ()


def test_a_duration_is_met_by_the_calibrated_model() -> None:
    bill = predicted()
    target = 1.3 * float(bill.duration_s[0])
    calibration, warnings, _ = learn(seen("duration_s", target))
    again = CostModel(job(), calibration).price(bill.candidates)
    assert float(again.duration_s[0]) == pytest.approx(target, rel=0.01)
    assert warnings == ()


def test_throughput_and_step_time_teach_the_same() -> None:
    bill = predicted()
    real = float(bill.tables["compute"].gather("real_tokens_per_step")[0])
    step = 1.4 * float(bill.step_s[0])
    one, _, _ = learn(seen("step_time_s", step))
    two, _, _ = learn(seen("tokens_per_s", real / step))
    assert one.factors["compute"] == pytest.approx(two.factors["compute"])


@pytest.mark.parametrize("factor", [0.2, 2.5, 4.0, 50.0])
def test_beyond_a_factor_of_two_nothing_is_swallowed(factor: float) -> None:
    measured = factor * float(predicted().step_s[0])
    calibration, warnings, _ = learn(seen("step_time_s", measured))
    assert "compute" not in calibration.factors
    assert calibration.log_sds["compute"] > 0.5
    assert len(warnings) == 1
    assert "not used to scale" in warnings[0]


def test_times_of_one_configuration_that_contradict_each_other_are_said() -> None:
    step_s = float(predicted().step_s[0])

    def said(*factors: float, last: Config = TODAY) -> list[str]:
        runs = [
            replace(seen("step_time_s", step_s * factor), id=f"run {number}")
            for number, factor in enumerate(factors)
        ]
        runs[-1] = replace(runs[-1], knobs=last.as_dict())
        return [note for note in learn(*runs)[1] if "contradict" in note]

    assert said(1.0, 1.3) == []
    (note,) = said(1.0, 1.1, 1.7)
    assert note.startswith("run 0 and run 2 contradict each other")
    assert "1.7 times apart" in note
    other = TODAY.with_knobs(micro_batch_size=2, gradient_accumulation_steps=4)
    assert said(0.8, 1.4, last=other) == [], "the model may be wrong of one of the two"


def test_padding_to_max_length_explains_a_run_that_was_padded() -> None:
    padded = replace(job(), padding="max_length")
    offer = padded.offers[0]
    actual = float(CostModel(padded).price(Candidates.of([(offer, TODAY)])).step_s[0])
    short = Lengths((20.0, 100.0, 300.0), 130.0, 300, known=True)
    calibration, warnings, found = learn(seen("step_time_s", actual), lengths=short)
    padding = next(item for item in found if item.name == "padding")
    assert padding.explains
    assert padding.ratio == pytest.approx(1.0, abs=0.02)
    assert "1024" in warnings[0]
    assert "compute" not in calibration.factors


def test_every_explanation_moves_towards_the_measurement_and_the_nearest_is_first() -> None:
    bill = predicted()
    expected = float(bill.duration_s[0])
    _, _, found = learn(seen("duration_s", 4 * expected))
    assert {item.name for item in found} >= {"padding", "checkpoint_disk"}
    assert all(item.predicted_s > expected for item in found)
    misses = [max(item.ratio, 1 / item.ratio) for item in found]
    assert misses == sorted(misses)


def test_a_slow_disk_is_no_explanation_once_a_save_was_measured() -> None:
    bill = predicted()
    save = float(bill.tables["checkpoint"].gather("save_s")[0])
    slow = seen("duration_s", 4 * float(bill.duration_s[0]))
    _, _, found = learn(slow, seen("checkpoint_save_s", save))
    assert "checkpoint_disk" not in {item.name for item in found}


def test_a_save_teaches_a_write_speed_that_was_only_assumed_and_says_it() -> None:
    offer = job().offers[0]
    unknown = replace(offer, host=replace(offer.host, assumed=("checkpoint_write_bytes_per_s",)))
    save = float(predicted().tables["checkpoint"].gather("save_s")[0])
    calibration, warnings, _ = learn(seen("checkpoint_save_s", 20 * save), offers=(unknown,))
    assert calibration.factors["checkpoint"] == pytest.approx(20)
    assert "MB/s" in warnings[0]


def test_a_save_that_contradicts_a_stated_write_speed_is_not_applied() -> None:
    save = float(predicted().tables["checkpoint"].gather("save_s")[0])
    calibration, warnings, _ = learn(seen("checkpoint_save_s", 20 * save))
    assert "checkpoint" not in calibration.factors
    assert "contradicts" in warnings[0]


def test_a_save_far_quicker_than_predicted_is_said_with_its_figure() -> None:
    save = float(predicted().tables["checkpoint"].gather("save_s")[0])
    _, warnings, _ = learn(seen("checkpoint_save_s", 0.03 * save))
    assert " 0.03 times what was predicted" in warnings[0]
    assert "times what was predicted" in shortened(warnings[0])  # and not its place alone


def evaluated(value: float, rows: int, planned: int | None = None, **facts: object) -> Any:
    """What an evaluation over so many rows teaches of one of the planned, and its bill."""
    plan = None if planned == 0 else Evaluation(planned or rows, 1000)
    observation = seen("evaluation_s", value, **{"evaluation_rows": rows, **facts})
    return learn(observation, evaluation=plan)[0]


def evaluation_s(rows: int, calibration: Calibration | None = None) -> float:
    own = replace(job(), evaluation=Evaluation(rows, 1000))
    model = CostModel(own, calibration) if calibration else CostModel(own)
    bill = model.price(Candidates.of([(own.offers[0], TODAY)]))
    return float(bill.tables["evaluation"].gather("once_s")[0])


@pytest.mark.parametrize("factor", [0.2, 0.8, 1.0, 5.0])
def test_the_next_evaluation_of_the_same_rows_takes_what_was_measured(factor: float) -> None:
    value = factor * evaluation_s(2000)
    calibration = evaluated(value, 2000)
    assert evaluation_s(2000, calibration) == pytest.approx(value)
    assert calibration.log_sds["evaluation"] == pytest.approx(EVALUATION_LOG_SD)


def test_an_evaluation_of_other_rows_lies_between_an_excess_of_each_row_and_one_of_all() -> None:
    then, now = evaluation_s(200), evaluation_s(2000)
    value = then + 30.0
    calibration = evaluated(value, 200, 2000)
    told, reach = evaluation_s(2000, calibration), calibration.log_sds["evaluation"] * Z90
    assert now + 30.0 < told < now * value / then
    assert told * math.exp(-reach) < now + 30.0
    assert told * math.exp(reach) > now * value / then


def test_evaluations_elsewhere_or_of_rows_that_nobody_stated_teach_nothing_of_them() -> None:
    assert not evaluated(60.0, 2000, gpu="a100-80gb", n_gpus=1).factors
    assert not evaluated(60.0, 2000, planned=0).factors


def test_slow_evaluations_that_were_measured_are_not_taken_for_slow_training() -> None:
    plan = Evaluation(2000, 500)
    own = replace(job(), evaluation=plan)
    bill = CostModel(own).price(Candidates.of([(own.offers[0], TODAY)]))
    once, times = evaluation_s(2000), plan.times(own.steps)
    whole = seen("duration_s", float(bill.duration_s[0]) + times * once)
    twice = seen("evaluation_s", 2.0 * once, evaluation_rows=2000)
    assert learn(whole, twice, evaluation=plan)[0].factors["compute"] == pytest.approx(1.0)
    assert learn(whole, evaluation=plan)[0].factors["compute"] > 1.01


def test_other_hardware_transfers_the_ratio_with_a_wider_interval() -> None:
    own = replace(job(), evidence=())
    away = seen("step_time_s", 1.0, gpu="a100-80gb", n_gpus=1)
    reference = reference_of(own, away)
    assert reference.elsewhere
    bill = CostModel(reference.job).price(reference.candidates)
    ratio = 1.5
    there, _, _ = learn(replace(away, value=ratio * float(bill.step_s[0])))
    here, _, _ = learn(seen("step_time_s", ratio * float(predicted().step_s[0])))
    assert there.factors["compute"] == pytest.approx(ratio, rel=1e-3)
    assert there.log_sds["compute"] > here.log_sds["compute"]


def test_a_run_of_other_size_is_priced_at_that_size() -> None:
    bill = predicted()
    small = seen("duration_s", 1.0, rows=10_000, epochs=1.0, steps=1250)
    reference = reference_of(job(), small)
    assert reference.job.steps == 1250
    duration = CostModel(reference.job).price(reference.candidates).duration_s[0]
    assert duration < bill.duration_s[0]


def test_measured_memory_scales_memory_and_never_beyond_two() -> None:
    allocated = float(predicted().tables["memory"].gather("allocated")[0])
    near, warnings, _ = learn(seen("memory_bytes", 1.2 * allocated, "allocated"))
    assert near.factors["memory"] == pytest.approx(1.2)
    assert warnings == ()
    far, warnings, _ = learn(seen("memory_bytes", 3 * allocated, "allocated"))
    assert "memory" not in far.factors
    assert "not applied" in warnings[0]


def test_an_out_of_memory_that_was_predicted_to_fit_is_warned_of() -> None:
    calibration, warnings, _ = learn(seen("oom", 1.0))
    fits = float(predicted().memory_violation[0]) <= 0
    assert bool(warnings) == fits
    assert ("memory" in calibration.log_sds) == fits


def test_evidence_on_an_unknown_device_is_set_aside_with_a_warning() -> None:
    calibration, warnings, _ = learn(seen("step_time_s", 1.0, gpu="voodoo-2"))
    assert calibration.is_empty
    assert "nothing can be learned" in warnings[0]


@pytest.mark.parametrize("scale", [0.1, 1.0, 3.0])
def test_scaled_lengths_stay_below_the_cap(scale: float) -> None:
    found = cut(job().lengths, 1024, scale)
    assert max(found.quantiles) <= found.maximum <= 1024
    assert 0 < found.mean <= found.maximum
    assert np.all(np.diff(found.quantiles) >= 0)

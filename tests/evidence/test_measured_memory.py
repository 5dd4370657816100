"""A measured peak changes the bytes, the probability and the basis of what is predicted."""

from __future__ import annotations

from dataclasses import fields, replace
from functools import cache
from typing import TYPE_CHECKING, Any

import builders as build
import pytest

from autotune.catalog.devices import find_device
from autotune.catalog.models.models import find_model
from autotune.cost.model import CostModel
from autotune.domain.candidates import Candidates
from autotune.domain.config import Config
from autotune.domain.job import Job, Limits, Method
from autotune.domain.observation import Calibration, Observation
from autotune.domain.outcome import MemoryParts
from autotune.domain.software import Software
from autotune.pricing import Pricing

if TYPE_CHECKING:
    from autotune.cost.bill import Bill

SOFTWARE = Software("t", "2026-01", (2, 9), (5, 0), None, (0, 18), (1, 12), (2, 8), (0, 48))
CONFIG = Config(4, 2, 1000, "bf16")


@cache
def job() -> Job:
    device = find_device("a100-sxm4-40gb")
    return build.job(
        build.sold(device, 1, 1.5, assumed=()), model=find_model("Llama-3.1-8B"),
        method=Method("lora", "16bit", 16, 32.0, 0.0, ("q_proj", "v_proj")),
        lengths=build.equal_rows(512), padding="max_length", limits=Limits(0.05, 1800.0),
        software=SOFTWARE,
    )  # fmt: skip


def priced(calibration: Calibration | None = None, config: Config = CONFIG) -> Bill:
    return CostModel(job(), calibration).price(Candidates.of([(job().offers[0], config)]))


def learned(quantity: Any, value: float, kind: Any = None) -> tuple[Calibration, tuple[str, ...]]:
    seen = Observation("e", quantity, value, "test", kind, CONFIG.as_dict(), {}, today=True)
    own = replace(job(), evidence=(seen,), today=CONFIG)
    found = Pricing.learned(own)
    return found.calibration, found.warnings


@pytest.mark.parametrize(
    ("kind", "output"),
    [("allocated", "allocated"), ("reserved", "reserved"), ("nvidia-smi", "driver"),
     ("unknown", "total")],
)  # fmt: skip
@pytest.mark.parametrize("times", [0.8, 1.1])
def test_the_measured_configuration_is_predicted_as_measured(
    kind: str, output: str, times: float
) -> None:
    measured = times * priced().at("memory", output, 0)
    calibration, warnings = learned("memory_bytes", measured, kind)
    assert warnings == ()
    bill = priced(calibration)
    assert bill.at("memory", output, 0) == pytest.approx(measured, rel=1e-6)
    row = bill.estimate(0)
    assert row.basis == "calibrated"
    assert row.memory_bytes.total == pytest.approx(bill.memory_bytes[0])


def test_parts_are_scaled_but_the_driver_context_is_not() -> None:
    plain = priced().estimate(0).memory_bytes
    row = priced(Calibration({"memory": 1.3}, {"memory": 0.03})).estimate(0).memory_bytes
    for item in fields(MemoryParts):
        expected = 1.0 if item.name == "context" else 1.3
        assert getattr(row, item.name) == pytest.approx(expected * getattr(plain, item.name))


def test_another_configuration_fits_less_likely_after_more_was_measured() -> None:
    wide = CONFIG.with_knobs(micro_batch_size=8, gradient_accumulation_steps=1)
    more = Calibration({"memory": 1.4}, {"memory": 0.03})
    before, after = priced(None, wide), priced(more, wide)
    assert after.fits_probability[0] < before.fits_probability[0]
    assert after.memory_violation[0] > before.memory_violation[0]


def test_the_interval_becomes_that_of_the_measurement() -> None:
    bill = priced(Calibration({"memory": 1.0}, {"memory": 0.11}))
    assert bill.at("memory", "log_sd", 0) == pytest.approx(0.11)
    assert bill.memory_bytes[0] == pytest.approx(priced().memory_bytes[0])


def test_three_times_more_than_predicted_is_told_and_puts_every_fit_in_doubt() -> None:
    allocated = priced().at("memory", "allocated", 0)
    calibration, warnings = learned("memory_bytes", 3 * allocated, "allocated")
    assert calibration.is_empty
    assert "3.00 times" in warnings[0]
    assert priced(calibration).fits_probability[0] < priced().fits_probability[0]


def test_a_third_of_what_was_predicted_is_told_and_makes_nothing_less_likely_to_fit() -> None:
    allocated = priced().at("memory", "allocated", 0)
    calibration, warnings = learned("memory_bytes", allocated / 3, "allocated")
    assert calibration.is_empty
    assert "0.33 times" in warnings[0]
    assert priced(calibration).fits_probability[0] == priced().fits_probability[0]


def test_measured_memory_leaves_the_time_alone() -> None:
    changed = priced(Calibration({"memory": 1.3}, {"memory": 0.03}))
    assert changed.duration_s[0] == priced().duration_s[0]

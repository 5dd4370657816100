"""Predictions of sources, devices and groups that no fit has seen, against `thresholds.toml`."""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.evidence.fit.refit import Refit, refit
from autotune.evidence.record.table import SHIPPED_ROWS

if TYPE_CHECKING:
    from autotune.evidence.validation.validate import Validation

ONE = "one A100 80 GB, Hugging Face's Trainer"
SEVERAL = "2 to 8 GPUs"


@pytest.fixture(scope="module")
def limits() -> dict[str, Any]:
    return tomllib.loads(Path(__file__).with_name("thresholds.toml").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def found(fitted_once: None) -> Refit:  # noqa: ARG001 - only that it is so
    return refit(SHIPPED_ROWS)


def test_enough_of_the_public_record_is_covered(found: Refit, limits: dict[str, Any]) -> None:
    everything = found.accuracy.scopes["all rows"]
    assert everything.n >= limits["steps"]["rows"]
    assert everything.groups >= limits["steps"]["groups"]


@pytest.mark.parametrize("unit", ["source", "program", "device", "group"])
@pytest.mark.parametrize(
    "figure", ["time", "memory", "memory_allocated", "memory_reserved", "memory_driver"]
)
def test_what_is_left_out_is_predicted_this_well(
    validation: Validation, limits: dict[str, Any], unit: str, figure: str
) -> None:
    own, wanted = getattr(validation.left_out[unit], figure), limits["left_out"][unit][figure]
    assert own.median_ape <= wanted["median_ape"]
    assert own.p90_ape <= wanted["p90_ape"]


@pytest.mark.parametrize(("scope", "limit"), [(ONE, "one_gpu"), (SEVERAL, "several_gpus")])
def test_left_out_sources_are_predicted_this_well(
    found: Refit, limits: dict[str, Any], scope: str, limit: str
) -> None:
    own, wanted = found.accuracy.scopes[scope], limits[limit]
    assert own.median_ape <= wanted["median_ape"]
    assert own.p90_ape <= wanted.get("p90_ape", 1.0)


def test_the_median_over_devices_is_this_good(found: Refit, limits: dict[str, Any]) -> None:
    enough = [d for d in found.accuracy.devices.values() if d.n >= limits["devices"]["rows"]]
    assert len(enough) >= 3
    assert found.accuracy.median_over_devices is not None
    assert found.accuracy.median_over_devices <= limits["devices"]["median_of_medians"]


def test_the_interval_holds_about_four_of_five_sources(
    validation: Validation, limits: dict[str, Any]
) -> None:
    known = validation.left_out["source"].acquainted["time"]["known"]
    assert known.sources >= limits["coverage"]["sources"]
    for share in (known.share, known.share_of_sources):
        assert share is not None
        assert limits["coverage"]["least"] <= share <= limits["coverage"]["most"]


def test_configurations_of_one_job_come_in_the_right_order(
    found: Refit, limits: dict[str, Any]
) -> None:
    sweeps = found.accuracy.sweeps
    assert sweeps.pairs >= 30
    assert sweeps.right_order is not None
    assert sweeps.right_order >= limits["sweeps"]["right_order"]
    assert sweeps.mean_regret is not None
    assert sweeps.mean_regret <= limits["sweeps"]["mean_regret"]


def test_no_measured_step_beats_the_roofline_and_no_prediction_does(found: Refit) -> None:
    steps = found.steps
    roofline = steps.accumulation * steps.terms.flop / steps.terms.peak
    assert (found.left_out.predicted_s >= roofline).all()
    assert (steps.seconds > roofline).all()

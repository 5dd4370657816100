"""What our own probes measured on a GPU, held against what is said of the same jobs."""

from __future__ import annotations

import pytest

from autotune.probe.outcomes import INFEASIBLE
from bench.gpu_suite.told import Beside, recorded, table

FOUND = list(recorded())
RAN = [found for found in FOUND if found.record.ok]


def name(found: Beside) -> str:
    return found.item.name


@pytest.mark.parametrize("found", RAN, ids=name)
def test_memory_is_said_as_it_was_read(found: Beside) -> None:
    read = found.record.result["memory"]
    for kind, near in (("allocated", 0.02), ("reserved", 0.06), ("driver", 0.06)):
        assert found.said_bytes[kind] == pytest.approx(read[f"{kind}_bytes"], rel=near), kind


@pytest.mark.parametrize("found", RAN, ids=name)
def test_the_typical_step_is_inside_what_is_said(found: Beside) -> None:
    low, _, high = found.step_s
    assert low < found.record.result["step"]["median_s"] < high


def test_what_ran_out_was_said_to() -> None:
    out = [found for found in FOUND if found.record.status in INFEASIBLE]
    assert out
    for found in out:
        assert found.bill.estimate(0).fits_probability < 0.1


def test_every_record_says_what_it_ran_on_and_how_the_card_ran() -> None:
    for found in FOUND:
        assert {"torch", "transformers", "peft", "accelerate"} <= set(
            found.record.result["versions"]
        )
        assert found.record.readings["sm_mhz"] > 0
        assert found.record.readings["power_w"] > 0
        assert found.record.result["device"]["capability"] == "9.0"
    assert table().count("\n") == len(FOUND) + 1

"""What our own probes measured on a GPU, held against what is said of the same jobs."""

from __future__ import annotations

import json
import statistics
from dataclasses import replace
from pathlib import Path

import pytest

from autotune.cost.time.attention import PLAN_BACKWARD_S, PLAN_FORWARD_S
from autotune.cost.time.measured_rates import as_measured
from autotune.pricing import Pricing
from autotune.probe.machine.kept import read as read_facts
from autotune.probe.outcomes import INFEASIBLE
from bench.gpu_suite.told import ROOT, Beside, recorded, table

FOUND = list(recorded())
RAN = [found for found in FOUND if found.record.ok]
EVEN = [found for found in RAN if not found.item.ragged]
LEFT_BY_8BIT = 0.45e9  # [bytes] at most, of the run before, in those after "full/4x1024/8bit"
CLEAN = EVEN[: [found.item.name for found in EVEN].index("full/4x1024/8bit") + 1]


def name(found: Beside) -> str:
    return found.item.name


def test_allocated_memory_is_said_to_a_thousandth() -> None:
    errors = [abs(f.said_bytes["allocated"] / read(f, "allocated") - 1.0) for f in CLEAN]
    assert len(errors) >= 20
    assert statistics.median(errors) < 0.001
    assert max(errors) < 0.01


def read(found: Beside, kind: str) -> float:
    return float(found.record.result["memory"][f"{kind}_bytes"])


@pytest.mark.parametrize("found", EVEN, ids=name)
def test_memory_is_said_as_it_was_read(found: Beside) -> None:
    left = 0.0 if found in CLEAN else LEFT_BY_8BIT
    for kind, near in (("allocated", 0.01), ("reserved", 0.10), ("driver", 0.10)):
        said, seen = found.said_bytes[kind], read(found, kind)
        assert said >= (seen - left) * (1.0 - near), kind
        assert said <= seen * (1.0 + near), kind


def test_most_steps_are_inside_what_is_said_and_what_waits_for_the_device_is_close() -> None:
    inside = [low < typical(f) < high for f in EVEN for low, _, high in [f.step_s]]
    assert sum(inside) >= 0.8 * len(inside)
    bound = [f for f in EVEN if f.bill.estimate(0).step_bound == "compute"]
    assert len(bound) >= 4
    for found in bound:
        assert found.step_s[1] == pytest.approx(typical(found), rel=0.2), found.item.name


def typical(found: Beside) -> float:
    return float(found.record.result["step"]["step_s"])


def test_what_doctor_measured_of_the_machine_makes_its_steps_neither_longer_nor_shorter() -> None:
    facts, damage = read_facts(Path(ROOT) / "h100-sxm" / "facts.json")
    assert facts is not None, damage
    ratios = []
    for found in EVEN[2:]:  # of the same machine
        job = found.bill.job
        offer = replace(job.offers[0], device=as_measured(job.offers[0].device, facts.rates))
        row = Pricing(replace(job, offers=(offer,))).one(offer, found.item.config())
        ratios.append(row.step_time_s / typical(found))
    assert 0.85 < statistics.median(ratios) < 1.25
    assert min(ratios) > 0.7
    assert max(ratios) < 1.8


def test_a_new_length_costs_a_plan_of_cudnn() -> None:
    ragged = next(found for found in RAN if found.item.name == "lora/d/4")
    each = ragged.record.result["step"]["each_s"][int(ragged.record.request["steps"]["longest"]) :]
    longest = 2.0 * PLAN_FORWARD_S + PLAN_BACKWARD_S  # recomputed: forward twice
    new = [seconds - min(each) for seconds in each if seconds > 2.0 * min(each)]
    assert len(new) >= 3
    assert longest < statistics.median(new) < 2.0 * longest, "on a host half as fast"


def test_what_ran_out_was_said_to() -> None:
    out = [found for found in FOUND if found.record.status in INFEASIBLE]
    assert out
    for found in out:
        assert found.bill.estimate(0).fits_probability < 0.1


def test_every_record_says_what_it_ran_on() -> None:
    for found in FOUND:
        assert {"torch", "transformers", "peft"} <= set(found.record.result["versions"])
        assert found.record.result["device"]["capability"] == "9.0"
    assert FOUND[0].record.readings["sm_mhz"] > 0
    assert FOUND[0].record.readings["power_w"] > 0
    assert table().count("\n") == len(FOUND) + 1


def test_a_mask_costs_attention_what_is_priced() -> None:
    path = Path(ROOT) / "h100-sxm" / "kernels.jsonl"
    rows = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    both = {
        (row["length"], row["mask"]): row["s"]
        for row in rows
        if row["part"] == "attention" and row.get("backend") == "default"
        and row["pass"] == "both" and row["dim"] == 128  # noqa: S105 - a pass of attention
    }  # fmt: skip
    ratios = [both[length, "mask"] / both[length, "causal"] for length in (1024, 2048, 4096)]
    assert 2.0 < statistics.median(ratios) < 3.2, "twice the square, at three quarters of the rate"

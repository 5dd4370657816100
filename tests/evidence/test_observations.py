"""Whoever measured a step, it is one Observation, and teaches the same."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any, get_args

import pytest

from autotune.app.job.load import resolve_spec
from autotune.domain.observation import Observation, Quantity, value_of
from autotune.evidence import runs_seen
from autotune.evidence.log.run_log import observations_of_log, speed_of
from autotune.evidence.log.step_times import read_csv_log
from autotune.evidence.runs_seen import remember, with_verified
from autotune.pricing import Pricing
from autotune.probe.record import ProbeRecord, observations

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job

STEP_S = 1.4
SPLIT = {"micro_batch_size": 4, "gradient_accumulation_steps": 4}
BASE: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "method": {"kind": "lora", "rank": 16},
    "data": {"rows": 40_000, "max_length": 1024, "lengths": {"p50": 250, "p95": 600}},
    "train": {"epochs": 1, "global_batch_size": 16},
    "hardware": [{"gpu": "h100-sxm"}],
}


def job_of(folder: Path, **changes: Any) -> Job:
    return resolve_spec({**BASE, **changes}, folder)


def of_an_entry(folder: Path) -> tuple[Observation, ...]:
    entry = {"measured": {"step_time": f"{STEP_S} s/step"}, "config": SPLIT}
    return job_of(folder, evidence=[entry]).evidence


def of_a_log(folder: Path) -> tuple[Observation, ...]:
    path = folder / "steps.csv"
    lines = [f"{step},{STEP_S}" for step in range(1, 201)]
    path.write_text("\n".join(["step,step_time_s", *lines]) + "\n", encoding="utf-8")
    log = read_csv_log(path)
    speed = speed_of(log, 0.0, 0.0)
    assert speed is not None
    return observations_of_log(log, speed, SPLIT, {"gpu": "h100-sxm", "n_gpus": 1})


def of_a_verified_run(folder: Path) -> tuple[Observation, ...]:
    remember(job_of(folder), "a training", of_a_log(folder))
    return with_verified(job_of(folder)).evidence


def of_a_probe(folder: Path) -> tuple[Observation, ...]:
    del folder
    memory = {"allocated_bytes": 3e10, "reserved_bytes": 4e10, "driver_bytes": 5e10}
    step = {"accumulation": 4, "step_s": STEP_S, "micro_s": 1.33, "data_s": 0.0}
    record = ProbeRecord(
        "key", "ok", "", 30.0, dict(SPLIT), "h100-sxm", "print", {"max_length": 1024},
        {"step": step, "memory": memory}, when="2026-11-22",
    )  # fmt: skip
    return tuple(each for each in observations(record) if each.quantity == "step_time_s")


def factor(job: Job, seen: tuple[Observation, ...]) -> float:
    learned = Pricing.learned(replace(job, evidence=seen))
    assert not learned.warnings
    return learned.calibration.factors["compute"]


@pytest.mark.parametrize("source", [of_an_entry, of_a_log, of_a_verified_run, of_a_probe])
def test_a_step_teaches_the_same_whoever_measured_it(
    source: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    seen = source(tmp_path)
    assert all(isinstance(each, Observation) and each.provenance for each in seen)
    assert {each.quantity for each in seen} <= set(get_args(Quantity))
    assert value_of(seen, "step_time_s") == pytest.approx(STEP_S)
    expected = factor(job_of(tmp_path), of_an_entry(tmp_path))
    assert factor(job_of(tmp_path), seen) == pytest.approx(expected, rel=1e-6)


def test_what_an_earlier_version_kept_of_verified_runs_is_found(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    seen, _ = remember(job, "a training", of_a_log(tmp_path))
    for earlier in runs_seen._stores(job)[1:]:
        seen = seen.rename(earlier)
        found = with_verified(job)
        assert [each.value for each in found.evidence] == [
            each.value for each in of_a_log(tmp_path)
        ]
        assert str(earlier) in found.assumed[-1].why

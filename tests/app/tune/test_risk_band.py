"""A pick that fits narrowly lets the allocator's segments grow; one with room does not."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from autotune.app.estimate import estimate
from autotune.app.job.load import load_job
from autotune.app.runs.export import export_pick
from autotune.domain.outcome import SAFE_PROBABILITY, AllocatorRun, AtOp, Measured, MemoryTrace
from autotune.report.payload import row_payload
from autotune.report.phrases import fit_phrase

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.domain.job import Job
    from autotune.domain.outcome import Estimated

JOB = """\
model: Qwen/Qwen2.5-0.5B
method: lora
data: {rows: 100, max_length: 64, padding: max_length}
train: {global_batch_size: 8}
hardware: [{gpu: l4, price: 1 USD/h}]
lock: {micro_batch_size: 1}
"""
GROWS = "expandable_segments:True"


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    path = tmp_path_factory.mktemp("risk") / "job.yaml"
    path.write_text(JOB)
    return load_job(path)


@pytest.fixture(scope="module")
def roomy(job: Job) -> Estimated:
    return estimate(job).row


def run_sh(job: Job, row: Estimated, folder: Path) -> str:
    export_pick(job, row, ("hf",), folder)
    return (folder / "run.sh").read_text(encoding="utf-8")


def test_with_room_to_spare_there_is_no_risk(job: Job, roomy: Estimated, tmp_path: Path) -> None:
    assert roomy.feasible
    assert roomy.risk == ""
    assert GROWS not in run_sh(job, roomy, tmp_path)


def test_a_probability_below_the_safe_one_is_a_risk(
    job: Job, roomy: Estimated, tmp_path: Path
) -> None:
    narrow = replace(roomy, fits_probability=SAFE_PROBABILITY - 0.02)
    assert narrow.feasible
    assert narrow.risk == "the probability that it fits is 0.93"
    text = run_sh(job, narrow, tmp_path)
    assert GROWS in text
    assert "fewer gaps: the probability that it fits is 0.93" in text


def test_what_the_allocator_would_hold_beyond_usable_memory_is_a_risk(roomy: Estimated) -> None:
    more = replace(roomy, reserved_bytes=roomy.usable_bytes)
    assert "expected to hold" in more.risk
    assert replace(roomy, reserved_bytes=0.5 * roomy.usable_bytes).risk == ""


def test_a_run_whose_cache_would_fill_the_memory_is_never_said_to_fit(roomy: Estimated) -> None:
    more = replace(roomy, reserved_bytes=roomy.usable_bytes)
    said = fit_phrase(row_payload(more))
    assert row_payload(more)["verdict"] == "fits"
    assert row_payload(more)["crowded"] is True
    assert "fits" not in said
    rest = "PyTorch's cache will take the rest of the memory"
    assert said == f"should fit; {rest} (probability over 0.99)"
    assert fit_phrase(row_payload(roomy)).startswith("fits (")
    assert row_payload(roomy)["crowded"] is False


def test_a_crowded_config_is_claimed_less_surely_by_the_model_itself(tmp_path: Path) -> None:
    """Rows of many lengths on a card that their blocks fill."""
    path = tmp_path / "job.yaml"
    lengths = "lengths: {p50: 220, p95: 700, max: 1024}"
    path.write_text(JOB.replace("padding: max_length", f"padding: longest, {lengths}")
                    .replace("max_length: 64", "max_length: 1024")
                    .replace("global_batch_size: 8", "global_batch_size: 40")
                    .replace("lock: {micro_batch_size: 1}", ""))  # fmt: skip
    rows = [estimate(load_job(path, set_values={"micro_batch_size": str(n)})).row for n in (4, 5)]
    crowded = [row for row in rows if row.crowded and row.verdict == "fits"]
    assert crowded
    for row in crowded:
        assert 0.9 <= row.fits_probability < 0.97
        assert "expected to hold" in row.risk


def test_a_simulated_or_measured_reserve_stands_for_the_expected_one(roomy: Estimated) -> None:
    op = AtOp(1, "forward", "mm", 1.0)
    large = 2.0 * roomy.usable_bytes
    held = AllocatorRun(large, large, 1.0, 1.0, op, 0, None, 1.0, None)
    trace = MemoryTrace(1.0, 1.0, "forward", "mm", {}, (2, 4), {}, same_software=True)
    assert "simulated to hold" in replace(roomy, traced=replace(trace, allocator=held)).risk
    seen = Measured(roomy.offer, roomy.config, 1.0, 1.0, 1.0, "probe")
    assert replace(roomy, reserved_bytes=large, measured=seen).risk == ""


def test_the_answer_and_a_later_export_hold_the_risk(roomy: Estimated) -> None:
    narrow = replace(roomy, fits_probability=0.91)
    assert row_payload(narrow)["risk"] == narrow.risk != ""
    assert row_payload(roomy)["reserved_bytes"] == roomy.reserved_bytes > 0

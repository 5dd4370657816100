"""What a plan states is held against arithmetic; what holds is left alone."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autotune.app.job.load import resolve_spec
from autotune.claims import table
from autotune.claims.contradictions import contradictions_of
from autotune.claims.counts import compounded
from autotune.claims.run import figures_text, run_of, seconds_text
from autotune.cost.model import CostModel
from autotune.domain.observation import Observation
from autotune.domain.statement import About, Span, Statement

if TYPE_CHECKING:
    from collections.abc import Iterator

    from autotune.claims.run import Checked
    from autotune.cost.bill import Bill
    from autotune.domain.candidates import Candidates
    from autotune.domain.job import Job

BASE: dict[str, Any] = {
    "model": "meta-llama/Llama-3.1-8B",
    "method": {"kind": "lora", "rank": 16},
    "data": {"rows": 40_000, "max_length": 1024, "lengths": {"p50": 250, "p95": 600}},
    "train": {"epochs": 2, "global_batch_size": 16},
    "hardware": [{"gpu": "h100-sxm", "host": {"checkpoint_write": "500 MB/s"}}],
}


def price(job: Job, candidates: Candidates) -> Bill:
    return CostModel(job).price(candidates)


def job_of(folder: Path, **changes: Any) -> Job:
    return resolve_spec({**BASE, **changes}, folder)


def found(folder: Path, *stated: dict[str, Any], **changes: Any) -> str:
    job = job_of(folder, stated=list(stated), **changes)
    return "\n".join(contradictions_of(job, price))


def test_a_plan_that_agrees_with_the_bill_is_left_alone(tmp_path: Path) -> None:
    run = run_of(job_of(tmp_path), About(), price)
    row = run.row
    text = found(
        tmp_path,
        {
            "steps": 5000, "step_time": f"{row.step_time_s} s", "tokens_per_s": row.tokens_per_s,
            "duration": f"{row.duration_s.p50} s", "checkpoints": row.checkpoints,
            "checkpoint_save": "5 s", "warmup_steps": 100, "warmup_rows": 1600, "tflops": 989,
            "config": {"micro_batch_size": row.config.micro_batch_size},
            "memory": {
                name: f"{row.memory_bytes.as_dict()[name]} B" for name in ("weights", "logits")
            },
        },
        {"learning_rate": {"before": 2e-4, "after": 4e-4, "batch_before": 4}},
        {"learning_rate": {"before": 2e-4, "after": 8e-4, "batch_before": 4}},
    )  # fmt: skip
    assert text == ""


@pytest.mark.parametrize(
    ("stated", "says"),
    [
        ({"steps": 2500}, "2,500 steps are one epoch"),
        ({"steps": "80K"}, "80,000 steps count rows, not steps"),
        ({"steps": 1250}, "1,250 steps fit a global batch of 64: 80,000 rows / 16 are 5,000 steps"),
        ({"steps": 300_000}, "300,000 steps are not this job's"),
        ({"warmup_steps": 100, "warmup_rows": 100}, "100 warm-up steps are 1,600 rows"),
        ({"trainable_parameters": "100M"}, "trains 41.9 million parameters, not 100"),
        ({"tflops": 67}, "67 TFLOP/s of h100-sxm is its fp32 rate"),
        ({"tflops": 1979}, "with sparsity"),
        ({"tflops": 5}, "no dense rate of h100-sxm: bf16 training uses 989"),
        (
            {"config": {"micro_batch_size": 8, "gradient_accumulation_steps": 4}},
            "is 32 rows a step, not 16: at the same steps 2 times the samples",
        ),
        (
            {"backward_passes": 1, "config": {"gradient_accumulation_steps": 8}},
            "8 forward and 8 backward passes a step, not 1 backward pass",
        ),
        (
            {"learning_rate": {"before": 1e-4, "after": 2e-4, "batch_before": 16}},
            "the square-root and the linear rule give 1",
        ),
        (
            {"learning_rate": {"before": 1e-4, "after": 1e-3, "batch_before": 4}},
            "give 2 and 4",
        ),
        ({"step_time": "1 ms"}, "1 ms a step is impossible"),
        ({"tokens_per_s": 10, "step_time": "60 s"}, "disagree"),
        ({"duration": "90 h"}, "of its peak"),
        ({"memory": {"weights": "4 GB"}}, "base 16bit are 16.1 GB, not 4.0"),
        (
            {"runs": [{"duration": "1 h"}, {"duration": "2-3 h"}], "duration": "90 min"},
            "the 2 runs add up to 3 to 4 h, not 1.5 h",
        ),
        ({"hardware": "a100-40gb:3", "duration": "1 h"}, "stated[0] is not checked"),
    ],
)  # fmt: skip
def test_a_statement_that_does_not_hold_is_named(
    tmp_path: Path, stated: dict[str, Any], says: str
) -> None:
    assert says in found(tmp_path, stated)


def test_a_rank_that_costs_too_much_is_named_once(tmp_path: Path) -> None:
    runs = [{"rank": rank, "duration": f"{hours} h"} for rank, hours in ((8, 1), (16, 2), (64, 4))]
    text = found(tmp_path, {"runs": runs})
    assert text.count("cannot take") == 1
    assert "rank 64 cannot take 4 times as long as rank 8" in text


@pytest.mark.parametrize(
    ("measured", "says"),
    [
        ({"duration": "1 h", "step_time": "2 s"}, "5,000 steps of 2.0 s take 2.8 h, more than"),
        ({"duration": "10 h", "step_time": "2 s"}, "take 2.8 h, not the measured 10.0 h: kilo"),
        ({"duration": "20 h", "step_time": "2 s"}, "is something else than steps"),
        ({"duration": "4 min"}, "is impossible on h100-sxm"),
        ({"duration": "30 d"}, "it was almost idle"),
        ({"checkpoint_save": "5 min"}, "it is the disk for checkpoints that is slow"),
        ({"peak_memory": "100 GiB"}, "cannot have been in use: h100-sxm has 79.6 GiB"),
    ],
)  # fmt: skip
def test_measurements_that_cannot_be_are_named_without_a_statement(
    tmp_path: Path, measured: dict[str, Any], says: str
) -> None:
    entry = {"measured": measured, "config": {"micro_batch_size": 4}, "today": True}
    assert says in found(tmp_path, evidence=[entry])


def test_steps_that_the_rows_do_not_make_are_named_of_todays_run(tmp_path: Path) -> None:
    entry = {"measured": {"duration": "2 h"}, "steps": 1250, "today": True}
    assert "1,250 steps fit a global batch of 64" in found(tmp_path, evidence=[entry])
    shorter = {"measured": {"duration": "30 min"}, "steps": 1250}
    assert "fit a global batch" not in found(tmp_path, evidence=[shorter])


def test_a_split_that_makes_another_batch_is_named_of_a_past_run(tmp_path: Path) -> None:
    config = {"micro_batch_size": 6, "gradient_accumulation_steps": 3}
    entry = {"measured": {"duration": "2 h"}, "config": config}
    text = found(tmp_path, evidence=[entry])
    assert "micro-batch 6 x accumulation 3 is 18 rows a step, and the job's are 16" in text


def test_a_run_on_another_card_that_scales_nothing_is_carried_over_by_the_ratio(
    tmp_path: Path,
) -> None:
    entry = {"measured": {"duration": "100 h"}, "hardware": "a10", "rows": 20_000}
    text = found(tmp_path, {"duration": "30 min"}, evidence=[entry])
    match = re.search(r"4.2 d measured on a10 for 20,000 rows are (\S+) h of this job", text)
    assert match, text
    assert 100 * 2 * 125 / 989 < float(match[1]) < 100 * 2  # twice the rows, up to the peaks apart
    assert "not 30 min" in text


def test_twenty_hours_on_more_devices_are_held_against_their_peak(tmp_path: Path) -> None:
    entry = {"measured": {"duration": "40 h"}, "today": True}
    said = found(
        tmp_path,
        {"hardware": "a100-40gb:2", "duration": "20 h"},
        {"hardware": "h100-sxm:4", "duration": "20 h"},
        evidence=[entry],
    )
    assert "20 h on 2x a100-sxm4-40gb would be 2 times as fast" in said
    assert "its peak is 0.63 times as high" in said  # 2 x 312 / 989
    assert "4x h100-sxm would" not in said


@settings(max_examples=60, deadline=None)
@given(hours=st.lists(st.floats(0.5, 30.0), min_size=2, max_size=6))
def test_savings_compound_to_less_than_their_sum_and_than_the_run(hours: list[float]) -> None:
    run_s = 40 * 3600.0
    savings = {str(n): Span(h * 3600, h * 3600) for n, h in enumerate(hours)}
    text = " ".join(compounded(Statement("s", About(), savings_s=savings), run_s))
    compound = 40 * (1 - math.prod(1 - h / 40 for h in hours))
    assert compound < min(sum(hours), 40)
    if sum(hours) > 40 or sum(hours) > 1.3 * compound:
        assert f"would save {figures_text(Span(compound, compound))} h" in text
    elif sum(hours) < 1.2 * compound:
        assert not text


def test_what_a_log_of_a_past_run_measured_is_not_the_job_files_word(tmp_path: Path) -> None:
    seen = Observation("run-1.step", "step_time_s", 1e-6, "a log", today=True)
    assert contradictions_of(replace(job_of(tmp_path), evidence=(seen,)), price) == ()


FIGURES = st.sampled_from(["1e-9", "0.5", "1", "7", "300K", "2.5M", "1e18", "1-2", "1e-9-1e18"])
DURATIONS = st.sampled_from(["1 ms", "1-2 s", "3 h", "90 y", "1 ms - 90 y"])
STATEMENTS = st.fixed_dictionaries(
    {"note": st.just("odd"), "steps": FIGURES},
    optional={
        "duration": DURATIONS, "step_time": DURATIONS, "tokens_per_s": FIGURES,
        "rows_per_s": FIGURES, "steps_per_hour": FIGURES, "checkpoints": FIGURES,
        "checkpoint_save": DURATIONS, "checkpoint_time": DURATIONS, "tflops": FIGURES,
        "trainable_parameters": FIGURES, "backward_passes": FIGURES,
        "hardware": st.sampled_from(["t4", "cpu", "a100-40gb:8", "h100-sxm:3"]),
        "kind": st.sampled_from(["lora", "qlora"]), "rank": st.sampled_from([1, 65_536]),
        "rows": st.sampled_from([1, 10**12]), "max_length": st.sampled_from([1, 10**7]),
        "config": st.sampled_from([{"micro_batch_size": 10**6}, {"micro_batch_size": 16,
                                   "gradient_accumulation_steps": 10**6}]),
        "savings": st.dictionaries(st.sampled_from("ab"), DURATIONS, min_size=1),
        "memory": st.sampled_from([{"weights": "1 B"}, {"weights": "1 B", "total": "9 TB"}]),
    },
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(stated=STATEMENTS)
def test_no_statement_however_odd_breaks_the_check(stated: dict[str, Any]) -> None:
    texts = contradictions_of(resolve_spec({**BASE, "stated": [stated]}, Path()), price)
    assert all(text and "nan" not in text and "inf " not in text for text in texts)


def test_an_evaluation_only_job_has_nothing_to_hold_a_speed_against(tmp_path: Path) -> None:
    job = job_of(
        tmp_path, train="none", evaluation={"rows": 100}, stated={"duration": "3 h", "tflops": 67}
    )
    assert contradictions_of(job, price) == (
        "67 TFLOP/s of h100-sxm is its fp32 rate, outside the tensor cores: bf16 training uses 989",
    )


def test_without_statements_or_evidence_nothing_is_said(tmp_path: Path) -> None:
    assert contradictions_of(job_of(tmp_path), price) == ()


def test_a_faster_device_never_makes_a_possible_speed_impossible(tmp_path: Path) -> None:
    job = job_of(tmp_path)
    for seconds in (0.2, 0.5, 1.0, 3.0):
        verdicts = []
        for gpu in ("a10", "a100-40gb", "h100-sxm"):
            about = About(gpu=gpu)
            statement = Statement("s", about, {"step_time_s": Span(seconds, seconds)})
            text = "\n".join(contradictions_of(replace(job, stated=(statement,)), price))
            verdicts.append("impossible" in text)
        assert verdicts == sorted(verdicts, reverse=True)


def test_a_small_save_is_no_slow_disk(tmp_path: Path) -> None:
    assert found(tmp_path, {"checkpoint_save": "1 s"}, method={"kind": "lora", "rank": 1}) == ""


@pytest.mark.parametrize(
    ("low", "high", "text"),
    [
        (0.8, 1.2, "0.8 to 1.2 s"), (2400, 3000, "40 to 50 min"), (60, 120, "1 to 2 min"),
        (3070, 12_800, "0.853 to 3.56 h"), (136_800, 136_800, "38 h"), (90, 90, "90 s"),
        (0.002, 0.002, "2 ms"), (3600, 3600, "1 h"),
    ],
)  # fmt: skip
def test_a_range_is_told_in_one_unit(low: float, high: float, text: str) -> None:
    assert seconds_text(Span(low, high)) == text


def test_a_further_stated_fact_is_one_row_of_the_table(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def epochs(checked: Checked) -> Iterator[str]:
        stated = checked.statement.figures.get("epochs")
        if stated is not None and stated.middle != checked.job.epochs:
            yield f"{stated.middle:g} epochs, and the job has {checked.job.epochs:g}"

    row = table.Fact("epochs", table.FIGURE, "figures", "epochs", epochs)
    monkeypatch.setattr(table, "FACTS", (*table.FACTS, row))
    table.file_with_statements.cache_clear()
    try:
        assert found(tmp_path, {"epochs": 3}) == "3 epochs, and the job has 2"
        assert found(tmp_path, {"epochs": 2}) == ""
    finally:
        table.file_with_statements.cache_clear()


def test_each_fact_of_the_table_has_a_place_of_its_own_and_is_typed_once() -> None:
    keys = [fact.key for fact in table.FACTS]
    places = [(fact.held, fact.name) for fact in table.FACTS]
    assert len(set(keys)) == len(keys)
    assert len(set(places)) == len(places)
    assert {fact.needs for fact in table.FACTS if fact.needs} <= set(keys)

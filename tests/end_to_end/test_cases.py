"""The planning notes' questions about machines, sizes and variants, through the command line."""

from __future__ import annotations

import csv
import io
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from commandline import Answers

ROOT = Path(__file__).resolve().parents[2]
CASE_D = ("h100-sxm", "a100-40gb:4@4.80USD/h", "h100-sxm:2@5.00USD/h")
VARIANTS = """variants:
  - {name: LoRA r=8, rank: 8}
  - {name: LoRA r=16, rank: 16}
  - {name: LoRA r=32, rank: 32}
  - {name: QLoRA r=16, kind: qlora}
"""


def answer(answers: Answers, *words: str) -> tuple[int, Any]:
    done = answers(*words, "--format", "json")
    return done.returncode, done.json


def test_case_b_gives_every_size_and_what_a_row_adds(answers: Answers) -> None:
    sizes = "data.rows=[10000, 50000, 100000]"
    code, found = answer(answers, "compare", "jobs/rtx5090_llama2_7b.yaml", "--set", sizes)
    assert code == 0
    jobs = [item["job"] for item in found["variants"]]
    assert [job["steps"] for job in jobs] == [3750, 18_750, 37_500]
    assert [job["tokens"] for job in jobs] == [15_360_000, 76_800_000, 153_600_000]
    (line,) = found["scaling"]
    for row, job in zip(found["rows"], jobs, strict=True):
        seconds = line["fixed_s"] + line["s_per_row"] * job["rows"]
        assert row["duration_s"]["p50"] == pytest.approx(seconds, rel=0.01)
        # Kiloseconds were read as hours: 3.1 to 12.8 h for the smallest are 0.85 to 3.6 h.
        assert 0.05 < row["duration_s"]["p50"] / 3600 / job["rows"] * 10_000 < 3.6
    assert line["fixed_s"] > 0


def test_case_b_length_and_qlora_are_priced_as_the_users_options(answers: Answers) -> None:
    code, found = answer(
        answers, "tune", "jobs/rtx5090_llama2_7b.yaml", "--dry-run", "--fidelity", "formula"
    )
    assert code == 0
    worth = {item["key"]: item for item in found["sensitivities"]}
    whole = found["best"]["duration_s"]["p50"]
    assert worth["data.max_length"]["value"] == "256"
    assert 0.4 < worth["data.max_length"]["saved_s"] / whole < 0.6
    assert worth["method.base"]["saved_s"] < 0.02 * whole
    assert worth["method.base"]["memory_bytes"] < found["best"]["memory_bytes"]["total"]
    assert found["job"]["max_length"] == 512


def test_case_d_compares_the_three_machines_by_hours_and_dollars(answers: Answers) -> None:
    code, found = answer(answers, "compare", "jobs/h100_38h.yaml", "--gpu", ",".join(CASE_D))
    assert code in {0, 4}
    machines = {(row["device"], row["device_count"]): row for row in found["rows"]}
    prices = {name: row["usd_per_hour"] for name, row in machines.items()}
    assert prices == {("h100-sxm", 1): 2.5, ("a100-sxm4-40gb", 4): 4.8, ("h100-sxm", 2): 5.0}
    for name, row in machines.items():
        hours = row["duration_s"]["p50"] / 3600
        assert row["cost_usd"]["p50"] == pytest.approx(hours * row["usd_per_hour"])
        assert row["flip_usd_per_hour"] > 0
        assert row["bound_by"]
        if name[1] > 1:
            assert row["sharding_needed"] is False
            assert {"ddp", "fsdp", "zero3"} <= {each["sharding"] for each in row["shardings"]}
            # perfect scaling is the ceiling
            assert row["one_device"]["duration_s"] <= name[1] * row["duration_s"]["p50"]
    assert found["cheapest"] == found["rows"][0]
    assert found["fastest"]["duration_s"] == min(
        (row["duration_s"] for row in found["rows"]), key=lambda spread: spread["p50"]
    )


def test_case_e_is_one_table_over_machines_and_variants(tmp_path: Path, answers: Answers) -> None:
    path = tmp_path / "gemma.yaml"
    path.write_text((ROOT / "jobs" / "t4_to_a100_gemma2.yaml").read_text() + VARIANTS)
    code, found = answer(answers, "compare", str(path))
    assert code == 0
    rows = {(row["variant"], row["device"]): row for row in found["rows"]}
    assert len(rows) == 8
    for (_, device), row in rows.items():
        config = row["config"]
        assert config["micro_batch_size"] * config["gradient_accumulation_steps"] == 16
        assert config["precision"] == ("fp16" if device == "t4" else "bf16")
    for device in ("t4", "a100-sxm4-40gb"):
        eight, thirty_two = (rows[f"LoRA r={rank}", device] for rank in (8, 32))
        ratio = thirty_two["duration_s"]["p50"] / eight["duration_s"]["p50"]
        assert 1.0 <= ratio < 1.1  # rank moves the work by a few per cent, never twofold
        adapters = [row["memory_bytes"]["adapters"] for row in (eight, thirty_two)]
        assert adapters[1] == pytest.approx(4 * adapters[0], rel=0.01)
        # the 16-bit embedding alone is 1.18 GB, so an nf4 base cannot be 1.2 GB
        assert rows["QLoRA r=16", device]["memory_bytes"]["weights"] >= 2.0e9
    assert rows["LoRA r=16", "t4"]["cost_usd"]["p50"] == 0
    assert rows["LoRA r=16", "a100-sxm4-40gb"]["month_usd"] == 10


def test_case_e_longer_than_a_session_starts_again_and_says_so(answers: Answers) -> None:
    arguments = ("compare", "jobs/t4_to_a100_gemma2.yaml", "--set", "data.rows=20000")
    _, free = answer(answers, *arguments)
    code, short = answer(answers, *arguments, "--set", "limits.max_session=4h")
    before, after = (
        next(row for row in found["rows"] if row["device"] == "t4") for found in (free, short)
    )
    assert after["sessions"] > 2
    assert after["misses"][0]["limit"] == "max_session"
    assert after["time_s"]["lost_work"] > before["time_s"]["lost_work"]
    assert sum(after["time_s"].values()) == pytest.approx(after["duration_s"]["p50"])
    assert code == 0  # the other machine ends within one session, with eight chances in ten


def test_a_comparison_prints_in_every_format(answers: Answers) -> None:
    arguments = ("compare", "jobs/h100_38h.yaml", "--gpu", "h100,l40s:2,t4", "--spot")
    screen = answers(*arguments, "--format", "text").stdout
    assert "cheapest on" in screen
    text = answers(*arguments, "--verbose", "--format", "text").stdout
    for word in ("cheapest:", "fastest:", "wins below", "Does not fit", "Spot against on demand"):
        assert word in text
    assert max(map(len, text.splitlines())) <= 80
    marked = answers(*arguments, "--format", "md").stdout
    assert "| machine | USD/h |" in marked
    listed = answers(*arguments, "--format", "csv").stdout
    rows = list(csv.DictReader(io.StringIO(listed)))
    assert {"device", "duration_s.p50", "cost_usd.p50", "flip_usd_per_hour"} <= set(rows[0])


@pytest.mark.slow
def test_tune_of_a_file_with_variants_is_the_same_table(tmp_path: Path, answers: Answers) -> None:
    path = tmp_path / "gemma.yaml"
    path.write_text((ROOT / "jobs" / "t4_to_a100_gemma2.yaml").read_text() + VARIANTS)
    _, table = answer(answers, "tune", str(path))
    _, compared = answer(answers, "compare", str(path))
    assert table["rows"] == compared["rows"]
    one_of_them = ("--variant", "QLoRA r=16", "--dry-run", "--fidelity", "formula")
    code, one = answer(answers, "tune", str(path), *one_of_them)
    assert code == 0
    assert "QLoRA" in one["job"]["method"]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--gpu", "h101"), "did you mean"),
        (("--gpu", "h100@2.50"), "USD/h"),
        (("--max-price", "0.01USD/h"), "no offer costs at most"),
        (("--variant", "x"), "has no variants"),
        (("--deadline", "24"), "24h"),
    ],
)
def test_mistakes_are_bad_input(arguments: tuple[str, ...], says: str, answers: Answers) -> None:
    done = answers("compare", "jobs/h100_38h.yaml", *arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert says in done.stderr

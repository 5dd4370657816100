"""The comparison as people read it: nothing is claimed that the payload does not hold."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from autotune.app.compare.compare import compare
from autotune.app.job.load import load_jobs
from autotune.domain.typed.overrides import Overrides
from autotune.report.compare.payload import comparison_csv, comparison_payload
from autotune.report.compare.table import COMPARE_REPORT
from autotune.report.payload import dumps

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("home")

JOB: dict[str, Any] = {
    "model": "Qwen/Qwen2-0.5B", "method": {"kind": "lora", "rank": 8},
    "data": {"rows": 4000, "max_length": 128}, "train": {"global_batch_size": 8},
    "hardware": [{"gpu": "rtx-4090", "price": "0.50 USD/h"}, {"gpu": "t4", "price": "0.50 USD/h"}],
}  # fmt: skip


def payload(folder: Path, changes: Overrides | None = None, **keys: Any) -> dict[str, Any]:
    path = folder / "job.json"
    path.write_text(json.dumps({**JOB, **keys}))
    return comparison_payload(compare(load_jobs(path, changes or Overrides())))


def test_one_row_a_machine_in_every_format(tmp_path: Path) -> None:
    found = payload(tmp_path)
    text = COMPARE_REPORT.text(found)
    for row in found["rows"]:
        assert row["device"] in text
        assert row["device"] in COMPARE_REPORT.markdown(found)
    assert len(comparison_csv(found).splitlines()) == 1 + len(found["rows"])
    told = json.loads(dumps(found))["rows"]
    assert [row["device"] for row in told] == [row["device"] for row in found["rows"]]


def test_a_free_machine_is_beaten_by_no_price(tmp_path: Path) -> None:
    machines = [{"gpu": "t4", "price": "free"}, {"gpu": "rtx-4090", "price": "0.50 USD/h"}]
    free, paid = payload(tmp_path, hardware=machines)["rows"]
    assert (free["device"], free["cost_usd"]["p50"]) == ("t4", 0)
    assert paid["flip_usd_per_hour"] is None
    assert free["flip_usd_per_hour"] > 0


def test_one_machine_alone_has_no_price_at_which_it_loses(tmp_path: Path) -> None:
    (row,) = payload(tmp_path, hardware=["rtx-4090"])["rows"]
    assert row["flip_usd_per_hour"] is None
    assert row["price_age_days"] >= 0
    assert f"{row['price_age_days']} d" in COMPARE_REPORT.text(
        payload(tmp_path, hardware="rtx-4090")
    )


def test_many_machines_fold_to_one_row_a_device_and_the_winners(tmp_path: Path) -> None:
    found = payload(tmp_path, Overrides(gpus=("all",), deadline="1h"))
    text = COMPARE_REPORT.text(found)
    assert "rows of other counts are left out" in " ".join(text.split())
    table = text[text.index("Machines") : text.index("wins below")]
    assert all(row["device"] in table for row in found["rows"])
    assert max(map(len, text.splitlines())) <= 80


def test_nothing_that_fits_is_said_plainly(tmp_path: Path) -> None:
    found = payload(
        tmp_path,
        model="meta-llama/Llama-2-70b-hf",
        method={"kind": "full"},
        hardware=["a100-80gb", "t4"],
    )
    assert (found["rows"], found["cheapest"], found["fastest"]) == ([], None, None)
    short, invalid = found["infeasible"]
    assert short["required_bytes"] > short["available_bytes"]
    assert (invalid["device"], invalid["required_bytes"]) == ("t4", None)
    assert invalid["reason"] == "full fine-tuning in fp16 needs base 32bit"
    assert "fits on none" in COMPARE_REPORT.text(found)


def test_an_evaluation_only_run_is_compared_too(tmp_path: Path) -> None:
    found = payload(tmp_path, train="none", evaluation={"rows": 500, "generate_tokens": 32})
    assert len(found["rows"]) == 2
    assert all(row["bound_by"] in {"evaluation", "startup"} for row in found["rows"])

from __future__ import annotations

import csv
import io
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from builders import equal_rows

from autotune.domain.answer.dataset import DatasetReport, Histogram
from autotune.evidence.validation.validate import (
    Coverage,
    Errors,
    GroupErrors,
    OomCounts,
    Validation,
)
from autotune.evidence.validation.verdicts import WrongVerdict
from autotune.report.layout.blocks import Column, Table, columns
from autotune.report.lists.catalogs import (
    LISTING_REPORT,
    Listing,
    devices_listing,
    listing_csv,
    listing_json,
    models_listing,
    runs_listing,
)
from autotune.report.lists.dataset import DATASET_REPORT, dataset_csv, dataset_payload
from autotune.report.lists.validation import VALIDATE_REPORT, validation_csv, validation_payload
from autotune.report.payload import dumps

if TYPE_CHECKING:
    from samples import Samples

ERRORS = Errors(n=40, median_ape=0.061, mape=0.082, p90_ape=0.17, bias=-0.013)
VALIDATION = Validation(
    rows=100, used=60, skipped={"an encoder": 40}, memory=ERRORS, memory_allocated=Errors(0),
    time=ERRORS, coverage={"p10_p90": 0.83},
    oom=OomCounts(
        8, 1, 32, 0, 2, ("row-17",), 0.125, 0.0, 0.05,
        (
            WrongVerdict("row-17", "false_fit", 0.93, 70e9, 80e9, None, "longer rows"),
            WrongVerdict("row-18", "at_risk", 0.81, 79e9, 80e9, None, "a full card"),
            WrongVerdict("row-19", "at_risk", 0.85, 78e9, 80e9, None, "a full card"),
        ),
    ),
    skipped_rows={"an encoder": ("row-1", "row-2", "row-3")},
    memory_coverage={"allocated, own_model": Coverage(20, 3, 0.85)},
    groups=(GroupErrors("lab/bench", "llama", "A100", "lora", ERRORS, Errors(0)),),
)  # fmt: skip


DATASET = DatasetReport(
    path="rows.jsonl", tokenizer="bytes", basis="counted", reason="", template="", files=1,
    rows_counted=10, max_length=100, rows=10, tokens=610, tokens_p10=610.0, tokens_p90=610.0,
    mean=61.0, p50=50.0, p95=100.0, maximum=100, longest_row=240, truncated_rows=2,
    truncated_tokens=180, batch_size=8, padding_waste=0.3, padding_waste_max_length=0.39,
    packing_gain=0.2, grouping_gain=0.1, quantiles=((0.0, 1.0), (0.5, 50.0), (1.0, 100.0)),
    histogram=Histogram({1: 1, 20: 1, 50: 6, 200: 1, 240: 1}),
    job_lines=(("data: {dataset: rows.jsonl}", "counts it"),), lengths=equal_rows(61),
)  # fmt: skip


@dataclass(frozen=True)
class FakeRun:
    path: Path = Path("runs/one")
    job_name: str = "one"
    created: str = "2026-11-21T02:03:04+00:00"
    answered: bool = True
    state: str = "answered"
    summary: str = "1x h100-sxm, 12.1 h, $30.27"


def test_devices_show_a_dash_where_a_dtype_is_not_native(samples: Samples) -> None:
    device = replace(samples.full.job.offers[0].device, bf16_flop_per_s=0.0)
    listing = devices_listing([device])
    assert LISTING_REPORT.text(listing).splitlines()[1].split()[-4:] == ["989", "-", "70%", "400"]
    assert json.loads(listing_json(listing))["devices"][0]["bf16_flop_per_s"] == 0.0


def test_json_and_csv_keep_base_units_and_every_column(samples: Samples) -> None:
    listing = devices_listing([samples.full.job.offers[0].device])
    row = json.loads(listing_json(listing))["devices"][0]
    assert row["memory_bandwidth_bytes_per_s"] == 2e12
    assert row["aliases"] == list(samples.full.job.offers[0].device.aliases)
    (line,) = csv.DictReader(io.StringIO(listing_csv(listing)))
    assert set(line) == set(row)
    assert float(line["tdp_w"]) == 400


def test_models_show_billions_of_parameters(samples: Samples) -> None:
    model = samples.full.job.model
    text = LISTING_REPORT.text(models_listing([model], {model.name: 8_030_261_248}))
    assert "8.03 B" in text


def test_an_empty_listing_says_what_to_do_and_is_still_json() -> None:
    listing = runs_listing([])
    assert "autotune tune JOB" in LISTING_REPORT.text(listing)
    assert json.loads(listing_json(listing)) == {"schema_version": 1, "runs": []}
    assert listing_csv(listing) == "run_dir,job,created,finished,state,answer\n"


def test_runs_are_listed_with_their_answers() -> None:
    assert "runs/one  1x h100-sxm, 12.1 h, $30.27" in LISTING_REPORT.text(runs_listing([FakeRun()]))


def test_columns_that_are_empty_in_every_row_are_left_out_of_text() -> None:
    columns = (Column("a", "first"), Column("b", "second"))
    rows = ({"a": "1", "b": None}, {"a": "2", "b": None})
    assert "second" not in LISTING_REPORT.text(Listing("things", columns, rows))
    assert "second" not in LISTING_REPORT.markdown(Listing("things", columns, rows))


def test_the_validation_payload_has_the_promised_keys() -> None:
    payload = json.loads(dumps(validation_payload(VALIDATION)))
    assert {
        "rows", "used", "skipped", "memory", "memory_allocated", "time", "oom", "coverage",
        "groups",
    } <= set(payload)  # fmt: skip
    assert {"n", "median_ape", "mape", "p90_ape", "bias"} <= set(payload["memory"])
    assert payload["memory_allocated"]["median_ape"] is None
    assert payload["oom"]["listed"] == ["row-17"]
    assert payload["oom"]["wrong"][1]["believed"] == "a full card"
    assert payload["skipped_rows"]["an encoder"] == ["row-1", "row-2", "row-3"]


def test_the_validation_table_shows_errors_misses_and_skips() -> None:
    payload = validation_payload(VALIDATION)
    text = " ".join(VALIDATE_REPORT.text(payload).split())
    assert "seconds a step 40 6.1% 8.2% 17.0% -1.3%" in text
    assert "of 8 runs that ran out of memory, 1 (12.5%) were said to fit" in text
    assert "row-17: said to fit, P(fits) 0.93: longer rows." in text
    assert "row-18, row-19: said to be at risk, P(fits) 0.81 to 0.85: a full card." in text
    assert "allocated, own model 20 3 85.0%" in text
    assert "40 an encoder row-1, row-2, .." in text
    assert "83.0%" in VALIDATE_REPORT.markdown(payload)
    (group,) = csv.DictReader(io.StringIO(validation_csv(payload)))
    assert (group["gpu"], group["memory.n"], group["time.mape"]) == ("A100", "40", "")


def test_every_row_of_a_data_set_is_in_one_bucket() -> None:
    payload = dataset_payload(DATASET)
    assert sum(bucket["rows"] for bucket in payload["histogram"]) == 10
    assert payload["histogram"][0] == {"from_tokens": 1, "to_tokens": 20, "rows": 2}
    ends = [bucket["to_tokens"] for bucket in payload["histogram"]]
    starts = [bucket["from_tokens"] for bucket in payload["histogram"]]
    assert [start - 1 for start in starts[1:]] == ends[:-1]
    assert len(dataset_csv(payload).splitlines()) == len(ends) + 1


@pytest.mark.parametrize("width", [80, 120])
def test_the_data_set_report_shows_truncation_and_padding(width: int) -> None:
    text = " ".join(DATASET_REPORT.text(dataset_payload(DATASET), width=width).split())
    assert "10 rows, 610 tokens an epoch" in text
    assert "2 rows are longer than 100 and lose 180 tokens; the longest has 240." in text
    assert "30% of a batch is padding" in text
    assert "data: {dataset: rows.jsonl}" in text


def test_a_data_set_report_says_that_it_is_an_estimate_of_a_sample_and_why() -> None:
    guessed = replace(
        DATASET, basis="estimated", reason="nobody named a tokenizer", rows_counted=5,
        tokens_p10=500.0, tokens_p90=745.0,
    )  # fmt: skip
    text = " ".join(DATASET_REPORT.text(dataset_payload(guessed)).split())
    assert "About 10 rows, 610 tokens an epoch (estimated from bytes: 500 to 745)" in text
    assert "No tokenizer counted them: nobody named a tokenizer." in text
    assert "5 of the rows were read" in text


@pytest.mark.parametrize(
    ("key", "value", "shown", "is_number"),
    [
        ("memory_bytes", 2**30, "1.0 GiB", True),
        ("duration_s", 7200.0, "2.0 h", True),
        ("cost_usd", 3.0, "$3.00", True),
        ("bandwidth_bytes_per_s", 5, "5", False),
        ("name", "h100", "h100", False),
        ("cost_usd", None, "", True),
    ],
)
def test_a_column_is_shown_by_the_unit_of_its_key(
    key: str, value: object, shown: str, is_number: bool
) -> None:
    column = Column(key, "title")
    assert column.cell({key: value}) == shown
    assert column.is_number == is_number


def test_a_column_that_is_marked_stands_on_the_right() -> None:
    table = Table(columns("machine", ">cost"), (("h100", "$1.00"),))
    assert (table.titles, table.right) == (("machine", "cost"), {1})

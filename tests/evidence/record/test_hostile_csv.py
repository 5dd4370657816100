from __future__ import annotations

import csv
import io
import json
from typing import TYPE_CHECKING

import pytest

from autotune.app.validate import run_validation
from autotune.evidence.record.table import SHIPPED_ROWS
from autotune.report.lists.validation import VALIDATE_REPORT, validation_payload

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.evidence.validation.validate import Validation

READING = "nvidia-smi used (mean over GPUs) {} MiB"


def good() -> dict[str, str]:
    with SHIPPED_ROWS.open(encoding="utf-8", newline="") as stream:
        return next(r for r in csv.DictReader(stream) if r["id"] == "fms-0033")


def written(folder: Path, rows: list[dict[str, str]], tail: str = "") -> Path:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(good()), lineterminator="\r\n")
    writer.writeheader()
    writer.writerows(rows)
    path = folder / "rows.csv"
    path.write_bytes(("\ufeff" + text.getvalue() + tail).encode())
    return path


def validated(folder: Path, **cells: str) -> Validation:
    return run_validation(written(folder, [good(), {**good(), "id": "odd", **cells}]))


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"peak_mem_gb": "-5"}, "peak_mem_gb is not a number above zero"),
        ({"peak_mem_gb": "26.7 GB"}, "peak_mem_gb is not a number above zero"),
        ({"peak_mem_gb": "inf"}, "peak_mem_gb is not a number above zero"),
        ({"peak_mem_gb": "26705"}, "peak_mem_gb is outside 0.01 to 10000"),
        ({"seq_len": "99999999999"}, "seq_len is outside 1 to 1e+07"),
        ({"seq_len": "9999999", "micro_batch": "99999", "global_batch": ""},
         "micro_batch times seq_len is no batch that a GPU can hold"),
        ({"n_gpus": "1.5"}, "n_gpus is not a whole number"),
        ({"oom": "maybe"}, "oom is not 1, 0, inferred or empty"),
        ({"oom": "1"}, "says that it ran out of memory and how fast it ran"),
        ({"micro_batch": "3", "global_batch": "8"}, "batch sizes contradict each other"),
    ],
)  # fmt: skip
def test_a_row_that_cannot_be_is_left_out_by_name(
    tmp_path: Path, cells: dict[str, str], reason: str
) -> None:
    found = validated(tmp_path, **cells)
    assert (found.rows, found.used) == (2, 1)
    assert found.skipped_rows == {reason: ("odd",)}
    assert "odd" in VALIDATE_REPORT.text(validation_payload(found), width=120)


@pytest.mark.parametrize(
    ("cells", "reason"),
    [
        ({"peak_mem_gb": "999"}, "memory: more than the GPU has"),
        ({"peak_mem_gb": "26,7"}, "memory: more than the GPU has"),
        ({"peak_mem_kind": "vibes"}, "memory: kind of reading not stated"),
        ({"notes": READING.format(100)}, "memory: the driver's reading contradicts the peak"),
        ({"notes": READING.format(10**20)}, "memory: the driver's reading contradicts the peak"),
    ],
)
def test_a_cell_that_cannot_be_is_left_out_and_the_rest_of_its_row_is_used(
    tmp_path: Path, cells: dict[str, str], reason: str
) -> None:
    found = validated(tmp_path, **cells)
    assert found.used == 2
    assert found.partial_rows[reason] == ("odd",)
    json.dumps(found.as_dict(), allow_nan=False)


def test_quoted_newlines_short_and_long_rows_and_equal_names_are_told_apart(
    tmp_path: Path,
) -> None:
    rows = [
        good(),
        {**good(), "notes": 'one\nline "two"\r\nthree', "micro_batch": "8", "grad_accum": "1"},
        {**good(), "id": ""},
    ]
    tail = "short,row\r\n" + ",".join(["x"] * (len(good()) + 5)) + "\r\n\r\n"
    found = run_validation(written(tmp_path, rows, tail))
    assert found.rows == 5
    names = {name for own in found.skipped_rows.values() for name in own}
    assert {"short", "x"} <= names
    assert found.used + sum(found.skipped.values()) == found.rows

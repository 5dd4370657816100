from __future__ import annotations

import csv
import json
from typing import TYPE_CHECKING

import pytest

from autotune.app.validate import run_validation
from autotune.evidence.record.table import SHIPPED_ROWS

if TYPE_CHECKING:
    from pathlib import Path

    from autotune.evidence.validation.validate import Validation


def test_the_shipped_rows_give_a_whole_table(validation: Validation) -> None:
    found = validation
    assert found.rows == found.used + sum(found.skipped.values())
    assert found.memory.n > 150
    assert found.time.n > 300
    assert found.memory_allocated.n <= found.memory.n
    assert found.oom.oom_rows > 50
    assert found.oom.false_fits + found.oom.false_ooms == len(found.oom.listed)
    assert "has not seen it" in found.basis
    assert found.sweeps.sweeps >= 3
    assert json.loads(json.dumps(found.as_dict()))["used"] == found.used


def test_a_users_own_table_is_compared_row_by_row(tmp_path: Path) -> None:
    with SHIPPED_ROWS.open(encoding="utf-8", newline="") as stream:
        row = next(csv.DictReader(stream))
    path = tmp_path / "rows.csv"
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(row))
        writer.writeheader()
        writer.writerows([row, {**row, "id": "b", "task": "vera"}])
    found = run_validation(path)
    assert (found.rows, found.used) == (2, 1)
    assert "no refit" in found.basis
    assert found.skipped == {"method vera": 1}
    (group,) = found.groups
    assert (group.source_repo, group.gpu) == (row["source_repo"], row["gpu"])
    assert group.memory.mape == pytest.approx(found.memory.mape)

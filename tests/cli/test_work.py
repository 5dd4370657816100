"""How much work an answer is, told without a clock: bills, files waited for, files parsed."""

from __future__ import annotations

import json
import os
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from autotune.cli.application import run
from autotune.cost.model import CostModel
from autotune.space import file as space_file

if TYPE_CHECKING:
    from collections.abc import Callable

JOB = str(Path(__file__).resolve().parents[2] / "jobs" / "h100_38h.yaml")
MOST_BILLS = 80  # its what-ifs, 10 readings of its measured time among them, two solved for
MOST_SYNCED = 20  # a file and its folder each, and all trials together


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What was done how often."""
    done: Counter[str] = Counter()

    def counted(owner: Any, name: str) -> None:
        real: Callable[..., Any] = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            done[name] += 1
            return real(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    space_file._of_shipped.cache_clear()
    counted(CostModel, "price")
    counted(os, "fsync")
    counted(space_file, "_read")
    return done


def test_an_answer_with_all_its_what_ifs_takes_few_bills_and_waits_for_few_files(
    work: Counter[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = str(tmp_path / "run")
    assert run(["tune", JOB, "--fidelity", "formula", "--quiet", "--run", folder]) in {0, 4}
    assert "h100-38h: run it on" in capsys.readouterr().out
    answer = json.loads((tmp_path / "run" / "recommendation.json").read_text(encoding="utf-8"))
    assert answer["journey"]["measured"], "its measured time is read"
    assert work["price"] <= MOST_BILLS
    assert work["fsync"] <= MOST_SYNCED
    # the default space, and for the limit that it misses the extended one
    assert work["_read"] == 2, "each space once"

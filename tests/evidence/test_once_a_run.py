"""What is dear is made by one worker of a run and read by the others: tests/shippedfits.py."""

from __future__ import annotations

import multiprocessing
import os
from typing import TYPE_CHECKING, Any

import pytest
from shippedfits import once_a_run

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="forks processes")


def ask(top: Path, worker: str) -> None:
    os.environ["PYTEST_XDIST_WORKER"] = worker

    def make() -> str:
        (top / f"made-by-{worker}").touch()
        return "made"

    assert once_a_run(top / worker, "it", make) == "made"


def test_of_workers_that_ask_at_once_one_makes_it(tmp_path: Path) -> None:
    context: Any = multiprocessing.get_context("fork")
    workers = [context.Process(target=ask, args=(tmp_path, f"gw{n}")) for n in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join()
    assert [each.exitcode for each in workers] == [0] * 4
    assert len(list(tmp_path.glob("made-by-*"))) == 1

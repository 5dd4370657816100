from __future__ import annotations

import json
import multiprocessing
import os
import random
import signal
import time
from typing import TYPE_CHECKING, Any

import pytest

from autotune.search.study.study import explore

if TYPE_CHECKING:
    from multiprocessing.connection import Connection
    from pathlib import Path

    from autotune.cost.bill import Bill
    from autotune.search.study.record import TrialRecord

TRIALS = 60
pytestmark = [
    pytest.mark.services,
    pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes"),
]


def search(bill: Bill, folder: Path, sampler: str, out: Connection) -> None:
    """Explore, and say every finished trial's number."""

    def tell(record: TrialRecord) -> None:
        out.send_bytes(json.dumps(record.number).encode())

    explore(bill, sampler=sampler, trials=TRIALS, run_dir=folder, resume=True, on_trial=tell)


def killed_run(
    bill: Bill, folder: Path, sampler: str, delay_s: float, *, late: bool
) -> list[int]:  # fmt: skip
    """Start a search, kill it after a while, and return the trials it said were finished.

    late: the while begins with its first finished trial, however slow the machine is.
    """
    context: Any = multiprocessing.get_context("fork")
    inside, outside = context.Pipe(duplex=False)
    process = context.Process(target=search, args=(bill, folder, sampler, outside))
    process.start()
    outside.close()
    if late:
        inside.poll(600.0)
    time.sleep(delay_s)
    os.kill(process.pid, signal.SIGKILL)
    process.join()
    heard = []
    try:
        while inside.poll():
            heard.append(int(inside.recv_bytes()))
    except (EOFError, OSError):
        pass
    inside.close()
    return heard


@pytest.mark.parametrize("sampler", ["calibrated", "tpe"])
def test_a_kill_at_any_point_loses_no_finished_trial(
    small_bill: Bill, tmp_path: Path, sampler: str
) -> None:
    chance = random.Random(11)  # noqa: S311 - where to kill
    finished: set[int] = set()
    record = tmp_path / "trials.jsonl"
    for number in range(10):
        delay_s, late = chance.uniform(0.0, 0.15), number % 3 == 0
        finished |= set(killed_run(small_bill, tmp_path, sampler, delay_s, late=late))
        content = record.read_bytes() if record.exists() else b""
        whole = content[: content.rfind(b"\n") + 1].splitlines()
        numbers = [json.loads(line)["number"] for line in whole]
        assert numbers == list(range(len(numbers)))
        assert finished <= set(numbers)
    assert finished, "some trials must have finished before a kill"
    done = explore(small_bill, sampler=sampler, trials=TRIALS, run_dir=tmp_path, resume=True)
    assert done.trials == TRIALS
    assert done.tried == explore(small_bill, sampler=sampler, trials=TRIALS).tried

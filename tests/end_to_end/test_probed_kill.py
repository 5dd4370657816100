"""A probed search that is really killed, with real worker processes, goes on as if nothing were."""

from __future__ import annotations

import multiprocessing
import os
import random
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from autotune.app.load_job import load_job
from autotune.app.probe_plan import ProbeOptions
from autotune.app.tune import Options, tune
from autotune.probe.record import PROBES_FILE, read_records

pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="kills forked processes")
for package in ("torch", "transformers", "peft"):
    pytest.importorskip(package)
ROOT = Path(__file__).parents[2]
FAKE = ROOT / "tests" / "probe" / "fake_worker.py"
PROBES = 5


def search(folder: Path, *, resume: bool) -> None:
    locks = {"precision": "fp32", "compile": "off", "attention": "sdpa"}
    job = load_job(ROOT / "jobs" / "tiny_cpu.yaml", set_values=locks)
    probing = ProbeOptions(probes=PROBES, worker=(str(FAKE), "machine"), reuse=False)
    options = Options(score="probe", run_dir=folder, probing=probing, resume=resume)
    tune(job, options)


def sequence(folder: Path) -> list[tuple[str, str]]:
    return [(record.key, record.role) for record in read_records(folder / PROBES_FILE)]


@pytest.mark.slow
def test_kill_9_in_the_middle_of_probes_changes_no_proposal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    search(tmp_path / "straight", resume=False)
    folder, chance = tmp_path / "killed", random.Random(3)  # noqa: S311 - when to kill
    context: Any = multiprocessing.get_context("fork")
    kills, finished = 0, False
    while not finished and kills < 6:
        began = (folder / "job.json").exists()
        process = context.Process(target=search, args=(folder,), kwargs={"resume": began})
        process.start()
        before = len(sequence(folder))
        deadline = time.monotonic() + 60.0
        while process.is_alive() and time.monotonic() < deadline:
            if len(sequence(folder)) > before:
                time.sleep(chance.uniform(0.0, 0.15))
                break
            time.sleep(0.005)
        finished = not process.is_alive()
        if not finished:
            os.kill(process.pid, signal.SIGKILL)
            kills += 1
        process.join()
    assert kills >= 2
    search(folder, resume=True)
    assert sequence(folder) == sequence(tmp_path / "straight")

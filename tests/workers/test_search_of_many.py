"""`tune --score probe --workers N` on a machine that answers from a formula."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from simulatedmachine import TINY, Machine, options_of, step_of

from autotune.app.job.load import load_job
from autotune.app.probing.ground import Ground
from autotune.app.probing.plan import ProbeOptions
from autotune.app.workers.lead import Question, probe_by_workers
from autotune.app.workers.local import LocalExecutor
from autotune.probe import device as devices
from autotune.pricing import Pricing
from autotune.space.enumerate import enumerate_candidates
from autotune.space.file import load_space
from autotune.app.probing.ground import local_bill

if TYPE_CHECKING:
    from autotune.app.probing.probe import Probed
    from autotune.app.workers.executor import WorkerJob, WorkerState

HANDS = Path(__file__).with_name("hands.py")


@dataclass
class FakeHands:
    """The processes of this machine, with workers that measure nothing."""

    inner: LocalExecutor = field(default_factory=LocalExecutor)

    def start(self, job: WorkerJob, name: str) -> None:
        url = job.environment.get("AUTOTUNE_STORAGE", "")
        words = (sys.executable, str(HANDS), str(job.folder), url, job.folder.name)
        self.inner.start(replace(job, argv=words), name)

    def states(self) -> list[WorkerState]:
        return self.inner.states()

    def stop(self) -> None:
        self.inner.stop()


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))


def ground() -> Ground:
    job = load_job(TINY, set_values={"compile": "off"})
    space = load_space(None)
    candidates = enumerate_candidates(job, space).candidates
    calibration = Pricing.learned(job).calibration
    bill = local_bill(job, candidates, space, calibration, job.offers)
    return Ground(job, space, calibration, job.offers[0], job.offers, True, bill)


def search(folder: Path, **changes: object) -> Probed:
    asked = Question("cost", "calibrated", 0, folder, None, "job", False)
    options = replace(options_of(Machine()), workers=2)
    return probe_by_workers(
        ground(), devices.cpu(), options, asked, print, FakeHands()
    )


def test_two_workers_find_what_one_finds(tmp_path: Path) -> None:
    found = search(tmp_path / "run")
    best = min(step_of(c) for i in range(len(found.bill)) for c in [found.bill.candidates.config(i).as_dict()])
    assert found.explored.pick is not None
    print(found.stopped_because, [r.role for r in found.records])
    assert step_of(found.bill.candidates.config(found.explored.pick).as_dict()) <= best * 1.05
    assert found.explored.pick in found.explored.confirmed

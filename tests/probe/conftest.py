"""A runner around a worker that misbehaves on purpose, and small jobs."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from builders import BRIEF

from autotune.app.job.load import load_job
from autotune.domain.config import Config
from autotune.probe.device import cpu
from autotune.probe.request import Effort, request_for
from autotune.probe.runner import Place, Runner

if TYPE_CHECKING:
    from collections.abc import Callable

    from autotune.domain.device import Offer
    from autotune.domain.job import Job
    from autotune.probe.record import ProbeRecord

sys.path.insert(0, str(Path(__file__).parent))  # importlib mode does not: fakenvml lives here
ROOT = Path(__file__).parents[2]
FAKE = Path(__file__).with_name("fake_worker.py")
QUICK = Effort(**BRIEF, most=10, measured=4, least=2, seconds=2.0, patience_s=6.0)


@pytest.fixture(autouse=True)
def _own_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AUTOTUNE_RUNS", str(tmp_path / "runs"))
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # two cores are shared with other tests


@pytest.fixture(scope="session")
def job() -> Job:
    return load_job(ROOT / "jobs" / "tiny_cpu.yaml", set_values={"precision": "fp32"})


@pytest.fixture(scope="session")
def offer(job: Job) -> Offer:
    return job.offers[0]


@pytest.fixture(scope="session")
def config() -> Config:
    return Config(
        micro_batch_size=4, gradient_accumulation_steps=2, checkpoint_every_steps=50,
        precision="fp32", pin_memory=False,
    )  # fmt: skip


@pytest.fixture
def request_body(job: Job, offer: Offer, config: Config) -> dict[str, Any]:
    return request_for(job, offer, config, effort=QUICK)


@pytest.fixture
def run_fake(
    tmp_path: Path, request_body: dict[str, Any], config: Config
) -> Callable[..., ProbeRecord]:
    def run(
        mode: str, *, timeout_s: float = 300.0, count: int = 1, **predicted: float
    ) -> ProbeRecord:
        place = Place(cpu(), tmp_path / "probing", timeout_s, (str(FAKE), mode), sys.executable)
        request = {**request_body, "count": count}
        return Runner(place).run(request, config.as_dict(), predicted=predicted)

    return run

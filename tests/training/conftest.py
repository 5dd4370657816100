"""`fake`: a device and a Trainer without torch. `tuned`: a run folder with a plan."""

from __future__ import annotations

import importlib.util
import os
import shutil
from pathlib import Path
from typing import Any

import pytest

from autotune.app.job.load import load_job
from autotune.app.tune.tune import Options, tune

JOB = Path(__file__).parents[2] / "jobs" / "a100_llama7b_int8.yaml"


@pytest.fixture(scope="session")
def fake() -> Any:
    """tests/training/fake.py as a module."""
    path = Path(__file__).with_name("fake.py")
    spec = importlib.util.spec_from_file_location("fake_training", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="session")
def tuned_once(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The run folder of case A, tuned without any verified run."""
    top = tmp_path_factory.mktemp("planned")
    before = os.environ.get("AUTOTUNE_HOME")
    os.environ["AUTOTUNE_HOME"] = str(top / "home")
    try:
        tune(load_job(JOB), Options(fidelity="formula", trials=5, run_dir=top / "run"))
    finally:
        os.environ.pop("AUTOTUNE_HOME")
        if before is not None:
            os.environ["AUTOTUNE_HOME"] = before
    return top / "run"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("AUTOTUNE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("AUTOTUNE_RUNS", str(tmp_path / "runs"))
    return tmp_path / "home"


@pytest.fixture
def tuned(tuned_once: Path, tmp_path: Path) -> Path:
    """A copy of that folder, to write into."""
    return Path(shutil.copytree(tuned_once, tmp_path / "runs" / "planned"))
